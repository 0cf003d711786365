"""How requests are spread over time: so many listeners at once (closed loop), or so many a second (open loop).

In a closed loop a listener asks again as soon as its answer has ended, so that a slow server is asked less. In an
open loop requests come as a Poisson process whatever the server does, as from people who do not know of each other.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from sonant.bench.exchange import Ended, speak
from sonant.bench.prompts import Prompt
from sonant.bench.sample import Sample
from sonant.bench.target import Target
from sonant.errors import ConfigError

_TRY_S = 5.0


@dataclass(frozen=True)
class Load:
    requests: int
    concurrency: int | None = None  # closed loop
    rate: float | None = None  # open loop, requests a second
    ramp_s: float = 0.0  # the listeners of a closed loop come in over this time
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate is None):
            raise ConfigError("a load has either a concurrency or a rate")
        if self.requests < 1 or (self.concurrency is not None and self.concurrency < 1):
            raise ConfigError("a load needs at least one request and one listener")
        if self.rate is not None and not (self.rate > 0 and math.isfinite(self.rate)):
            raise ConfigError(f"a rate is a number of requests a second above 0, not {self.rate:g}")

    @property
    def label(self) -> str:
        return f"{self.concurrency}" if self.concurrency is not None else f"{self.rate:g}/s"

    def arrivals_s(self) -> list[float]:
        """Open loop: when each request is due, the same for the same seed."""
        assert self.rate is not None
        draw = random.Random(self.seed)
        return list(accumulate(draw.expovariate(self.rate) for _ in range(self.requests)))


@dataclass(frozen=True)
class Share:
    """What one of several processes does of a load."""

    indices: tuple[int, ...]  # of requests; request i says prompt i, modulo their number
    starts_s: tuple[float, ...]  # closed loop: when each listener begins; open loop: when each request is due


def shares(load: Load, processes: int) -> list[Share]:
    if load.rate is not None:
        due_s = load.arrivals_s()
        picks = [range(w, load.requests, processes) for w in range(processes)]
        return [Share(tuple(pick), tuple(due_s[i] for i in pick)) for pick in picks]
    assert load.concurrency is not None
    listeners = min(load.concurrency, load.requests)
    processes = min(processes, listeners)
    begins_s = [load.ramp_s * i / listeners for i in range(listeners)]
    return [Share(tuple(range(w, load.requests, processes)), tuple(begins_s[w::processes])) for w in range(processes)]


class Driver:
    """Runs shares of loads in one event loop. It is used for one level at a time."""

    def __init__(
        self, target: Target, prompts: Sequence[Prompt], *, timeout_s: float = 300.0, keep_sound: bool = False
    ) -> None:
        self.target, self.prompts, self.timeout_s, self.keep_sound = target, prompts, timeout_s, keep_sound
        self.ended: list[Ended] = []
        self.in_flight = 0
        self.stopping = False
        self.tasks: list[asyncio.Task[None]] = []
        self.host = ""

    async def resolve(self) -> None:
        """Once, ahead of all timing: of a name's addresses, the first that takes a connection."""
        address = self.target.address
        try:
            found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except OSError as e:
            raise ConfigError(f"the server {address.host} cannot be found: {e}") from e
        hosts = [str(entry[4][0]) for entry in found]
        self.host = hosts[0]
        for host in hosts if len(hosts) > 1 else ():
            try:
                _, writer = await asyncio.wait_for(asyncio.open_connection(host, address.port), _TRY_S)
            except OSError:
                continue
            writer.close()
            self.host = host
            return

    async def run(self, load: Load, share: Share, start_s: float) -> None:
        """Until the last answer has ended; `samples` then tells all."""
        self.ended, self.stopping = [], False
        chosen = {i % len(self.prompts): self.prompts[i % len(self.prompts)] for i in share.indices}
        requests = {i: self.target.request(prompt) for i, prompt in chosen.items()}
        if load.rate is not None:
            pairs = zip(share.indices, share.starts_s, strict=True)
            work = [self._once(i, requests, start_s + due_s) for i, due_s in pairs]
        else:
            queue = iter(share.indices[len(share.starts_s) :])  # after the one that each listener begins with
            pairs = zip(share.indices, share.starts_s, strict=False)
            work = [self._listener(chain([first], queue), requests, start_s + begin_s) for first, begin_s in pairs]
        self.tasks = [asyncio.create_task(w) for w in work]
        await asyncio.gather(*self.tasks)

    def samples(self) -> list[Sample]:
        return [ended.sample() for ended in self.ended if not ended.stopped]

    def stop(self) -> None:
        """Hang up on everything; `run` then returns."""
        self.stopping = True
        for task in self.tasks:
            task.cancel()

    async def _once(self, index: int, requests: dict[int, bytes], due_s: float) -> None:
        if await self._until(due_s):
            await self._speak(index, requests, due_s)

    async def _listener(self, queue: Iterator[int], requests: dict[int, bytes], begin_s: float) -> None:
        if not await self._until(begin_s):
            return
        for index in queue:
            await self._speak(index, requests, None)
            if self.stopping:
                return

    async def _until(self, at_s: float) -> bool:
        try:
            await asyncio.sleep(max(0.0, at_s - time.perf_counter()))
        except asyncio.CancelledError:
            return False
        return not self.stopping

    async def _speak(self, index: int, requests: dict[int, bytes], due_s: float | None) -> None:
        index %= len(self.prompts)
        self.in_flight += 1
        try:
            ended = await speak(
                self.target,
                requests[index],
                self.prompts[index],
                host=self.host,
                timeout_s=self.timeout_s,
                due_s=due_s,
                keep_sound=self.keep_sound,
            )
        finally:
            self.in_flight -= 1
        self.ended.append(ended)
