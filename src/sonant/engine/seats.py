"""Seats on a GPU that several engines take in turns, each in a process of its own.

A seat is a file that its engine has locked, so an engine that dies gives it back. One that waits for a seat locks a
file of its own, for idle engines to see. No process coordinates them.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Seats:
    def __init__(self, folder: Path, count: int, name: str) -> None:
        self._seats = [folder / f"seat-{n}" for n in range(count)]
        self._waiting, self._folder = folder / f"waiting-{name}", folder
        self._held: int | None = None  # a file descriptor
        self._wish: int | None = None

    @property
    def seated(self) -> bool:
        return self._held is not None

    def take(self) -> bool:
        """Try to get a seat → whether we have one; if not, others see that we wait."""
        for path in () if self.seated else self._seats:
            if (seat := _locked(path)) is not None:
                self._held = seat
                break
        if self.seated:
            self._stop_waiting()
        elif self._wish is None:
            self._wish = _locked(self._waiting)
        return self.seated

    def give_back(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def close(self) -> None:
        self.give_back()
        self._stop_waiting()

    def somebody_waits(self) -> bool:
        return any(_is_locked(path) for path in self._folder.glob("waiting-*") if path != self._waiting)

    def _stop_waiting(self) -> None:
        if self._wish is not None:
            os.close(self._wish)
            self._wish = None


def _locked(path: Path, kind: int = fcntl.LOCK_EX) -> int | None:
    """A descriptor that holds the file's lock; None: somebody else holds it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _is_locked(path: Path) -> bool:
    file = _locked(path, fcntl.LOCK_SH)  # shared, so that others who look at the same moment do not see a lock
    if file is None:
        return True
    os.close(file)
    return False
