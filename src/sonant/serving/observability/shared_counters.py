"""Counters of several front ends in files that each of them reads, so that any can report the sum (a feature of
prometheus_client).

What a front end has counted stays when it is gone, but for gauges of what it held.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_ROOM_BYTES = 1 << 20  # more than one process fills


def share_counters(folder: Path) -> None:
    """Share this process's counters. To be called before prometheus_client is imported, which reads the setting once.
    Raises `OSError` if there is no room."""
    folder.mkdir(mode=0o700, exist_ok=True)
    _check_room(folder)
    os.environ[SHARED_FOLDER] = str(folder)


def _check_room(folder: Path) -> None:
    """The files are memory-mapped: writing them on a full disk kills the process, and nothing would say why."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            left = _ROOM_BYTES
            while left:
                left -= file.write(bytes(left))
    except OSError as e:
        told = f"no room for this process's counters: {e.strerror}; make some, or set TMPDIR to another folder"
        raise OSError(e.errno, told, str(folder)) from None


def shared_folder() -> str | None:
    return os.environ.get(SHARED_FOLDER)


def forget_process(folder: Path, pid: int) -> None:
    """Remove the gauges of what a process held, since it is gone."""
    for file in folder.glob(f"gauge_live*_{pid}.db"):
        file.unlink(missing_ok=True)
