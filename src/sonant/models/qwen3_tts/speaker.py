"""The speaker encoder of Base checkpoints: a reference clip becomes one vector that carries its timbre.

ECAPA-TDNN (arXiv 2005.07143) with squeeze-excited Res2Net blocks and attentive statistics pooling. Attribute
names are the published tensor names.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonant.audio.features import MelSpec, log_mel
from sonant.kernels.reference import exact_conv
from sonant.models.qwen3_tts.config import SpeakerConfig

_VARIANCE_FLOOR = 1e-12


class SameConv(nn.Conv1d):
    """As many frames out as in: the input is padded by reflection."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__(channels_in, channels_out, kernel, dilation=dilation)
        reach = (kernel - 1) * dilation
        self.ends = (reach // 2, reach - reach // 2)

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x, self.ends, mode="reflect")
        return exact_conv(padded, self.weight, self.bias, stride=(1,), dilation=self.dilation)


class TimeDelay(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = SameConv(channels_in, channels_out, kernel, dilation)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).relu()


class Res2Net(nn.Module):
    """Channel groups convolved in turn, each with the previous result added: many time scales from one kernel size."""

    def __init__(self, channels: int, groups: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.groups = groups
        width = channels // groups
        self.blocks = nn.ModuleList(TimeDelay(width, width, kernel, dilation) for _ in range(groups - 1))

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = x.chunk(self.groups, dim=1)
        done = [first]
        for block, group in zip(self.blocks, rest, strict=True):
            # The untouched first group is passed through only, never added to the second.
            done.append(block(group if len(done) == 1 else group + done[-1]))
        return torch.cat(done, dim=1)


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.conv1 = SameConv(channels, squeezed)
        self.conv2 = SameConv(squeezed, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.conv2(self.conv1(x.mean(dim=2, keepdim=True)).relu()).sigmoid()


class SERes2NetBlock(nn.Module):
    def __init__(self, channels: int, groups: int, squeezed: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.tdnn1 = TimeDelay(channels, channels)
        self.res2net_block = Res2Net(channels, groups, kernel, dilation)
        self.tdnn2 = TimeDelay(channels, channels)
        self.se_block = SqueezeExcitation(channels, squeezed)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))


class StatisticsPooling(nn.Module):
    """Mean and standard deviation over time, with each channel's own attention weights for the frames."""

    def __init__(self, channels: int, attention_channels: int) -> None:
        super().__init__()
        self.tdnn = TimeDelay(3 * channels, attention_channels)
        self.conv = SameConv(attention_channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        even = x.new_full((1, 1, x.shape[2]), 1 / x.shape[2])
        context = [s.expand_as(x) for s in _moments(x, even)]
        weights = self.conv(self.tdnn(torch.cat([x, *context], dim=1)).tanh()).softmax(dim=2)
        return torch.cat(_moments(x, weights), dim=1)


def _moments(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    mean = (weights * x).sum(dim=2, keepdim=True)
    variance = (weights * (x - mean).square()).sum(dim=2, keepdim=True)
    return mean, variance.clamp(min=_VARIANCE_FLOOR).sqrt()


class SpeakerEncoder(nn.Module):
    def __init__(self, config: SpeakerConfig) -> None:
        super().__init__()
        self.mel = MelSpec(sample_rate=config.sample_rate, mel_bins=config.mel_dim)
        *channels, pooled = config.enc_channels
        *kernels, last_kernel = config.enc_kernel_sizes
        *dilations, last_dilation = config.enc_dilations
        self.blocks = nn.ModuleList([TimeDelay(config.mel_dim, channels[0], kernels[0], dilations[0])])
        for width, kernel, dilation in zip(channels[1:], kernels[1:], dilations[1:], strict=True):
            self.blocks.append(
                SERes2NetBlock(width, config.enc_res2net_scale, config.enc_se_channels, kernel, dilation)
            )
        self.mfa = TimeDelay(sum(channels[1:]), pooled, last_kernel, last_dilation)
        self.asp = StatisticsPooling(pooled, config.enc_attention_channels)
        self.fc = SameConv(2 * pooled, config.enc_dim)

    def forward(self, mel: Tensor) -> Tensor:
        """[B, frames, mel_dim] → [B, enc_dim]. Clips of a batch share one length: padding is not masked."""
        x = self.blocks[0](mel.mT)
        levels = []
        for block in self.blocks[1:]:
            x = block(x)
            levels.append(x)
        return self.fc(self.asp(self.mfa(torch.cat(levels, dim=1)))).squeeze(2)

    @torch.no_grad()
    def embed(self, samples: Tensor) -> Tensor:
        """[T] at the configured sample rate → [enc_dim], in the module's own dtype."""
        mel = log_mel(samples.to(self.fc.weight.device, torch.float32), self.mel)
        return self(mel[None].to(self.fc.weight.dtype))[0]
