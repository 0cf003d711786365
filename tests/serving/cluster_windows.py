"""Some seconds of replicas under a steady load: what listeners met, and how much of the cores each part used."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp

from serving.cluster_processes import Cluster
from serving.cluster_storm import new_session
from serving.core_time import CoreUse, busy_s, thread_uses, wait_for_quiet

# Long enough that each stream has exactly as many frames as were asked for.
TEXT = "The quick brown fox jumps over the lazy dog, and then it rests for a while in the shade of an old tree."
BODY = {"input": TEXT, "response_format": "pcm", "seed": 1}
FRAME_S = 0.08
FRAMES = 25
_FRAME_BYTES = 2 * 24_000 * FRAME_S
_SETTLE_S = 1.5
_PHASE_S, _PHASE_COUNT = "sonant_step_phase_seconds_sum", "sonant_step_phase_seconds_count"
# What engines count, and the words by which its lines on `/metrics` are found.
_COUNTED = {
    "steps": "sonant_engine_steps_total",
    "rows": "sonant_step_rows_sum",  # rows that decoded a frame, summed over all steps
    "chunks": "sonant_frames_ahead_count",  # without the first of each stream
    "prefill_steps": f'{_PHASE_COUNT} phase="prefill"',
    "codec_steps": f'{_PHASE_COUNT} phase="codec"',
    "phases_s": _PHASE_S,
    "prefill_s": f'{_PHASE_S} phase="prefill"',
    "codec_s": f'{_PHASE_S} phase="codec"',
    "first_step_s": "sonant_first_step_seconds_sum",  # from a request's arrival in the engine
    "first_steps": "sonant_first_step_seconds_count",
}


@dataclass(frozen=True, kw_only=True)
class Window:
    """What one window measured. All counts and core seconds are scaled to its `seconds`."""

    replicas: int
    clients: int
    seconds: float
    first_s: list[float]  # of each request, as its client heard it
    frames: float
    counted: dict[str, float]  # by the engines, see `_COUNTED`
    uses: dict[str, CoreUse]  # of step threads, channel threads, front ends, the proxy, the clients
    waits: dict[str, float]  # mean seconds of a wait for a core, of the busiest thread of each
    left: float  # cores that all other processes left to these

    @property
    def requests(self) -> int:
        return len(self.first_s)

    @property
    def chunks(self) -> float:
        return self.counted["chunks"] + self.requests

    @property
    def audio_s_per_s(self) -> float:
        return self.frames * FRAME_S / self.seconds


@dataclass
class Listeners:
    """Clients that never stop asking."""

    url: str
    frames: int
    heard: int = 0  # bytes
    first_s: list[float] = field(default_factory=list)
    counting: bool = False
    over: bool = False

    async def listen(self, session: aiohttp.ClientSession) -> None:
        while not self.over:
            began_s, first = time.monotonic(), True
            body = {**BODY, "max_frames": self.frames}
            async with session.post(f"{self.url}/v1/audio/speech", json=body) as answer:
                assert answer.status == 200, await answer.text()
                async for data in answer.content.iter_any():
                    if self.counting and first:
                        self.first_s.append(time.monotonic() - began_s)
                    first = False
                    self.heard += len(data) if self.counting else 0


class Watch:
    """Reads the counts of all processes that take part, as there are at its start."""

    def __init__(self, c: Cluster) -> None:
        self.cluster = c
        self.pids = {"engine": c.pids("engine"), "front": c.pids("replica"), "proxy": c.pids("proxy")}
        self.pids["client"] = [os.getpid()]

    def look(self) -> tuple[float, float, dict[str, float], dict[int, dict[int, CoreUse]]]:
        told = dict(zip(_COUNTED, self.cluster.counted(*_COUNTED.values()), strict=True))
        threads = {pid: thread_uses(pid) for pids in self.pids.values() for pid in pids}
        return time.monotonic(), busy_s(), told, threads

    def uses(
        self, before: Mapping[int, Mapping[int, CoreUse]], after: Mapping[int, Mapping[int, CoreUse]]
    ) -> tuple[dict[str, CoreUse], dict[str, float]]:
        """Return the use of each kind and the mean wait of its busiest thread, in an engine the step thread."""
        uses: dict[str, CoreUse] = {}
        busiest: dict[str, CoreUse] = {}
        for kind, pids in self.pids.items():
            for pid in pids:
                had = {tid: use - before[pid].get(tid, CoreUse()) for tid, use in after[pid].items()}
                inside = sorted(had.values(), key=lambda use: use.ran_s)
                most, rest = inside[-1], sum(inside[:-1], CoreUse())
                parts = {"step": most, "channel": rest} if kind == "engine" else {kind: most + rest}
                tops = {"step": most, "channel": inside[-2]} if kind == "engine" else {kind: most}
                for name, use in parts.items():
                    uses[name] = uses.get(name, CoreUse()) + use
                    busiest[name] = busiest.get(name, CoreUse()) + tops[name]
        return uses, {name: use.waited_s / max(1, use.turns) for name, use in busiest.items()}


async def window(c: Cluster, clients: int, seconds: float, patience_s: float = 0.0, frames: int = FRAMES) -> Window:
    await asyncio.to_thread(wait_for_quiet, patience_s)
    listeners, watch = Listeners(c.url, frames), Watch(c)
    async with new_session() as session:
        tasks = [asyncio.create_task(listeners.listen(session)) for _ in range(clients)]
        await asyncio.sleep(_SETTLE_S)
        began_s, all_before_s, told_before, before = await asyncio.to_thread(watch.look)
        listeners.counting = True
        await asyncio.sleep(seconds)
        listeners.counting = False
        ended_s, all_after_s, told, after = await asyncio.to_thread(watch.look)
        listeners.over = True
        await asyncio.gather(*tasks)
    took_s = ended_s - began_s  # longer than listeners were counted, since looking takes time
    uses, waits = watch.uses(before, after)
    others_s = max(0.0, all_after_s - all_before_s - sum(use.ran_s for use in uses.values()))
    scale = seconds / took_s
    counted = {name: scale * (count - told_before[name]) for name, count in told.items()}
    return Window(
        replicas=c.replicas, clients=clients, seconds=seconds, first_s=listeners.first_s,
        frames=listeners.heard / _FRAME_BYTES, counted=counted,
        uses={name: CoreUse(scale * u.ran_s, scale * u.waited_s, round(scale * u.turns)) for name, u in uses.items()},
        waits=waits, left=len(os.sched_getaffinity(0)) - others_s / took_s,
    )  # fmt: skip
