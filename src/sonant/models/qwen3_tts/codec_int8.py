"""The codec's widest residual units get weights of eight bits, with which calls of many rows take less time.

Inputs are rounded, too, and by how much has to be known before there are any. What a voice will say is not known when
a model is loaded; its codes are, and how often each was used in training. So the decoder is given codes that are drawn
as often, by themselves and not as speech, and what its convolutions are given then, and a quarter more, is what eight
bits have room for. With our own voice, what speech brings is 1.03 of that of drawn codes in the median, and 1.7 at
most; to cut the little that is above costs the sound less than coarser steps for all of it would (docs/LOG.md).
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
_ROOM = 1.25  # of the largest value that was seen


def quantize_units(decoder: CodecDecoder) -> None:
    """Call once, after `prepare`. What is drawn is the same each time, so all who load a model compute the same."""
    units = [u for u in decoder.modules() if isinstance(u, ResidualUnit) and u.conv1.conv.in_channels in LAYOUTS]
    if not units:
        return
    for unit, largest in zip(units, _largest_inputs(decoder, units), strict=True):
        unit.int8 = Int8Conv(int8_weight(unit.conv1.conv.weight.detach(), _ROOM * largest))


@dataclass(frozen=True)
class _Watcher:
    """Keeps the largest values that a convolution is given, by channel."""

    largest: Tensor

    def __call__(self, convolution: nn.Module, given: tuple[Tensor, ...]) -> None:
        torch.maximum(self.largest, given[0].detach().abs().amax((0, 1)).float(), out=self.largest)


def _largest_inputs(decoder: CodecDecoder, units: list[ResidualUnit]) -> list[Tensor]:
    """By channel, of each unit's first convolution, over codes as they are drawn."""
    device = units[0].conv1.conv.weight.device
    found = [torch.zeros(unit.conv1.conv.in_channels, device=device) for unit in units]
    if device.type == "meta":  # somebody plans what will be launched
        return found

    watchers = [_Watcher(largest) for largest in found]
    hooks = [unit.conv1.register_forward_pre_hook(watch) for unit, watch in zip(units, watchers, strict=True)]
    try:
        with torch.enable_grad():  # by the book: kernels would have to be compiled for this alone, and skip the hooks
            for codes in _drawn_codes(decoder):
                decoder(codes, torch.zeros(1, dtype=torch.long, device=codes.device))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _drawn_codes(decoder: CodecDecoder) -> Iterator[Tensor]:
    """[1, frames, codebooks], each code as often as it was used."""
    quantizer, generator = decoder.quantizer, torch.Generator().manual_seed(0)
    parts = [part.vq.usage() for part in (quantizer.rvq_first, quantizer.rvq_rest)]
    usage = torch.cat(parts).float().cpu()
    for _ in range(_PIECES):
        yield torch.multinomial(usage, _FRAMES, replacement=True, generator=generator).T[None].to(parts[0].device)
