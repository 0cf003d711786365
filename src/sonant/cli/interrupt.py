"""Ctrl-C while packages are being imported, which takes seconds for torch.

Python's own way, an exception in the middle of an import, goes wrong there: torch's C++ code swallows it, so that the
command runs on with a numpy that is half imported, or aborts the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sonant.exit_codes import EXIT_INTERRUPTED

INTERRUPTED = "sonant: interrupted"


@contextmanager
def interrupt_waits() -> Iterator[None]:
    """Raises KeyboardInterrupt at its end if Ctrl-C was pressed meanwhile; a second one ends the process at once.

    A process that ignores SIGINT, as a background job does, or that has its own handler, is left as it is.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    pressed = False

    def note(*_: object) -> None:
        nonlocal pressed
        if pressed:
            os.write(sys.stderr.fileno(), f"{INTERRUPTED}\n".encode())
            os._exit(EXIT_INTERRUPTED)
        pressed = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if pressed:
        raise KeyboardInterrupt
