"""Causal convolutions that can run in pieces: the samples a piece needs of its past are explicit state.

Each layer owns one slot of a `StreamState`, a list with a tensor per layer: it reads its slot and leaves there
what the next piece needs. Without state (None) a layer sees silence before its input, as in training.

Values are [B, T, C] throughout, channels last: what tensor cores want, and what a transformer between them speaks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonant.kernels import ops

StreamState = list[Tensor]


def convolve(x: Tensor, conv: nn.Conv1d) -> Tensor:
    """[B, T, C] → [B, T', C'] with no padding: as a flat image, since only images can have their channels last."""
    (stride,), (dilation,) = conv.stride, conv.dilation
    weight = conv.weight.unsqueeze(2)
    y = F.conv2d(x.mT.unsqueeze(2), weight, conv.bias, (1, stride), 0, (1, dilation), conv.groups)
    return y.squeeze(2).mT


def convolve_transposed(x: Tensor, conv: nn.ConvTranspose1d, bias: Tensor | None) -> Tensor:
    y = F.conv_transpose2d(x.mT.unsqueeze(2), conv.weight.unsqueeze(2), bias, (1, conv.stride[0]))
    return y.squeeze(2).mT


def channels_last(module: nn.Module) -> None:
    """Lay the weights of all convolutions out as the kernels read them; their names and shapes stay."""
    for part in module.modules():
        if isinstance(part, nn.Conv1d | nn.ConvTranspose1d):
            taps_first = part.groups > 1
            order = (2, 1, 0) if taps_first else (0, 2, 1)  # each its own inverse
            part.weight.data = part.weight.data.permute(order).contiguous().permute(order)


class CausalConv1d(nn.Module):
    """Stride 1. State: the last (kernel - 1) · dilation inputs. `depthwise`: each channel by itself."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, dilation: int = 1, depthwise: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation, groups=inputs if depthwise else 1)
        self.depthwise = depthwise
        self.slot = -1
        self.state_shape = ((kernel - 1) * dilation, inputs)

    def forward(self, x: Tensor, state: StreamState | None) -> Tensor:
        past = self.state_shape[0]
        if self.conv.kernel_size == (1,):
            return F.linear(x, self.conv.weight[:, :, 0], self.conv.bias)
        if state is None:
            x = F.pad(x, (0, 0, past, 0))
        else:
            x = torch.cat([state[self.slot], x], dim=1)
            state[self.slot] = x[:, x.shape[1] - past :]
        if self.depthwise and self.conv.bias is not None:
            return ops.depthwise(x, self.conv.weight, self.conv.bias)
        return convolve(x, self.conv)


class CausalConvTranspose1d(nn.Module):
    """Upsampling whose right overhang is held back. State: the overhang, still without bias."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride=stride)
        self.slot = -1
        self.stride = stride
        self.state_shape = (kernel - stride, outputs)

    def forward(self, x: Tensor, state: StreamState | None) -> Tensor:
        length, overhang = x.shape[1] * self.stride, self.state_shape[0]
        if overhang == 0 or state is None:
            return convolve_transposed(x, self.conv, self.conv.bias)[:, :length]
        y = convolve_transposed(x, self.conv, None)
        head = y[:, :overhang] + state[self.slot]
        y = torch.cat([head, y[:, overhang:]], dim=1)
        state[self.slot] = y[:, length:]
        bias = self.conv.bias
        return y[:, :length] if bias is None else y[:, :length] + bias


def assign_slots(module: nn.Module, first: int) -> list[tuple[int, int]]:
    """Number the stateful layers of `module` from `first` on; their state shapes in slot order."""
    shapes: list[tuple[int, int]] = []
    for layer in module.modules():
        if isinstance(layer, CausalConv1d | CausalConvTranspose1d) and layer.state_shape[0] > 0:
            layer.slot = first + len(shapes)
            shapes.append(layer.state_shape)
    return shapes
