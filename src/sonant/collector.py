"""Python's garbage collector, in a process that holds an engine."""

from __future__ import annotations

import gc


def freeze_what_is_alive() -> None:
    """All that is alive once an engine is there stays alive. A collector that walks over it, as it does when a thousand
    requests come at once, holds everybody up for a fifth of a second."""
    gc.collect()
    gc.freeze()
