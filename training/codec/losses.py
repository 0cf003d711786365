"""How far a reconstruction is from its original: spectra at several resolutions, linear and mel, in float32."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sonant.audio.features import MelSpec, slaney_filterbank

_SCALES = ((2048, 160), (1024, 80), (512, 40), (256, 20), (128, 10), (64, 5))  # window, mel bins
_LINEAR_FROM = 512  # shorter windows tell pitch and timbre too coarsely for a linear spectrum to be of use
_FLOOR = 1e-5


class SpectralLoss(nn.Module):
    """→ (log-mel L1, linear STFT loss), each a mean over its scales."""

    def __init__(self) -> None:
        super().__init__()
        for window, bins in _SCALES:
            filters = slaney_filterbank(MelSpec(fft_samples=window, hop_samples=window // 4, mel_bins=bins))
            self.register_buffer(f"filters_{window}", filters, persistent=False)
            self.register_buffer(f"hann_{window}", torch.hann_window(window), persistent=False)

    def forward(self, made: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T] float32 each."""
        mel, linear = [], []
        both = torch.cat([made, real])
        for window, _ in _SCALES:
            magnitude = self._magnitude(both, window)
            bands = (getattr(self, f"filters_{window}") @ magnitude).clamp(min=_FLOOR).log()
            a, b = bands.chunk(2)
            mel.append((a - b).abs().mean())
            if window >= _LINEAR_FROM:
                a, b = magnitude.chunk(2)
                convergence = (a - b).square().sum().sqrt() / b.square().sum().sqrt().clamp(min=_FLOOR)
                linear.append(convergence + (a.clamp(min=_FLOOR).log() - b.clamp(min=_FLOOR).log()).abs().mean())
        return torch.stack(mel).mean(), torch.stack(linear).mean()

    def _magnitude(self, samples: Tensor, window: int) -> Tensor:
        hann = getattr(self, f"hann_{window}")
        spectrum = torch.stft(samples, window, window // 4, window=hann, return_complex=True)
        return torch.view_as_real(spectrum).square().sum(-1).add(1e-9).sqrt()


def discriminator_loss(real: list[Tensor], made: list[Tensor]) -> Tensor:
    """Least squares: real to one, made to zero."""
    return torch.stack([(r - 1).square().mean() + m.square().mean() for r, m in zip(real, made, strict=True)]).sum()


def generator_loss(made: list[Tensor]) -> Tensor:
    return torch.stack([(m - 1).square().mean() for m in made]).sum()


def feature_loss(real: list[list[Tensor]], made: list[list[Tensor]]) -> Tensor:
    return torch.stack(
        [
            (r - m).abs().mean(dtype=torch.float32)
            for rs, ms in zip(real, made, strict=True)
            for r, m in zip(rs, ms, strict=True)
        ]
    ).sum()
