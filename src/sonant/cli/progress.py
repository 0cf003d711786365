"""What a person sees while speech is made: on a terminal a line that is redrawn, and a line of summary at the end."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sonant.cli.progress_line import ProgressLine
from sonant.types import FinishReason, Speech


class _Noted(logging.Handler):
    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self.progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self.progress.note(record.getMessage().partition("\n")[0])


class Progress:
    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.line = ProgressLine(quiet=quiet)
        self.started_s = time.monotonic()
        self.first_s: float | None = None
        self.sound_s = 0.0

    def note(self, text: str) -> None:
        """Show what is going on before there is sound."""
        self.line.show(text, at_once=True)

    @contextmanager
    def following(self, log: logging.Logger) -> Iterator[None]:
        """Show this log's messages on the progress line; nothing else shows them."""
        handler = _Noted(self)
        level = log.level
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(level)

    def start(self) -> None:
        """Start the clock: the time to load the model does not count."""
        self.started_s = time.monotonic()

    def add(self, sound_s: float) -> None:
        now = time.monotonic()
        if self.first_s is None:
            self.first_s = now - self.started_s
        self.sound_s += sound_s
        if self.sound_s:
            factor = (now - self.started_s) / self.sound_s
            first_ms = 1e3 * self.first_s
            self.line.show(f"{self.sound_s:.1f} s of sound, RTF {factor:.2f}, first sound {first_ms:.0f} ms")

    def clear(self) -> None:
        self.line.clear()

    def summary(self, name: str, speech: Speech) -> None:
        """`speech` has the timings; its samples have been written already."""
        self.clear()
        if speech.finish_reason is FinishReason.LENGTH:
            print(
                "sonant: warning: the speech did not end by itself and was cut; if words are missing, raise "
                "--max-frames or try another --seed",
                file=sys.stderr,
            )
        if self.quiet:
            return
        factor = speech.total_s / self.sound_s if self.sound_s else float("inf")
        print(
            f"{name}: {self.sound_s:.2f} s of sound in {speech.total_s:.2f} s (RTF {factor:.2f}), "
            f"first sound {1e3 * speech.first_audio_s:.0f} ms, finish {speech.finish_reason}, "
            f"seed {speech.seed}",
            file=sys.stderr,
        )
