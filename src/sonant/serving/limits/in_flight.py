"""What a front end is speaking now, so that its shutdown can wait for it and nothing new begins meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class InFlight:
    """Used on the event loop only."""

    def __init__(self) -> None:
        self.running = 0
        self.draining = asyncio.Event()

    @contextmanager
    def one(self) -> Iterator[None]:
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
