"""The codec's decoder: frames of 8 codes in, 960 samples a frame out, in windows.

DAC's decoder is not causal: a frame's sound depends on `context_frames` before and after it. So a chunk is decoded from
a window of codes with as many more frames on either side, and nothing is kept between chunks: earlier frames are
decoded again, at the low rates where that is cheap. Each layer computes only the part of the window that the next ones
need, which is derived backwards from the chunk's samples when the module is built.

The sound is that of decoding the whole utterance at once. There each layer pads with zeros before the first frame and
after the last. At an utterance's ends that padding lies inside the windows, so every layer sets to zero what is outside
of the utterance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonant.kernels import ops
from sonant.kernels.reference import Bounds, inside
from sonant.layers.conv_stream import Snake1d, as_read, columns_of
from sonant.models.higgs_audio_v2.codec_config import AcousticConfig, CodecConfig

_DILATIONS = (1, 3, 9)


@dataclass(frozen=True)
class Window:
    """The steps that a layer computes: those of the chunk, and some before and after it."""

    rate: int  # steps a frame
    left: int
    right: int

    def before(self, reach: int) -> Window:
        """The input that a convolution needs for this window if it reaches so far to both sides."""
        return Window(self.rate, self.left + reach, self.right + reach)

    def bounds(self, frames: Bounds, context: int) -> Bounds:
        """Which of the steps are the utterance's, given where its frames begin and end in a window of codes."""
        return Bounds(frames.start, frames.end, self.rate, self.left - context * self.rate)


class WindowConv1d(nn.Module):
    """Computes from a window [B, T, C] the steps that have all their neighbours: `reach` fewer on either side."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs, kernel))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.dilation = dilation
        self.reach = (kernel - 1) * dilation // 2

    def prepare(self, dtype: torch.dtype) -> None:
        self.weight.data, self.bias.data = as_read(self.weight.data.to(dtype)), self.bias.data.to(dtype)

    def forward(
        self, x: Tensor, *, residual: Tensor | None = None, snake: Snake1d | None = None, keep: bool = True,
        bounds: Bounds | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """→ the convolution plus `residual`, and the same after `snake`; see `ops.causal_conv`."""
        ahead = 2 * self.reach  # the window's first steps are the past of the others
        return ops.causal_conv(
            x[:, ahead:], self.weight, self.bias, x[:, :ahead] if ahead else None, self.dilation,
            residual=residual, snake=None if snake is None else snake.values(), keep=keep, bounds=bounds,
        )  # fmt: skip


class WindowConvTranspose1d(nn.Module):
    """Upsampling by `stride` with a kernel of twice that, so that T inputs give T · stride samples.

    It runs as a convolution over two inputs, whose columns are the samples between them. Step i gives the samples from
    i · stride on of a signal that loses its first `padding` samples: from i · stride - padding on of the result.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, made: Window) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs, outputs, 2 * stride))
        self.bias = nn.Parameter(torch.zeros(outputs))
        padding = (stride + 1) // 2
        first = (padding - made.left) // stride  # step of the window's first sample, relative to the chunk's start
        last = (padding + made.right - 1) // stride  # step of its last sample, relative to the chunk's end
        self.needed = Window(made.rate // stride, 1 - first, last + 1)
        self.made = Window(made.rate, padding - first * stride, (last + 1) * stride - padding)  # in whole steps
        self.surplus = self.made.left - made.left, self.made.right - made.right

    def prepare(self, dtype: torch.dtype) -> None:
        """Replace the weight by that of the convolution; nothing reads the published form afterwards."""
        self.weight = nn.Parameter(as_read(columns_of(self.weight.data.to(dtype), 2)), requires_grad=False)
        self.bias.data = self.bias.data.to(dtype)

    def forward(self, x: Tensor, snake: Snake1d, frames: Bounds, context: int) -> tuple[Tensor, Tensor]:
        """→ the upsampled values, and the same after `snake`."""
        made = ops.causal_conv(
            x[:, 1:], self.weight, self.bias, x[:, :1],
            snake=snake.values(), bounds=self.made.bounds(frames, context),
        )  # fmt: skip
        before, after = self.surplus
        y, active = (m.reshape(len(x), -1, len(self.bias)) for m in made)
        end = y.shape[1] - after
        return y[:, before:end], active[:, before:end]


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int, made: Window) -> None:
        super().__init__()
        self.snake1 = Snake1d(channels)
        self.conv1 = WindowConv1d(channels, channels, 7, dilation)
        self.snake2 = Snake1d(channels)
        self.conv2 = WindowConv1d(channels, channels, 1)
        self.made = made
        self.needed = made.before(self.conv1.reach)

    def forward(
        self, x: Tensor, active: Tensor, following: Snake1d, frames: Bounds, context: int
    ) -> tuple[Tensor, Tensor]:
        """x and `active`, its `snake1` → the next x and `following` of it: the producer applies activations."""
        _, inner = self.conv1(active, snake=self.snake2, keep=False)
        reach = self.conv1.reach
        bounds = self.made.bounds(frames, context)
        return self.conv2(inner, residual=x[:, reach : x.shape[1] - reach], snake=following, bounds=bounds)


class UpsampleBlock(nn.Module):
    """`made` is the window that it must put out, `needed` the one that it needs as input."""

    def __init__(self, inputs: int, outputs: int, stride: int, made: Window) -> None:
        super().__init__()
        units = []
        for dilation in reversed(_DILATIONS):
            units.append(ResidualUnit(outputs, dilation, made))
            made = units[-1].needed
        self.snake1 = Snake1d(inputs)  # of the block's input, applied by the layer that produces it
        self.conv_t1 = WindowConvTranspose1d(inputs, outputs, stride, made)
        self.res_unit3, self.res_unit2, self.res_unit1 = units
        self.needed = self.conv_t1.needed

    def forward(self, active: Tensor, following: Snake1d, frames: Bounds, context: int) -> Tensor:
        units = self.res_unit1, self.res_unit2, self.res_unit3
        x, active = self.conv_t1(active, units[0].snake1, frames, context)
        for unit, snake in zip(units, (units[1].snake1, units[2].snake1, following), strict=True):
            x, active = unit(x, active, snake, frames, context)
        return active


class AcousticDecoder(nn.Module):
    def __init__(self, config: AcousticConfig) -> None:
        super().__init__()
        ratios = config.upsampling_ratios
        widths = [config.decoder_hidden_size >> level for level in range(len(ratios) + 1)]
        self.conv2 = WindowConv1d(widths[-1], 1, 7)
        self.snake1 = Snake1d(widths[-1])
        self.sound = Window(math.prod(ratios), 0, 0)
        window = self.sound.before(self.conv2.reach)
        blocks: list[UpsampleBlock] = []
        for inputs, outputs, ratio in reversed(list(zip(widths, widths[1:], ratios, strict=False))):
            blocks.insert(0, UpsampleBlock(inputs, outputs, ratio, window))
            window = blocks[0].needed
        self.block = nn.ModuleList(blocks)
        self.conv1 = WindowConv1d(config.hidden_size, widths[0], 7)
        self.opened = window
        self.needed = window.before(self.conv1.reach)

    def forward(self, x: Tensor, frames: Bounds, context: int) -> Tensor:
        """x [B, T, hidden_size], the window `needed` → the chunk's samples [B, n · rate]."""
        snakes = [*(block.snake1 for block in self.block), self.snake1]
        _, active = self.conv1(x, snake=snakes[0], keep=False, bounds=self.opened.bounds(frames, context))
        for block, following in zip(self.block, snakes[1:], strict=True):
            active = block(active, following, frames, context)
        return self.conv2(active, bounds=self.sound.bounds(frames, context))[0][..., 0]


class Codebook(nn.Module):
    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.zeros(size, dim))


class CodebookProjection(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.codebook = Codebook(config.codebook_size, config.codebook_dim)
        self.project_out = nn.Linear(config.codebook_dim, config.hidden_size)

    def forward(self) -> Tensor:
        """[codes, hidden_size]: what each code adds to a frame."""
        return self.project_out(self.codebook.embed)


class Quantizer(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(CodebookProjection(config) for _ in range(config.num_quantizers))


class CodecDecoder(nn.Module):
    """Load it in float32 or more, then `prepare`: folded weights are rounded only once, and α is not rounded."""

    code_table: Tensor
    no_code: Tensor

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.quantizer = Quantizer(config)
        self.fc2 = nn.Linear(config.hidden_size, config.acoustic.hidden_size)
        self.acoustic_decoder = AcousticDecoder(config.acoustic)
        self.codebook_size = config.codebook_size
        self.samples_per_frame = config.samples_per_frame
        self.needed = self.acoustic_decoder.needed
        self.context_frames = max(self.needed.left, self.needed.right)
        self.register_buffer("code_table", None)
        self.register_buffer("no_code", None, persistent=False)  # a plain number would launch a kernel to fill a tensor

    @torch.no_grad()
    def prepare(self, dtype: torch.dtype) -> None:
        """Derive from the loaded weights what decoding reads, in `dtype`; weights that it does not read are freed.

        The table has a row for each code of each codebook, projections included, and one of zeros, for frames that
        do not exist. It keeps the precision that was loaded: the sum of eight rows is rounded, not each of them.
        """
        rows = [vectors() @ self.fc2.weight.T for vectors in self.quantizer.quantizers]
        rows[0] = rows[0] + self.fc2.bias
        self.code_table = torch.cat([*rows, torch.zeros_like(rows[0][:1])])
        self.no_code = torch.tensor(len(self.code_table) - 1, device=self.code_table.device)
        del self.quantizer, self.fc2
        for part in self.acoustic_decoder.modules():
            if isinstance(part, WindowConv1d | WindowConvTranspose1d):
                part.prepare(dtype)

    def forward(self, codes: Tensor, first: Tensor, total: Tensor) -> Tensor:
        """codes [B, n + 2 · context_frames, 8] → samples [B, n · samples_per_frame] of all but the context.

        `first` [B] is the index in the utterance of the window's first frame, below zero where that lies before its
        start; `total` [B] is how many frames the utterance has. Codes of frames that it does not have may be anything,
        and their samples are zero. While more frames may come, the window must lie within `total`.
        """
        context = self.context_frames
        frames = Bounds(-first, total - first)
        codes = codes[:, context - self.needed.left : codes.shape[1] - context + self.needed.right]
        offsets = torch.arange(codes.shape[2], device=codes.device) * self.codebook_size
        there = inside(self.needed.bounds(frames, context), codes.shape[1])
        x = F.embedding(torch.where(there, codes + offsets, self.no_code), self.code_table).sum(2)
        return self.acoustic_decoder(x.to(self.acoustic_decoder.conv1.weight.dtype), frames, context)
