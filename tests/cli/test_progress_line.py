"""The progress line is drawn on a terminal and nowhere else, and no faster than an eye can read."""

from __future__ import annotations

import logging
import sys

import pytest

from sonant.cli import progress_line
from sonant.cli.progress import Progress
from sonant.cli.progress_line import ProgressLine


def shown(capsys: pytest.CaptureFixture[str], *, quiet: bool = False) -> list[str]:
    line = ProgressLine(quiet=quiet)
    line.show("loading", at_once=True)
    for share in range(5):
        line.show(f"{share}")
    line.clear()
    return capsys.readouterr().err.split("\r\x1b[K")


def test_a_terminal_sees_it_drawn_over_and_cleared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert shown(capsys) == ["", "loading", ""]  # updates within the same tenth of a second are left out
    monkeypatch.setattr(progress_line, "_REDRAW_S", 0.0)
    assert shown(capsys) == ["", "loading", "0", "1", "2", "3", "4", ""]
    assert shown(capsys, quiet=True) == [""]


def test_a_log_sees_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys) == [""]


def test_it_follows_what_a_log_says_and_leaves_the_log_as_it_was(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    log = logging.getLogger("test.followed")
    with Progress(quiet=False).following(log):
        log.info("compiling kernels 37/120")
        log.warning("what went wrong\nand where")
    log.info("nobody reads this")
    assert capsys.readouterr().err.split("\r\x1b[K") == ["", "compiling kernels 37/120", "what went wrong"]
    assert not log.handlers and log.level == logging.NOTSET
