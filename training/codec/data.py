"""Random crops straight from device memory: the corpus fits there whole, so no loader has to keep up with the GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from training.clip import STEP
from training.shards import Corpus, hours_by_speaker


class Crops:
    def __init__(self, corpus: Corpus, device: torch.device) -> None:
        self.device = device
        self.samples = torch.from_numpy(corpus.samples).to(device)
        self.labels = torch.from_numpy(corpus.labels).to(device)
        self.starts = torch.tensor([e.start for e in corpus.entries], device=device)
        self.lengths = torch.tensor([e.samples for e in corpus.entries], device=device)
        # Every voice as often as the others, however much there is of it.
        hours = hours_by_speaker(corpus.entries)
        weights = torch.tensor([e.samples / hours[e.speaker] for e in corpus.entries], dtype=torch.float64)
        self.cumulative = (weights.cumsum(0) / weights.sum()).to(device)

    def draw(self, rows: int, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """→ samples [rows, samples] in ±1 and their phoneme labels [rows, samples / STEP]. No host sync."""
        points = torch.rand((2, rows), generator=generator, device=self.device, dtype=torch.float64)
        clip = torch.searchsorted(self.cumulative, points[0]).clamp(max=len(self.starts) - 1)
        start, length = self.starts[clip], self.lengths[clip]
        # Reaching past both ends and then clamped: beginnings and endings are drawn more often than middles.
        spare = (length - samples).clamp(min=0)
        offset = (points[1] * (spare + samples / 2) - samples / 4).long().clamp(min=0)
        offset = torch.minimum(offset, spare) // STEP * STEP
        return (
            self._window(self.samples, start, length, offset, samples).float() / 32768,
            self._window(self.labels, start // STEP, length // STEP, offset // STEP, samples // STEP),
        )

    def _window(self, flat: Tensor, start: Tensor, length: Tensor, offset: Tensor, count: int) -> Tensor:
        """Zeros after a clip's end."""
        at = offset[:, None] + torch.arange(count, device=self.device)
        inside = at < length[:, None]
        values = flat[(start[:, None] + at).clamp(max=len(flat) - 1)]
        return values.masked_fill(~inside, 0)
