"""One line on stderr that is redrawn while something takes long: on a terminal only, as a log would keep every state.

Stderr, because stdout may carry sound or JSON.
"""

from __future__ import annotations

import sys
import time

_REDRAW_S = 0.1
_CLEAR_LINE = "\r\x1b[K"


class ProgressLine:
    """Call `show` as often as there is news; `clear` it before anything else is printed."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._moves = sys.stderr.isatty() and not quiet
        self._shown_s = time.monotonic()

    def show(self, text: str, *, at_once: bool = False) -> None:
        """Draw the line anew. Without `at_once` this is skipped if it was just drawn, so that it does not flicker."""
        now_s = time.monotonic()
        if self._moves and (at_once or now_s - self._shown_s >= _REDRAW_S):
            self._shown_s = now_s
            self._write(_CLEAR_LINE + text)

    def clear(self) -> None:
        if self._moves:
            self._write(_CLEAR_LINE)

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
