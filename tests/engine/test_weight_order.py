"""On a device with streams, events see to it that blocks are copied before they are read, and that no slot is
overwritten while it is used.

There is no GPU here: streams and events record what would come after what, and the test checks that order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sonant.engine.weight_lane import LanePart, WeightClock, WeightLane
from sonant.models.weight_blocks import WeightBlock
from sonant.models.weights import HostMemory

CPU = torch.device("cpu")


class Stream:
    """Work put on it comes after all that is there, and after what it was told to wait for."""

    def __init__(self) -> None:
        self.behind: frozenset[int] = frozenset()

    def wait_event(self, event: Event) -> None:
        self.behind |= event.behind

    def wait_stream(self, other: Stream) -> None:
        self.behind |= other.behind


class Event:
    def __init__(self) -> None:
        self.behind: frozenset[int] = frozenset()

    def record(self, stream: Stream) -> None:
        self.behind = stream.behind


class Device:
    """Two streams, and all work that was put on them."""

    def __init__(self) -> None:
        self.compute, self.copies = Stream(), Stream()
        self.current = self.compute
        self.work: list[tuple[str, int, frozenset[int]]] = []  # kind, block, all work that is over before it begins

    def put(self, kind: str, block: int) -> None:
        self.work.append((kind, block, self.current.behind))
        self.current.behind |= {len(self.work) - 1}

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


class Place:
    """A block's memory in its slot. A copy to it is work on the current stream."""

    def __init__(self, device: Device, block: int) -> None:
        self.device, self.block = device, block

    def copy_(self, source: Any, non_blocking: bool = False) -> None:
        assert non_blocking
        self.device.put("copy", self.block)

    def numel(self) -> int:
        return 1


class Reads(nn.Module):
    def __init__(self, device: Device, block: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))
        self.device, self.block = device, block

    def forward(self) -> None:
        for _ in range(2):  # as by two kernels
            self.device.put("read", self.block)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("rounds", [1, 3])
def test_copies_and_reads_of_a_slot_never_meet(count: int, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    modules = [Reads(device, n) for n in range(count)]
    host = HostMemory(frozenset(), CPU)
    parts = [
        LanePart(WeightBlock(str(n), "lane", m, (m,)), host.adopt(str(n), [m.weight.data]))
        for n, m in enumerate(modules)
    ]
    lane: Any = WeightLane(parts, CPU, None, WeightClock(CPU))
    lane.device, lane.stream = SimpleNamespace(type="cuda"), device.copies
    lane._copies = [Place(device, n) for n in range(count)]
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: device.current)
    monkeypatch.setattr(torch.cuda, "stream", device.on)
    lane.fill()
    for _ in range(3):  # passes
        lane.begin_pass()
        for _ in range(rounds):
            for module in modules:
                module()
        lane.join()
    check(device.work)
    last = {block % 2: block for kind, block, _ in device.work if kind == "copy"}
    assert last == {0: 0, 1: 1}  # the blocks that the next pass begins with
    assert device.compute.behind == frozenset(range(len(device.work)))  # a capture must not end before all is joined


def check(work: list[tuple[str, int, frozenset[int]]]) -> None:
    for at, (kind, block, before) in enumerate(work):
        if kind == "read":
            copies = [n for n, (k, b, _) in enumerate(work[:at]) if k == "copy" and b % 2 == block % 2]
            assert work[copies[-1]][1] == block, f"block {block} is read while {work[copies[-1]][1]} is in its slot"
            assert copies[-1] in before, f"block {block} is read before it is there"
        else:
            users = {n for n, (_, b, _) in enumerate(work[:at]) if b % 2 == block % 2}
            assert users <= before, f"block {block} overwrites what is still used"
