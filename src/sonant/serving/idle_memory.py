"""Gives memory back to the system after a rush: glibc keeps what was freed, some hundred megabytes after 200 clients.

Only when nobody is being served, and once each time: it holds the allocator for some milliseconds. It finds whole free
pages only, and the more arenas threads have for themselves, the more pages are in use in part: they share one. That also
bounds what an engine on the CPU keeps of the codec's scratch memory while it works: in an arena of its own the step
thread kept a half more, and more again with every mixture of sizes that came for the first time.
"""

from __future__ import annotations

import ctypes
import sys
import threading

_IDLE_S = 3.0
_ARENAS = 1
_M_ARENA_MAX = -8  # in malloc.h


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


def share_arenas() -> None:
    """For the whole process; of use only before its threads are started."""
    if sys.platform == "linux":
        limit = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc only
        if limit is not None:
            limit(_M_ARENA_MAX, _ARENAS)


def _give_back() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only; others give back by themselves
    if trim is not None:
        trim(0)
