"""A bar for work whose end is known, on a terminal; elsewhere nothing."""

from __future__ import annotations

import sys
import time

_REDRAW_S = 0.1
_WIDTH = 30
_CLEAR_LINE = "\r\x1b[K"


class Bar:
    """Call it with the share that is done; `clear` it before anything else is printed."""

    def __init__(self, what: str) -> None:
        self._what, self._shown = what, sys.stderr.isatty()
        self._started_s = self._drawn_s = time.monotonic()

    def __call__(self, share: float) -> None:
        now = time.monotonic()
        if not self._shown or now - self._drawn_s < _REDRAW_S:
            return
        self._drawn_s = now
        full = round(_WIDTH * share)
        left = (now - self._started_s) * (1 - share) / share if share > 0.02 else None
        told = f", {left:.0f} s left" if left is not None else ""
        sys.stderr.write(f"{_CLEAR_LINE}{self._what} {'█' * full}{'░' * (_WIDTH - full)} {100 * share:.0f} %{told}")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
