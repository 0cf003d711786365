"""What a server's processes ask of glibc's allocator: to keep what they need again at once, and to give the rest back.

glibc keeps what was freed, some hundred megabytes after 200 clients. It is given back when nobody is being served, once
each time. That holds the allocator for some milliseconds, and the next request waits for new pages, so it is not done
after requests that came one by one. Only whole free pages are found, and the more arenas threads have for themselves,
the more pages are partly in use: so all threads share one. That also bounds what an engine on the CPU holds while it
works: in an arena of its own its step thread held a tenth more, and more again with every mixture of sizes.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading

_IDLE_S = 3.0
_MANY, _LARGE_BYTES = 8, 64 << 10  # requests at once, and bodies with a clip in them, that leave much behind
_ARENAS = 1
_M_ARENA_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -8, -3, -1  # in malloc.h
_MAPPED_BYTES = 32 << 20  # the largest threshold that glibc takes: smaller blocks come from memory that it has already
_SPARE_BYTES = 128 << 20  # about what the codec allocates and frees each time
_PRIMITIVES = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256"


class IdleMemory:
    def __init__(self) -> None:
        self._last_busy_s: float | None = None  # None: nothing has run since memory was last given back
        self._much = False  # whether what has run since then leaves much behind

    def look(self, running: int, held_bytes: int, now_s: float) -> None:
        """Called often, from one thread; `held_bytes` are those of bodies."""
        if running or held_bytes:
            self._last_busy_s = now_s
            self._much = self._much or running >= _MANY or held_bytes >= _LARGE_BYTES
        elif self._much and self._last_busy_s is not None and now_s - self._last_busy_s > _IDLE_S:
            self._last_busy_s, self._much = None, False
            threading.Thread(target=_give_back, name="sonant-idle-memory", daemon=True).start()


def share_arenas() -> None:
    """Have all threads of the process share arenas; of use only before they are started."""
    _ask(_M_ARENA_MAX, _ARENAS)


def keep_scratch() -> None:
    """For a process with an engine, before it computes: on the CPU a step's scratch memory is not given back after it,
    since the next one needs as much. Else the system clears its pages anew each time, which is a tenth of the codec's
    time.

    torch's convolutions cache code for 1,024 shapes, which clips and mixtures of chunks take hours to fill: 30 MB and
    more. A quarter of that many is as fast."""
    os.environ.setdefault(*_PRIMITIVES)
    _ask(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
    _ask(_M_TRIM_THRESHOLD, _SPARE_BYTES)


def _ask(what: int, value: int) -> None:
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc only
        if mallopt is not None:
            mallopt(what, value)


def _give_back() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only; others give back by themselves
    if trim is not None:
        trim(0)
