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


def test_the_last_line_of_the_curves_has_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Curves] = []
    monkeypatch.setattr(Curves, "draw", lambda self: drawn.append(self))  # matplotlib takes a second to load
    piece.report(Stub(5, 1.23456), Curves(tmp_path, ("mel", "stft")), {"held_out_mel": 0.5}, LOG)
    last = json.loads((tmp_path / "curves.jsonl").read_text().splitlines()[-1])
    assert last == {"step": 5, "minutes": 1.235, "held_out_mel": 0.5}
    assert len(drawn) == 1
