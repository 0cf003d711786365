"""A piece of a run begins where it is told to, or where the last one stopped, or anew."""

from __future__ import annotations

import argparse
import json
import logging
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from training.curves import Curves

from training import piece, state

LOG = logging.getLogger("piece")


@dataclass
class Stub:
    step_number: int = 0
    minutes: float = 0.0


def load(run: Stub, folder: Path) -> None:
    meta = state.read(folder, "stub")[1]
    run.step_number, run.minutes = meta["step_number"], meta["minutes"]


def begin(tmp_path: Path, *words: str) -> Stub:
    parser = argparse.ArgumentParser()
    piece.add_arguments(parser, resumes_from="checkpoint", minutes_of="loading")
    options = parser.parse_args(["--state", str(tmp_path / "state"), "--out", str(tmp_path / "out"), *words])
    run = Stub()
    piece.resume(run, load, options, "stub", LOG)
    return run


def keep(folder: Path, step_number: int) -> str:
    meta = {"step_number": step_number, "minutes": 4.0}
    state.write(folder, "stub", {"weight": torch.zeros(1)}, meta)
    return str(folder)


def test_a_piece_goes_on_from_its_state_or_from_what_it_is_given(tmp_path: Path) -> None:
    assert begin(tmp_path) == Stub()
    keep(tmp_path / "state", 7)
    assert begin(tmp_path) == Stub(7, 4.0)
    kept = keep(tmp_path / "kept", 9)
    assert begin(tmp_path, "--resume", kept) == Stub(9, 4.0)
    assert begin(tmp_path, "--resume", kept, "--again") == Stub(9, 0.0)


def test_a_folder_without_a_state_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no stub-\*\.safetensors: give the folder"):
        begin(tmp_path, "--resume", str(tmp_path))


def keep_much(folder: Path, step_number: int, files: int) -> None:
    tensors = {f"weight{n}": torch.full((4,), float(step_number)) for n in range(files)}
    state.write(folder, "stub", tensors, {"step_number": step_number, "minutes": 4.0})


def test_a_save_that_fails_leaves_the_state_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "SHARD_BYTES", 16)
    keep_much(tmp_path, 7, files=3)
    save_file, saved = state.save_file, []

    def full_disk(data: dict[str, torch.Tensor], path: Path, meta: dict[str, str]) -> None:
        if saved:
            raise OSError(28, "No space left on device")
        saved.append(path)
        save_file(data, path, meta)

    with monkeypatch.context() as broken, pytest.raises(OSError, match="No space"):
        broken.setattr(state, "save_file", full_disk)
        keep_much(tmp_path, 9, files=3)
    tensors, meta = state.read(tmp_path, "stub")
    assert meta["step_number"] == 7 and [value[0].item() for value in tensors.values()] == [7.0] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"stub-0{n}.safetensors" for n in range(3)]
    keep_much(tmp_path, 9, files=2)
    tensors, meta = state.read(tmp_path, "stub")
    assert meta["step_number"] == 9 and len(tensors) == 2


def test_files_that_are_not_one_whole_state_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run would otherwise go on without a part of its optimiser, or with weights of two moments."""
    monkeypatch.setattr(state, "SHARD_BYTES", 16)
    keep_much(tmp_path / "one", 7, files=3)
    keep_much(tmp_path / "other", 9, files=3)
    (tmp_path / "one" / "stub-01.safetensors").rename(tmp_path / "other" / "stub-01.safetensors")
    for folder in ("one", "other"):
        with pytest.raises(ValueError, match="not one whole state of 3"):
            state.read(tmp_path / folder, "stub")


def test_the_last_line_of_the_curves_has_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Curves] = []
    monkeypatch.setattr(Curves, "draw", lambda self: drawn.append(self))  # matplotlib takes a second to load
    piece.report(Stub(5, 1.23456), Curves(tmp_path, ("mel", "stft")), {"held_out_mel": 0.5}, LOG)
    last = json.loads((tmp_path / "curves.jsonl").read_text().splitlines()[-1])
    assert last == {"step": 5, "minutes": 1.235, "held_out_mel": 0.5}
    assert len(drawn) == 1
