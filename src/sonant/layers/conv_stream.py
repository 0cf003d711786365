"""Causal convolutions that can run in pieces: the samples a piece needs of its past are explicit state.

Each layer owns one slot of a `StreamState`, a list with a tensor per layer: it reads its slot and leaves there
what the next piece needs. Without state (None) a layer sees silence before its input, as in training.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

StreamState = list[Tensor]


class CausalConv1d(nn.Module):
    """Stride 1. State: the last (kernel - 1) · dilation input columns."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, dilation: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation, groups=groups)
        self.slot = -1
        self.state_shape = (inputs, (kernel - 1) * dilation)

    def forward(self, x: Tensor, state: StreamState | None) -> Tensor:
        past = self.state_shape[1]
        if past == 0:
            return self.conv(x)
        if state is None:
            x = F.pad(x, (past, 0))
        else:
            x = torch.cat([state[self.slot], x], dim=-1)
            state[self.slot] = x[..., x.shape[-1] - past :]
        return self.conv(x)


class CausalConvTranspose1d(nn.Module):
    """Upsampling whose right overhang is held back. State: the overhang, still without bias."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride=stride)
        self.slot = -1
        self.stride = stride
        self.state_shape = (outputs, kernel - stride)

    def forward(self, x: Tensor, state: StreamState | None) -> Tensor:
        length, overhang = x.shape[-1] * self.stride, self.state_shape[1]
        if overhang == 0 or state is None:
            return self.conv(x)[..., :length]
        y = F.conv_transpose1d(x, self.conv.weight, None, stride=self.stride)
        head = y[..., :overhang] + state[self.slot]
        y = torch.cat([head, y[..., overhang:]], dim=-1)
        state[self.slot] = y[..., length:]
        bias = self.conv.bias
        return y[..., :length] if bias is None else y[..., :length] + bias[:, None]


def assign_slots(module: nn.Module, first: int) -> list[tuple[int, int]]:
    """Number the stateful layers of `module` from `first` on; their state shapes in slot order."""
    shapes: list[tuple[int, int]] = []
    for layer in module.modules():
        if isinstance(layer, CausalConv1d | CausalConvTranspose1d) and layer.state_shape[1] > 0:
            layer.slot = first + len(shapes)
            shapes.append(layer.state_shape)
    return shapes
