"""A command loads only what it needs: help and version load no torch, speech no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import sonant
from sonant.cli.commands import Command
from sonant.cli.main import COMMANDS

Folders = Mapping[str, Path]
Run = Callable[..., Any]  # returns the Outcome of conftest.py

RUN = """
import sys
from sonant.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as e:
    assert not e.code
finally:
    print(*sys.modules, file=sys.stderr)
"""
# Stands for the import of torch when Ctrl-C is pressed: an exception in it is lost.
INTERRUPT = """
import importlib.abc, importlib.util, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a runner in the background hears none
class Torch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_loader(name, self) if name == "torch" else None
    def exec_module(self, module):
        sys.meta_path.remove(self)
        del sys.modules["torch"]
        for _ in range(int(sys.argv[1])):
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                pass
        sys.modules["torch"] = importlib.import_module("torch")
sys.meta_path.insert(0, Torch())
from sonant.cli.main import main
sys.exit(main(sys.argv[2:]))
"""
LOAD = """
import sys
from pathlib import Path
import torch
from sonant.config import EngineConfig
from sonant.models.registry import load_model
for folder in sys.argv[1:]:
    load_model(Path(folder), EngineConfig(), torch.device("cpu"), torch.float32, torch.float32)
print(*sys.modules, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def bare_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sonant with an empty __init__, so that what is imported is the command's doing, not that of `import sonant`."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "sonant").mkdir()
    for path in Path(sonant.__file__).parent.iterdir():
        if path.name not in ("__init__.py", "__pycache__"):
            (folder / "sonant" / path.name).symlink_to(path)
    (folder / "sonant" / "__init__.py").write_text("")
    return folder


def modules_after(package: Path, script: str, *args: str | Path) -> tuple[set[str], str]:
    """Return which modules a fresh process has imported when it ends, and what it printed."""
    environment = os.environ | {"PYTHONPATH": str(package)}
    command = [sys.executable, "-c", script, *map(str, args)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split()), done.stdout


@pytest.mark.parametrize("line", ["--version", "--help", "serve --help", "bench --help", "profile --help"])
def test_asking_costs_neither_torch_nor_numpy(bare_package: Path, line: str) -> None:
    found, shown = modules_after(bare_package, RUN, *line.split())
    assert shown
    assert found.isdisjoint({"torch", "numpy", "fastapi", "uvicorn"})
    # Of our own commands it imports the one that was asked for, and none of the others.
    ours = {f"sonant.cli.{name}" for name in ("say", "doctor", "voices", "bench.offline", "profile.run")}
    assert found.isdisjoint(ours)


def test_bad_text_is_refused_without_torch(bare_package: Path) -> None:
    found, _ = modules_after(bare_package, RUN, "say", "", "--model", "nowhere")
    assert "sonant.cli.say" in found and "torch" not in found


@pytest.mark.parametrize(
    ("line", "presses"),
    [
        ("bench serve --base-url x", 1),
        ("bench serve --base-url x", 2),
        ("say Hello. -o a.wav --device cpu", 1),
        ("serve --workers 0", 1),
    ],
)
def test_ctrl_c_is_heard_while_torch_is_imported(tmp_path: Path, line: str, presses: int) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(sonant.__file__).parents[1])}
    command = [sys.executable, "-c", INTERRUPT, str(presses), *line.split()]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 130 and "sonant: interrupted\n" in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_no_model_brings_in_torchs_compiler(
    bare_package: Path, tiny_checkpoints: Folders, tiny_higgs: Path, tiny_voxcpm2: Path
) -> None:
    found, _ = modules_after(bare_package, LOAD, tiny_checkpoints["base"], tiny_higgs, tiny_voxcpm2)
    assert "torch" in found
    assert found.isdisjoint({"torch._dynamo", "sympy"})


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_help_is_shown_in_every_encoding(encoding: str) -> None:
    command = [sys.executable, "-m", "sonant.cli.main", "serve", "--help"]
    environment = os.environ | {"PYTHONPATH": str(Path(sonant.__file__).parents[1]), "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"usage: sonant serve ")


def test_streams_may_be_closed() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(sonant.__file__).parents[1])}
    command = f"{sys.executable} -m sonant.cli.main"
    closed = {f"{command} say - <&-": 2, f"{command} --version >&-": 0, f"{command} say '' 2>&-": 2}
    for line, code in closed.items():
        done = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (code, "") and "Traceback" not in done.stderr, line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_no_room_for_what_is_printed_is_told_in_one_line() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(sonant.__file__).parents[1])}
    command = [sys.executable, "-m", "sonant.cli.main", "voices"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (2, "sonant: no space left to write the output\n")


def every_command(commands: tuple[Command, ...] = COMMANDS, *before: str) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for command in commands:
        words = (*before, command.name)
        inner = getattr(import_module(command.module), "COMMANDS", None)
        found += [words, *every_command(inner, *words)] if inner else [words]
    return found


def test_the_help_is_complete(run: Run) -> None:
    shown = " ".join(run("--help").out.decode().split())
    for command in COMMANDS:
        assert f"{command.name} {command.summary}" in shown
    for words in every_command():
        done = run(*words, "--help")
        told = done.out.decode()
        assert done.code == 0 and told.startswith(f"usage: sonant {' '.join(words)} ")
        assert "examples:\n  sonant " in told or "examples:\n  echo " in told
