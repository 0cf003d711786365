"""Puts a share of a load on a server from one event loop. Needs the bench extra, which load.py does not."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Sequence
from itertools import chain

from sonant.bench.client.exchange import Ended, speak
from sonant.bench.client.load import Load, Share
from sonant.bench.client.prompts import Prompt
from sonant.bench.client.sample import Sample
from sonant.bench.client.target import Target
from sonant.errors import ConfigError

_TRY_S = 5.0


class Driver:
    """Runs shares of loads in one event loop, one load at a time."""

    def __init__(self, target: Target, prompts: Sequence[Prompt], *, timeout_s: float = 300.0) -> None:
        self.target, self.prompts, self.timeout_s = target, prompts, timeout_s
        self.keep_sound = False
        self.ended: list[Ended] = []
        self.in_flight = 0
        self.stopping = False
        self.tasks: list[asyncio.Task[None]] = []
        self.host = ""

    async def resolve(self) -> None:
        """Picks the first of the name's addresses that takes a connection, before anything is timed."""
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

    async def run(self, load: Load, share: Share, start_s: float, *, keep_sound: bool = False) -> None:
        """Runs until the last answer has ended; then `samples` has all results."""
        self.ended, self.stopping, self.keep_sound = [], False, keep_sound
        chosen = {i % len(self.prompts): self.prompts[i % len(self.prompts)] for i in share.indices}
        requests = {i: self.target.request(prompt) for i, prompt in chosen.items()}
        if load.rate is not None:
            pairs = zip(share.indices, share.starts_s, strict=True)
            work = [self._once(i, requests, start_s + due_s) for i, due_s in pairs]
        else:
            queue = iter(share.indices[len(share.starts_s) :])  # those after each listener's first
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
