"""Shows the talker where in the text it is: one attention head of some layers is asked to look near the diagonal.

Left alone, a small model needs thousands of steps to find out that the words it should say stand in its prompt, and
until then it babbles. The guide is loose: a window around the place that a steady pace would have reached. Nothing of
it is left in the weights' shape, and the served model attends as it likes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sonant.layers.attention import FullContext

_LEADING_FRAMES, _TRAILING_FRAMES = 1, 2.5  # of silence, in every clip of the corpus


@dataclass(frozen=True)
class Guide:
    layers: tuple[int, ...]
    weight: float
    width: float  # of the window to either side, as a share of the text
    slack: float  # and in characters


class GuidedContext(FullContext):
    """`near` [B, T, S]: the keys that a query may look at for free; `guided` [B, T]: the queries that count."""

    def __init__(self, guide: Guide, near: Tensor, guided: Tensor) -> None:
        super().__init__()
        self.guide, self.near, self.guided = guide, near, guided
        self.astray = torch.zeros((), device=near.device)  # the sum over the guided layers

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if any(layer == each for each in self.guide.layers):  # torch.compile gets `in` wrong here
            self.astray = self.astray + self._astray(q[:, :, 0], k[:, :, 0])
        return super().attend(layer, q, k, v)

    def _astray(self, q: Tensor, k: Tensor) -> Tensor:
        """How little of the first head's attention falls into the window: -log of its share."""
        scores = (q.float() @ k.float().mT) * q.shape[-1] ** -0.5
        index = torch.arange(q.shape[1], device=q.device)
        scores = scores.masked_fill(index[:, None] < index, -1e4)
        astray = scores.logsumexp(-1) - scores.masked_fill(~self.near, -1e4).logsumexp(-1)
        return (astray * self.guided).sum() / self.guided.sum()


def guide_batch(guide: Guide, text: Tensor, codes: Tensor, begin: int, end: int) -> GuidedContext:
    """The context for inputs [B, T] and [B, T, codebooks]; `begin` and `end` are the text ids around what is said."""
    first = (text == begin).int().argmax(1, keepdim=True) + 1
    last = (text == end).int().argmax(1, keepdim=True)
    frames = (codes[..., 1] >= 0).sum(1, keepdim=True)
    position = torch.arange(text.shape[1], device=text.device)[None]
    frame = position - last - 1  # the one that is predicted there
    guided = (frame >= 0) & (frame < frames)
    spoken = (frames - _LEADING_FRAMES - _TRAILING_FRAMES).clamp(min=1)
    pace = ((frame - _LEADING_FRAMES + 0.5) / spoken).clamp(0, 1)
    centre = first + pace * (last - first)
    reach = guide.slack + guide.width * (last - first)
    keys = position[:, None]
    inside = (keys >= first[..., None]) & (keys < last[..., None])
    near = inside & ((keys - centre[..., None]).abs() <= reach[..., None])
    return GuidedContext(guide, near, guided.float())
