"""Streams weights to the device just before they are used: blocks on the host take turns in two slots on the device.

A block's parameters are fixed views of its slot; a lane sees to it that the slot holds this block when a kernel reads
them. Block n of those that are streamed lies in slot n mod 2. When the module that reads block n returns, a copy of the
slot's next block is launched on a stream of its own, after all launched work that reads the slot. When the module of
that block is called, the step waits for the copy on the device; the host waits for nothing. The last blocks of a pass
are followed by the first two, which are thus in place before and after every pass.

All of it may be captured in a CUDA graph: events order the streams, and a pass joins them at its end. On a CPU copies
are made synchronously, at the same points.
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
    """Counts on the device, since graphs run without the host: the time of passes, their waits, and bytes copied."""

    FIELDS = 3  # for passes and for waits: when the latest began, nanoseconds in all, an amount in all

    def __init__(self, device: torch.device) -> None:
        self.values = torch.zeros(2 * self.FIELDS, dtype=torch.int64, device=device)
        self.passes, self.waits = self.values[: self.FIELDS], self.values[self.FIELDS :]

    def read(self) -> PagedTotals:
        """Waits for the device."""
        return self.totals(self.values.tolist())

    @classmethod
    def totals(cls, values: Sequence[int]) -> PagedTotals:
        """The totals in a copy of `values`."""
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
        self._ready: dict[int, torch.cuda.Event] = {}  # by block, of copies launched in this pass
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
        """Allocate the slots' memory again after `give_up`."""
        for slot, size in zip(self.slots, self._sizes, strict=True):
            slot.untyped_storage().resize_(size)
        self.fill()

    def give_up(self) -> None:
        """Free the slots' memory while nobody uses the lane. No copy or kernel may be using it."""
        for slot in self.slots:
            slot.untyped_storage().resize_(0)

    def fill(self) -> None:
        """Bring the first two blocks, after copies that are under way."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
        for place, part in zip(self._copies[:SLOTS], self.parts, strict=False):
            place.copy_(part.host.memory, non_blocking=True)

    def begin_pass(self) -> None:
        self._ready.clear()
        self.copied_bytes = 0

    def join(self) -> None:
        """End a pass: what follows it on the device waits until the first blocks are there again."""
        if self._ready:
            assert self.stream is not None
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
            self._ready.clear()

    def begin(self, n: int) -> None:
        """Called before the kernels that read block n are launched."""
        if (event := self._ready.pop(n, None)) is not None:
            # The clock's kernels around the wait are plain ones, so that a kernel that starts early, and reads weights
            # before it waits for its input, cannot start before the weights are there.
            wait_begins(self.clock.waits)
            torch.cuda.current_stream(self.device).wait_event(event)
            wait_ends(self.clock.waits)

    def end(self, n: int) -> None:
        """Called once all kernels that read block n are launched: the next block of its slot may follow."""
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
        """The next block that lies in the same slot; after the last one, the first."""
        return n + SLOTS if n + SLOTS < len(self.parts) else n % SLOTS
