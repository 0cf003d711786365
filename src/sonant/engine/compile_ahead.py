"""A GPU's kernels are compiled before they are needed, on all cores, while the weights are still being read.

The work is done by a process of its own (`compile_process.py`): it loads the model without memory, finds out which
kernels its steps launch, and compiles them in as many processes as there are cores, into Triton's cache on disk.
Threads would do for a few cores only: an eighth of a kernel's time is Python's, which one thread runs at a time (the
rest lets others run). The engine follows: it captures a graph as soon as the kernels of that graph are there, and then
only has to load them.

Nothing depends on it. What is missing is compiled where it is first met, as it would be without all this.
A stamp beside the kernels says what was compiled for whom, so that an engine that finds all of it there starts nothing.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from sonant.config import EngineConfig
from sonant.engine.compiler import Compiler
from sonant.engine.room import GpuMemory
from sonant.engine.start_note import StartNote, our_sources
from sonant.kernels.gpu import Gpu
from sonant.types import SoundFormat

logger = logging.getLogger(__name__)

_TELL_S = 2.0
_SILENCE_S = 120.0  # no kernel takes so long: a compiler hangs, and a server must start all the same
_MOST_WORKERS = 24
_LAST_LINES = 20  # of what a process that failed has said
Dtypes = tuple[torch.dtype, torch.dtype]  # of the model and of its codec


@dataclass(frozen=True)
class CompileJob:
    """All that the process must know to run the same steps as the engine."""

    folder: str
    config: Mapping[str, Any]
    dtype: str
    codec_dtype: str
    memory: Mapping[str, Any]
    workers: int
    stamp: str  # a file, written when all is done
    sound: SoundFormat = "float32"

    @classmethod
    def of(
        cls, folder: Path, config: EngineConfig, dtypes: Dtypes, memory: GpuMemory, sound: SoundFormat
    ) -> CompileJob:
        """It asks Triton where its cache is, so there must be one."""
        options = asdict(config)
        dtype, codec_dtype = (str(dtype).removeprefix("torch.") for dtype in dtypes)
        digest = sha256(json.dumps([str(folder.absolute()), options, dtype, codec_dtype, memory.name, sound]).encode())
        for line in _facts(folder, config):
            digest.update(line.encode())
        stamp = _cache_folder() / f"sonant-{digest.hexdigest()[:32]}.json"
        workers = workers_for(config.compile_workers)
        return cls(str(folder), options, dtype, codec_dtype, asdict(memory), workers, str(stamp), sound)

    def engine_config(self) -> EngineConfig:
        return EngineConfig(**{**self.config, "chunk_s": tuple(self.config["chunk_s"])})

    def gpu_memory(self) -> GpuMemory:
        return GpuMemory(**{**self.memory, "capability": tuple(self.memory["capability"])})

    def is_done(self) -> bool:
        """Whether all that was compiled for the like of it is still there."""
        try:
            folders = json.loads(Path(self.stamp).read_text(encoding="utf-8"))
            return all(Path(folder).is_dir() for folder in folders)
        except (OSError, ValueError, TypeError):
            return False


def workers_for(wanted: int | None) -> int:
    """The engine reads weights and captures graphs meanwhile: it has a core left to it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST_WORKERS, max(1, cores - 1)) if wanted is None else wanted


def begin(
    folder: Path,
    config: EngineConfig,
    dtypes: Dtypes,
    memory: GpuMemory,
    sound: SoundFormat = "float32",
    compiler: Compiler | None = None,
    note: StartNote | None = None,
) -> CompileAhead | None:
    """None: there is nothing to compile, or it is not wanted. A `compiler` that waits is told, or dismissed; `note` is
    left for the next start when all is compiled."""
    if config.compile_workers != 0 and folder.is_dir() and find_spec("triton") is not None:
        ahead = _begin(folder, config, dtypes, memory, sound, compiler, note)
        if ahead is not None:
            return ahead
    if compiler is not None:
        compiler.dismiss()
    return None


def _begin(
    folder: Path,
    config: EngineConfig,
    dtypes: Dtypes,
    memory: GpuMemory,
    sound: SoundFormat,
    compiler: Compiler | None,
    note: StartNote | None,
) -> CompileAhead | None:
    try:
        _note_late_kernels()
        job = CompileJob.of(folder, config, dtypes, memory, sound)
        if not job.is_done():
            return CompileAhead(job, compiler, note)
        if note is not None:
            note.leave(job.stamp)
        return None
    except Exception:  # Triton's inside may be another one day, and a server must start all the same
        logger.warning("kernels are not compiled ahead, but as they are met", exc_info=True)
        return None


def begin_beside(gpu: Gpu, begin_compiling: Callable[[], CompileAhead | None]) -> Future[CompileAhead | None]:
    """Compiling ahead, and all that Triton does before its first kernel, on a thread: it takes seconds on a slow
    machine, as do weights, which are read meanwhile. No kernel may be launched until it has ended."""

    def begin_all() -> CompileAhead | None:
        ahead = begin_compiling()
        if find_spec("triton") is not None:
            try:
                from sonant.kernels.triton_setup import set_up

                set_up(gpu)
            except Exception:  # As above: what is not set up now is when it is met.
                logger.warning("Triton is not set up ahead", exc_info=True)
        return ahead

    begun: Future[CompileAhead | None] = Future()

    def run() -> None:
        try:
            begun.set_result(begin_all())
        except Exception as error:
            begun.set_exception(error)

    threading.Thread(target=run, name="sonant-kernels", daemon=True).start()
    return begun


class NothingAhead:
    """Where nobody compiles ahead: whatever is missing is compiled when it is met."""

    over = True

    def wait_for_any(self, stages: Sequence[int]) -> int:
        return stages[0]

    def wait_for_all(self) -> None:
        """Nobody is."""


@dataclass
class Progress:
    found: int = 0  # kernels so far
    compiled: int = 0
    ready: set[int] = field(default_factory=set)  # stages of the steps' rehearsal: all that they launch is compiled
    planned: bool = False  # `found` is all there is
    ended: bool = False
    said: list[str] = field(default_factory=list)


class CompileAhead:
    """The process, as the engine sees it. It ends by itself, and with the process that began it."""

    def __init__(self, job: CompileJob, compiler: Compiler | None = None, note: StartNote | None = None) -> None:
        self.progress = Progress()
        self._stamp, self._note = job.stamp, note
        self._news = threading.Condition()
        self._told_s = self._heard_s = time.monotonic()
        compiler = compiler or Compiler()
        self._process = compiler.process
        compiler.tell(json.dumps(asdict(job)))
        threading.Thread(target=self._listen, name="sonant-compile", daemon=True).start()

    @property
    def over(self) -> bool:
        """Whether nothing is compiled any more."""
        return self.progress.ended

    def wait_for_any(self, stages: Sequence[int]) -> int:
        """Until all kernels of one of these stages are compiled, or never will be → the first such stage."""
        ready = self.progress.ready
        self._wait_until(lambda: not ready.isdisjoint(stages))
        return next((stage for stage in stages if stage in ready), stages[0])

    def wait_for_all(self) -> None:
        """Not for the end of the process, which takes a moment more."""
        progress = self.progress
        self._wait_until(lambda: progress.planned and progress.compiled == progress.found)

    def _wait_until(self, done: Callable[[], bool]) -> None:
        with self._news:
            while not (self.progress.ended or done()):
                self._news.wait(_TELL_S)
                self._tell()
                if time.monotonic() - self._heard_s > _SILENCE_S:
                    self.progress.said.append(f"it said nothing for {_SILENCE_S:.0f} s")
                    self.progress.ended = True
                    self._process.kill()

    def _tell(self) -> None:
        progress, now_s = self.progress, time.monotonic()
        if progress.found and not progress.ended and now_s - self._told_s >= _TELL_S:
            self._told_s = now_s
            more = "" if progress.planned else ", and looking for more"
            logger.info("compiling kernels %d/%d%s", progress.compiled, progress.found, more)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with self._news:
                    self._heard_s = time.monotonic()
                    self._read(line)
                    self._news.notify_all()
        code = self._process.wait()
        if code == 0 and self._note is not None:
            self._note.leave(self._stamp)
        with self._news:
            self.progress.ended = True
            self._news.notify_all()
        if code != 0:
            said = "\n".join(self.progress.said[-_LAST_LINES:])
            logger.warning("compiling kernels ahead failed; they are compiled as they are met:\n%s", said)
        else:
            logger.info("compiled %d kernels", self.progress.compiled)

    def _read(self, line: str) -> None:
        """News in JSON; anything else is what libraries say."""
        try:
            found, compiled, ready, planned = json.loads(line)["kernels"]
        except (ValueError, KeyError, TypeError):
            self.progress.said.append(line.rstrip())
            return
        p = self.progress
        p.found, p.compiled, p.planned = found, compiled, planned
        p.ready.update(ready)


def _facts(folder: Path, config: EngineConfig) -> Iterator[str]:
    """What else changes which kernels there are: versions, our sources, and the checkpoint's files."""
    import triton

    yield f"{triton.__version__} {torch.__version__} {sys.version_info[:2]}"
    package = Path(__file__).parents[1]
    for path in our_sources():
        yield f"{path.relative_to(package)} {sha256(path.read_bytes()).hexdigest()}"
    codec = [] if config.codec is None else [Path(config.codec).expanduser()]
    for root in (folder, *codec):
        for path in sorted([root, *root.rglob("*")]):
            stat = path.stat()
            yield f"{path} {stat.st_size} {stat.st_mtime_ns}"


def _note_late_kernels() -> None:
    """Say when a kernel is compiled in this process after all: somebody waits for it."""
    from triton import knobs

    def compiled(*, src: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            logger.info("compiled %s when it was met", src.name)

    if knobs.compilation.listener is None:
        knobs.compilation.listener = compiled


def _cache_folder() -> Path:
    from triton import knobs

    return Path(knobs.cache.dir)
