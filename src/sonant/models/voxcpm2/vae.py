"""The codec's decoder: latents in, 1920 samples at 48 kHz for each of them out, strictly causal.

It runs on a whole utterance (`state=None`) or in pieces, with exact row state: the tails of its convolutions' inputs.
Residual units are depthwise convolutions with a pointwise one after each. Activations are applied by the layer that
produces their input, so that none is a pass of its own.

Before each block the published decoder scales and shifts every channel, depending on the sample rate of its output.
That is always the same one here, so it is folded into the weights of the preceding layers: see `prepare`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from sonant.kernels.reference import Snake
from sonant.layers.conv_stream import (
    CausalConv1d,
    CausalConvTranspose1d,
    DepthwiseConv1d,
    Snake1d,
    StreamedDecoder,
    StreamState,
    channels_last,
)
from sonant.layers.embedding import Embedding
from sonant.models.voxcpm2.vae_config import VAEConfig

_DILATIONS = (1, 3, 9)
_KERNEL = 7
_LEAST_SCALE = 2.0**-40  # channels are divided by their scale, so it must not be zero; this little is inaudible


class RateCondition(nn.Module):
    """A scale and a shift for each channel, by the range in which the sample rate lies."""

    def __init__(self, ranges: int, channels: int) -> None:
        super().__init__()
        self.scale_embed = Embedding(ranges, channels)
        self.bias_embed = Embedding(ranges, channels)

    def row(self, at: int) -> tuple[Tensor, Tensor]:
        scale, shift = self.scale_embed.weight[at], self.bias_embed.weight[at]
        return torch.where(scale.abs() < _LEAST_SCALE, _LEAST_SCALE, scale), shift


class ScaledSnake(Snake1d):
    """A snake that can take scale · x instead of x, and then returns scale · its result."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.register_buffer("beta", None, persistent=False)

    def scale_by(self, scale: Tensor) -> None:
        alpha = self.alpha.view(-1)
        self.beta = (alpha + 1e-9) / scale - 1e-9  # the op adds 1e-9 to it, which is not scaled
        alpha.div_(scale)

    def values(self) -> Snake:
        alpha = self.alpha.view(-1)
        return Snake(alpha, alpha if self.beta is None else self.beta, log_scale=False)


def scale_and_shift(layer: nn.Conv1d, scale: Tensor, shift: Tensor | float = 0) -> None:
    """Change the layer's output from x to scale · x + shift, by channel."""
    assert layer.bias is not None
    layer.weight.mul_(scale[:, None, None])
    layer.bias.mul_(scale).add_(shift)


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            [
                ScaledSnake(channels),
                DepthwiseConv1d(channels, _KERNEL, dilation=dilation),
                Snake1d(channels),
                CausalConv1d(channels, channels, 1),
            ]
        )

    @property
    def opening(self) -> ScaledSnake:
        """The activation of this unit's input, applied by the layer that produces it."""
        return cast(ScaledSnake, self.block[0])

    @property
    def mixing(self) -> nn.Conv1d:
        return cast(CausalConv1d, self.block[3]).conv

    def scale_by(self, scale: Tensor) -> None:
        """Change the unit to take and return scale · x instead of x."""
        self.opening.scale_by(scale)
        cast(DepthwiseConv1d, self.block[1]).conv.weight.div_(scale[:, None, None])
        scale_and_shift(self.mixing, scale)

    def forward(
        self, x: Tensor, active: Tensor, state: StreamState | None, following: Snake1d, keep: bool
    ) -> tuple[Tensor, Tensor]:
        """x and `active`, its `opening` → the next x and `following` of it; `keep=False`: only the latter is needed."""
        inner = self.block[1](active, state, snake=self.block[2])
        return self.block[3](inner, state, residual=x, snake=following, keep=keep)


class UpsampleBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, rate: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            [
                Snake1d(inputs),
                CausalConvTranspose1d(inputs, outputs, 2 * rate, rate),
                *(ResidualUnit(outputs, d) for d in _DILATIONS),
            ]
        )

    @property
    def opening(self) -> Snake1d:
        return cast(Snake1d, self.block[0])

    @property
    def units(self) -> list[ResidualUnit]:
        return [cast(ResidualUnit, unit) for unit in self.block[2:]]

    def condition(self, scale: Tensor, shift: Tensor) -> None:
        """Change the output from x to scale · x + shift. The shift is added last: nothing of this block reads it."""
        upsampling = cast(CausalConvTranspose1d, self.block[1]).conv
        assert upsampling.bias is not None
        upsampling.weight.mul_(scale[:, None])
        upsampling.bias.mul_(scale)
        for unit in self.units:
            unit.scale_by(scale)
        scale_and_shift(self.units[-1].mixing, torch.ones_like(scale), shift)

    def forward(self, active: Tensor, state: StreamState | None, following: Snake1d) -> Tensor:
        units = self.units
        x, active = self.block[1](active, state, snake=units[0].opening)
        for unit, after in pairwise(units):
            x, active = unit(x, active, state, after.opening, keep=True)
        return units[-1](x, active, state, following, keep=False)[1]


class VAEDecoder(StreamedDecoder):
    """Load it in float32 or more, then `prepare`: folded weights are rounded only once, and α is not rounded."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self.config = config
        self.samples_per_latent = config.samples_per_latent
        widths = [config.decoder_dim >> level for level in range(len(config.decoder_rates) + 1)]
        opening = [DepthwiseConv1d(config.latent_dim, _KERNEL), CausalConv1d(config.latent_dim, widths[0], 1)]
        self.model = nn.ModuleList(
            [
                *opening,
                *(UpsampleBlock(a, b, r) for a, b, r in zip(widths, widths[1:], config.decoder_rates, strict=False)),
                Snake1d(widths[-1]),
                CausalConv1d(widths[-1], 1, _KERNEL),
            ]
        )
        ranges = len(config.sr_bin_boundaries) + 1
        self.sr_cond_model = nn.ModuleDict(  # by the index in `model` of the block that each precedes
            {str(len(opening) + n): RateCondition(ranges, width) for n, width in enumerate(widths[:-1])}
        )
        self.lay_out_tails()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of values between layers, and so of the tails."""
        return cast(CausalConv1d, self.model[1]).conv.weight.dtype

    @torch.no_grad()
    def prepare(self, dtype: torch.dtype) -> None:
        """Derive from the loaded weights what decoding reads, in `dtype`; weights that it does not read are freed."""
        _, opening, *blocks = list(self.model)[:-2]
        conditions = [cast(RateCondition, c).row(self.config.rate_bin) for c in self.sr_cond_model.values()]
        scale_and_shift(cast(CausalConv1d, opening).conv, *conditions[0])
        for block, (scale, shift) in zip(blocks[:-1], conditions[1:], strict=True):
            cast(UpsampleBlock, block).condition(scale, shift)
        del self.sr_cond_model
        for part in self.modules():
            if isinstance(part, nn.Conv1d | nn.ConvTranspose1d):
                part.to(dtype)
        channels_last(self)
        for part in list(self.modules()):
            if isinstance(part, CausalConvTranspose1d):
                part.prepare(release=True)

    def forward(self, latents: Tensor, state: StreamState | None = None) -> Tensor:
        """latents [B, T, latent_dim] → samples [B, T · samples_per_latent], between -1 and 1."""
        first, opening, *blocks, last_snake, last = self.model
        dtype = cast(CausalConv1d, last).conv.weight.dtype
        snakes = [*(cast(UpsampleBlock, block).opening for block in blocks), cast(Snake1d, last_snake)]
        x = first(latents.to(dtype), state)
        _, active = opening(x, state, snake=snakes[0], keep=False)
        for block, following in zip(blocks, snakes[1:], strict=True):
            active = block(active, state, following)
        return last(active, state)[0][..., 0].tanh()
