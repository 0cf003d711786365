"""The process that will compile kernels, started before it is known which: it imports torch while the engine does.

This module does not import torch, so that an engine's process can start it first of all. See `compile_ahead.py` for
the job that it is given.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress

from sonant.engine.early_context import has_gpu
from sonant.engine.start_note import StartNote

# Everything imported stays alive, and a garbage collector that scans it meanwhile takes a fifth of the time.
_MAIN = "import gc, sys; gc.disable(); from sonant.engine.compile_process import main; sys.exit(main())"
COMMAND = (sys.executable, "-c", _MAIN)


class Compiler:
    """Waits for its job. It ends with the process that started it, or when it is dismissed."""

    def __init__(self, command: tuple[str, ...] = COMMAND) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            encoding="utf-8", errors="backslashreplace",
        )  # fmt: skip

    def tell(self, job: str) -> None:
        """Give it its only job, a line of JSON."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as stdin:
            stdin.write(job + "\n")

    def dismiss(self) -> None:
        """End it, since there is nothing to compile."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        threading.Thread(target=self.process.wait, daemon=True).start()  # It may still be importing.


def compiler_for(device: str, workers: int | None, note: StartNote | None = None) -> Compiler | None:
    """None if nothing will be compiled, as far as is known so early: a `note` may say that everything already is."""
    wanted = workers != 0 and device.partition(":")[0] in ("auto", "cuda") and has_gpu()
    return Compiler() if wanted and not (note is not None and note.promises()) else None
