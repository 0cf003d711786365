"""Runs the command in this process, in an empty folder, and returns what a user would see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sonant.cli.main import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: bytes
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    monkeypatch.chdir(tmp_path)
    for variable in ("SONANT_MODEL", "SONANT_CODEC"):
        monkeypatch.delenv(variable, raising=False)

    def call(*args: str | Path) -> Outcome:
        try:
            code = main([str(a) for a in args])
        except SystemExit as e:  # which is how argparse ends
            code = int(e.code or 0)
        captured = capsysbinary.readouterr()
        return Outcome(code, captured.out, captured.err.decode())

    return call
