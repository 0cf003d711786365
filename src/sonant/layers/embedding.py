"""A table of vectors that is filled from a file."""

from __future__ import annotations

from torch import Tensor, nn

from sonant.kernels.host_weights import host_rows


class Embedding(nn.Embedding):
    """`nn.Embedding`, but on the meta device it draws no first values.

    There are none to draw there, and torch imports its whole compiler to find that out: as long again as torch itself.
    """

    def stay_on_host(self) -> None:
        """A table that is too large for the device: rows travel when they are looked up."""
        self.forward = self._host_rows  # type: ignore[method-assign]

    def _host_rows(self, input: Tensor) -> Tensor:
        return host_rows(self.weight, input)

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()
