"""The codec's encoder: a reference clip becomes the codes that the language model continues from.

Two kinds of features are quantised together, 25 frames a second: acoustic ones from the clip at 24 kHz by DAC's
encoder, semantic ones from the same clip at 16 kHz by HuBERT and some convolutions. Attribute names are the
published tensor names. Always float32: a code is the nearest of its codebook, which lower precision would get wrong.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonant.errors import BadAudio
from sonant.kernels.reference import exact_conv
from sonant.layers.conv_stream import Snake1d
from sonant.models.higgs_audio_v2.codec import Codebook
from sonant.models.higgs_audio_v2.codec_config import AcousticConfig, CodecConfig
from sonant.models.higgs_audio_v2.hubert import Hubert
from sonant.models.higgs_audio_v2.sinc_resample import sinc_resample

_SEMANTIC_PADDING = 160  # samples at 16 kHz, before and after


class Conv(nn.Conv1d):
    """A convolution of [B, C, T] with `padding` zeros on either side, by default as many as keep the length."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, dilation: int = 1,
        padding: int | None = None, bias: bool = True,
    ) -> None:  # fmt: skip
        around = (kernel - 1) // 2 * dilation if padding is None else padding
        super().__init__(inputs, outputs, kernel, stride, around, dilation, bias=bias)
        self.around = around

    def forward(self, input: Tensor) -> Tensor:
        padded = F.pad(input, (self.around, self.around))
        return exact_conv(padded, self.weight, self.bias, stride=self.stride, dilation=self.dilation)


def _padding(stride: int) -> int:
    """The padding around a convolution with this stride."""
    return (stride + 1) // 2


class AcousticUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.snake1 = Snake1d(channels)
        self.conv1 = Conv(channels, channels, 7, dilation=dilation)
        self.snake2 = Snake1d(channels)
        self.conv2 = Conv(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.snake2(self.conv1(self.snake1(x))))


class AcousticBlock(nn.Module):
    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.res_unit1 = AcousticUnit(channels, 1)
        self.res_unit2 = AcousticUnit(channels, 3)
        self.res_unit3 = AcousticUnit(channels, 9)
        self.snake1 = Snake1d(channels)
        self.conv1 = Conv(channels, 2 * channels, 2 * stride, stride=stride, padding=_padding(stride))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv1(self.snake1(self.res_unit3(self.res_unit2(self.res_unit1(x)))))


class AcousticEncoder(nn.Module):
    def __init__(self, config: AcousticConfig) -> None:
        super().__init__()
        self.strides, channels = config.downsampling_ratios, config.encoder_hidden_size
        self.conv1 = Conv(1, channels, 7)
        self.block = nn.ModuleList()
        for stride in self.strides:
            self.block.append(AcousticBlock(channels, stride))
            channels *= 2
        self.snake1 = Snake1d(channels)
        self.conv2 = Conv(channels, config.hidden_size, 3)

    def frames(self, samples: int) -> int:
        for stride in self.strides:
            samples = (samples + 2 * _padding(stride)) // stride - 1
        return samples

    def forward(self, samples: Tensor) -> Tensor:
        """[B, 1, T] → [B, hidden_size, frames]."""
        x = self.conv1(samples)
        for block in self.block:
            x = block(x)
        return self.conv2(self.snake1(x))


class SemanticUnit(nn.Module):
    def __init__(self, width: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.conv1 = Conv(width, width, kernel, dilation=dilation, bias=False)
        self.conv2 = Conv(width, width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.elu(self.conv1(F.elu(x))))


class SemanticBlock(nn.Module):
    def __init__(self, width: int, config: CodecConfig) -> None:
        super().__init__()
        self.res_units = nn.ModuleList(SemanticUnit(width, config.unit_kernel_size, d) for d in config.block_dilations)
        self.conv = Conv(width, width, 3)

    def forward(self, x: Tensor) -> Tensor:
        for unit in self.res_units:
            x = unit(x)
        return self.conv(x)


class SemanticEncoder(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        width = config.semantic.hidden_size
        self.conv = Conv(width, width, config.kernel_size, bias=False)
        self.conv_blocks = nn.ModuleList(SemanticBlock(width, config) for _ in range(config.blocks))

    def forward(self, x: Tensor) -> Tensor:
        """[B, width, frames] → the same."""
        x = self.conv(x)
        for block in self.conv_blocks:
            x = block(x)
        return x


class VectorQuantizer(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.codebook = Codebook(config.codebook_size, config.codebook_dim)
        self.project_in = nn.Linear(config.hidden_size, config.codebook_dim)
        self.project_out = nn.Linear(config.codebook_dim, config.hidden_size)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[frames, hidden_size] → the nearest codes [frames], and their projected vectors [frames, hidden_size]."""
        inner, vectors = self.project_in(x), self.codebook.embed
        # Distances are summed up as in the published encoder, so that near ties are decided alike.
        lengths = inner.square().sum(1, keepdim=True), vectors.T.square().sum(0, keepdim=True)
        codes = (lengths[0] - 2 * inner @ vectors.T + lengths[1]).argmin(dim=1)
        return codes, self.project_out(F.embedding(codes, vectors))


class ResidualQuantizer(nn.Module):
    """Each codebook encodes the residual of the ones before it."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(VectorQuantizer(config) for _ in range(config.num_quantizers))

    def forward(self, x: Tensor) -> Tensor:
        """[frames, hidden_size] → codes [frames, codebooks]."""
        chosen = []
        for quantizer in self.quantizers:
            codes, described = quantizer(x)
            x = x - described
            chosen.append(codes)
        return torch.stack(chosen, dim=1)


class CodecEncoder(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        self.acoustic_encoder = AcousticEncoder(config.acoustic)
        self.semantic_model = Hubert(config.semantic)
        self.encoder_semantic = SemanticEncoder(config)
        self.fc = nn.Linear(config.hidden_size, config.hidden_size)
        self.quantizer = ResidualQuantizer(config)

    def frames(self, samples: int) -> int:
        """How many frames a clip has; 0 or less: it is too short for one."""
        c = self.config
        resampled = -(-samples * c.semantic_sample_rate // c.sample_rate)
        return -(-self.semantic_model.frames(resampled + 2 * _SEMANTIC_PADDING) // c.semantic_step)

    @torch.no_grad()
    def encode(self, clip: Tensor) -> Tensor:
        """[T] at the codec's rate → codes [frames, codebooks], int64."""
        frames = self.frames(len(clip))
        if frames < 1:
            raise BadAudio(
                f"a clip of {len(clip)} samples at {self.config.sample_rate} Hz is too short for one frame of codes: "
                "use some seconds of speech"
            )
        samples = clip.to(self.fc.weight.device, torch.float32)[None]
        features = torch.cat([self._acoustic(samples, frames), self._semantic(samples)], dim=1)
        return self.quantizer(self.fc(features[0].T))

    def _acoustic(self, samples: Tensor, frames: int) -> Tensor:
        """[B, T] → [B, hidden_size, frames], with silence around the clip if it alone would give another number."""
        if self.acoustic_encoder.frames(samples.shape[1]) != frames:
            half = self.config.samples_per_frame // 2
            samples = F.pad(samples, (half, half))
        return self.acoustic_encoder(samples[:, None])

    def _semantic(self, samples: Tensor) -> Tensor:
        """[B, T] → [B, hidden_size, frames]."""
        c = self.config
        resampled = sinc_resample(samples, c.sample_rate, c.semantic_sample_rate)
        heard = self.semantic_model(F.pad(resampled, (_SEMANTIC_PADDING, _SEMANTIC_PADDING)))
        return self.encoder_semantic(heard[:, :: c.semantic_step].mT)
