"""Prompts packed into lines of equal width, so that a prefill takes one copy from the host and nothing else.

A line holds the row, the span of positions, and ids for that many positions and the last one. If patches are among them
the line has those as well, as the bits of their numbers; if there are none, the local encoder does not run either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from sonant.models.base import PackedSize, PrefillItem
from sonant.models.prompt import Ints
from sonant.models.voxcpm2.layout import Layout

TEXT, PATCHES = 0, 1  # kinds of lines
_HEAD = 5  # row, row to be readied, start, end, length


def size_of(item: PrefillItem) -> PackedSize:
    layout: Layout = item.prompt.payload
    patches = layout.audio[item.start : item.end].any() or (item.last and layout.audio[-1])
    return PackedSize(item.end - item.start, PATCHES if patches else TEXT)


@dataclass(frozen=True)
class PackedShape:
    positions: int
    kind: int
    patch: tuple[int, int]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Head, text, and if there are patches, which positions are patches, and their latents."""
        entries = self.positions + 1
        patches = (entries, entries * self.patch[0] * self.patch[1]) if self.kind == PATCHES else (0, 0)
        return (_HEAD, entries, *patches)

    def pack(self, items: Sequence[PrefillItem], count: int, scratch_row: int) -> Ints:
        lines = np.zeros((count, sum(self.sizes)), np.int32)
        lines[:, :_HEAD] = (scratch_row, scratch_row, 0, 0, 1)
        head, text, audio, latents = np.split(lines, list(accumulate(self.sizes))[:-1], axis=1)
        for n, item in enumerate(items):
            layout: Layout = item.prompt.payload
            filled = item.end - item.start
            head[n] = item.row, item.row if item.last else scratch_row, item.start, item.end, item.prompt.length
            text[n, :filled], text[n, -1] = layout.text[item.start : item.end], layout.text[-1]
            if self.kind == PATCHES:
                patches = latents[n].reshape(self.positions + 1, -1)
                audio[n, :filled], audio[n, -1] = layout.audio[item.start : item.end], layout.audio[-1]
                patches[:filled] = _bits(layout.patches[item.start : item.end])
                patches[-1] = _bits(layout.patches[-1:])[0]
        return lines


def _bits(patches: np.ndarray) -> Ints:
    return np.ascontiguousarray(patches, np.float32).reshape(len(patches), -1).view(np.int32)


class PackedPrompts:
    """Packed lines on the device, by name. Entries are those of the span's positions, then the prompt's last one."""

    def __init__(self, lines: Tensor, shape: PackedShape) -> None:
        head, self.text, audio, latents = lines.split(shape.sizes, dim=1)
        row, ready_row, start, end, length = head.long().split(1, dim=1)
        self.rows, self.ready_rows, self.lengths = row[:, 0], ready_row[:, 0], length[:, 0]
        at = start + torch.arange(shape.positions, device=lines.device)
        self.real = at < end
        self.at = at.where(self.real, 0)
        self.audio: Tensor | None = None
        self.patches: Tensor | None = None
        if shape.kind == PATCHES:
            self.audio = audio > 0  # [B, positions + 1]
            self.patches = latents.view(torch.float32).unflatten(1, (-1, *shape.patch))
