"""The way to a step thread, which may be in this process or at the other end of a channel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from sonant.engine.request import Request


class OpenText(Protocol):
    """A text that may have no request in flight, and whose reader waits all the same."""

    @property
    def held_back(self) -> bool:
        """Whether more of it will come once its listener has read on: a draining engine waits for it."""
        ...

    def engine_ended(self, failure: Exception | None) -> None: ...


class StepQueue(Protocol):
    """Called by any thread."""

    def post(self, request: Request) -> None: ...

    def abort(self, requests: Iterable[Request]) -> None: ...

    def drop(self, abort: Callable[[], None]) -> None:
        """Call this soon: nobody holds the stream any more that it aborts.

        Python's collector may have found that at any allocation, on a thread that is in the middle of anything and has
        any lock. So this takes none, and whatever `abort` takes is taken later, where nothing else is held.
        """
        ...

    def heard(self, request: Request) -> None:
        """The request's `heard_s` has grown, see `Request.hear`."""
        ...

    def watch(self, text: OpenText) -> None:
        """Tell this text when the engine ends."""
        ...

    def expect(self) -> None:
        """A text is about to post a request, though it has none in flight: a draining engine waits for it."""
        ...

    def stop_expecting(self) -> None:
        """The expected request was posted, or never will be."""
        ...

    def check_room(self) -> None:
        """Raises `Overloaded` if too many wait already."""
        ...
