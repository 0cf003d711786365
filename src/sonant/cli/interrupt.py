"""Ctrl-C while packages are being imported, which takes torch seconds.

Python's own way, an exception in the middle of it, goes wrong there: torch's C++ swallows it, so that the command runs
on with half a numpy, or answers it with an abort.
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
    """Raises KeyboardInterrupt at its end if Ctrl-C was pressed meanwhile; a second one ends the process on the spot.

    Who is deaf to it, as a job in the background is, or has a way of their own, keeps it.
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
