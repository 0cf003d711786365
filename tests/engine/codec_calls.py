"""Which calls of the codec a crowd of listeners costs: simulates the engine's own scheduler on a computed clock.

    PYTHONPATH=src:tests python tests/engine/codec_calls.py [--rows 1,16,64,256] [--poisson 100,170] [--together]

Not a test that pytest collects. It needs no GPU: a step's time is computed from a few figures of an H200 with the 1.7B
shapes (`step_ms`), sound after frames. So it compares ways to plan, and its speeds are estimates: with the plans of
November 18th it printed 619, 1,302 and 1,821 audio-s/s for 64, 256 and 512 listeners who begin at any time with texts
of their own, where 572, 1,357 and 1,873 had been measured with `--codec-stream shared`. It prints, in this order:

- for `--rows`: that many listeners, each followed by another; for `--poisson`: that many arrivals a second, of ten
  seconds each;
- ms a step; rows in it; audio-s/s; calls of the codec a step, by chunk size, and rows in each; first sounds, p50 and
  p99; the least sound that a listener had left when the next chunk came, and its p1; gaps.
"""

from __future__ import annotations

import argparse
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from engine.test_scheduler import SPEC as TEST_SPEC
from engine.test_scheduler import Nowhere
from sonant.config import EngineConfig
from sonant.engine.blocks import BlockPool
from sonant.engine.graphs import buckets_up_to
from sonant.engine.ledger import Column, Places
from sonant.engine.request import Request
from sonant.engine.rows import Rows
from sonant.engine.scheduler import Plan, Scheduler
from sonant.engine.telemetry import Telemetry
from sonant.models.prompt import Prompt
from sonant.models.status import Status
from sonant.types import SpeechRequest

LENGTH, PROMPT, BLOCK_TOKENS = 125, 60, 16  # frames of a text, positions of its prompt
CODEC_BATCH_S = 81.92  # the engine's own on a GPU
FRAME_MS = {1: 1.97, 8: 2.6, 64: 3.9, 128: 4.7, 256: 6.3, 512: 9.0, 1024: 16.0}  # by rows
PREFILL_MS, POSITION_MS, CALL_MS, SOUND_MS = 1.5, 0.008, 0.75, 0.0092  # SOUND_MS: for each frame
SPEC = replace(TEST_SPEC, samples_per_frame=80)  # frames of 80 ms


def step_ms(plan: Plan, most_frames: int) -> float:
    """The step's time. A call of the codec computes as many rows as its graph has."""
    ms = PREFILL_MS + POSITION_MS * plan.prompt_positions if plan.prefill else 0.0
    if len(plan.decoding):
        ms += float(np.interp(len(plan.decoding), [*FRAME_MS], [*FRAME_MS.values()]))
    for frames, places in plan.codec.items():
        rows = next((n for n in buckets_up_to(most_frames // frames) if n >= len(places)), len(places))
        ms += CALL_MS + SOUND_MS * frames * rows
    return ms


@dataclass
class Figures:
    """Counts and times of the measured window."""

    steps: int = 0
    rows: int = 0
    frames: int = 0
    calls: Counter[int] = field(default_factory=Counter)
    of_rows: Counter[int] = field(default_factory=Counter)
    first_s: list[float] = field(default_factory=list)
    left_s: list[float] = field(default_factory=list)

    def count(self, decoding: int, codec: Mapping[int, Places]) -> None:
        self.steps, self.rows = self.steps + 1, self.rows + decoding
        for frames, places in codec.items():
            self.calls[frames] += 1
            self.of_rows[frames] += len(places)

    def told(self, took_s: float) -> str:
        first_ms, left_ms = 1e3 * np.array(self.first_s), 1e3 * np.array(self.left_s)
        calls = sorted(self.calls.items())
        sizes = ", ".join(f"{size}: {n / self.steps:.2f} × {self.of_rows[size] / n:.1f}" for size, n in calls)
        return (
            f"{1e3 * took_s / self.steps:.2f} ms, {self.rows / self.steps:.0f} rows, "
            f"{self.frames * SPEC.frame_s / took_s:.0f} audio-s/s, "
            f"{self.calls.total() / self.steps:.2f} calls ({sizes}), "
            f"first {np.percentile(first_ms, 50):.1f} / {np.percentile(first_ms, 99):.1f}, "
            f"left {left_ms.min():.0f} / {np.percentile(left_ms, 1):.0f}, {int((left_ms < 0).sum())} gaps"
        )


class Crowd:
    def __init__(self, rows: int) -> None:
        config = EngineConfig(max_rows=rows, block_tokens=BLOCK_TOKENS, max_parked=0, codec_batch_s=CODEC_BATCH_S)
        config, self.telemetry = config.resolved(None), Telemetry()
        sizes = config.frame_sizes(SPEC.frame_s)
        pool = BlockPool(1 + rows * -(-(PROMPT + LENGTH + 2) // BLOCK_TOKENS), BLOCK_TOKENS)
        on_cpu = Rows(SPEC, rows, BLOCK_TOKENS, torch.device("cpu"))
        self.scheduler = Scheduler(config, SPEC, sizes, on_cpu, pool, self.telemetry, has_preroll=lambda _: False)
        self.now_s, self.device_s, self.returned_s = 0.0, 0.0, 0.0
        self.begun, self.follows, self.figures = 0, False, Figures()
        self.given: Counter[Request] = Counter()
        self._in_flight: deque[tuple[float, Plan, dict[int, Column]]] = deque()

    def begin(self, frames: int = LENGTH) -> None:
        """Queue a listener with a text of its own, so that all of its prompt is prefilled."""
        self.begun += 1
        keys = np.full((PROMPT, 1), self.begun, np.int32)
        prompt = Prompt(length=PROMPT, keys=keys, staged={}, max_frames=frames, payload=None)
        request = Request(SpeechRequest(text="x"), prompt, Nowhere(), self.now_s, keeps_frames=False)
        request.queued_s = request.since_s = self.now_s
        self.scheduler.waiting.append(request)

    def step(self) -> None:
        """Plan and launch the next step while the previous one is on the device."""
        plan, ledger = self.scheduler.plan(self.now_s), self.scheduler.ledger
        if plan:
            ledger.steps_in_flight[plan.users()] += 1
            most = self.scheduler.sizes.codec_batch
            self.device_s = max(self.now_s, self.device_s) + step_ms(plan, most) / 1e3
            firsts = {frames: ledger.vocoded[places] - frames for frames, places in plan.codec.items()}
            self._in_flight.append((self.device_s, plan, firsts))
            self.figures.count(len(plan.decoding), plan.codec)
        while len(self._in_flight) > bool(plan):
            self._collect(*self._in_flight.popleft())

    def _collect(self, end_s: float, plan: Plan, firsts: Mapping[int, Column]) -> None:
        began_s, self.now_s = self.now_s, max(self.now_s, end_s)
        self.telemetry.came_back(0, 1, self.now_s - max(began_s, self.returned_s))
        self.returned_s, ledger = self.now_s, self.scheduler.ledger
        ended = [ledger.collected[place] == ledger.at(place).prompt.max_frames for place in plan.decoding]
        booked = ledger.book(plan.decoding, np.where(ended, int(Status.CAPPED), int(Status.RUNNING)), self.now_s)
        for n in booked.ends:
            ledger.at(plan.decoding[n]).end(Status.CAPPED, self.now_s)
        for frames, places in plan.codec.items():
            for request, first in zip(ledger.all_at(places), firsts[frames].tolist(), strict=True):
                self._hear(request, request.audible(first, frames))
        users = plan.users()
        ledger.steps_in_flight[users] -= 1
        for request in ledger.over(users):
            if request.complete and request.steps_in_flight == 0:
                self.scheduler.release(request)
                self.given.pop(request, None)
                if self.follows:
                    self.begin()

    def _hear(self, request: Request, count: int) -> None:
        if not count:
            return
        if request.first_audio_s is None:
            request.be_heard(self.now_s)
            self.figures.first_s.append(self.now_s - request.arrival_s)
        else:
            heard_s = self.now_s - request.first_audio_s
            self.figures.left_s.append(self.given[request] * SPEC.frame_s - heard_s)
        request.emit(count)
        self.given[request] += count
        self.figures.frames += count


def always(count: int, *, together: bool, warm_s: float = 1.0, window_s: float = 2.0) -> str:
    """Simulate `count` listeners, each followed by another."""
    crowd = Crowd(count)
    crowd.follows = True
    for n in range(count):
        crowd.begin(LENGTH if together else 1 + LENGTH * (n + 1) // count)
    return _watched(crowd, [], warm_s, window_s)


def poisson(a_second: float, warm_s: float = 12.0, window_s: float = 8.0) -> str:
    gaps_s = np.random.default_rng(0).exponential(1 / a_second, int(1.5 * a_second * (warm_s + window_s)))
    return _watched(Crowd(2048), np.cumsum(gaps_s).tolist()[::-1], warm_s, window_s)


def _watched(crowd: Crowd, coming_s: list[float], warm_s: float, window_s: float) -> str:
    began_s: float | None = None
    while crowd.now_s < warm_s + window_s:
        while coming_s and coming_s[-1] <= crowd.now_s:
            coming_s.pop()
            crowd.begin()
        if began_s is None and crowd.now_s >= warm_s:
            began_s, crowd.figures = crowd.now_s, Figures()
        crowd.step()
        if not crowd.scheduler.requests:
            crowd.now_s = max(crowd.now_s, coming_s[-1])
    assert began_s is not None
    return crowd.figures.told(crowd.now_s - began_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,4,16,64,128,256,512")
    parser.add_argument("--poisson", default="20,100,170", help="listeners a second")
    parser.add_argument("--together", action="store_true", help="all of --rows begin with the same frame")
    args = parser.parse_args()
    for rows in (int(n) for n in args.rows.split(",") if n):
        print(f"{rows} listeners: {always(rows, together=args.together)}", flush=True)
    for rate in (float(n) for n in args.poisson.split(",") if n):
        print(f"{rate:g} listeners a second: {poisson(rate)}", flush=True)


if __name__ == "__main__":
    main()
