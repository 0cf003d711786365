"""Causal convolutions that can run in pieces: the samples a piece needs of its past are explicit state.

Each layer owns one slot of a `StreamState`, a list with a tensor per layer: it reads its slot and leaves there
what the next piece needs. Without state (None) a layer sees silence before its input, as in training.

Values are [B, T, C] throughout, channels last, as tensor cores and a transformer between the layers want them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sonant.kernels import ops
from sonant.kernels.reference import Snake

StreamState = list[Tensor]


def channels_last(module: nn.Module) -> None:
    """Lay the weights of all convolutions out as the kernels read them; their names and shapes stay."""
    for part in module.modules():
        if isinstance(part, nn.Conv1d):
            order = (2, 1, 0) if part.groups > 1 else (0, 2, 1)  # each order is its own inverse
            part.weight.data = part.weight.data.permute(order).contiguous().permute(order)


def as_read(weight: Tensor) -> Tensor:
    """A convolution's weight [outputs, inputs, taps] with the inputs last in memory, where the kernels want them."""
    return weight.permute(0, 2, 1).contiguous().permute(0, 2, 1)


def columns_of(weight: Tensor, taps: int) -> Tensor:
    """A transposed convolution's weight [inputs, outputs, taps · stride] as that of a convolution whose columns are the
    samples between two inputs: [stride · outputs, inputs, taps], the oldest tap first."""
    return weight.unflatten(2, (taps, -1)).flip(2).permute(3, 1, 0, 2).flatten(0, 1)


class CausalConv1d(nn.Module):
    """Stride 1. State: the last (kernel - 1) · dilation inputs."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation)
        self.slot = -1
        self.dilation = dilation
        self.state_shape = ((kernel - 1) * dilation, inputs)

    def forward(
        self, x: Tensor, state: StreamState | None, *, residual: Tensor | None = None, keep: bool = True,
        snake: SnakeBeta | Snake1d | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """→ the convolution plus `residual`, and the same after `snake`; see `ops.causal_conv`."""
        past = take(state, self.slot, x) if self.state_shape[0] else None
        return convolve(x, self.conv.weight, self.conv.bias, past, self.dilation, residual, snake, keep)


class DepthwiseConv1d(nn.Module):
    """Convolves each channel by itself. State: the last (kernel - 1) · dilation inputs."""

    def __init__(self, channels: int, kernel: int, *, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, kernel, dilation=dilation, groups=channels)
        self.slot = -1
        self.dilation = dilation
        self.state_shape = ((kernel - 1) * dilation, channels)

    def forward(self, x: Tensor, state: StreamState | None, *, snake: Snake1d | None = None) -> Tensor:
        """→ the convolution, or `snake` of it."""
        past, values = take(state, self.slot, x), None if snake is None else snake.values()
        assert self.conv.bias is not None
        return ops.depthwise(x, self.conv.weight, self.conv.bias, past, self.dilation, snake=values)


class CausalConvTranspose1d(nn.Module):
    """Upsampling by `stride` with one or two taps for each output: a convolution whose columns are the samples between
    two inputs. State: with two taps the last input."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        if kernel not in (stride, 2 * stride):
            raise ValueError(f"a kernel of {kernel} over a stride of {stride} has neither one nor two taps")
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride=stride)
        self.slot = -1
        self.outputs, self.rate, self.taps = outputs, stride, kernel // stride
        self.state_shape = (self.taps - 1, inputs)
        self.register_buffer("columns", None, persistent=False)

    def prepare(self, *, release: bool = False) -> None:
        """Derive from the loaded weights what `forward` otherwise derives each time.

        `release`: free the published form, which only training would read afterwards.
        """
        with torch.no_grad():
            columns = as_read(self._columns())
        if not release:
            self.columns = columns
            return
        self.columns = nn.Parameter(columns, requires_grad=False)
        del self.conv.weight

    def _columns(self) -> Tensor:
        return columns_of(self.conv.weight, self.taps)

    def forward(
        self, x: Tensor, state: StreamState | None, *, snake: SnakeBeta | Snake1d | None = None
    ) -> tuple[Tensor, Tensor]:
        """→ the upsampled values, and the same after `snake`."""
        past = take(state, self.slot, x) if self.taps > 1 else None
        weight = self._columns() if self.columns is None else self.columns
        made = convolve(x, weight, self.conv.bias, past, 1, None, snake, True)
        y, active = (m.reshape(len(x), -1, self.outputs) for m in made)
        return y, active


def take(state: StreamState | None, slot: int, x: Tensor) -> Tensor | None:
    """Return the inputs before x, and replace them in `state` by what the next piece needs."""
    if state is None:
        return None
    past = state[slot]
    held = past.shape[1]
    state[slot] = x[:, x.shape[1] - held :] if x.shape[1] >= held else torch.cat([past[:, x.shape[1] :], x], dim=1)
    return past


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, past: Tensor | None, dilation: int, residual: Tensor | None,
    snake: SnakeBeta | Snake1d | None, keep: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """In one op when serving. For training the SnakeBeta module is called, since a trainer may have replaced it."""
    assert bias is not None
    if isinstance(snake, Snake1d) or not torch.is_grad_enabled():
        values = None if snake is None else snake.values()
        return ops.causal_conv(x, weight, bias, past, dilation, residual=residual, snake=values, keep=keep)
    y, _ = ops.causal_conv(x, weight, bias, past, dilation, residual=residual)
    if snake is None:
        return y, y
    return y, snake(y.reshape(len(y), -1, len(snake.alpha))).view(y.shape)


class SnakeBeta(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def values(self) -> Snake:
        return Snake(self.alpha, self.beta)

    def forward(self, x: Tensor) -> Tensor:
        return ops.snake_beta(x, self.alpha, self.beta)


class Snake1d(nn.Module):
    """x + sin²(αx) / (α + 1e-9). α is any number, so it may not have a logarithm, which is what SnakeBeta stores."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def values(self) -> Snake:
        alpha = self.alpha.view(-1)
        return Snake(alpha, alpha, log_scale=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, C, T], the layout of encoders."""
        return x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).square()


class StreamedDecoder(nn.Module):
    """Has causal convolutions whose state is stored as one flat vector for each row of a batch.

    So one gather and one scatter move it. Zeros are the state before any input. Once all layers are made,
    `lay_out_tails` must be called.
    """

    tail_shapes: list[tuple[int, int]]
    tails_size: int

    def lay_out_tails(self) -> None:
        self.tail_shapes = assign_slots(self)
        self.tails_size = sum(math.prod(s) for s in self.tail_shapes)

    def unpack(self, flat: Tensor) -> StreamState:
        """Views of flat [B, tails_size], one for each stateful convolution."""
        pieces = flat.split([math.prod(s) for s in self.tail_shapes], dim=1)
        return [p.view(-1, *s) for p, s in zip(pieces, self.tail_shapes, strict=True)]

    def pack(self, tails: StreamState) -> Tensor:
        return torch.cat([t.flatten(1) for t in tails], dim=1)


def assign_slots(module: nn.Module) -> list[tuple[int, int]]:
    """Number the stateful layers of `module` → their state shapes in slot order."""
    shapes: list[tuple[int, int]] = []
    for layer in module.modules():
        if isinstance(layer, CausalConv1d | DepthwiseConv1d | CausalConvTranspose1d) and layer.state_shape[0] > 0:
            layer.slot = len(shapes)
            shapes.append(layer.state_shape)
    return shapes
