"""How many processors a kernel leaves alone whose blocks stay on theirs until all tiles are done.

Such a block takes nearly all of its processor's shared memory, so a kernel on another stream gets there only when the
whole launch is over. Whoever runs both at once asks for some processors to be left free; all others have everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SPARE: ContextVar[int] = ContextVar("spare_processors", default=0)


def spare_processors() -> int:
    """That launches of this moment are to leave free."""
    return _SPARE.get()


@contextmanager
def leaving_free(processors: int) -> Iterator[None]:
    """For all launches inside. A graph keeps what it was captured with."""
    before = _SPARE.set(processors)
    try:
        yield
    finally:
        _SPARE.reset(before)
