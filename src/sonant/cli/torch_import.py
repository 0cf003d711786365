"""Imports torch as suits a short command that shares its machine with others."""

from __future__ import annotations

import gc
import importlib
import os
import sys

from sonant.cli.interrupt import interrupt_waits


def import_torch() -> None:
    """Import torch unless it has been imported.

    Whatever is alive then stays so, and the garbage collector skips it, both during the import and when Python exits:
    that saves half a second of two. torch's threads sleep while they wait for each other. By default they spin, and
    take CPU time from the thread that has work: on a busy machine a second becomes ten.
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
