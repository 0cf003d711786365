"""The settings that a process of the server is started with, as one line of JSON on its standard input.

Not on its command line, which all users of a machine can read: there are keys in it. The pipe stays open as long as the
process that wrote it lives; its end tells a child that its parent is gone.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from sonant.config import EngineConfig
from sonant.errors import is_permanent
from sonant.exit_codes import EXIT_ERROR
from sonant.serving.observability.log_format import configure_logging
from sonant.serving.options import ModelOptions, ServeOptions


@dataclass(frozen=True, kw_only=True)
class Setup:
    folder: Path  # of the checkpoint
    scratch: Path  # a folder for all processes of this server; it is removed with them
    model: ModelOptions
    serving: ServeOptions
    engine: EngineConfig
    host: str
    port: int
    restarts: int = 0  # of the engine
    beside: tuple[Path, ...] = ()  # checkpoints of the other models, each with an engine of its own
    number: int = 0  # of this model among all

    @property
    def each(self) -> list[Setup]:
        """The setup of each model's engine."""
        folders = (self.folder, *self.beside)
        return [replace(self, folder=folder, beside=(), number=n) for n, folder in enumerate(folders)]

    @property
    def channel(self) -> Path:
        return self.scratch / (f"engine-{self.number}" if self.number else "engine")

    @property
    def metrics(self) -> Path:
        return self.scratch / "metrics"

    def to_json(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=str)

    @classmethod
    def from_json(cls, data: bytes) -> Setup:
        return msgspec.json.decode(data, type=cls, dec_hook=_path)


def read_setup(when_orphaned: Callable[[Setup], None]) -> Setup:
    """Read it from standard input. Once the parent is gone, a thread calls `when_orphaned`, then ends this process."""
    setup = Setup.from_json(sys.stdin.buffer.readline())

    def wait() -> None:
        while os.read(0, 4096):
            pass
        when_orphaned(setup)
        os._exit(1)

    threading.Thread(target=wait, name="sonant-parent", daemon=True).start()
    return setup


def run_child(serve: Callable[[Setup], int], when_orphaned: Callable[[Setup], None]) -> int:
    """Run a child to its end → its exit code: 2 if another try would only fail again."""
    setup = read_setup(when_orphaned)
    configure_logging(setup.serving.log_level, setup.serving.log_format)
    try:
        return serve(setup)
    except Exception as e:
        if not is_permanent(e):
            raise
        _say_once(setup.scratch, str(e))
        return EXIT_ERROR


def _say_once(scratch: Path, why: str) -> None:
    """Print what is wrong, unless another process of the server, which found the same, has done so."""
    try:
        with (scratch / "said").open("a+", encoding="utf-8", errors="backslashreplace") as said:
            fcntl.flock(said, fcntl.LOCK_EX)  # until it is printed: whoever ends first has the others ended
            said.seek(0)
            if why not in said.read():
                said.write(why)
                print(f"sonant: {why}", file=sys.stderr, flush=True)
    except OSError:  # rather twice than never
        print(f"sonant: {why}", file=sys.stderr)


def _path(kind: type, value: Any) -> Any:
    return kind(value)
