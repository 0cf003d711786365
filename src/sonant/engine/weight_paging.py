"""The weights of a model that its GPU cannot hold: what stays on the host, and how it comes when it is needed.

Made once, after the model was loaded and before anything was captured. The model's modules do not know of it: what
they read is where it always was, and hooks on the modules whose weights come and go tell their lanes. An engine whose
weights all stay has none of this, and nothing on its way.
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
    """Lanes that one thread at a time uses, with a stream for their copies."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.device, self.clock, self.lanes = device, WeightClock(device), list[WeightLane]()

    def whole(self, run: Callable[P, R]) -> Callable[P, R]:
        """`run` as one pass over its weights, from their being there to their being there again."""

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
        """A pass ended half-way, and graphs may follow that count on the first blocks. A capture has moved none."""
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return
        for lane in self.lanes:
            lane.fill()


class WeightPaging:
    def __init__(self, weights: ModelWeights, plan: WeightPlan, host: HostMemory) -> None:
        """Of weights that are loaded: those that `host` holds already, and others that it is to hold."""
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
        """Slots, and what lies on the host."""
        slots = [slot for group in (self.steps, self.aside) for lane in group.lanes for slot in lane.slots]
        return [*slots, *(block.memory for block in self.host.blocks.values())]

    def step(self, run: Callable[P, R]) -> Callable[P, R]:
        """A pass of the step thread; it can be captured."""
        return self.steps.whole(run)

    def beside(self, run: Callable[P, R]) -> Callable[P, R]:
        """A pass of any other thread: one at a time, since they share slots, which have memory only meanwhile."""
        whole = self.aside.whole(run)

        @wraps(run)
        def alone(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._one_at_a_time:
                for lane in self.aside.lanes:
                    lane.lease()
                try:
                    return whole(*args, **kwargs)
                finally:
                    if self.aside.stream is not None:  # slots that are still read must not be given up
                        torch.cuda.current_stream(self.device).synchronize()
                    for lane in self.aside.lanes:
                        lane.give_up()

        return alone
