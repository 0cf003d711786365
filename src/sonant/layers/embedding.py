"""A table of vectors that is filled from a file."""

from __future__ import annotations

from torch import Tensor, nn

from sonant.kernels.host_weights import host_rows


class Embedding(nn.Embedding):
    """An `nn.Embedding` that draws no initial values on the meta device.

    There are none to draw there, and torch imports its whole compiler to find that out, which takes as long again as
    importing torch.
    """

    def stay_on_host(self) -> None:
        """For a table that is too large for the device: rows are copied when they are looked up."""
        self.forward = self._host_rows  # type: ignore[method-assign]

    def _host_rows(self, input: Tensor) -> Tensor:
        return host_rows(self.weight, input)

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()
