"""Python's garbage collector, in a process that holds an engine."""

from __future__ import annotations

import gc


def freeze_what_is_alive() -> None:
    """Exempt all that is alive from collection, since it stays alive once an engine is there. A collection that walks
    over it, as when a thousand requests come at once, holds everybody up for a fifth of a second."""
    gc.collect()
    gc.freeze()
