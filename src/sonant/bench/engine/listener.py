"""One listener of the engine in this process, recorded in the same form as by the load test of a server."""

from __future__ import annotations

import time

from sonant.bench.client.sample import Failure, Sample
from sonant.engine.engine import Engine
from sonant.errors import SonantError
from sonant.types import Sampling

TEXT = "The quick brown fox jumps over the lazy dog while seven wise owls watch from the old oak tree."


async def listen(engine: Engine, frames: int, seed: int, *, live: bool = True, due_s: float | None = None) -> Sample:
    """Request `frames` frames and take them as they come. There are fewer only if the model stops by itself."""
    started_s = time.perf_counter()
    arrivals: list[float] = []
    durations: list[float] = []
    failure, detail = None, ""
    try:
        request = engine.stream(TEXT, seed=seed, max_frames=frames, sampling=Sampling(), live=live)
        async with request as stream:
            async for chunk in stream:
                arrivals.append(time.perf_counter() - started_s)
                durations.append(len(chunk.samples) / chunk.sample_rate)
    except SonantError as e:
        failure, detail = Failure.SERVER, str(e)
    if failure is None and not arrivals:
        failure, detail = Failure.EMPTY, "it ended without one sample"
    return Sample(
        prompt="",
        started_s=started_s,
        late_s=0.0 if due_s is None else started_s - due_s,
        end_s=time.perf_counter() - started_s,
        arrivals_s=tuple(arrivals),
        durations_s=tuple(durations),
        audio_s=sum(durations),
        failure=failure,
        detail=detail,
        streamed=live,
        sample_rate=engine.sample_rate,
    )
