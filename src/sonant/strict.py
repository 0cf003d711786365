"""Turns a mapping that people or other programs wrote (JSON, TOML, options) into a frozen dataclass, or refuses it.

Files are read by the type hints of the class they fill, so that a wrong value is reported with its place when it is
read, not as a strange failure hours later. The caller names the error class, because the same mistake is a
checkpoint's in one file and an operator's in another.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_LISTED = 12  # names in a message; more would help nobody
_NAMES: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    Path: "a path",
    NoneType: "nothing",
}


def build(into: type[T], raw: object, where: str, *, error: type[Exception] = ValueError, lenient: bool = False) -> T:
    """The dataclass `into` from the keys of `raw`; `where` is the file, or the place in it, for messages.

    `lenient` is for files that others publish: keys that `into` lacks are ignored, and null is the same as no key, at
    every depth.
    """
    if not is_dataclass(into):
        raise TypeError(f"{into} is no dataclass")
    if not isinstance(raw, Mapping):
        raise error(f"{where} must hold keys and values, not {raw!r}")
    hints = get_type_hints(into)
    known = {f.name: f for f in fields(into) if f.init}
    if not lenient:
        refuse_unknown(raw, known, where, error)
    values: dict[str, Any] = {}
    for name, f in known.items():
        absent = name not in raw or (lenient and raw[name] is None)
        if not absent:
            values[name] = convert(hints[name], raw[name], f"{where}: {name}", error=error, lenient=lenient)
        elif f.default is MISSING and f.default_factory is MISSING:
            raise error(f"{where} lacks {name!r}")
    return into(**values)


def convert(kind: Any, value: object, where: str, *, error: type[Exception] = ValueError, lenient: bool = False) -> Any:
    """`value` in the type of the hint `kind`: lists become tuples, whole numbers floats, text a path."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any or kind is object:
        return value
    if origin in (Union, UnionType):
        return _convert_union(kind, value, where, error, lenient)
    if origin is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in arguments):
            raise error(f"{where} must be one of {', '.join(map(str, arguments))}, not {value!r}")
        return value
    if origin in (tuple, list):
        return origin(_convert_items(kind, value, where, error, lenient))
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise error(f"{where} must hold keys and values, not {value!r}")
        of_key, of_value = arguments
        return {
            convert(of_key, k, f"{where}: the key", error=error): convert(
                of_value, v, f"{where}: {k}", error=error, lenient=lenient
            )
            for k, v in value.items()
        }
    if is_dataclass(kind) and isinstance(kind, type):
        return build(kind, value, where, error=error, lenient=lenient)
    if not _fits(kind, value):
        raise error(f"{where} must be {named(kind)}, not {value!r}")
    return None if kind is NoneType else kind(value)


def named(kind: Any) -> str:
    """What a value of the type is called in a message."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(named(k) for k in get_args(kind))
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) in (tuple, list):
        return "a list"
    return _NAMES.get(kind, "keys and values")


def refuse_unknown(
    given: Iterable[str], known: Iterable[str], where: str, error: type[Exception], noun: str = "key"
) -> None:
    names = list(known)
    for name in given:
        if name not in names:
            hint = did_you_mean(name, names)
            if not hint and len(names) <= _LISTED:
                hint = f"; it may hold {', '.join(sorted(names))}"
            raise error(f"{where}: no {noun} is called {name!r}{hint}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest known name as the end of a message, or nothing if none is near."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""


def _convert_items(kind: Any, value: object, where: str, error: type[Exception], lenient: bool) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise error(f"{where} must be a list, not {value!r}")
    kinds = get_args(kind)
    if get_origin(kind) is list or kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise error(f"{where} must be a list of {len(kinds)}, not {value!r}")
    return [convert(k, v, where, error=error, lenient=lenient) for k, v in zip(kinds, value, strict=True)]


def _convert_union(kind: Any, value: object, where: str, error: type[Exception], lenient: bool) -> Any:
    choices = get_args(kind)
    if value is None and NoneType in choices:
        return None
    others = [choice for choice in choices if choice is not NoneType]
    if len(others) == 1:
        return convert(others[0], value, where, error=error, lenient=lenient)
    for choice in others:
        if _fits(choice, value):  # of several, only plain types can be told apart by a value
            return value
    raise error(f"{where} must be {named(kind)}, not {value!r}")


def _fits(kind: Any, value: object) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is Path:
        return isinstance(value, str | Path)
    if not isinstance(kind, type):
        raise TypeError(f"{kind} is a type hint that no file can be read by")
    return isinstance(value, kind)
