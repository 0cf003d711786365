"""Prompts packed into lines of equal width, so that a prefill takes one copy from the host and nothing else.

A line holds the row, the span of positions, ids and codes for that many positions, and the rows of codes that decoding
begins with, all in int32. Unused lines point at the scratch row and have no positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from sonant.models.base import PrefillItem
from sonant.models.higgs_audio_v2.config import CODEBOOKS
from sonant.models.higgs_audio_v2.knobs import MOST_RAS_ROWS
from sonant.models.higgs_audio_v2.layout import Layout
from sonant.models.higgs_audio_v2.row_state import BEFORE
from sonant.models.prompt import Ints

_HEAD = 5  # row, row to be readied, start, end, length


@dataclass(frozen=True)
class PackedShape:
    positions: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Head, text, codes, opening."""
        return (_HEAD, self.positions, self.positions * CODEBOOKS, MOST_RAS_ROWS * CODEBOOKS)

    def pack(self, items: Sequence[PrefillItem], count: int, scratch_row: int) -> Ints:
        lines = np.full((count, sum(self.sizes)), -1, np.int32)
        lines[:, :_HEAD] = (scratch_row, scratch_row, 0, 0, 1)
        head, text, codes, opening = np.split(lines, list(accumulate(self.sizes))[:-1], axis=1)
        opening[:] = 0  # the scratch row must hold valid codes
        for n, item in enumerate(items):
            layout: Layout = item.prompt.payload
            filled = item.end - item.start
            head[n] = item.row, item.row if item.last else scratch_row, item.start, item.end, item.prompt.length
            text[n, :filled] = layout.text[item.start : item.end]
            codes[n, : filled * CODEBOOKS] = layout.codes[item.start : item.end].reshape(-1)
            if item.last:
                opening[n] = np.concatenate([layout.last_rows(BEFORE), layout.codes[-1:]]).reshape(-1)
        return lines


class PackedPrompts:
    """Packed lines on the device, by name. `at` [B, positions] is each entry's position in its prompt."""

    def __init__(self, lines: Tensor, shape: PackedShape) -> None:
        head, self.text, codes, opening = lines.split(shape.sizes, dim=1)
        row, ready_row, start, end, length = head.long().split(1, dim=1)
        self.rows, self.ready_rows, self.lengths = row[:, 0], ready_row[:, 0], length[:, 0]
        self.codes = codes.unflatten(1, (-1, CODEBOOKS))
        self.opening = opening.unflatten(1, (-1, CODEBOOKS))
        at = start + torch.arange(shape.positions, device=lines.device)
        self.real = at < end
        self.at = at.where(self.real, 0)

    def kinds(self) -> Tensor:
        """[B, positions]: 0 text, 1 a row of codes, 2 padding, as `split_kinds` takes it."""
        audio = (self.codes[..., 0] >= 0).int()
        return audio.where(self.real, 2)
