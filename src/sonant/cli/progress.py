"""What a person sees while speech is made: one line that moves on a terminal, one line of summary at the end.

All of it goes to stderr, since stdout may carry the sound.
"""

from __future__ import annotations

import sys
import time

from sonant.types import FinishReason, Speech

_REDRAW_S = 0.1
_CLEAR_LINE = "\r\x1b[K"


class Progress:
    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.moving = sys.stderr.isatty() and not quiet
        self.started_s = self.drawn_s = time.monotonic()
        self.first_s: float | None = None
        self.sound_s = 0.0

    def note(self, text: str) -> None:
        """What is going on before there is sound."""
        if self.moving:
            self._draw(text)

    def start(self) -> None:
        """The clock runs from here: loading is not speaking."""
        self.started_s = time.monotonic()

    def add(self, sound_s: float) -> None:
        now = time.monotonic()
        if self.first_s is None:
            self.first_s = now - self.started_s
        self.sound_s += sound_s
        if self.moving and now - self.drawn_s >= _REDRAW_S and self.sound_s:
            self.drawn_s = now
            factor = (now - self.started_s) / self.sound_s
            first_ms = 1e3 * self.first_s
            self._draw(f"{self.sound_s:.1f} s of sound, RTF {factor:.2f}, first sound {first_ms:.0f} ms")

    def clear(self) -> None:
        if self.moving:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()

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

    def _draw(self, text: str) -> None:
        sys.stderr.write(_CLEAR_LINE + text)
        sys.stderr.flush()
