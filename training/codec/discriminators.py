"""Who tells real speech from made speech: by period of the waveform (HiFi-GAN) and by complex spectrum (EnCodec).

Narrower than published, since they judge one kind of clean speech and must not cost more than the codec. Speech comes
quiet (an RMS of 0.06) and its spectrum spans 80 dB, so waveforms are scaled up and spectra compressed before they are
judged, and weights start at a gain of one: from torch's own start the judges told nothing apart in 3,000 steps.
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Judgement = tuple[Tensor, list[Tensor]]  # scores, features of each layer

_SLOPE = 0.1
_LOUDER = 16.0  # to an RMS of about one
_COMPRESSION = 0.3  # the power to which magnitudes are raised
_QUIET = 1e-3  # magnitudes below that count as that
_PERIODS = (2, 3, 5, 7, 11)
_PERIOD_CHANNELS = (24, 64, 160, 256)
_WINDOWS = (2048, 1024, 512)
_SPECTRAL_CHANNELS = 24


class PeriodDiscriminator(nn.Module):
    """Folds the waveform so that samples one period apart are neighbours."""

    def __init__(self, period: int) -> None:
        super().__init__()
        self.period = period
        channels = (1, *_PERIOD_CHANNELS)
        pairs = pairwise(channels)
        self.layers = nn.ModuleList(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0)) for a, b in pairs)
        self.last = nn.Conv2d(channels[-1], 1, (3, 1), padding=(1, 0))

    def forward(self, samples: Tensor) -> Judgement:
        x = F.pad(_LOUDER * samples, (0, -samples.shape[1] % self.period)).unflatten(1, (-1, self.period))[:, None]
        return _judge(x, self.layers, self.last)


class SpectralDiscriminator(nn.Module):
    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window
        self.register_buffer("hann", torch.hann_window(window), persistent=False)
        c = _SPECTRAL_CHANNELS
        shapes = [
            ((3, 9), (1, 1), (1, 1)),
            *(((3, 9), (1, 2), (d, 1)) for d in (1, 2, 4)),
            ((3, 3), (1, 1), (1, 1)),
        ]
        self.layers = nn.ModuleList(
            nn.Conv2d(2 if i == 0 else c, c, kernel, stride, _same(kernel, dilation), dilation=dilation)
            for i, (kernel, stride, dilation) in enumerate(shapes)
        )
        self.last = nn.Conv2d(c, 1, (3, 3), padding=1)

    def forward(self, samples: Tensor) -> Judgement:
        with torch.autocast(samples.device.type, enabled=False):
            hann = cast(Tensor, self.hann)
            spectrum = torch.stft(
                samples.float(),
                self.window,
                self.window // 4,
                window=hann,
                normalized=True,
                return_complex=True,
            )
            x = torch.view_as_real(spectrum)
            squared = x.square().sum(-1, keepdim=True) + _QUIET**2
            x = (x * squared ** ((_COMPRESSION - 1) / 2)).permute(0, 3, 2, 1)  # [B, 2, time, frequency]
        return _judge(x, self.layers, self.last)


class Discriminators(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ModuleList(
            [*(PeriodDiscriminator(p) for p in _PERIODS), *(SpectralDiscriminator(w) for w in _WINDOWS)]
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, _SLOPE, nonlinearity="leaky_relu")
                if module.out_channels == 1:
                    module.weight.data *= 0.1
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        self.to(memory_format=torch.channels_last)


def _judge(x: Tensor, layers: nn.ModuleList, last: nn.Module) -> Judgement:
    features = []
    x = x.contiguous(memory_format=torch.channels_last)
    for layer in layers:
        x = F.leaky_relu(layer(x), _SLOPE)
        features.append(x)
    return last(x), features


def _same(kernel: tuple[int, int], dilation: tuple[int, int]) -> tuple[int, int]:
    return (kernel[0] - 1) * dilation[0] // 2, (kernel[1] - 1) * dilation[1] // 2
