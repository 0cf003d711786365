"""What the first codebook stands for: the sounds that are heard in a frame, as the corpus labels them.

A first codebook that only had to help the decoder would leave words to the deeper ones, where a talker predicts them
worst. So it is fixed before training: frames fall into as many kinds as it has entries, by which sounds they begin and
end with, and its entries are those kinds, in fewer dimensions. The encoder learns to name a frame's kind; the decoder
and the talker learn from the labels themselves, which do not err.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.clip import FRAME, STEP
from training.codec.config import PHONEMES
from training.codec.kmeans import nearest, settled

_FRAMES = 60_000  # frames from which the kinds are found
_ROUNDS = 25
_SPREAD = 8.0  # scales entries far enough apart for the encoder to be sure of one


class Sounds(nn.Module):
    kinds: Tensor  # [entries, features]

    def __init__(self, entries: int) -> None:
        super().__init__()
        self.register_buffer("kinds", torch.zeros(entries, 2 * PHONEMES))

    def forward(self, labels: Tensor) -> Tensor:
        """labels [..., frames · FRAME / STEP] → the kind of each frame, [..., frames]."""
        x = features(labels)
        return nearest(x.flatten(0, -2), self.kinds).view(x.shape[:-1])

    @torch.no_grad()
    def find(self, labels: Tensor, generator: torch.Generator) -> None:
        """k-means of all frames of `labels` [n]. It starts from frames that are far from each other: most frames are
        alike, and words hang on the others."""
        frames = labels.view(-1, FRAME // STEP)
        count = min(_FRAMES, len(frames))
        x = features(frames[torch.randint(len(frames), (count,), generator=generator, device=labels.device)])[:, 0]
        self.kinds[0] = x[0]
        away = (x - x[0]).square().sum(1)
        for i in range(1, len(self.kinds)):
            self.kinds[i] = x[torch.multinomial(away.clamp(min=1e-9), 1, generator=generator)[0]]
            away = torch.minimum(away, (x - self.kinds[i]).square().sum(1))
        self.kinds.copy_(settled(x, self.kinds, _ROUNDS))

    def entries(self, size: int) -> Tensor:
        """The kinds in their `size` main directions, [entries, size]."""
        centred = self.kinds - self.kinds.mean(0)
        _, _, directions = torch.linalg.svd(centred, full_matrices=False)
        found = centred @ directions[:size].T
        return _SPREAD * F.pad(found, (0, size - found.shape[1]))


def features(labels: Tensor) -> Tensor:
    """[..., frames · steps] → [..., frames, 2 · PHONEMES]: how much there is of each sound, weighted towards the
    frame's beginning, and towards its end. Square roots, so that a short sound is not lost beside a long one."""
    steps = FRAME // STEP
    frames = labels.long().unflatten(-1, (-1, 1, steps)).expand(*[-1] * labels.ndim, 2, -1)
    fading = torch.linspace(1, 0, steps, device=labels.device) / steps
    weights = torch.stack([fading, fading.flip(0)]).expand(frames.shape)
    shares = weights.new_zeros(*frames.shape[:-1], PHONEMES).scatter_add_(-1, frames, weights)
    return shares.sqrt().flatten(-2)
