"""Discriminators of real and made speech: by period of the waveform (HiFi-GAN) and by complex spectrum (EnCodec).

Narrower than published, since they judge one kind of clean speech and must not cost more than the codec; and every
stride is a fold of neighbours into channels, because the libraries' gradients of strided convolutions are slow. Speech
comes quiet (an RMS of 0.06) and its spectrum spans 80 dB, so waveforms are scaled up and spectra compressed before they
are judged, and weights start at a gain of one: from torch's own start they told nothing apart in 3,000 steps.
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Judgement = tuple[Tensor, list[Tensor]]  # scores, features of each layer

_SLOPE = 0.1
_LOUDER = 16.0  # scales waveforms to an RMS of about one
_COMPRESSION = 0.3  # the power to which magnitudes are raised
_QUIET = 16e-3  # magnitudes below that count as that
_PERIODS = (2, 3, 5, 7, 11)
_TAPS, _HOP = 8, 4  # of the first layer, along one phase of the period
_FOLD = 3  # stride of the other layers
_PERIOD_CHANNELS = (32, 64, 160, 256)
_WINDOWS = (2048, 1024, 512)
_BINS = 4  # neighbours in frequency that the first layer sees as channels
_SPECTRAL_CHANNELS = 32


class PeriodDiscriminator(nn.Module):
    """Folds the waveform so that samples one period apart are neighbours; each phase is judged by itself."""

    def __init__(self, period: int) -> None:
        super().__init__()
        self.period = period
        first, *_, last = _PERIOD_CHANNELS
        self.first = nn.Linear(_TAPS, first)
        # A fold of three and the one before it: six taps at a stride of three.
        self.layers = nn.ModuleList(nn.Linear(_FOLD * a, 2 * b, bias=False) for a, b in pairwise(_PERIOD_CHANNELS))
        self.biases = nn.ParameterList(torch.zeros(b) for b in _PERIOD_CHANNELS[1:])
        self.last = nn.Linear(last, 1)

    def forward(self, samples: Tensor) -> Judgement:
        whole = self.period * _HOP * _FOLD ** len(self.layers)
        x = F.pad(_LOUDER * samples, (0, -samples.shape[1] % whole))
        x = x.unflatten(1, (-1, self.period)).mT.flatten(0, 1)  # [B · period, T]
        x = F.leaky_relu(self.first(F.pad(x, (_TAPS - _HOP, 0)).unfold(1, _TAPS, _HOP)), _SLOPE)
        features = [x]
        for layer, bias in zip(self.layers, self.biases, strict=True):
            now, next_one = layer(x.unflatten(1, (-1, _FOLD)).flatten(2)).chunk(2, -1)
            x = F.leaky_relu(now + F.pad(next_one[:, :-1], (0, 0, 1, 0)) + bias, _SLOPE)
            features.append(x)
        return self.last(x), features


class SpectralDiscriminator(nn.Module):
    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window
        self.register_buffer("hann", torch.hann_window(window), persistent=False)
        c = _SPECTRAL_CHANNELS
        self.layers = nn.ModuleList(
            [
                nn.Conv2d(2 * _BINS, c, (3, 5), padding="same"),
                *(nn.Conv2d(2 * c, c, (3, 5), padding="same", dilation=(d, 1)) for d in (1, 2, 4)),
                nn.Conv2d(c, c, (3, 3), padding="same"),
            ]
        )
        self.last = nn.Linear(c, 1)

    def forward(self, samples: Tensor) -> Judgement:
        x = self._spectrum(samples).unflatten(2, (-1, _BINS)).flatten(3)  # [B, time, frequency, channels]
        features = []
        for i, layer in enumerate(self.layers):
            if 0 < i < len(self.layers) - 1:
                x = x.unflatten(2, (-1, 2)).flatten(3)
            x = F.leaky_relu(layer(x.permute(0, 3, 1, 2)), _SLOPE).permute(0, 2, 3, 1)
            features.append(x)
        return self.last(x), features

    def _spectrum(self, samples: Tensor) -> Tensor:
        """[B, time, frequency, 2], compressed."""
        with torch.autocast(samples.device.type, enabled=False):
            x, hann = _LOUDER * samples.float(), cast(Tensor, self.hann)
            spectrum = torch.stft(x, self.window, self.window // 4, window=hann, normalized=True, return_complex=True)
            x = torch.view_as_real(spectrum[:, :-1].mT)
            squared = x.square().sum(-1, keepdim=True) + _QUIET**2
            return (x * squared ** ((_COMPRESSION - 1) / 2)).contiguous()


class Discriminators(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ModuleList(
            [*(PeriodDiscriminator(p) for p in _PERIODS), *(SpectralDiscriminator(w) for w in _WINDOWS)]
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                _start(module.weight, folded=isinstance(module, nn.Linear) and module.bias is None)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for judge in self.all:
            cast(nn.Linear, judge.last).weight.data *= 0.1
        self.to(memory_format=torch.channels_last)


def _start(weight: Tensor, *, folded: bool) -> None:
    """Draw weights that make outputs as large as inputs. A folded layer adds up two of its outputs."""
    nn.init.kaiming_normal_(weight, _SLOPE, nonlinearity="leaky_relu")
    if folded:
        weight.data *= 0.5**0.5
