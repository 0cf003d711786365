"""torch's import as a short command wants it, which shares its machine with others."""

from __future__ import annotations

import gc
import importlib
import os
import sys

from sonant.cli.interrupt import interrupt_waits


def import_torch() -> None:
    """Import it if nobody has.

    All that is alive then stays so, and the collector need not walk over it, neither during the import nor when Python
    ends: half a second of two. Its threads sleep while they wait for each other: spinning, as they do otherwise, they
    take the turns that the one with work is waiting for, and on a busy machine a second becomes ten.
    """
    if "torch" in sys.modules:
        return
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read once, when torch's libraries are loaded
    gc.disable()
    try:
        with interrupt_waits():
            importlib.import_module("torch")
    finally:
        gc.freeze()
        gc.enable()
