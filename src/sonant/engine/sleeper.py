"""Lets an engine sleep while it has nothing to say and another one waits for a seat on the GPU.

The step thread asks before each step whether it may go on. Code that needs the weights on another thread holds the
engine awake meanwhile. Of what a sleep releases only the weights come back: prefixes in the cache are forgotten.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sonant.engine.residents import Residents
from sonant.engine.seats import Seats
from sonant.errors import EngineClosed

logger = logging.getLogger(__name__)

_IDLE_S = 0.25  # with nothing to do, before an engine gives its seat to one that waits
_POLL_S = 0.01


class Sleeper:
    def __init__(self, residents: Residents, seats: Seats) -> None:
        """For an engine that is awake and has a seat."""
        self.residents, self.seats, self.awake = residents, seats, True
        self.before_sleep: Callable[[], None] = lambda: None
        self.sleeps = 0
        self._idle_since_s: float | None = None
        self._changed = threading.Condition()
        self._holders, self._closed = 0, False
        self._has_memory = True  # all or, if falling asleep or waking failed half-way, some of it

    @contextmanager
    def held_awake(self) -> Iterator[None]:
        """Keep the engine awake, from any thread but the step thread."""
        with self._changed:
            self._holders += 1
            self._changed.wait_for(lambda: self.awake or self._closed)
            lost = self._closed
        try:
            if lost:
                raise EngineClosed("the engine is closed, and its memory given back; load it again")
            yield
        finally:
            with self._changed:
                self._holders -= 1
                self._changed.notify_all()

    def may_step(self, busy: bool) -> bool:
        """Asked by the step thread before each step; `busy`: there are requests, or steps in flight.

        The engine falls asleep and wakes up in here.
        """
        with self._changed:
            wanted = busy or self._holders > 0
            if self.awake:
                self._rest(wanted)
            elif wanted:
                self._come_back()
            return self.awake

    def close(self) -> None:
        """After the last step: free the memory for whoever gets the seat, even while this process lives on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._holders == 0)
            if self._has_memory:
                try:
                    self.residents.sleep()
                except Exception:
                    logger.warning("memory cannot be given back; its seat is, when this process ends", exc_info=True)
                    return
                self.awake = False
        self.seats.close()

    def _rest(self, wanted: bool) -> None:
        now_s = time.monotonic()
        if wanted:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now_s
        elif now_s - self._idle_since_s >= _IDLE_S and self.seats.somebody_waits():
            self.before_sleep()
            self.residents.sleep()
            self._has_memory = False
            self.seats.give_back()
            self.awake, self._idle_since_s = False, None
            self.sleeps += 1
            logger.info("asleep after %.2f s: another model needs the memory", time.monotonic() - now_s)

    def _come_back(self) -> None:
        if not self.seats.take():
            self._changed.wait(_POLL_S)
            return
        began_s = time.monotonic()
        self._has_memory = True
        self.residents.wake()
        self.awake = True
        self._changed.notify_all()
        logger.info("awake again after %.2f s", time.monotonic() - began_s)
