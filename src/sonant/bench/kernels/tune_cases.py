"""What the tuner tunes: a family's products and convolutions, as plain numbers that a process can be sent.

Each case can make its arguments, run with a given tile, and say which candidates compile to the same kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from sonant.bench.kernels.case import Call
from sonant.kernels import reference, tuning
from sonant.kernels.reference import Sides, Snake, split_kinds
from sonant.kernels.triton import conv, conv_tile, dual_ffn, dual_tile, gemv, small_m_tile
from sonant.kernels.tuning import Tile
from sonant.models.workload import CodecWorkload, StackWorkload

_EPS = 1e-6
_ITEM_BYTES = 2
PRODUCT_ROWS = (64, 32, 16)  # 16 serves all that are fewer
DUAL_ROWS = (512, 256, 128, 64, 32)  # of a prefill; 32 serves all that are fewer
CODEC_FRAMES = (256, 64, 1024, 16, 4, 1)  # rows times frames, those that matter most first


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

    @property
    def gated(self) -> bool:
        return self.op == "norm_gated"

    @property
    def key(self) -> str:
        shape = small_m_tile.shape_key(self.depth, self.columns, self.gated, self.op.startswith("norm"), _ITEM_BYTES)
        return tuning.key("small_m", shape, self.rows)

    @property
    def streamed_bytes(self) -> int:
        return _ITEM_BYTES * (2 if self.gated else 1) * self.columns * self.depth

    @property
    def bytes(self) -> int:
        values = self.depth + self.columns * (2 if self.op == "linear_add" else 1)
        return self.streamed_bytes + _ITEM_BYTES * self.rows * values

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.depth * self.columns * (2 if self.gated else 1)

    def candidates(self) -> list[Tile]:
        found = small_m_tile.candidates(self.rows, self.depth, self.columns, self.gated, _ITEM_BYTES)
        return list(dict.fromkeys(found))

    def compiled_as(self, tile: Tile) -> tuple[Any, ...]:
        return self.op, self.rows, replace(tile, m=0), self.depth // (tile.k * tile.splits) > 1

    def least(self) -> ProductCase:
        return self

    def make(self, device: torch.device) -> Call:
        x, gain = _normal(device, self.rows, 1, self.depth), _normal(device, self.depth)
        weight = _normal(device, (2 if self.gated else 1) * self.columns, self.depth) * self.depth**-0.5
        if self.op.startswith("norm"):
            return Call((x, gain, _EPS, weight), {})
        before = (_normal(device, self.rows, 1, self.columns),) if self.op == "linear_add" else ()
        return Call((x, weight, *before), {})

    def with_other_weights(self, call: Call) -> Call:
        return _copied(call, 3 if self.op.startswith("norm") else 1)

    def run(self, call: Call, tile: Tile) -> Tensor:
        return getattr(gemv, self.op)(*call.args, tile=tile)

    def expected(self, call: Call) -> Tensor:
        return getattr(reference, self.op)(*call.args)


@dataclass(frozen=True)
class DualCase:
    """Of a two-sided layer: half of the rows are text, half audio."""

    op: str
    where: str
    rows: int
    depth: int
    columns: int

    @property
    def gated(self) -> bool:
        return self.op == "dual_norm_gated"

    @property
    def key(self) -> str:
        shape = dual_tile.shape_key(self.depth, self.columns, self.gated, _ITEM_BYTES)
        return tuning.key("dual_ffn", shape, self.rows)

    @property
    def streamed_bytes(self) -> int:
        return 2 * _ITEM_BYTES * (2 if self.gated else 1) * self.columns * self.depth

    @property
    def bytes(self) -> int:
        return self.streamed_bytes + _ITEM_BYTES * self.rows * (self.depth + self.columns * (1 if self.gated else 2))

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.depth * self.columns * (2 if self.gated else 1)

    def candidates(self) -> list[Tile]:
        found = dual_tile.candidates(self.rows, self.depth, self.columns, self.gated, _ITEM_BYTES)
        return list(dict.fromkeys(found))

    def compiled_as(self, tile: Tile) -> tuple[Any, ...]:
        return self.op, self.depth % tile.k == 0, tile

    def least(self) -> DualCase:
        return replace(self, rows=DUAL_ROWS[-1])

    def make(self, device: torch.device) -> Call:
        kinds = torch.arange(self.rows, device=device) >= self.rows // 2
        x, split = _normal(device, 1, self.rows, self.depth), split_kinds(kinds.int()[None])
        wide = (2 if self.gated else 1) * self.columns
        weights = Sides(*(_normal(device, wide, self.depth) * self.depth**-0.5 for _ in range(2)))
        if self.gated:
            return Call((x, split, Sides(*(_normal(device, self.depth) for _ in range(2))), _EPS, weights), {})
        return Call((x, split, weights, _normal(device, 1, self.rows, self.columns)), {})

    def with_other_weights(self, call: Call) -> Call:
        at = 4 if self.gated else 2
        weights = Sides(*(weight.clone() for weight in call.args[at]))
        return Call((*call.args[:at], weights, *call.args[at + 1 :]), call.kwargs)

    def run(self, call: Call, tile: Tile) -> Tensor:
        return getattr(dual_ffn, self.op)(*call.args, tile=tile)

    def expected(self, call: Call) -> Tensor:
        return getattr(reference, self.op)(*call.args)


@dataclass(frozen=True)
class ConvCase:
    """Of a batch of one-frame pieces, or of longer ones where there are many."""

    where: str
    frames: int
    steps: int  # in a frame
    inputs: int
    channels: int
    samples: int  # of each channel that come of one step: a transposed convolution
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
        x = _normal(device, self.batch, self.frames // self.batch * self.steps, self.inputs)
        # laid out as layers/conv_stream.py does
        weight = _normal(device, self.columns, self.taps, self.inputs) * (self.taps * self.inputs) ** -0.5
        past = _normal(device, self.batch, (self.taps - 1) * self.dilation, self.inputs) if self.taps > 1 else None
        per_channel = _normal(device, self.channels)
        residual = _normal(device, *x.shape[:2], self.columns) if self.residual else None
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


def product_cases(stacks: Sequence[StackWorkload]) -> Iterator[ProductCase]:
    for rows in PRODUCT_ROWS:
        for s in stacks:
            yield ProductCase("norm_linear", f"{s.name} qkv", rows, s.hidden, s.qkv)
            yield ProductCase("linear_add", f"{s.name} o", rows, s.heads * s.head_dim, s.hidden)
            yield ProductCase("norm_gated", f"{s.name} gate, up", rows, s.hidden, s.inner)
            yield ProductCase("linear_add", f"{s.name} down", rows, s.inner, s.hidden)
            if s.draws:
                yield ProductCase("linear", f"{s.name} head", rows, s.hidden, s.vocab)


def dual_cases(stacks: Sequence[StackWorkload]) -> Iterator[DualCase]:
    for rows in DUAL_ROWS:
        for s in stacks:
            if s.dual:
                yield DualCase("dual_norm_gated", f"{s.name} gate, up", rows, s.hidden, s.inner)
                yield DualCase("dual_linear_add", f"{s.name} down", rows, s.inner, s.hidden)


def conv_cases(c: CodecWorkload) -> Iterator[ConvCase]:
    """All but the depthwise ones, which have no tiles."""
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
    """With the same values elsewhere in memory."""
    return Call((*call.args[:at], call.args[at].clone(), *call.args[at + 1 :]), call.kwargs)


def _normal(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, device=device, dtype=torch.bfloat16)
