"""The 12 Hz codec's decoder: frames of 16 codes in, 1920 samples a frame out, strictly causal.

It runs on a whole utterance (`state=None`) or in pieces with exact row state: the tails of convolutions' inputs and the
last `sliding_window` keys and values. The tails are small: `unpack` and `pack` convert a row's between one flat vector
and the list that the layers use, so that they move with one gather and one scatter. Keys and values are large and stay
in place, in a ring where a piece writes only its own positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonant.kernels import ops
from sonant.kernels.reference import Unit
from sonant.layers.attention import Context, FullContext, RingContext
from sonant.layers.conv_stream import (
    CausalConv1d,
    CausalConvTranspose1d,
    DepthwiseConv1d,
    SnakeBeta,
    StreamedDecoder,
    StreamState,
    channels_last,
    take,
)
from sonant.layers.quantized import Int8Conv
from sonant.layers.transformer import DecoderStack
from sonant.models.qwen3_tts.config import CodecDecoderConfig
from sonant.models.qwen3_tts.stack import stack_shape

_DILATIONS = (1, 3, 9)
_SLOT_MULTIPLE = 8  # attention's masks are aligned to this, so a ring has a multiple of it


@dataclass(frozen=True)
class CodecState:
    """The decoder's state for each row of a batch. Zeros are the state before any input."""

    tails: StreamState  # [B, …] for each stateful convolution; replaced by what the next piece needs
    ring: Tensor  # see `ring_shape`, with the rows as its third dimension; written in place
    rows: Tensor  # [B]: each one's index in the ring


class _Codebook(nn.Module):
    """Stored as the running sums of training; an entry is its sum divided by its use count."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.ones(size))
        self.embedding_sum = nn.Parameter(torch.zeros(size, dim))

    def usage(self) -> Tensor:
        return self.cluster_usage.detach().clamp(min=1e-5)

    def forward(self) -> Tensor:
        return self.embedding_sum / self.cluster_usage.clamp(min=1e-5)[:, None]


class _CodebookLayer(nn.Module):
    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self._codebook = _Codebook(size, dim)

    def usage(self) -> Tensor:
        return self._codebook.usage()

    def forward(self) -> Tensor:
        return self._codebook()


class _CodebookStack(nn.Module):
    def __init__(self, count: int, size: int, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_CodebookLayer(size, dim) for _ in range(count))

    def usage(self) -> Tensor:
        """[count, size]: how often each entry was used in training."""
        return torch.stack([cast(_CodebookLayer, layer).usage() for layer in self.layers])

    def forward(self) -> Tensor:
        """[count, size, dim]: the entries of every codebook."""
        return torch.stack([layer() for layer in self.layers])


class ResidualQuantizer(nn.Module):
    """Codebooks whose entries add up, then a projection. `input_proj` is stored but only encoding uses it."""

    def __init__(self, count: int, size: int, dim: int) -> None:
        super().__init__()
        self.input_proj = nn.Conv1d(dim, dim // 2, 1, bias=False)
        self.output_proj = nn.Conv1d(dim // 2, dim, 1, bias=False)
        self.vq = _CodebookStack(count, size, dim // 2)

    def projected(self) -> Tensor:
        """[count, size, dim]: every entry after the output projection, which is linear and so commutes with sums."""
        return self.vq() @ self.output_proj.weight[:, :, 0].T


class SplitQuantizer(nn.Module):
    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        semantic = config.num_semantic_quantizers
        self.rvq_first = ResidualQuantizer(semantic, config.codebook_size, config.codebook_dim)
        self.rvq_rest = ResidualQuantizer(config.num_quantizers - semantic, config.codebook_size, config.codebook_dim)

    def table(self) -> Tensor:
        """[codebooks · size, dim]: one row for every code of every codebook."""
        return torch.cat([self.rvq_first.projected(), self.rvq_rest.projected()]).flatten(0, 1)


class PreTransformer(DecoderStack):
    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__(stack_shape(config, qk_norm=False, layer_scale=True))
        self.input_proj = nn.Linear(config.latent_dim, config.hidden_size)
        self.output_proj = nn.Linear(config.hidden_size, config.latent_dim)

    def forward(self, x: Tensor, positions: Tensor, context: Context) -> Tensor:
        return self.output_proj(super().forward(self.input_proj(x), positions, context))


class ConvNeXt(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dwconv = DepthwiseConv1d(dim, 7)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1 = nn.Linear(dim, 4 * dim)
        self.pwconv2 = nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor, state: StreamState | None) -> Tensor:
        y = self.norm(self.dwconv(x, state))
        return torch.addcmul(x, self.pwconv2(F.gelu(self.pwconv1(y))), self.gamma)


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv1d(channels, channels, 7, dilation=dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv1d(channels, channels, 1)
        self.int8: Int8Conv | None = None  # weight of `conv1` in eight bits, see codec_int8.py

    def forward(
        self, x: Tensor, active: Tensor, state: StreamState | None, following: SnakeBeta, *, keep: bool = True
    ) -> tuple[Tensor, Tensor]:
        """x and `active`, which is `act1` of it → the next x and `following` of it: the producer applies activations.

        `keep=False`: the next x is not needed.
        """
        if torch.is_grad_enabled():  # a trainer may have replaced SnakeBeta, so the modules are called
            _, inner = self.conv1(active, state, snake=self.act2, keep=False)
            return self.conv2(inner, state, residual=x, snake=following, keep=keep)
        wide, point = self.conv1.conv, self.conv2.conv
        assert wide.bias is not None and point.bias is not None
        between = self.act2.values()
        int8 = None if self.int8 is None else self.int8.weight
        unit = Unit(wide.weight, wide.bias, self.conv1.dilation, between, point.weight, point.bias, int8)
        past = take(state, self.conv1.slot, active)
        return ops.residual_unit(x, active, unit, past, following.values(), keep=keep)


class UpsampleBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, rate: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            [
                SnakeBeta(inputs),
                CausalConvTranspose1d(inputs, outputs, 2 * rate, rate),
                *(ResidualUnit(outputs, d) for d in _DILATIONS),
            ]
        )

    @property
    def opening(self) -> SnakeBeta:
        """The activation of this block's input, applied by the layer that produces it."""
        return cast(SnakeBeta, self.block[0])

    def forward(self, active: Tensor, state: StreamState | None, following: SnakeBeta) -> Tensor:
        units = [cast(ResidualUnit, unit) for unit in self.block[2:]]
        upsampling = cast(CausalConvTranspose1d, self.block[1])
        x, active = upsampling(active, state, snake=units[0].act1)
        for unit, snake in zip(units, [*(u.act1 for u in units[1:]), following], strict=True):
            x, active = unit(x, active, state, snake, keep=unit is not units[-1])
        return active


class CodecDecoder(StreamedDecoder):
    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.quantizer = SplitQuantizer(config)
        self.pre_conv = CausalConv1d(config.codebook_dim, config.latent_dim, 3)
        self.pre_transformer = PreTransformer(config)
        dim = config.latent_dim
        self.upsample = nn.ModuleList(
            nn.ModuleList([CausalConvTranspose1d(dim, dim, r, r), ConvNeXt(dim)]) for r in config.upsampling_ratios
        )
        widths = [config.decoder_dim >> i for i in range(len(config.upsample_rates) + 1)]
        self.decoder = nn.ModuleList(
            [
                CausalConv1d(config.latent_dim, config.decoder_dim, 7),
                *(UpsampleBlock(a, b, r) for a, b, r in zip(widths, widths[1:], config.upsample_rates, strict=False)),
                SnakeBeta(widths[-1]),
                CausalConv1d(widths[-1], 1, 7),
            ]
        )
        self.samples_per_frame = config.samples_per_frame
        self.lay_out_tails()
        self.register_buffer("code_table", None, persistent=False)

    def prepare(self) -> None:
        """Derive from the loaded weights what decoding reads. Call once after loading."""
        channels_last(self)
        for part in self.modules():
            if isinstance(part, CausalConvTranspose1d):
                part.prepare()
        with torch.no_grad():
            self.code_table = self.quantizer.table()

    def ring_shape(self, most_frames: int) -> tuple[int, ...]:
        """[layers, 2, slots, heads, dim] of one row's keys and values, for pieces of up to `most_frames` frames."""
        c = self.config
        slots = -(-(c.sliding_window - 1 + most_frames) // _SLOT_MULTIPLE) * _SLOT_MULTIPLE
        return (c.num_hidden_layers, 2, slots, c.num_key_value_heads, c.head_dim)

    def forward(self, codes: Tensor, first: Tensor, state: CodecState | None = None) -> Tensor:
        """codes [B, F, codebooks]; first [B]: index of each row's first frame → samples [B, F · 1920]."""
        table = self.quantizer.table() if self.code_table is None else self.code_table
        offsets = torch.arange(codes.shape[-1], device=codes.device) * self.config.codebook_size
        x = F.embedding(codes.long() + offsets, table).sum(2)
        tails = None if state is None else state.tails
        x, _ = self.pre_conv(x, tails)
        positions = first[:, None] + torch.arange(codes.shape[1], device=codes.device)
        context: Context = FullContext(self.config.sliding_window)
        if state is not None:
            context = RingContext(state.ring, state.rows, positions, self.config.sliding_window)
        x = self.pre_transformer(x, positions, context)
        x = self.upsampled(x, tails)
        return self.waveform(x, tails).clamp(-1, 1)

    def upsampled(self, x: Tensor, state: StreamState | None) -> Tensor:
        for stage in self.upsample.children():
            convolution, refinement = stage.children()
            x = refinement(convolution(x, state)[0], state)
        return x

    def waveform(self, x: Tensor, state: StreamState | None) -> Tensor:
        """[B, T, latent_dim] → samples [B, T · the upsample rates' product], not clipped."""
        first, *blocks, last_snake, last = self.decoder
        snakes = [*(cast(UpsampleBlock, block).opening for block in blocks), cast(SnakeBeta, last_snake)]
        _, active = first(x, state, snake=snakes[0], keep=False)
        for block, following in zip(blocks, snakes[1:], strict=True):
            active = block(active, state, following)
        return last(active, state)[0][..., 0]
