"""Records steps of a running engine with torch.profiler, and leaves the engine as it was.

torch.profiler sees the operators of the thread that starts it, so the step thread itself starts and stops it, between
two steps, as an observer of the step loop. Nothing observes, and nothing costs, while nothing is recorded.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, record_function

from sonant.engine.engine import Engine
from sonant.engine.graphs import synchronize
from sonant.engine.scheduler import Plan
from sonant.errors import ConfigError, EngineClosed, EngineError, Overloaded


@dataclass(frozen=True)
class Recording:
    steps: int
    complete: bool  # as many as were asked for
    profiler: profile

    def save(self, path: Path) -> None:
        """As Chrome JSON, gzipped if the name ends in .gz. Once: torch gives its trace away.

        And before the next recording begins: the device's times are lost then.
        """
        self.profiler.export_chrome_trace(str(path))


class StepProfiler:
    """One for an engine; one recording at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._one_at_a_time = engine, threading.Lock()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """From any thread, for good: a recording ends with the steps that it has, and waits for no more."""
        self._stopped.set()

    def record(self, steps: int, *, stacks: bool = False, graphs: bool = True, timeout_s: float = 60.0) -> Recording:
        """Wait for `steps` steps. With `stacks`: Python lines, shapes and memory too, which makes steps slower.

        Without `graphs` every step runs eagerly, so that each kernel has a source.
        """
        if steps < 1 or not timeout_s > 0:
            raise ConfigError(f"a recording needs at least one step and some time, not {steps} and {timeout_s}")
        if not self._one_at_a_time.acquire(blocking=False):
            raise Overloaded("a recording is under way; try again when it is done")
        try:
            return _Session(self._engine, steps, stacks, graphs).run(timeout_s, self._stopped)
        finally:
            self._one_at_a_time.release()


class _Session:
    """Observes the step loop from the first step to the last that is recorded."""

    def __init__(self, engine: Engine, steps: int, stacks: bool, graphs: bool) -> None:
        self.loop, self.runner, self.wanted, self.graphs = engine.loop, engine.loop.runner, steps, graphs
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if engine.device.type == "cuda" else [])
        self.profiler = profile(activities=activities, with_stack=stacks, record_shapes=stacks, profile_memory=stacks)
        self.seen, self.running, self.give_up = 0, False, False
        self.failure: Exception | None = None
        self.done = threading.Event()

    def run(self, timeout_s: float, stopped: threading.Event) -> Recording:
        self.loop.observe(self)
        deadline_s = time.monotonic() + timeout_s
        try:
            while not self.done.wait(min(0.1, timeout_s)):
                if not self.loop.alive:
                    self._leave()
                    raise EngineClosed("the engine ended while it was recorded; load it again")
                if stopped.is_set() or time.monotonic() >= deadline_s:
                    self._ask_to_end()
        except BaseException:  # Ctrl-C, say: the engine must not go on being recorded
            while self.loop.alive and not self.done.is_set():
                self._ask_to_end()
                self.done.wait(0.1)
            raise
        if self.failure is not None:
            raise EngineError(f"the profiler failed: {self.failure}") from self.failure
        return Recording(self.seen, self.seen >= self.wanted, self.profiler)

    def _ask_to_end(self) -> None:
        """To be called again and again: the step thread may just have missed the last call."""
        self.give_up = True
        self.loop.wake()

    # The step thread

    def between_steps(self) -> None:
        try:
            if not self.running and not self.give_up:
                self._start()
            elif self.give_up or self.seen >= self.wanted:
                self._stop()
        except Exception as e:  # a profiler that fails must not take the engine with it
            self.failure = e
            self._leave()
            self.done.set()

    @contextmanager
    def around_launch(self, plan: Plan) -> Iterator[None]:
        if not self.running:
            yield
            return
        self.seen += 1
        try:
            with record_function(self._label(plan)):
                yield
        except BaseException:  # the engine is done for, but another one in this process may want to be recorded
            self.profiler.stop()
            raise

    def _start(self) -> None:
        self.running = True
        self.profiler.start()
        self.runner.graphs.warmup.held = True
        self.runner.graphs.use(self.graphs)

    def _stop(self) -> None:
        if self.running:
            if self.runner.device.type == "cuda":
                synchronize(self.runner.device)  # what was launched is part of it
            self.profiler.stop()
        self._leave()
        self.done.set()

    def _leave(self) -> None:
        self.running = False
        self.loop.observe(None)
        self.runner.graphs.warmup.held = False
        self.runner.graphs.use(True)

    def _label(self, plan: Plan) -> str:
        rows = len(plan.decoding)
        buckets = (self.runner.frame[v].buckets_for(len(group)) for v, group in plan.decode.items())
        bucket = sum(size for sizes in buckets for size in sizes) or rows
        prefill = plan.prompt_positions + len(plan.preroll)
        codec = sum(len(group) for group in plan.codec.values())
        return f"sonant.step rows={rows} bucket={bucket} prefill={prefill} codec={codec}"


def record_to_file(engine: Engine, steps: int, *, timeout_s: float, stacks: bool, graphs: bool) -> tuple[int, Path]:
    """How many steps came in time, and the gzipped trace of them, which is the caller's to delete."""
    recording = StepProfiler(engine).record(steps, stacks=stacks, graphs=graphs, timeout_s=timeout_s)
    with tempfile.NamedTemporaryFile(prefix="sonant-", suffix=".json.gz", delete=False) as file:
        path = Path(file.name)
    try:
        if recording.steps:
            recording.save(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return recording.steps, path
