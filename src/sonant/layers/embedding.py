"""A table of vectors that is filled from a file."""

from __future__ import annotations

from torch import nn


class Embedding(nn.Embedding):
    """`nn.Embedding`, but on the meta device it draws no first values.

    There are none to draw there, and torch imports its whole compiler to find that out: as long again as torch itself.
    """

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()
