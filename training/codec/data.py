"""Random crops straight from device memory: the corpus fits there whole, so no loader has to keep up with the GPU."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.clip import FRAME, STEP
from training.shards import Corpus, hours_by_speaker


class Crops:
    def __init__(self, corpus: Corpus, device: torch.device, guesses: NDArray[np.int16] | None = None) -> None:
        """`guesses`: what `training.guess` put in place of the corpus's codes."""
        if guesses is not None and len(guesses) * FRAME != len(corpus.samples):
            raise ValueError(f"{len(guesses)} guessed frames for {len(corpus.samples) // FRAME}: of another corpus?")
        self.device = device
        self.guesses = None if guesses is None else torch.from_numpy(guesses).to(device)
        self.samples = torch.from_numpy(corpus.samples).to(device)
        self.labels = torch.from_numpy(corpus.labels).to(device)
        self.starts = torch.tensor([e.start for e in corpus.entries], device=device)
        self.lengths = torch.tensor([e.samples for e in corpus.entries], device=device)
        # Every voice as often as the others, however much there is of it.
        hours = hours_by_speaker(corpus.entries)
        weights = torch.tensor([e.samples / hours[e.speaker] for e in corpus.entries], dtype=torch.float64)
        self.cumulative = (weights.cumsum(0) / weights.sum()).to(device)

    def draw(self, rows: int, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor | None]:
        """→ samples [rows, samples] in ±1, their phoneme labels [rows, samples / STEP], and the guesses in their place
        [rows, samples / FRAME, codebooks], -1 where there are none. No host sync."""
        points = torch.rand((2, rows), generator=generator, device=self.device, dtype=torch.float64)
        clip = torch.searchsorted(self.cumulative, points[0]).clamp(max=len(self.starts) - 1)
        start, length = self.starts[clip], self.lengths[clip]
        # Offsets reach past both ends and are clamped, so beginnings and endings are drawn more often than middles.
        spare = (length - samples).clamp(min=0)
        offset = (points[1] * (spare + samples / 2) - samples / 4).long().clamp(min=0)
        unit = STEP if self.guesses is None else FRAME
        offset = torch.minimum(offset, spare) // unit * unit
        place = start, length, offset, samples
        guessed = None if self.guesses is None else self._window(self.guesses, *place, unit=FRAME, outside=-1).long()
        return self._window(self.samples, *place).float() / 32768, self._window(self.labels, *place, unit=STEP), guessed

    def _window(
        self,
        flat: Tensor,
        start: Tensor,
        length: Tensor,
        offset: Tensor,
        count: int,
        *,
        unit: int = 1,
        outside: int = 0,
    ) -> Tensor:
        """Windows of values that each stand for `unit` samples, with `outside` after a clip's end."""
        at = offset[:, None] // unit + torch.arange(count // unit, device=self.device)
        inside = at < length[:, None] // unit
        values = flat[(start[:, None] // unit + at).clamp(max=len(flat) - 1)]
        return values.masked_fill(~inside.view(*inside.shape, *[1] * (values.ndim - 2)), outside)
