"""Weights that come just before they are used: two slots on the device, and blocks that take turns in them.

A block's parameters are views of its slot, once and for all; what is there when a kernel reads them is the matter of
this file. Block n of those that are streamed lies in slot n mod 2. When the module that reads block n returns, the next
block of that slot is on its way, on a stream of its own, behind all that still reads the slot; when that block's own
module is called, the step waits for the copy on the device, and the host for nothing. A lane is used in rounds, so that
before and after every pass its first two blocks are there.

All of it may be captured in a CUDA graph: events tie the streams, and a pass joins them at its end. On a CPU copies are
made in line, at the same moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sonant.engine.telemetry import PagedTotals
from sonant.engine.weight_plan import SLOTS
from sonant.kernels.host_weights import wait_begins, wait_ends
from sonant.models.weight_blocks import WeightBlock
from sonant.models.weights.host_memory import HostBlock


class WeightClock:
    """Counted on the device, where the host need not be: what passes took, what of it they waited, and the bytes."""

    FIELDS = 3  # of a kind: when it began, nanoseconds in all, and an amount in all

    def __init__(self, device: torch.device) -> None:
        self.values = torch.zeros(2 * self.FIELDS, dtype=torch.int64, device=device)
        self.passes, self.waits = self.values[: self.FIELDS], self.values[self.FIELDS :]

    def read(self) -> PagedTotals:
        """Waits for the device."""
        return self.totals(self.values.tolist())

    @classmethod
    def totals(cls, values: Sequence[int]) -> PagedTotals:
        """What a copy of `values` says."""
        _, passed_ns, copied_bytes, _, waited_ns, _ = values
        return PagedTotals(passed_ns / 1e9, waited_ns / 1e9, copied_bytes)


@dataclass(frozen=True)
class LanePart:
    block: WeightBlock
    host: HostBlock


class WeightLane:
    def __init__(
        self, parts: Sequence[LanePart], device: torch.device, stream: torch.cuda.Stream | None, clock: WeightClock
    ) -> None:
        self.parts, self.device, self.stream, self.clock = parts, device, stream, clock
        sizes = [part.host.memory.numel() for part in parts]
        self._sizes = [max(sizes[slot::SLOTS], default=0) for slot in range(SLOTS)]
        self.slots = [torch.empty(size, dtype=torch.uint8, device=device) for size in self._sizes]
        self.copied_bytes = 0  # in this pass
        self._ready: dict[int, torch.cuda.Event] = {}  # of copies that this pass has begun, by block
        self._copies: list[Tensor] = []  # where each block lies in its slot
        for n, part in enumerate(parts):
            memory = self.slots[n % SLOTS][: part.host.memory.numel()]
            self._copies.append(memory)
            for held, view in zip(part.block.tensors(), part.host.layout.views(memory), strict=True):
                held.replace(view)
            part.block.call.register_forward_pre_hook(lambda *_, n=n: self.begin(n))
            part.block.call.register_forward_hook(lambda *_, n=n: self.end(n))
        self.fill()

    def lease(self) -> None:
        """Take memory for the slots again, where `give_up` has given it back."""
        for slot, size in zip(self.slots, self._sizes, strict=True):
            slot.untyped_storage().resize_(size)
        self.fill()

    def give_up(self) -> None:
        """Keep no memory while nobody uses the lane. Nothing may be under way."""
        for slot in self.slots:
            slot.untyped_storage().resize_(0)

    def fill(self) -> None:
        """Bring the first two blocks, whatever was under way."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
        for place, part in zip(self._copies[:SLOTS], self.parts, strict=False):
            place.copy_(part.host.memory, non_blocking=True)

    def begin_pass(self) -> None:
        self._ready.clear()
        self.copied_bytes = 0

    def join(self) -> None:
        """The end of a pass: it ends when the first blocks are there again, for whatever comes next."""
        if self._ready:
            assert self.stream is not None
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
            self._ready.clear()

    def begin(self, n: int) -> None:
        """What reads block n is about to be launched."""
        if (event := self._ready.pop(n, None)) is not None:
            # Plain kernels on both sides: they also keep those that start early, and read weights before they wait for
            # their input, from starting before the weights are there.
            wait_begins(self.clock.waits)
            torch.cuda.current_stream(self.device).wait_event(event)
            wait_ends(self.clock.waits)

    def end(self, n: int) -> None:
        """All that reads block n has been launched: the next block of its slot may follow."""
        following = self._next_in_slot(n)
        if following == n:
            return
        self.copied_bytes += self._copies[following].numel()
        if self.device.type == "cuda":
            self._ready[following] = self._copy_behind(following)
            return
        wait_begins(self.clock.waits)
        self._copies[following].copy_(self.parts[following].host.memory)
        wait_ends(self.clock.waits)

    def _copy_behind(self, n: int) -> torch.cuda.Event:
        assert self.stream is not None
        free, ready = torch.cuda.Event(), torch.cuda.Event()
        free.record(torch.cuda.current_stream(self.device))
        self.stream.wait_event(free)
        with torch.cuda.stream(self.stream):
            self._copies[n].copy_(self.parts[n].host.memory, non_blocking=True)
            ready.record(self.stream)
        return ready

    def _next_in_slot(self, n: int) -> int:
        """The next block that lies in the same slot; behind the last one, the first."""
        return n + SLOTS if n + SLOTS < len(self.parts) else n % SLOTS
