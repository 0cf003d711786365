"""Records two traces of our own engine under load: one with true times, one with sources.

The first is with CUDA graphs and without stacks: its times are true, but kernels of a graph have no operator. The
second is eager, with Python lines and shapes: it tells where each kernel comes from, but its times are not those of the
engine.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from sonant.engine.engine import Engine
from sonant.engine.step_profiler import Recording, StepProfiler
from sonant.profiling.events import TraceError
from sonant.types import Sampling

TEXT = "The quick brown fox jumps over the lazy dog while seven wise owls watch from the old oak tree."
_WARM_UP_FRAMES = 8
_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class TracePair:
    timing: Path
    mapping: Path


def record_traces(
    engine: Engine, folder: Path, *, concurrency: int, frames: int, steps: int, mapping_steps: int
) -> TracePair:
    """Speak in `concurrency` streams of `frames` frames, again and again, until both traces are in `folder`."""
    return asyncio.run(_record(engine, folder, concurrency, frames, steps, mapping_steps))


async def _record(
    engine: Engine, folder: Path, concurrency: int, frames: int, steps: int, mapping_steps: int
) -> TracePair:
    await asyncio.gather(*(_speak(engine, _WARM_UP_FRAMES, seed) for seed in range(concurrency)))
    recorder, done = StepProfiler(engine), asyncio.Event()
    streams = [asyncio.create_task(_keep_speaking(engine, frames, seed, done)) for seed in range(concurrency)]
    out = TracePair(folder / "timing.json.gz", folder / "mapping.json.gz")
    try:
        timing = await asyncio.to_thread(recorder.record, steps, timeout_s=_TIMEOUT_S)
        _check(timing, steps)
        await asyncio.to_thread(timing.save, out.timing)
        mapping = await asyncio.to_thread(
            recorder.record, mapping_steps, stacks=True, graphs=False, timeout_s=_TIMEOUT_S
        )
        await asyncio.to_thread(mapping.save, out.mapping)
    finally:
        recorder.stop()  # after Ctrl-C no stream runs any more, and it would wait for steps that never come
        done.set()
        ended = await asyncio.gather(*streams, return_exceptions=True)
    for result in ended:
        if isinstance(result, BaseException):
            raise result
    return out


def _check(recording: Recording, steps: int) -> None:
    if not recording.complete:
        raise TraceError(f"only {recording.steps} of {steps} steps came in {_TIMEOUT_S:.0f} s; ask for fewer --steps")


async def _keep_speaking(engine: Engine, frames: int, seed: int, done: asyncio.Event) -> None:
    while not done.is_set():
        await _speak(engine, frames, seed, done)
        seed += 1000


async def _speak(engine: Engine, frames: int, seed: int, done: asyncio.Event | None = None) -> None:
    async with engine.stream(TEXT, seed=seed, max_frames=frames, sampling=Sampling()) as stream:
        async for _ in stream:
            if done is not None and done.is_set():
                return
