"""A codec's ops at the shapes of its decoder: chunks of four frames, as of streams that are past their beginning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from sonant.bench.kernels.case import Call, Case, CaseMaker
from sonant.kernels.cuda.int8_unit import LAYOUTS
from sonant.kernels.reference import Heads, RingPlace, Snake, Unit, int8_weight
from sonant.models.workload import CodecWorkload

_FRAMES = 4
_TAPS, _DILATION = 7, 3  # of a residual unit in the middle
_UNIT_CHANNELS = 192  # the most of a unit that is one kernel
_EPS = 1e-5


class CodecCases(CaseMaker):
    def every(self, c: CodecWorkload, rows: int) -> Iterator[Case]:
        length = _FRAMES * c.steps_per_frame
        sound = torch.rand(rows, _FRAMES * c.samples_per_frame, device=self.device)
        moved = sound.numel() * (sound.element_size() + 2)
        yield Case("pcm16", f"{c.name} samples", rows, partial(Call, (sound,), {}), 0, moved)
        if c.heads:
            yield from self._transformer(c, rows)
        if c.depthwise:
            yield from self._depthwise_units(c, rows, length)
        else:
            yield from self._snakes(c, rows, length)
            yield from self._wide_convolutions(c, rows, length)

    def _transformer(self, c: CodecWorkload, rows: int) -> Iterator[Case]:
        window, heads, dim = c.window, c.heads, c.head_dim
        q = self.normal(rows, _FRAMES, heads, dim)
        visible = torch.ones(rows, 1, _FRAMES, window + _FRAMES, dtype=torch.bool, device=self.device)
        keys = partial(self.normal, rows, window + _FRAMES, heads, dim)
        read = 2 * self.item * rows * (window + _FRAMES) * heads * dim
        flops = 4 * rows * _FRAMES * (window + _FRAMES) * heads * dim
        attend = partial(self._dense, q, keys, visible)
        yield Case("dense_attention", f"{c.name} window", rows, attend, read, read + 2 * self.item * q.numel(), flops)
        yield Case("ring_attention", f"{c.name} ring", rows, partial(self._ring, c, rows), read, read, flops)
        yield self._depthwise(f"{c.name} ConvNeXt", rows, _FRAMES * c.steps_per_frame, c.latent, 1, snake=False)

    def _snakes(self, c: CodecWorkload, rows: int, length: int) -> Iterator[Case]:
        thin = c.channels >> len(c.upsample_rates)
        for name, steps, channels in (("first", length, c.channels), ("last", _FRAMES * c.samples_per_frame, thin)):
            value, alpha = self.normal(rows, steps, channels), self.normal(channels)
            moved = self.item * 2 * (value.numel() + channels)
            yield Case("snake_beta", f"{c.name} {name}", rows, partial(Call, (value, alpha, alpha), {}), 0, moved)

    def _wide_convolutions(self, c: CodecWorkload, rows: int, steps: int) -> Iterator[Case]:
        """The wide convolution of a residual unit after each upsampling, with its past, bias and activation; and the
        whole unit where that is one kernel."""
        channels = c.channels
        for rate in c.upsample_rates:
            steps, channels = steps * rate, channels // 2
            where = f"{c.name} {channels} × {steps}"
            yield self._convolution(where, rows, steps, channels, channels, taps=_TAPS, dilation=_DILATION)
            if channels <= _UNIT_CHANNELS or self._in_eight(channels):
                yield self._unit(f"{c.name} unit {channels} × {steps}", rows, steps, channels)

    def _in_eight(self, channels: int) -> bool:
        """Whether a unit's first convolution has eight bits on both sides, as in a model whose calls are large."""
        return self.quantize is not None and channels in LAYOUTS

    def _unit(self, where: str, rows: int, steps: int, channels: int) -> Case:
        """In eight bits operations count at that rate, so those of the second convolution, in 16 bits, count twice."""
        eight = self._in_eight(channels)
        x, active, bias = *(self.normal(rows, steps, channels) for _ in range(2)), self.normal(channels)
        past, snake = self.normal(rows, (_TAPS - 1) * _DILATION, channels), self._snake(channels)

        def make() -> Call:
            weights = (self.normal(channels, n, channels) * (n * channels) ** -0.5 for n in (_TAPS, 1))
            wide, point = (weight.permute(0, 2, 1) for weight in weights)
            int8 = int8_weight(wide, active.abs().amax((0, 1))) if eight else None
            return Call((x, active, Unit(wide, bias, _DILATION, snake, point, bias, int8), past, snake), {})

        weights = ((1 if eight else self.item) * _TAPS + self.item) * channels**2
        moved = weights + self.item * (4 * x.numel() + past.numel())
        flops = 2 * rows * steps * (_TAPS + 1 + eight) * channels**2
        return Case("residual_unit", where, rows, make, weights, moved, flops)

    def _ring(self, c: CodecWorkload, rows: int) -> Call:
        slots = -(-(c.window + _FRAMES) // 8) * 8
        ring = self.normal(2, rows, slots, c.heads, c.head_dim)
        first = torch.full((rows, 1), 3 * slots, device=self.device)
        positions = first + torch.arange(_FRAMES, device=self.device)
        place = RingPlace(torch.arange(rows, device=self.device), positions, c.window + 1, slots)
        cos, sin = (self.normal(rows, _FRAMES, 1, c.head_dim) for _ in range(2))
        qkv = self.normal(rows, _FRAMES, 3 * c.heads * c.head_dim)
        return Call((qkv, Heads(None, None, cos, sin, c.heads, c.heads, _EPS), ring, place), {})

    def _depthwise_units(self, c: CodecWorkload, rows: int, steps: int) -> Iterator[Case]:
        """The opening pair (depthwise, pointwise), then each upsampling with the pair of one of its residual units, and
        the last convolution."""
        channels = c.channels
        yield self._depthwise(f"{c.name} {c.latent} × {steps}", rows, steps, c.latent, 1, snake=False)
        yield self._convolution(f"{c.name} first", rows, steps, c.latent, channels)
        for rate in c.upsample_rates:
            thin = channels // 2
            up = f"{c.name} up {thin} × {steps * rate}"
            yield self._convolution(up, rows, steps, channels, thin, samples=rate, taps=2)
            steps, channels = steps * rate, thin
            yield self._depthwise(f"{c.name} {thin} × {steps}", rows, steps, thin, _DILATION, snake=True)
            yield self._convolution(f"{c.name} point {thin} × {steps}", rows, steps, thin, thin, residual=True)
        yield self._convolution(f"{c.name} last", rows, steps, channels, 1, taps=_TAPS, snake=False)

    def _depthwise(self, where: str, rows: int, steps: int, channels: int, dilation: int, *, snake: bool) -> Case:
        history = (_TAPS - 1) * dilation
        x, past = self.normal(rows, steps, channels), self.normal(rows, history, channels)
        taps = self.normal(_TAPS, 1, channels).permute(2, 1, 0)  # laid out as layers/conv_stream.py does
        bias = self.normal(channels)
        options = {"snake": self._snake(channels)} if snake else {}
        make = partial(Call, (x, taps, bias, past, dilation), options)
        moved = self.item * channels * (rows * (2 * steps + history) + _TAPS + 1 + 2 * snake)
        return Case("depthwise", where, rows, make, 0, moved, flops=2 * rows * steps * channels * _TAPS)

    def _convolution(
        self, where: str, rows: int, steps: int, inputs: int, channels: int, *, samples: int = 1, taps: int = 1,
        dilation: int = 1, residual: bool = False, snake: bool = True,
    ) -> Case:  # fmt: skip
        """`samples`: how many of each channel one step becomes; more than one is an upsampling."""
        columns, history = channels * samples, (taps - 1) * dilation
        x, bias = self.normal(rows, steps, inputs), self.normal(channels)
        past = self.normal(rows, history, inputs) if history else None
        added = self.normal(rows, steps, columns) if residual else None
        keep = residual or samples > 1 or not snake
        options = {"residual": added, "snake": self._snake(channels) if snake else None, "keep": keep}

        def make() -> Call:
            # laid out as layers/conv_stream.py does
            weight = (self.normal(columns, taps, inputs) * (taps * inputs) ** -0.5).permute(0, 2, 1)
            return Call((x, weight, bias, past, dilation), options)

        weights = self.item * taps * columns * inputs
        made = columns * (residual + (keep and snake) + 1)
        moved = weights + self.item * rows * (inputs * (steps + history) + steps * made)
        return Case("causal_conv", where, rows, make, weights, moved, flops=2 * rows * steps * taps * columns * inputs)

    def _snake(self, channels: int) -> Snake:
        return Snake(self.normal(channels), self.normal(channels))

    @staticmethod
    def _dense(q: Tensor, keys: Callable[[], Tensor], visible: Tensor) -> Call:
        return Call((q, keys(), keys(), visible), {})
