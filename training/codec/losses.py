"""How far a reconstruction is from its original: spectra at several resolutions, linear and mel, in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sonant.audio.features import MelSpec, slaney_filterbank

_SCALES = ((2048, 160), (1024, 80), (512, 40), (256, 20), (128, 10), (64, 5))  # window, mel bins
_LINEAR_FROM = 512  # shorter windows tell pitch and timbre too coarsely for a linear spectrum to be of use
_FLOOR_DB = -75.0  # of full scale. Lower, and the slope of the logarithm makes silence weigh more than speech


def _floor(window: Tensor) -> Tensor:
    """The magnitude in one bin of noise at the floor's level."""
    return 10 ** (_FLOOR_DB / 20) * window.square().sum().sqrt()


class SpectralLoss(nn.Module):
    """→ (log-mel L1, linear STFT loss), each a mean over its scales."""

    def __init__(self) -> None:
        super().__init__()
        for window, bins in _SCALES:
            filters = slaney_filterbank(MelSpec(fft_samples=window, hop_samples=window // 4, mel_bins=bins))
            hann = torch.hann_window(window)
            self.register_buffer(f"filters_{window}", filters, persistent=False)
            self.register_buffer(f"hann_{window}", hann, persistent=False)
            self.register_buffer(f"floor_{window}", _floor(hann), persistent=False)
            self.register_buffer(f"mel_floor_{window}", _floor(hann) * filters.sum(1, keepdim=True), persistent=False)

    def forward(self, made: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T] float32 each."""
        mel, linear = [], []
        both = torch.cat([made, real])
        for window, _ in _SCALES:
            magnitude = self._magnitude(both, window)
            bands = getattr(self, f"filters_{window}") @ magnitude
            a, b = torch.maximum(bands, getattr(self, f"mel_floor_{window}")).log().chunk(2)
            mel.append((a - b).abs().mean())
            if window >= _LINEAR_FROM:
                floor = getattr(self, f"floor_{window}")
                a, b = magnitude.chunk(2)
                convergence = (a - b).square().sum().sqrt() / torch.maximum(b.square().sum().sqrt(), floor)
                a, b = torch.maximum(magnitude, floor).log().chunk(2)
                linear.append(convergence + (a - b).abs().mean())
        return torch.stack(mel).mean(), torch.stack(linear).mean()

    def _magnitude(self, samples: Tensor, window: int) -> Tensor:
        hann = getattr(self, f"hann_{window}")
        spectrum = torch.stft(samples, window, window // 4, window=hann, return_complex=True)
        return torch.view_as_real(spectrum).square().sum(-1).add(1e-9).sqrt()


def discriminator_loss(real: Sequence[Tensor], made: Sequence[Tensor]) -> Tensor:
    """Least squares: real to one, made to zero."""
    return torch.stack([(r - 1).square().mean() + m.square().mean() for r, m in zip(real, made, strict=True)]).sum()


def generator_loss(made: Sequence[Tensor]) -> Tensor:
    return torch.stack([(m - 1).square().mean() for m in made]).sum()


def feature_loss(real: list[list[Tensor]], made: list[list[Tensor]]) -> Tensor:
    """How far the judges' features of the two are apart, as a share of the features' size."""
    return torch.stack(
        [
            (r - m).abs().mean(dtype=torch.float32) / r.abs().mean(dtype=torch.float32).clamp(min=1e-3)
            for rs, ms in zip(real, made, strict=True)
            for r, m in zip(rs, ms, strict=True)
        ]
    ).mean()
