"""Gives memory back to the system after a rush: glibc keeps what was freed, some hundred megabytes after 200 clients.

Only when nobody is being served, and once each time: it holds the allocator for some milliseconds.
"""

from __future__ import annotations

import ctypes
import threading

_IDLE_S = 3.0


class IdleMemory:
    def __init__(self) -> None:
        self._last_busy_s: float | None = None  # None: nothing has run since memory was last given back

    def look(self, running: int, now_s: float) -> None:
        """Called often, from one thread."""
        if running:
            self._last_busy_s = now_s
        elif self._last_busy_s is not None and now_s - self._last_busy_s > _IDLE_S:
            self._last_busy_s = None
            threading.Thread(target=_give_back, name="sonant-idle-memory", daemon=True).start()


def _give_back() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only; others give back by themselves
    if trim is not None:
        trim(0)
