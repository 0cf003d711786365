"""Notes of when a process of the server did what, taken around calls of its functions and written on a signal.

All processes read the same clock of the machine, so their notes form one time line. A note costs about a microsecond.
SIGUSR2 writes all notes since the last time; SIGUSR1 switches the process to the next of its `ways` to work.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FOLDER = "FIRST_SOUND_MARKS"  # the environment variable that names the folder for notes


class Marks:
    def __init__(self, role: str, ways: Sequence[Callable[[], None]] = ()) -> None:
        """`ways`: calling one makes the process work in that way from then on."""
        self.role, self.ways = role, list(ways)
        self.notes: list[tuple[str, float, float, Any]] = []
        self._written = self._way = 0
        signal.signal(signal.SIGUSR1, lambda *_: self._next_way())
        signal.signal(signal.SIGUSR2, lambda *_: self._write())

    def note(self, name: str, more: Any = None) -> None:
        """Note the machine's clock and this thread's CPU clock: time between two notes without CPU time is a wait."""
        self.notes.append((name, time.monotonic(), time.thread_time(), more))

    def around(self, owner: Any, name: str, before: str | None, after: str | None, more: Any = None) -> None:
        """Note every call of a function, before and after; `more` makes an addition of its arguments and its result."""
        inner = getattr(owner, name)

        def noted(*args: Any, **options: Any) -> Any:
            if before is not None:
                self.note(before)
            result = inner(*args, **options)
            if after is not None:
                self.note(after, None if more is None else more(args, result))
            return result

        setattr(owner, name, noted)

    def _next_way(self) -> None:
        if self.ways:
            self._way = (self._way + 1) % len(self.ways)
            self.ways[self._way]()

    def _write(self) -> None:
        notes, self.notes = self.notes, []
        path = Path(os.environ[FOLDER]) / f"{self.role}-{os.getpid()}-{self._written}.json"
        self._written += 1
        path.with_suffix(".part").write_text(json.dumps(notes, default=lambda more: more.to_json()))
        path.with_suffix(".part").rename(path)
