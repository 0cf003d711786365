"""Log-mel spectrograms, as speaker encoders are trained on them.

The mel scale and its area normalisation are Slaney's (Auditory Toolbox, 1998): linear below 1 kHz,
logarithmic above. Written here so that a filterbank does not cost us a dependency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

_LINEAR_HZ_PER_MEL = 200 / 3
_LOG_START_HZ = 1000.0
_LOG_START_MEL = _LOG_START_HZ / _LINEAR_HZ_PER_MEL
_LOG_STEP = math.log(6.4) / 27  # 27 mels span a factor of 6.4 in frequency


@dataclass(frozen=True)
class MelSpec:
    """What kind of log-mel a model expects. Filters span 0 Hz to half the sample rate."""

    sample_rate: int = 24_000
    fft_samples: int = 1024
    hop_samples: int = 256
    mel_bins: int = 128
    power_floor: float = 1e-9  # keeps the square root's gradient finite in silence
    mel_floor: float = 1e-5

    @property
    def edge_samples(self) -> int:
        """How much is mirrored onto either end, so that n hops give n frames. A clip must be longer than this."""
        return (self.fft_samples - self.hop_samples) // 2


def log_mel(samples: Tensor, spec: MelSpec) -> Tensor:
    """[..., samples] at `spec.sample_rate` → [..., frames, mel_bins]."""
    batch = samples.reshape(-1, samples.shape[-1])
    padded = F.pad(batch[:, None], (spec.edge_samples, spec.edge_samples), mode="reflect")[:, 0]
    spectrum = torch.stft(
        padded,
        spec.fft_samples,
        spec.hop_samples,
        window=torch.hann_window(spec.fft_samples, dtype=samples.dtype, device=samples.device),
        center=False,
        return_complex=True,
    )
    magnitude = torch.sqrt(torch.view_as_real(spectrum).square().sum(-1) + spec.power_floor)
    mel = slaney_filterbank(spec).to(samples) @ magnitude
    return mel.clamp(min=spec.mel_floor).log().mT.reshape(*samples.shape[:-1], -1, spec.mel_bins)


@lru_cache(maxsize=8)
def slaney_filterbank(spec: MelSpec) -> Tensor:
    """[mel_bins, fft_samples // 2 + 1] triangles of equal area, float32 on the CPU."""
    # A cached tensor outlives the caller's modes: made under inference_mode it could never see a gradient.
    with torch.inference_mode(False), torch.device("cpu"):
        top_mel = _hz_to_mel(spec.sample_rate / 2)
        corners_hz = _mel_to_hz(torch.linspace(0, top_mel, spec.mel_bins + 2, dtype=torch.float64))
        bins_hz = torch.linspace(0, spec.sample_rate / 2, spec.fft_samples // 2 + 1, dtype=torch.float64)
        left, peak, right = (corners_hz[i : i + spec.mel_bins, None] for i in range(3))
        rising = (bins_hz - left) / (peak - left)
        falling = (right - bins_hz) / (right - peak)
        return (torch.minimum(rising, falling).clamp(min=0) * 2 / (right - left)).float()


def _hz_to_mel(hz: float) -> float:
    if hz < _LOG_START_HZ:
        return hz / _LINEAR_HZ_PER_MEL
    return _LOG_START_MEL + math.log(hz / _LOG_START_HZ) / _LOG_STEP


def _mel_to_hz(mel: Tensor) -> Tensor:
    logarithmic = _LOG_START_HZ * torch.exp(_LOG_STEP * (mel - _LOG_START_MEL))
    return torch.where(mel < _LOG_START_MEL, mel * _LINEAR_HZ_PER_MEL, logarithmic)
