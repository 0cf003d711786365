"""Counters of several front ends in files that each of them reads, so that any can tell the sum (prometheus_client's).

What a front end had counted stays when it is gone, but for gauges of what it held.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_ROOM_BYTES = 1 << 20  # more than one process fills


def share_counters(folder: Path) -> None:
    """In this process; before prometheus_client is imported, which looks for it once. `OSError` if there is no room."""
    folder.mkdir(mode=0o700, exist_ok=True)
    _check_room(folder)
    os.environ[SHARED_FOLDER] = str(folder)


def _check_room(folder: Path) -> None:
    """The files are written through memory: on a full disk that kills the process, and nothing would say why."""
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
    """What a process held, it holds no more."""
    for file in folder.glob(f"gauge_live*_{pid}.db"):
        file.unlink(missing_ok=True)
