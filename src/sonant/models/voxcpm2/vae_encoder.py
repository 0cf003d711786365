"""The codec's encoder: a clip at 16 kHz becomes the latents that the language models continue from.

Attribute names are the published tensor names. Always float32, in convolutions that do not round their inputs, since
the models read a clip's latents in every later step.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonant.errors import BadAudio
from sonant.kernels.reference import exact_conv
from sonant.layers.conv_stream import Snake1d
from sonant.models.voxcpm2.vae_config import VAEConfig

_DILATIONS = (1, 3, 9)

Side = Literal["left", "right"]


class Conv(nn.Conv1d):
    """A causal convolution of [B, C, T], with zeros before it: each result depends on the inputs up to its place."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride, dilation=dilation, groups=groups)
        self.before = (kernel - 1) * dilation + 1 - stride

    def forward(self, input: Tensor) -> Tensor:
        x = F.pad(input, (self.before, 0))
        return exact_conv(x, self.weight, self.bias, stride=self.stride, dilation=self.dilation, groups=self.groups)


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            Snake1d(channels),
            Conv(channels, channels, 7, dilation=dilation, groups=channels),
            Snake1d(channels),
            Conv(channels, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class DownsampleBlock(nn.Module):
    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            *(ResidualUnit(channels, d) for d in _DILATIONS),
            Snake1d(channels),
            Conv(channels, 2 * channels, 2 * stride, stride=stride),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class VAEEncoder(nn.Module):
    def __init__(self, config: VAEConfig, patch_size: int) -> None:
        super().__init__()
        self.config, self.patch_size = config, patch_size
        channels = config.encoder_dim
        layers: list[nn.Module] = [Conv(1, channels, 7)]
        for rate in config.encoder_rates:
            layers.append(DownsampleBlock(channels, rate))
            channels *= 2
        self.block = nn.Sequential(*layers)
        self.fc_mu = Conv(channels, config.latent_dim, 3)

    @torch.no_grad()
    def encode(self, clip: Tensor) -> Tensor:
        """[T] at the encoder's rate, T a multiple of `clip_samples_per_latent` → latents [frames, latent_dim].

        The latents are the means: the published encoder does not sample either.
        """
        if len(clip) == 0:
            raise BadAudio("a clip without a single sample cannot be encoded: use some seconds of speech")
        if len(clip) % self.config.clip_samples_per_latent:
            raise ValueError(f"{len(clip)} samples are no multiple of {self.config.clip_samples_per_latent}")
        samples = clip.to(self.fc_mu.weight.device, torch.float32)
        return self.fc_mu(self.block(samples[None, None]))[0].T

    def encode_clip(self, clip: Tensor, side: Side) -> Tensor:
        """[T], silence added on `side` up to whole patches → [patches, patch_size, latent_dim].

        A reference is padded at its end. A clip that is continued must not end in silence: it is padded at its start.
        """
        missing = -len(clip) % (self.patch_size * self.config.clip_samples_per_latent)
        padded = F.pad(clip, (missing, 0) if side == "left" else (0, missing))
        return self.encode(padded).unflatten(0, (-1, self.patch_size))
