"""torch's import as a short command wants it: its hundred thousands of objects are never looked through for garbage."""

from __future__ import annotations

import gc
import importlib
import sys


def import_torch() -> None:
    """Import it if nobody has. All that is alive then stays so, and the collector need not walk over it, neither during
    the import nor when Python ends: half a second of two."""
    if "torch" in sys.modules:
        return
    gc.disable()
    try:
        importlib.import_module("torch")
    finally:
        gc.freeze()
        gc.enable()
