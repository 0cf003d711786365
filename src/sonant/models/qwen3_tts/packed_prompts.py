"""Prompts packed into lines of equal width, so that a prefill takes one copy from the host and nothing else.

A line holds the row, the span of positions, ids for that many positions and the last one, the text that trails, and
the speaker's vector, all in int32. Lines nobody needs point at the scratch row and fill nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from sonant.models.base import PrefillItem
from sonant.models.prompt import Ints
from sonant.models.qwen3_tts.layout import Layout

_HEAD = 6  # row, row to be readied, start, end, length, place of the speaker


@dataclass(frozen=True)
class PackedShape:
    positions: int
    groups: int
    hidden: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Head, text, codes, trailing, speaker."""
        entries = self.positions + 1
        return (_HEAD, entries, entries * self.groups, self.positions, self.hidden)

    def pack(self, items: Sequence[PrefillItem], count: int, scratch_row: int) -> Ints:
        """[count, width]; an item must fit, see `positions_needed`."""
        lines = np.full((count, sum(self.sizes)), -1, np.int32)
        lines[:, :_HEAD] = (scratch_row, scratch_row, 0, 0, 1, -1)
        head, text, codes, trailing, speaker = np.split(lines, list(accumulate(self.sizes))[:-1], axis=1)
        for n, item in enumerate(items):
            layout: Layout = item.prompt.payload
            filled = item.end - item.start
            head[n, :5] = item.row, scratch_row, item.start, item.end, item.prompt.length
            text[n, :filled], text[n, -1] = layout.text[item.start : item.end], layout.text[-1]
            codes[n, : filled * self.groups] = layout.codes[item.start : item.end].reshape(-1)
            codes[n, -self.groups :] = layout.codes[-1]
            if item.last:
                head[n, 1] = item.row
                trailing[n, : len(layout.trailing)] = layout.trailing
            if layout.speaker is not None:
                head[n, 5] = layout.speaker_at
                speaker[n] = layout.speaker.astype(np.float32).view(np.int32)
        return lines


def positions_needed(item: PrefillItem) -> int:
    return max(item.end - item.start, len(item.prompt.payload.trailing) if item.last else 0)


class PackedPrompts:
    """Packed lines on the device, by name. `at` [B, positions + 1] is where each entry stands in its prompt."""

    def __init__(self, lines: Tensor, shape: PackedShape) -> None:
        head, self.text, codes, self.trailing, speaker = lines.split(shape.sizes, dim=1)
        row, ready_row, start, end, length, speaker_at = head.long().split(1, dim=1)
        self.rows, self.ready_rows, self.lengths = row[:, 0], ready_row[:, 0], length[:, 0]
        self.codes = codes.unflatten(1, (-1, shape.groups))
        index = torch.arange(shape.positions + 1, device=lines.device)
        self.at = torch.where(index < shape.positions, start + index, length - 1)
        self.real = self.at[:, :-1] < end
        self.speaks = (self.at == speaker_at)[..., None]
        self.speaker = speaker.view(torch.float32)[:, None]
