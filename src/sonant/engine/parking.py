"""Lends rows to others: the contents of a parked request's row lie aside until it gets a row again.

All that a request has on the device is its row (the line with its block table, and every declared state tensor) and its
blocks, which it keeps: a model must not keep state of a row elsewhere. Copies are launched on the step thread's stream
without waiting on the host: after the steps in flight that still use the row, and before those that the next plan
launches. Where a codec on a stream of its own may still use the row, the step thread's stream waits for it first, and
so does all that is launched there later for the row's next owner. Memory for the copies is allocated when it is first
needed and then kept, so that parking soon costs only a few copies.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from sonant.engine.request import Request
from sonant.engine.rows import Rows

logger = logging.getLogger(__name__)


class Parking:
    def __init__(self, rows: Rows, most: int) -> None:
        """At most `most` requests are parked at once, and one more during an exchange."""
        self.rows, self.most = rows, most
        self._aside: dict[Request, list[Tensor]] = {}
        self._spare: list[list[Tensor]] = []
        self._out_of_memory = False

    def has_room(self, *, exchange: bool = False) -> bool:
        """Whether one more can be parked; `exchange`: its row goes to one that is parked."""
        if len(self._aside) >= (self.most + exchange if self.most else 0):
            return False
        if not self._spare and not self._out_of_memory:
            self._reserve()
        return bool(self._spare)

    @torch.inference_mode()
    def save(self, request: Request) -> None:
        """Copy a request's row aside; call only after `has_room`."""
        copies = self._spare.pop()
        self.rows.before_copy(request.row)
        self._copy(self.rows.contents(request.row), copies)
        self._aside[request] = copies

    @torch.inference_mode()
    def restore(self, request: Request, row: int) -> None:
        """Copy it back, into any row: the line holds its block table too, which has not changed."""
        self.rows.staged.pop(row, None)  # left by a request that ended before any step was launched for it
        copies = self._aside.pop(request)
        self._copy(copies, self.rows.contents(row))  # no launched work uses that row, or `save` has waited for it
        self._spare.append(copies)

    def drop(self, request: Request) -> None:
        self._spare.append(self._aside.pop(request))

    @staticmethod
    def _copy(sources: Sequence[Tensor], places: Sequence[Tensor]) -> None:
        for source, place in zip(sources, places, strict=True):
            place.copy_(source)

    @torch.inference_mode()
    def _reserve(self) -> None:
        try:
            self._spare.append([torch.empty_like(content) for content in self.rows.contents(self.rows.scratch)])
        except torch.OutOfMemoryError:
            self._out_of_memory = True
            logger.warning("no memory to park more than %d requests; newcomers wait for rows", len(self._aside))
