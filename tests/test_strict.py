"""A mapping becomes the dataclass that was asked for, or the error says what is wrong and where."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from sonant import strict


class Refused(Exception):
    pass


@dataclass(frozen=True)
class Inner:
    width: int
    ratio: float = 1.0


@dataclass(frozen=True)
class Outer:
    count: int = 1
    share: float = 0.5
    name: str = "x"
    on: bool = False
    folder: Path = Path()
    mode: Literal["fast", "slow"] = "fast"
    level: Literal[1, 2] = 1
    sizes: tuple[int, ...] = ()
    pair: tuple[int, str] = (0, "")
    words: list[str] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)
    either: dict[str, str | bool] = field(default_factory=dict)
    inner: Inner | None = None
    anything: Any = None


def build(**raw: object) -> Outer:
    return strict.build(Outer, raw, "file.json", error=Refused)


def test_values_become_what_the_hints_say() -> None:
    built = build(
        count=3, share=2, folder="a/b", mode="slow", sizes=[1, 2], pair=[1, "a"], words=["w"], ids={"a": 1},
        either={"a": "b", "c": False}, inner={"width": 4}, anything={"x": [None]},
    )  # fmt: skip
    assert built.share == 2.0 and isinstance(built.share, float)
    assert built.folder == Path("a/b") and built.sizes == (1, 2) and built.pair == (1, "a")
    assert built.inner == Inner(4) and built.either == {"a": "b", "c": False} and built.anything == {"x": [None]}
    assert build(folder=Path("c"), inner=None).folder == Path("c")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("count", True, "file.json: count must be a whole number, not True"),
        ("count", 1.0, "file.json: count must be a whole number, not 1.0"),
        ("count", "1", "file.json: count must be a whole number, not '1'"),
        ("count", None, "file.json: count must be a whole number, not None"),
        ("share", True, "file.json: share must be a number, not True"),
        ("share", float("nan"), "file.json: share must be a number, not nan"),
        ("share", float("-inf"), "file.json: share must be a number, not -inf"),
        ("share", 10**400, "file.json: share must be a number, not 1000"),
        ("name", 1, "file.json: name must be text, not 1"),
        ("on", 1, "file.json: on must be true or false, not 1"),
        ("folder", 1, "file.json: folder must be a path, not 1"),
        ("mode", "medium", "file.json: mode must be one of fast, slow, not 'medium'"),
        ("level", True, "file.json: level must be one of 1, 2, not True"),
        ("sizes", 1, "file.json: sizes must be a list, not 1"),
        ("sizes", [1, "2"], "file.json: sizes must be a whole number, not '2'"),
        ("pair", [1], "file.json: pair must be a list of 2, not [1]"),
        ("words", "w", "file.json: words must be a list, not 'w'"),
        ("ids", [1], "file.json: ids must hold keys and values, not [1]"),
        ("ids", {"a": True}, "file.json: ids: a must be a whole number, not True"),
        ("ids", {1: 1}, "file.json: ids: the key must be text, not 1"),
        ("either", {"a": 1}, "file.json: either: a must be text or true or false, not 1"),
        ("inner", 3, "file.json: inner must hold keys and values, not 3"),
        ("inner", {}, "file.json: inner lacks 'width'"),
        ("inner", {"width": "a"}, "file.json: inner: width must be a whole number, not 'a'"),
        ("inner", {"widht": 1}, "file.json: inner: no key is called 'widht'; did you mean width?"),
        ("inner", {"zz": 1}, "file.json: inner: no key is called 'zz'; it may hold ratio, width"),
    ],
)
def test_a_wrong_value_is_told_with_its_place(key: str, value: object, message: str) -> None:
    with pytest.raises(Refused) as caught:
        build(**{key: value})
    assert str(caught.value).startswith(message)


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(Refused, match=r"file\.json must hold keys and values"):
        strict.build(Inner, [1], "file.json", error=Refused)


def test_published_files_may_hold_more_and_null_is_no_key() -> None:
    raw = {"inner": {"width": 2, "ratio": None, "more": 1}, "count": None, "more": {}}
    assert strict.build(Outer, raw, "f", error=Refused, lenient=True) == Outer(inner=Inner(2))
    with pytest.raises(Refused, match="f lacks 'width'"):
        strict.build(Inner, {"width": None}, "f", error=Refused, lenient=True)
    with pytest.raises(Refused, match="f: width must be a whole number"):
        strict.build(Inner, {"width": "2"}, "f", error=Refused, lenient=True)


def test_a_class_that_no_file_can_fill_is_the_programmers_mistake() -> None:
    with pytest.raises(TypeError, match="no dataclass"):
        strict.build(int, {}, "f")
