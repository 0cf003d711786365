"""The weights of a model that its GPU cannot hold: which stay on the host, and how they come when they are needed.

Made once, after the model is loaded and before anything is captured. The model's modules do not know of it: they read
their own parameters as ever, and hooks on the modules whose weights come and go tell their lanes. An engine whose
weights all stay on the device has none of this, and none of its cost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from sonant.engine.weight_lane import LanePart, WeightClock, WeightLane
from sonant.engine.weight_plan import WeightPlan
from sonant.kernels.host_weights import pass_begins, pass_ends
from sonant.models.weight_blocks import ModelWeights, WeightBlock
from sonant.models.weights.host_memory import HostMemory

P = ParamSpec("P")
R = TypeVar("R")


class LaneGroup:
    """Lanes that one thread at a time uses, with a stream for their copies and a clock."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.device, self.clock, self.lanes = device, WeightClock(device), list[WeightLane]()

    def whole(self, run: Callable[P, R]) -> Callable[P, R]:
        """`run` as one pass over its weights, with the first blocks of each lane in place before and after it."""

        @wraps(run)
        @torch.inference_mode()
        def pass_over(*args: P.args, **kwargs: P.kwargs) -> R:
            for lane in self.lanes:
                lane.begin_pass()
            pass_begins(self.clock.passes)
            try:
                out = run(*args, **kwargs)
            except BaseException:
                self._start_anew()
                raise
            for lane in self.lanes:
                lane.join()
            pass_ends(self.clock.passes, sum(lane.copied_bytes for lane in self.lanes))
            return out

        return pass_over

    def _start_anew(self) -> None:
        """After a pass that failed half-way, bring back the first blocks, which graphs expect. A capture moved none."""
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return
        for lane in self.lanes:
            lane.fill()


class WeightPaging:
    def __init__(self, weights: ModelWeights, plan: WeightPlan, host: HostMemory) -> None:
        """`weights` are loaded; of those that leave the device `host` holds some already, and adopts the others."""
        self.plan, self.host, self.device = plan, host, host.device
        self.steps, self.aside = LaneGroup(self.device), LaneGroup(self.device)
        self._one_at_a_time = threading.Lock()
        tables = {table.name for table in plan.tables}
        for table in (t for t in weights.tables if t.name in tables):
            held = table.tensors()
            for place, view in zip(held, host.adopt(table.name, [h.value for h in held]).views(), strict=True):
                place.replace(view)
            table.embedding.stay_on_host()
        with torch.no_grad():
            for name, planned in plan.lanes.items():
                streamed = {block.name for block in planned}
                self._add_lane([b for b in weights.blocks if b.lane == name and b.name in streamed])

    def _add_lane(self, blocks: Sequence[WeightBlock]) -> None:
        group = self.aside if blocks[0].aside else self.steps
        parts = [LanePart(b, self.host.adopt(b.name, [h.value for h in b.tensors()])) for b in blocks]
        lane = WeightLane(parts, self.device, group.stream, group.clock)
        group.lanes.append(lane)
        if group is self.aside:
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()
            lane.give_up()

    @property
    def own_memory(self) -> list[Tensor]:
        """The memory of slots, and of weights on the host."""
        slots = [slot for group in (self.steps, self.aside) for lane in group.lanes for slot in lane.slots]
        return [*slots, *(block.memory for block in self.host.blocks.values())]

    def step(self, run: Callable[P, R]) -> Callable[P, R]:
        """A pass of the step thread; it can be captured."""
        return self.steps.whole(run)

    def beside(self, run: Callable[P, R]) -> Callable[P, R]:
        """A pass of any other thread: one at a time, since they share slots, which have memory only during a pass."""
        whole = self.aside.whole(run)

        @wraps(run)
        def alone(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._one_at_a_time:
                try:
                    for lane in self.aside.lanes:
                        lane.lease()
                    return whole(*args, **kwargs)
                finally:
                    if self.aside.stream is not None:  # kernels may still read the slots
                        torch.cuda.current_stream(self.device).synchronize()
                    for lane in self.aside.lanes:
                        lane.give_up()

        return alone
