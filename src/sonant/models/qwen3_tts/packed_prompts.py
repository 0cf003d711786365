"""Prompts packed into lines of equal width, so that a prefill takes one copy from the host and nothing else.

A line holds the row, the span of positions, ids for that many positions and the last one, the trailing text, and the
speaker's vector, all in int32. Unused lines point at the scratch row and have no positions.
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
        text, codes, trailing, speaker, end = accumulate(self.sizes)
        lines = np.full((count, end), -1, np.int32)
        lines[:, :_HEAD] = (scratch_row, scratch_row, 0, 0, 1, -1)
        for line, item in zip(lines, items, strict=False):
            assert positions_needed(item) <= self.positions, "a prompt would run into its neighbour's place"
            layout: Layout = item.prompt.payload
            start, stop, voiced = item.start, item.end, layout.speaker is not None
            ready_row = item.row if item.last else scratch_row
            speaker_at = layout.speaker_at if voiced else -1
            line[:_HEAD] = (item.row, ready_row, start, stop, item.prompt.length, speaker_at)
            line[text : text + stop - start], line[codes - 1] = layout.text[start:stop], layout.text[-1]
            line[codes : codes + (stop - start) * self.groups] = layout.codes[start:stop].reshape(-1)
            line[trailing - self.groups : trailing] = layout.codes[-1]
            if item.last:
                line[trailing : trailing + len(layout.trailing)] = layout.trailing
            if layout.speaker is not None:
                line[speaker:] = layout.speaker.astype(np.float32).view(np.int32)
        return lines


def positions_needed(item: PrefillItem) -> int:
    return max(item.end - item.start, len(item.prompt.payload.trailing) if item.last else 0)


class PackedPrompts:
    """Packed lines on the device, by name. `at` [B, positions + 1] is each entry's position in its prompt."""

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
