"""A table of vectors that is filled from a file."""

from __future__ import annotations

from torch import Tensor, nn

from sonant.kernels.host_weights import host_rows


class Embedding(nn.Embedding):
    """`nn.Embedding`, but on the meta device it draws no first values.

    There are none to draw there, and torch imports its whole compiler to find that out: as long again as torch itself.
    """

    on_host = False  # a table that is too large for the device: rows travel when they are looked up

    def forward(self, input: Tensor) -> Tensor:
        return host_rows(self.weight, input) if self.on_host else super().forward(input)

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()
