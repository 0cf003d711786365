"""Waits for what another thread is to bring about."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(come_about: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not come_about():
        assert time.monotonic() < deadline_s, f"it did not come about in {timeout_s:g} s"
        time.sleep(0.001)
