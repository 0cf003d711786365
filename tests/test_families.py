"""A family is a folder and a line in the registry: nothing else in the package names one."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from sonant.models.base import SpeechModel
from sonant.models.prompt import Prompter
from sonant.models.registry import FAMILIES
from sonant.models.spec import ModelSpec

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "sonant"
GUIDE = (ROOT / "docs" / "adding_a_model.md").read_text(encoding="utf-8")
TEXTS = (".py", ".js", ".html", ".css", ".json")
REGISTRY = Path("models/registry.py")
# Where families are named rightly: the files of a voice, and the registry.
ELSEWHERE = (Path("voices"), REGISTRY)


def mentions(source: Path, words: list[str]) -> list[str]:
    """Places outside the families and the registry that name one of them, by package or by title."""
    pattern = re.compile("|".join(map(re.escape, words)), re.IGNORECASE)
    homes = [Path("models") / family.rsplit(".", 1)[-1] for family in FAMILIES]
    found = []
    for path in sorted(p for p in source.rglob("*") if p.suffix in TEXTS):
        place = path.relative_to(source)
        if any(place.is_relative_to(home) for home in (*homes, *ELSEWHERE)):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{place}:{number}: {line.strip()}")
    return found


def names() -> list[str]:
    """Each family's package, its title, and the title's first word, which people use as its name."""
    titles = [importlib.import_module(family).TITLE for family in FAMILIES]
    first_words = [re.split(r"[\W\d]", title)[0] for title in titles]
    return [*(family.rsplit(".", 1)[-1] for family in FAMILIES), *titles, *first_words]


def test_nothing_outside_a_family_and_the_registry_names_it() -> None:
    assert mentions(SOURCE, names()) == []


@pytest.mark.parametrize("line", ["from sonant.models.qwen3_tts.model import x", "# as Qwen does", '"Qwen3-TTS"'])
def test_a_mention_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "loop.py").write_text(f"\n{line}\n")
    (tmp_path / "models" / "qwen3_tts").mkdir(parents=True)
    (tmp_path / "models" / "qwen3_tts" / "model.py").write_text(line)
    assert [m.split(":")[:2] for m in mentions(tmp_path, names())] == [["engine/loop.py", "2"]]


@pytest.mark.parametrize("contract", [SpeechModel, Prompter], ids=lambda contract: contract.__name__)
def test_the_guide_tells_all_that_is_asked_of_a_family(contract: type) -> None:
    asked = [*contract.__annotations__, *(name for name, part in vars(contract).items() if inspect.isfunction(part))]
    assert [n for n in asked if not n.startswith("_") and not re.search(rf"`{n}[`(]", GUIDE)] == []


def test_the_guide_tells_all_that_a_family_declares() -> None:
    assert [f.name for f in fields(ModelSpec) if f"`{f.name}`" not in GUIDE] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_the_guide_tells_how_a_family_is_loaded(family: str) -> None:
    load = importlib.import_module(f"{family}.load").load
    told = re.search(r"`load\(([^)]*)\)`", GUIDE)
    assert told is not None and len(told[1].split(", ")) == len(inspect.signature(load).parameters)
