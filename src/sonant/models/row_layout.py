"""A row's numbers side by side, one line of int32 for each, so that a step reads all of its rows' in one gather."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor

from sonant.models.spec import Field


def counters(fields: Iterable[Field]) -> list[Field]:
    """Of the fields that only steps write, those that have a place in the line: single whole numbers."""
    return [f for f in fields if f.shape == () and f.dtype == torch.int32]


class RowLayout:
    """Where fields of 32 bits lie in a line, one after another from column `start` on."""

    def __init__(self, fields: Iterable[Field], start: int) -> None:
        self.places: dict[str, tuple[slice, Field]] = {}
        self.end = start
        for field in fields:
            first, self.end = self.end, self.end + math.prod(field.shape)
            self.places[field.name] = slice(first, self.end), field

    def views(self, lines: Tensor) -> dict[str, Tensor]:
        """The fields in lines [N, columns], by name."""
        named = {name: (lines[:, columns].view(f.dtype), f) for name, (columns, f) in self.places.items()}
        return {name: view.unflatten(1, f.shape) if f.shape else view[:, 0] for name, (view, f) in named.items()}

    def span(self, names: Iterable[str]) -> slice:
        """The columns of fields that lie side by side."""
        places = [self.places[name][0] for name in names]
        assert all(a.stop == b.start for a, b in pairwise(places)), "they lie apart"
        return slice(places[0].start, places[-1].stop)
