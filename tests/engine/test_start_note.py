"""The previous start leaves a note that kernels are compiled, which is read before torch is imported; and when the note
does not count."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sonant.config import EngineConfig
from sonant.engine import compiler as compilers
from sonant.engine.compile_ahead import CompileAhead, CompileJob
from sonant.engine.compiler import Compiler, compiler_for
from sonant.engine.start_note import StartNote

CONFIG = EngineConfig()


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def stamp(tmp_path: Path) -> Path:
    path = tmp_path / "stamp.json"
    path.write_text("[]")
    return path


def note_of(model: Path, config: EngineConfig = CONFIG, device: str = "auto") -> StartNote:
    return StartNote.of(model, config, device, "auto", "auto")


def test_the_next_start_of_the_same_model_is_promised_its_kernels(model: Path, stamp: Path) -> None:
    assert not note_of(model).promises()
    note_of(model).leave(str(stamp))
    assert note_of(model).promises()


def test_another_engine_is_promised_nothing(model: Path, stamp: Path) -> None:
    note_of(model).leave(str(stamp))
    assert not note_of(model, EngineConfig(max_rows=3)).promises()
    assert not note_of(model, device="cuda:1").promises()


def test_nor_is_the_same_when_its_files_or_its_kernels_have_changed(model: Path, stamp: Path) -> None:
    note_of(model).leave(str(stamp))
    (model / "config.json").write_text('{"layers": 2}')
    assert not note_of(model).promises()
    note_of(model).leave(str(stamp))
    assert note_of(model).promises()
    stamp.unlink()
    assert not note_of(model).promises()


@pytest.mark.parametrize("text", ["", "{", "7", "{}", '{"facts": 1, "stamp": 2}'])
def test_a_broken_note_promises_nothing_and_is_replaced(text: str, model: Path, stamp: Path) -> None:
    note = note_of(model)
    note.path.parent.mkdir(parents=True)
    note.path.write_text(text)
    assert not note.promises()
    note.leave(str(stamp))
    assert note.promises() and len(list(note.path.parent.iterdir())) == 1


def test_a_cache_that_cannot_be_written_ends_no_start(
    model: Path, stamp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    note_of(model).leave(str(stamp))
    assert not note_of(model).promises()


def test_a_checkpoint_with_a_link_to_nowhere_is_no_error_here(model: Path) -> None:
    (model / "weights").symlink_to("nowhere")
    assert not note_of(model).promises()


def test_no_compiler_is_started_where_a_note_promises_all(
    model: Path, stamp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilers, "has_gpu", lambda: True)
    monkeypatch.setattr(compilers, "Compiler", lambda: "one")
    assert compiler_for("auto", None, note_of(model)) == "one"
    note_of(model).leave(str(stamp))
    assert compiler_for("auto", None, note_of(model)) is None


def test_it_is_left_when_all_is_compiled_and_only_then(model: Path, stamp: Path) -> None:
    job = CompileJob("nowhere", {}, "bfloat16", "bfloat16", {}, 1, str(stamp))
    for code, promised in ((3, False), (0, True)):
        compiler = Compiler((sys.executable, "-c", f"import sys; sys.stdin.read(); sys.exit({code})"))
        ahead = CompileAhead(job, compiler, note_of(model))
        ahead.wait_for_all()
        assert note_of(model).promises() is promised


def test_it_is_read_without_torch(model: Path, tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path; from sonant.config import EngineConfig\n"
        "from sonant.engine.start_note import StartNote\n"
        f"print(StartNote.of(Path({str(model)!r}), EngineConfig(), 'auto').promises())"
    )
    done = subprocess.run([sys.executable, "-c", script], env=os.environ, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr
