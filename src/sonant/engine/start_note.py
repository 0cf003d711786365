"""A note that all kernels of an engine were compiled before, which can be read before torch is there.

The stamp of `compile_ahead.py` says it for sure, but its name needs the GPU's, and torch, which takes seconds. The note
names that stamp. Where it promises one, no process is started that would import torch beside the engine, on the same
cores and from the same disk, to be told that there is nothing to do. One that is wrong costs time only: the compiler's
process then starts when the stamp is looked at.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from sonant.config import EngineConfig
from sonant.kernels.cuda.compiler import cache_folder

_LOG = logging.getLogger(__name__)
_PARTS = ("kernels", "layers", "models", "engine")  # of this package
_SUFFIXES = (".py", ".json", ".cu", ".cuh")


@dataclass(frozen=True)
class StartNote:
    path: Path  # one for each model and its options
    facts: str  # of all else that changes which kernels there are

    @classmethod
    def of(cls, folder: Path, config: EngineConfig, *options: str) -> StartNote:
        """`options`: device, dtypes and the like, as they were asked for."""
        asked = sha256(json.dumps([str(folder.absolute()), asdict(config), options]).encode()).hexdigest()
        codec = [] if config.codec is None else [Path(config.codec).expanduser()]
        facts = sha256(repr((sys.version_info[:2], *_facts([folder, *codec]))).encode()).hexdigest()
        return cls(cache_folder().parent / "starts" / f"{asked[:32]}.json", facts)

    def promises(self) -> bool:
        """Whether a stamp was there, and its file is still."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            return bool(found["facts"] == self.facts and Path(found["stamp"]).is_file())
        except (OSError, ValueError, TypeError, KeyError):
            return False

    def leave(self, stamp: str) -> None:
        """Whole or not at all; without it the next start does what it can."""
        if self.promises():
            return
        part = self.path.with_suffix(f".{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({"facts": self.facts, "stamp": stamp}), encoding="utf-8")
            part.replace(self.path)
        except OSError as error:
            _LOG.info("the next start will not know that kernels are compiled: %s", error)


def our_sources() -> Iterator[Path]:
    """All that decides which kernels there are."""
    package = Path(__file__).parents[1]
    for part in _PARTS:
        yield from sorted(path for path in (package / part).rglob("*.*") if path.suffix in _SUFFIXES)


def _facts(roots: list[Path]) -> Iterator[tuple[str, int, int]]:
    """Sizes and times of files, which take no reading: our sources, the checkpoint's, and those of who compiles."""
    packages = [Path(spec.origin) for name in ("torch", "triton") if (spec := find_spec(name)) and spec.origin]
    checkpoint = (path for root in roots for path in sorted((root, *root.rglob("*"))))
    for path in (*packages, *our_sources(), *checkpoint):
        with suppress(OSError):  # Who reads it will say what is wrong.
            stat = path.stat()
            yield str(path), stat.st_size, stat.st_mtime_ns
