"""What the tuner tunes: a family's products and convolutions, as plain numbers that can be sent to a process.

Each case can make its arguments, run with a given tile, and say which candidates compile to the same kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from sonant.bench.kernels.case import Call
from sonant.config import Quantization
from sonant.kernels import reference, tuning
from sonant.kernels.reference import QuantizedWeight, Snake, Weight
from sonant.kernels.triton import conv, conv_tile, gemv, small_m_tile, tiled_tile
from sonant.kernels.tuning import Tile
from sonant.models.workload import CodecWorkload, StackWorkload

_EPS = 1e-6
_ITEM_BYTES = 2  # of values, and of weights that are not quantised
PRODUCT_ROWS = (64, 32, 16)  # 16 serves all smaller numbers
QUANTIZED_ROWS = (256, 64, 16, 32, 128, 512)  # products of eight bits on both sides too; the most important first
CODEC_FRAMES = (256, 64, 1024, 16, 4, 1)  # rows times frames, the most important first


class Tunable(Protocol):
    @property
    def op(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def where(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def streamed_bytes(self) -> int: ...
    @property
    def flops(self) -> int: ...
    def candidates(self) -> list[Tile]: ...
    def compiled_as(self, tile: Tile) -> tuple[Any, ...]: ...
    def least(self) -> Tunable: ...
    def make(self, device: torch.device) -> Call: ...
    def with_other_weights(self, call: Call) -> Call: ...
    def run(self, call: Call, tile: Tile) -> Tensor: ...
    def expected(self, call: Call) -> Tensor: ...


@dataclass(frozen=True)
class ProductCase:
    op: str
    where: str
    rows: int
    depth: int
    columns: int
    quantize: Quantization | None = None

    @property
    def weight_item(self) -> int:
        return weight_item(self.quantize)

    @property
    def many(self) -> bool:
        """Whether there are so many rows that both sides have eight bits."""
        return self.quantize is not None and self.rows > small_m_tile.WIDENED_ROWS

    @property
    def gated(self) -> bool:
        return self.op == "norm_gated"

    @property
    def key(self) -> str:
        if self.many:
            return tuning.key("scaled", tiled_tile.shape_key(self.depth, self.columns, self.gated), self.rows)
        norm = self.op.startswith("norm")
        shape = small_m_tile.shape_key(self.depth, self.columns, self.gated, norm, self.weight_item)
        return tuning.key("small_m", shape, self.rows)

    @property
    def streamed_bytes(self) -> int:
        return self.weight_item * (2 if self.gated else 1) * self.columns * self.depth

    @property
    def bytes(self) -> int:
        values = self.depth + self.columns * (2 if self.op == "linear_add" else 1)
        return self.streamed_bytes + _ITEM_BYTES * self.rows * values

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.depth * self.columns * (2 if self.gated else 1)

    def candidates(self) -> list[Tile]:
        found = small_m_tile.candidates(self.rows, self.depth, self.columns, self.gated, self.weight_item)
        if self.many:
            found = tiled_tile.candidates(self.rows, self.depth, self.columns, self.gated)
        return list(dict.fromkeys(found))

    def compiled_as(self, tile: Tile) -> tuple[Any, ...]:
        if self.many:
            return self.gated, self.op == "linear_add", tile
        loop = self.depth // (tile.k * tile.splits) > 1
        return self.op, self.rows, self.quantize, replace(tile, m=0), loop

    def least(self) -> ProductCase:
        return self

    def make(self, device: torch.device) -> Call:
        x, gain = normal(device, self.rows, 1, self.depth), normal(device, self.depth)
        weight = random_weight(device, (2 if self.gated else 1) * self.columns, self.depth, self.quantize)
        if self.op.startswith("norm"):
            return Call((x, gain, _EPS, weight), {})
        before = (normal(device, self.rows, 1, self.columns),) if self.op == "linear_add" else ()
        return Call((x, weight, *before), {})

    @property
    def weight_at(self) -> int:
        return 3 if self.op.startswith("norm") else 1

    def with_other_weights(self, call: Call) -> Call:
        return _copied(call, self.weight_at)

    def run(self, call: Call, tile: Tile) -> Tensor:
        return getattr(gemv, self.op)(*call.args, **call.kwargs, tile=tile)

    def expected(self, call: Call) -> Tensor:
        """With many rows the input is quantised too, as in the library's product, which overwrites its residual."""
        if self.many:
            args = tuple(a.clone() if isinstance(a, Tensor) else a for a in call.args)
            return self.run(Call(args, call.kwargs), tuning.LIBRARY)
        return getattr(reference, self.op)(*call.args)


@dataclass(frozen=True)
class ConvCase:
    """A convolution over a batch of pieces of one frame, or of several if there are more than 64 frames."""

    where: str
    frames: int
    steps: int  # in a frame
    inputs: int
    channels: int
    samples: int  # of each channel that one step becomes; more than one: a transposed convolution
    taps: int
    dilation: int
    snake: bool
    residual: bool

    @property
    def op(self) -> str:
        return "causal_conv"

    @property
    def batch(self) -> int:
        return min(self.frames, 64)

    @property
    def columns(self) -> int:
        return self.channels * self.samples

    @property
    def rows(self) -> int:
        return self.frames * self.steps

    @property
    def key(self) -> str:
        shape = conv_tile.shape_key(self.inputs, self.columns, self.taps, _ITEM_BYTES)
        return tuning.key("conv", shape, self.rows)

    @property
    def streamed_bytes(self) -> int:
        return _ITEM_BYTES * self.columns * self.inputs * self.taps

    @property
    def bytes(self) -> int:
        written = self.columns * (1 + 2 * self.residual + (self.samples > 1))
        return self.streamed_bytes + _ITEM_BYTES * self.rows * (self.inputs + written)

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.columns * self.inputs * self.taps

    def candidates(self) -> list[Tile]:
        found = conv_tile.candidates(self.rows, self.inputs, self.columns, self.taps, _ITEM_BYTES)
        return list(dict.fromkeys(found))

    def compiled_as(self, tile: Tile) -> tuple[Any, ...]:
        kind = self.taps, self.samples > 1, self.snake, self.residual, self.columns == 1, self.inputs % tile.k == 0
        return "causal_conv", kind, tile

    def least(self) -> ConvCase:
        return replace(self, frames=1)

    def make(self, device: torch.device) -> Call:
        x = normal(device, self.batch, self.frames // self.batch * self.steps, self.inputs)
        # laid out as layers/conv_stream.py does
        weight = normal(device, self.columns, self.taps, self.inputs) * (self.taps * self.inputs) ** -0.5
        past = normal(device, self.batch, (self.taps - 1) * self.dilation, self.inputs) if self.taps > 1 else None
        per_channel = normal(device, self.channels)
        residual = normal(device, *x.shape[:2], self.columns) if self.residual else None
        snake = Snake(per_channel, per_channel) if self.snake else None
        keep = self.residual or self.samples > 1 or not self.snake
        options = {"residual": residual, "snake": snake, "keep": keep}
        return Call((x, weight.permute(0, 2, 1), per_channel, past, self.dilation), options)

    def with_other_weights(self, call: Call) -> Call:
        return _copied(call, 1)

    def run(self, call: Call, tile: Tile) -> Tensor:
        return conv.causal_conv(*call.args, **call.kwargs, tile=tile)[1]

    def expected(self, call: Call) -> Tensor:
        return self.run(call, tuning.LIBRARY)


def product_cases(stacks: Sequence[StackWorkload], quantize: Quantization | None = None) -> Iterator[ProductCase]:
    """The stacks' products. With `quantize` there are no heads, which are not quantised."""
    for rows in PRODUCT_ROWS if quantize is None else QUANTIZED_ROWS:
        for s in stacks:
            yield ProductCase("norm_linear", f"{s.name} qkv", rows, s.hidden, s.qkv, quantize)
            yield ProductCase("linear_add", f"{s.name} o", rows, s.heads * s.head_dim, s.hidden, quantize)
            yield ProductCase("norm_gated", f"{s.name} gate, up", rows, s.hidden, s.inner, quantize)
            yield ProductCase("linear_add", f"{s.name} down", rows, s.inner, s.hidden, quantize)
            if s.draws and quantize is None:
                yield ProductCase("linear", f"{s.name} head", rows, s.hidden, s.vocab)


def conv_cases(c: CodecWorkload) -> Iterator[ConvCase]:
    """All convolutions but the depthwise ones, which have no tiles."""
    for frames in CODEC_FRAMES:
        steps, channels = c.steps_per_frame, c.channels
        yield ConvCase(f"{c.name} first", frames, steps, c.latent, channels, 1, 1 if c.depthwise else 7, 1, True, False)
        for rate in c.upsample_rates:
            thin = channels // 2
            yield ConvCase(f"{c.name} up {thin}", frames, steps, channels, thin, rate, 2, 1, True, False)
            steps, channels = steps * rate, thin
            if not c.depthwise:
                yield ConvCase(f"{c.name} wide {thin}", frames, steps, thin, thin, 1, 7, 3, True, False)
            yield ConvCase(f"{c.name} point {thin}", frames, steps, thin, thin, 1, 1, 1, True, True)
        yield ConvCase(f"{c.name} last", frames, steps, channels, 1, 1, 7, 1, False, False)


def _copied(call: Call, at: int) -> Call:
    """The call with a copy of argument `at` elsewhere in memory."""
    return Call((*call.args[:at], copied(call.args[at]), *call.args[at + 1 :]), call.kwargs)


def copied(weight: Weight) -> Weight:
    if isinstance(weight, QuantizedWeight):
        return QuantizedWeight(weight.values.clone(), weight.scale.clone())
    return weight.clone()


def weight_item(quantize: Quantization | None) -> int:
    return _ITEM_BYTES if quantize is None else 1


def random_weight(device: torch.device, columns: int, depth: int, quantize: Quantization | None) -> Weight:
    drawn = normal(device, columns, depth) * depth**-0.5
    return drawn if quantize is None else reference.quantize(drawn)


def normal(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, device=device, dtype=torch.bfloat16)
