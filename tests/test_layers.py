"""Imports point one way: cli → serving, bench, profiling → engine → models → layers → kernels.

The hub stands beside the engine and imports only models.
The public front, `sonant` itself, lies between the engine and the layers above it.
Every layer may import the leaves, which import only each other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
LEAVES = {
    *("audio", "byte_size", "collector", "config", "cores", "device_copy", "errors", "exit_codes", "histogram"),
    *("sampling", "strict", "text", "text_table", "types", "voice", "voice_cache"),
}
FRONT = {"__init__", "bundled", "loading"}  # the public names, gathered from below
# What each layer may import beside the leaves and itself.
BELOW: dict[str, set[str]] = {
    "kernels": set(),
    "layers": {"kernels"},
    "models": {"layers", "kernels"},
    "engine": {"models", "layers", "kernels"},
    "hub": {"models"},  # where checkpoints come from; the families say which files are theirs
}
BELOW |= {name: set(BELOW) for name in FRONT}
BELOW |= {name: set(BELOW) for name in ("serving", "bench", "profiling")}
BELOW |= {name: set(BELOW) for name in ("cli", "__main__")}  # a command is a thin front to those


def part_of(module: str) -> str:
    """The layer or leaf of a module; "sonant" itself, and any public name in it, belongs to the front."""
    part = [*module.split("."), "__init__"][1]
    return part if part in LEAVES | BELOW.keys() else "__init__"


def module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, source: Path) -> Iterator[tuple[str, int]]:
    """Every module of ours that a file imports, in functions and under TYPE_CHECKING too, with its line."""
    package = module_name(path, source).split(".")
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            # In "from sonant import engine" only the imported name tells the module.
            names = [f"{start}.{a.name}" for a in node.names] if start == "sonant" else [start]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "sonant":
                yield name, node.lineno


def forbidden(source: Path) -> list[str]:
    found = []
    for path in sorted((source / "sonant").rglob("*.py")):
        mine = part_of(module_name(path, source))
        allowed = LEAVES | {mine} | BELOW.get(mine, set()) | (FRONT if mine in FRONT else set())
        for target, line in imports(path, source):
            if part_of(target) not in allowed:
                found.append(f"{path.relative_to(source)}:{line} imports {target}")
    return found


def test_every_part_has_its_place_in_the_layers() -> None:
    package = SOURCE / "sonant"
    parts = {p.relative_to(package).parts[0].removesuffix(".py") for p in package.rglob("*.py")}
    assert parts <= LEAVES | BELOW.keys()


def test_imports_point_one_way() -> None:
    assert forbidden(SOURCE) == []


@pytest.mark.parametrize(
    "statement",
    [
        "from sonant.engine.engine import Engine",
        "import sonant.engine.engine",
        "from sonant import engine",
        "from ..engine import engine",
        "from .. import engine",
        "def f():\n    from sonant.cli import main",
        "from sonant import load",  # a circle, since the front imports the engine
    ],
)
def test_an_import_against_the_layers_is_found(tmp_path: Path, statement: str) -> None:
    (tmp_path / "sonant" / "models").mkdir(parents=True)
    (tmp_path / "sonant" / "models" / "wrong.py").write_text(statement)
    assert len(forbidden(tmp_path)) == 1


def test_imports_along_the_layers_are_fine(tmp_path: Path) -> None:
    (tmp_path / "sonant" / "models" / "family").mkdir(parents=True)
    good = "import torch\nfrom sonant.kernels import ops\nfrom ..weights import load\nfrom sonant import types\n"
    (tmp_path / "sonant" / "models" / "family" / "right.py").write_text(good)
    assert forbidden(tmp_path) == []
