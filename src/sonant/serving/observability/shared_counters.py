"""Counters of several front ends in files that each of them reads, so that any can tell the sum (prometheus_client's).

What a front end had counted stays when it is gone, but for gauges of what it held.
"""

from __future__ import annotations

import os
from pathlib import Path

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


def share_counters(folder: Path) -> None:
    """In this process; before prometheus_client is imported, which looks for it once."""
    folder.mkdir(mode=0o700, exist_ok=True)
    os.environ[SHARED_FOLDER] = str(folder)


def shared_folder() -> str | None:
    return os.environ.get(SHARED_FOLDER)


def forget_process(folder: Path, pid: int) -> None:
    """What a process held, it holds no more."""
    for file in folder.glob(f"gauge_live*_{pid}.db"):
        file.unlink(missing_ok=True)
