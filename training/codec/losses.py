"""How far a reconstruction is from its original: spectra at several resolutions, linear and mel, in float32."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from sonant.audio.features import MelSpec, slaney_filterbank
from training.branches import Branches

_SCALES = ((2048, 160), (1024, 80), (512, 40), (256, 20), (128, 10), (64, 5))  # window, mel bins
_LINEAR_FROM = 512  # shorter windows tell pitch and timbre too coarsely for a linear spectrum to be of use
_FLOOR_DB = -75.0  # of full scale. If it were lower, the logarithm's slope would make silence weigh more than speech


def _floor(window: Tensor) -> Tensor:
    """The magnitude in one bin of noise at the floor's level."""
    return 10 ** (_FLOOR_DB / 20) * window.square().sum().sqrt()


class SpectralLoss(nn.Module):
    """→ (log-mel L1, linear STFT loss), each a mean over its scales."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.branches = Branches(device, len(_SCALES))
        for window, bins in _SCALES:
            filters = slaney_filterbank(MelSpec(fft_samples=window, hop_samples=window // 4, mel_bins=bins))
            hann = torch.hann_window(window)
            self.register_buffer(f"filters_{window}", filters, persistent=False)
            self.register_buffer(f"hann_{window}", hann, persistent=False)
            self.register_buffer(f"floor_{window}", _floor(hann), persistent=False)
            self.register_buffer(f"mel_floor_{window}", _floor(hann) * filters.sum(1, keepdim=True), persistent=False)
        self.to(device)

    def forward(self, made: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T] float32 each."""
        both = torch.cat([made, real])
        scales = self.branches.run([partial(self._scale, both, window) for window, _ in _SCALES])
        mel, linear = zip(*scales, strict=True)
        return torch.stack(mel).mean(), torch.stack([each for each in linear if each is not None]).mean()

    def _scale(self, both: Tensor, window: int) -> tuple[Tensor, Tensor | None]:
        magnitude = self._magnitude(both, window)
        bands = getattr(self, f"filters_{window}") @ magnitude
        a, b = torch.maximum(bands, getattr(self, f"mel_floor_{window}")).log().chunk(2)
        mel = (a - b).abs().mean()
        if window < _LINEAR_FROM:
            return mel, None
        floor = getattr(self, f"floor_{window}")
        a, b = magnitude.chunk(2)
        convergence = (a - b).square().sum().sqrt() / torch.maximum(b.square().sum().sqrt(), floor)
        a, b = torch.maximum(magnitude, floor).log().chunk(2)
        return mel, convergence + (a - b).abs().mean()

    def _magnitude(self, samples: Tensor, window: int) -> Tensor:
        hann = getattr(self, f"hann_{window}")
        spectrum = torch.stft(samples, window, window // 4, window=hann, return_complex=True)
        return torch.view_as_real(spectrum).square().sum(-1).add(1e-9).sqrt()


def discriminator_loss(real: Tensor, made: Tensor) -> Tensor:
    """Least squares: real to one, made to zero."""
    return (real - 1).square().mean() + made.square().mean()


def generator_loss(made: Tensor) -> Tensor:
    return (made - 1).square().mean()


def feature_loss(features: list[Tensor]) -> Tensor:
    """How far a judge's features of made speech are from those of the real speech in their first half, as a share of
    the features' size."""
    losses = []
    for both in features:
        made = both.chunk(2)[1]
        real = both.chunk(2)[0].detach()
        size = real.abs().mean(dtype=torch.float32).clamp(min=1e-3)
        losses.append((real - made).abs().mean(dtype=torch.float32) / size)
    return torch.stack(losses).mean()
