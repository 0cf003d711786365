"""Makes an engine park requests at random, and fill the rows that they leave with garbage."""

from __future__ import annotations

import random

import torch

from sonant import Engine
from sonant.engine.request import Request, State
from sonant.engine.row_sharing import RowSharing


class RandomParking:
    """Replaces `RowSharing.share`: rows, order and moments are drawn."""

    def __init__(self, engine: Engine, seed: int, share: float = 0.3) -> None:
        self.sharing: RowSharing = engine.loop.scheduler.sharing
        self.random, self.park_share = random.Random(seed), share
        self.parked_in_flight = self.ended_while_parked = 0
        self.sharing.share = self.share  # type: ignore[method-assign]

    def share(self, now_s: float) -> None:
        sharing = self.sharing
        for request in list(sharing.running):
            able = request.state is State.DECODING and request.launched and not request.abort_requested
            if able and self.random.random() < self.park_share and sharing.parking.has_room():
                self.park(request, now_s)
        self.ended_while_parked += sum(r.total is not None for r in sharing.parked)
        self.random.shuffle(sharing.rows.free)
        line = sharing.waiting + [r for r in sharing.parked if r.state is State.PARKED]
        self.random.shuffle(line)
        for request in line[: self.random.randint(0, len(line)) or 1]:
            allocation = request.allocation or sharing._allocate(request)
            if sharing.rows.free and allocation is not None:
                sharing._seat(request, allocation, now_s)
            elif allocation is not None and request.allocation is None:
                sharing.pool.release(allocation)
        sharing.waiting[:] = [r for r in sharing.waiting if r.state is State.WAITING]

    def park(self, request: Request, now_s: float) -> None:
        row = request.row
        self.parked_in_flight += request.steps_in_flight > 0
        self.sharing._park(request, now_s)
        self.spoil(row)

    def spoil(self, row: int) -> None:
        rows = self.sharing.rows
        with torch.inference_mode():
            for field in rows.tensors:
                wild = {torch.bool: True, torch.int32: 2**30}.get(field.dtype, float("nan"))
                rows.fields[field.name].select(field.row_dim, row).fill_(wild)
