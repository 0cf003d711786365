"""Resamples a whole clip as torchaudio's default resampler does.

The codec was trained on that resampler's output, and codes depend on it closely, so no other filter will do: a sinc of
six zero crossings to each side under a Hann window, cut off at 0.99 of the lower Nyquist frequency, in float32.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sonant.kernels.reference import exact_conv

_ZERO_CROSSINGS = 6
_ROLLOFF = 0.99


def sinc_resample(samples: Tensor, from_rate: int, to_rate: int) -> Tensor:
    """[B, T] → [B, ceil(T · to_rate / from_rate)], float32."""
    if from_rate == to_rate:
        return samples
    common = math.gcd(from_rate, to_rate)
    every, makes = from_rate // common, to_rate // common  # each output has a filter of its own
    filters, reach = _filters(every, makes)
    padded = F.pad(samples, (reach, reach + every))[:, None]
    made = exact_conv(padded, filters.to(samples.device), stride=(every,), dilation=(1,))
    return made.mT.flatten(1)[:, : -(-samples.shape[1] * makes // every)]


def _filters(every: int, makes: int) -> tuple[Tensor, int]:
    """Filters [makes, 1, taps], and how many inputs before the first they reach. On the CPU: sines differ elsewhere."""
    cutoff = min(every, makes) * _ROLLOFF
    reach = math.ceil(_ZERO_CROSSINGS * every / cutoff)
    inputs = torch.arange(-reach, reach + every, dtype=torch.float32)[None, None] / every
    outputs = torch.arange(0, -makes, -1, dtype=torch.float32)[:, None, None] / makes
    at = ((outputs + inputs) * cutoff).clamp(-_ZERO_CROSSINGS, _ZERO_CROSSINGS)
    window = torch.cos(at * math.pi / _ZERO_CROSSINGS / 2) ** 2
    angle = at * math.pi
    sinc = torch.where(angle == 0, 1.0, angle.sin() / angle)
    return sinc * (window * (cutoff / every)), reach
