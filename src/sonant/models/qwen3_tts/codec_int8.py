"""The codec's widest residual units get weights of eight bits, which make calls of many rows faster.

Inputs are rounded too, so their range has to be known in advance. What a voice will say is not known when a model is
loaded, but its codes are, and how often each was used in training. So the decoder is given codes that are drawn with
these frequencies, independently and not as speech, and eight bits cover the largest inputs that its convolutions get
then, and a quarter more. With our own voice the inputs of speech are 1.03 times those of drawn codes in the median, and
1.7 times at most; clipping the few larger values costs the sound less than coarser steps for all would (docs/LOG.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sonant.kernels.cuda.int8_unit import LAYOUTS
from sonant.kernels.reference import int8_weight
from sonant.layers.quantized import Int8Conv
from sonant.models.qwen3_tts.codec import CodecDecoder, ResidualUnit

_FRAMES, _PIECES = 64, 8
_ROOM = 1.25  # times the largest value seen


def quantize_units(decoder: CodecDecoder) -> None:
    """Call once, after `prepare`. The drawn codes are the same each time, so that a model always computes the same."""
    units = [u for u in decoder.modules() if isinstance(u, ResidualUnit) and u.conv1.conv.in_channels in LAYOUTS]
    if not units:
        return
    for unit, largest in zip(units, _largest_inputs(decoder, units), strict=True):
        unit.int8 = Int8Conv(int8_weight(unit.conv1.conv.weight.detach(), _ROOM * largest))


@dataclass(frozen=True)
class _Watcher:
    """A hook that keeps the largest absolute inputs of a convolution, by channel."""

    largest: Tensor

    def __call__(self, convolution: nn.Module, given: tuple[Tensor, ...]) -> None:
        torch.maximum(self.largest, given[0].detach().abs().amax((0, 1)).float(), out=self.largest)


def _largest_inputs(decoder: CodecDecoder, units: list[ResidualUnit]) -> list[Tensor]:
    """The largest absolute inputs of each unit's first convolution, by channel, while drawn codes are decoded."""
    device = units[0].conv1.conv.weight.device
    found = [torch.zeros(unit.conv1.conv.in_channels, device=device) for unit in units]
    if device.type == "meta":  # there are no values: launches are only being planned
        return found

    watchers = [_Watcher(largest) for largest in found]
    hooks = [unit.conv1.register_forward_pre_hook(watch) for unit, watch in zip(units, watchers, strict=True)]
    try:
        with torch.enable_grad():  # runs the reference: kernels would be compiled for this alone, and skip the hooks
            for codes in _drawn_codes(decoder):
                decoder(codes, torch.zeros(1, dtype=torch.long, device=codes.device))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _drawn_codes(decoder: CodecDecoder) -> Iterator[Tensor]:
    """Codes [1, frames, codebooks], each drawn as often as it was used in training."""
    quantizer, generator = decoder.quantizer, torch.Generator().manual_seed(0)
    parts = [part.vq.usage() for part in (quantizer.rvq_first, quantizer.rvq_rest)]
    usage = torch.cat(parts).float().cpu()
    for _ in range(_PIECES):
        yield torch.multinomial(usage, _FRAMES, replacement=True, generator=generator).T[None].to(parts[0].device)
