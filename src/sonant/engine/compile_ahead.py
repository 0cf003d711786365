"""Compiles a GPU's kernels before they are needed, on all cores, while the weights are still being read.

The work is done by a process of its own (`compile_process.py`): it loads the model without memory, finds out which
kernels its steps launch, and compiles them into Triton's cache on disk, in as many processes as there are cores to
spare. Threads would serve a few cores only, since an eighth of a kernel's compilation holds the GIL. The engine
captures a graph as soon as that graph's kernels are compiled, and then only has to load them.

Nothing depends on it: a kernel that is missing is compiled when it is first launched, as it would be anyway. A stamp
beside the kernels records which were compiled for such a job; an engine that finds all of them starts no process.
"""

from __future__ import annotations

import json
import logging
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
from sonant.cores import usable_cores
from sonant.engine.compiler import Compiler
from sonant.engine.room import GpuMemory
from sonant.engine.start_note import StartNote, our_sources
from sonant.kernels.gpu import Gpu
from sonant.types import SoundFormat

logger = logging.getLogger(__name__)

_TELL_S = 2.0
_SILENCE_S = 120.0  # no kernel takes so long: the process hangs, and a server must start all the same
_MOST_WORKERS = 24
_LAST_LINES = 20  # of a failed process's output
Dtypes = tuple[torch.dtype, torch.dtype]  # of the model and of its codec


@dataclass(frozen=True)
class CompileJob:
    """All that the process must know to rehearse the engine's steps."""

    folder: str
    config: Mapping[str, Any]
    dtype: str
    codec_dtype: str
    memory: Mapping[str, Any]
    workers: int
    stamp: str  # a file, written when all kernels are compiled
    sound: SoundFormat = "float32"

    @classmethod
    def of(
        cls, folder: Path, config: EngineConfig, dtypes: Dtypes, memory: GpuMemory, sound: SoundFormat
    ) -> CompileJob:
        """Asks Triton where its cache is, so Triton must be installed."""
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
        """Whether such a job was done before, and all kernels of it are still there."""
        try:
            folders = json.loads(Path(self.stamp).read_text(encoding="utf-8"))
            return all(Path(folder).is_dir() for folder in folders)
        except (OSError, ValueError, TypeError):
            return False


def workers_for(wanted: int | None) -> int:
    """Leaves a core to the engine, which reads weights and captures graphs meanwhile."""
    return min(_MOST_WORKERS, max(1, usable_cores() - 1)) if wanted is None else wanted


def begin(
    folder: Path,
    config: EngineConfig,
    dtypes: Dtypes,
    memory: GpuMemory,
    sound: SoundFormat = "float32",
    compiler: Compiler | None = None,
    note: StartNote | None = None,
) -> CompileAhead | None:
    """None: there is nothing to compile, or it is not wanted. A waiting `compiler` gets the job or is dismissed; `note`
    is left for the next start when all is compiled."""
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
    except Exception:  # Triton's internals may change one day, and a server must start all the same.
        logger.warning("kernels are not compiled ahead, but as they are met", exc_info=True)
        return None


def begin_beside(gpu: Gpu, begin_compiling: Callable[[], CompileAhead | None]) -> Future[CompileAhead | None]:
    """Begin to compile, and do all that Triton does before its first kernel, on a thread: on a slow machine that takes
    seconds, in which the weights can be read. No kernel may be launched until it has ended."""

    def begin_all() -> CompileAhead | None:
        ahead = begin_compiling()
        if find_spec("triton") is not None:
            try:
                from sonant.kernels.triton_setup import set_up

                set_up(gpu)
            except Exception:  # As above: what is not set up now is set up at the first kernel.
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
    """Stands in where nothing is compiled ahead, so that kernels are compiled when they are first launched."""

    over = True

    def wait_for_any(self, stages: Sequence[int]) -> int:
        return stages[0]

    def wait_for_all(self) -> None:
        """There is nothing to wait for."""


@dataclass
class Progress:
    found: int = 0  # kernels so far
    compiled: int = 0
    ready: set[int] = field(default_factory=set)  # stages of the rehearsal whose kernels are all compiled
    planned: bool = False  # no more will be found
    ended: bool = False
    said: list[str] = field(default_factory=list)


class CompileAhead:
    """The engine's view of the process, which ends by itself, or with the process that began it."""

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
        """Whether the process has ended."""
        return self.progress.ended

    def wait_for_any(self, stages: Sequence[int]) -> int:
        """Wait until all kernels of one of these stages are compiled, or never will be → the first such stage."""
        ready = self.progress.ready
        self._wait_until(lambda: not ready.isdisjoint(stages))
        return next((stage for stage in stages if stage in ready), stages[0])

    def wait_for_all(self) -> None:
        """Wait for all kernels, not for the process, which takes a moment more to end."""
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
        """Take a line of progress in JSON; any other line is the output of libraries."""
        try:
            found, compiled, ready, planned = json.loads(line)["kernels"]
        except (ValueError, KeyError, TypeError):
            self.progress.said.append(line.rstrip())
            return
        p = self.progress
        p.found, p.compiled, p.planned = found, compiled, planned
        p.ready.update(ready)


def _facts(folder: Path, config: EngineConfig) -> Iterator[str]:
    """What else determines the kernels: versions, our sources, and the checkpoint's files."""
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
    """Log each kernel that is compiled in this process after all, since somebody waits for it."""
    from triton import knobs

    def compiled(*, src: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            logger.info("compiled %s when it was met", src.name)

    if knobs.compilation.listener is None:
        knobs.compilation.listener = compiled


def _cache_folder() -> Path:
    from triton import knobs

    return Path(knobs.cache.dir)
