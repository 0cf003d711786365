"""One load level after another against one server, each after warm-ups and with the server's metrics around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sonant.bench.client.load import Load
from sonant.bench.client.load_level import LoadLevel
from sonant.bench.client.sample import Failure
from sonant.bench.client.server_metrics import difference, scrape
from sonant.bench.client.target import Target
from sonant.bench.client.worker import LoadProgress
from sonant.bench.client.worker_pool import Measured, WorkerPool
from sonant.errors import ConfigError

OnProgress = Callable[[Load, LoadProgress], None]


@dataclass(frozen=True)
class Sweep:
    target: Target
    pool: WorkerPool
    warmups: int = 2
    on_progress: OnProgress = lambda load, progress: None

    def levels(self, loads: Sequence[Load], *, keep_sound: bool = False) -> Iterator[LoadLevel]:
        """One level for each load. Ends after a level that Ctrl-C interrupts."""
        for load in loads:
            level = self.level(load, keep_sound=keep_sound)
            if level is None:
                return
            yield level
            if level.interrupted:
                return

    def level(self, load: Load, *, keep_sound: bool = False) -> LoadLevel | None:
        """One level, or None if it was interrupted before anything was measured."""
        if self.warmups and self._warm_up(load).interrupted:
            return None
        before = scrape(self.target)
        measured = self._run(load, keep_sound)
        return LoadLevel.of(measured, difference(before, scrape(self.target), measured.wall_s))

    def _warm_up(self, load: Load) -> Measured:
        """Uses prompts that the load does not, if there are enough: a server may cache what it computes of a text."""
        at_once = min(self.warmups, load.concurrency or self.warmups)
        first = load.first + load.requests
        measured = self._run(Load(self.warmups, concurrency=at_once, seed=load.seed, first=first), keep_sound=False)
        samples = measured.samples
        if samples and all(s.failure is Failure.CONNECT for s in samples):
            raise ConfigError(f"no server answers at {self.target.base_url}: {samples[0].detail}")
        return measured

    def _run(self, load: Load, keep_sound: bool) -> Measured:
        return self.pool.run(load, keep_sound=keep_sound, on_progress=lambda state: self.on_progress(load, state))
