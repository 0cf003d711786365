"""Residual units whose first convolution has eight bits on both sides: `source/conv.cu`, with integer accumulators.

A line of 128 bytes has twice as many inputs, and all else stays: tiles, rings and copies count in pairs of eight bits.
Units of 192 channels are one kernel, as they are with sixteen; with more channels the second convolution is Triton's.
They take what the reference takes (kernels/reference/int8_unit.py), in bfloat16.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType

import torch
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.cuda import conv, unit
from sonant.kernels.cuda.compiler import Program, obstacle_to
from sonant.kernels.cuda.trial import beside_captures
from sonant.kernels.gpu import Gpu, gpu_of
from sonant.kernels.reference import Int8Weight, Snake, Unit

_LOG = logging.getLogger(__name__)
WIDE, WHOLE = replace(conv.WIDE, eight=True), replace(conv.UNIT, eight=True)
LAYOUTS: Mapping[int, conv.Layout] = MappingProxyType({768: WIDE, 384: WIDE, 192: WHOLE})  # by channels
_LEAST_USE = 0.75
_RELATIVE_ERROR = 2e-2


def programs() -> Iterator[Program]:
    for layout in dict.fromkeys(LAYOUTS.values()):
        yield conv.conv_kernel(layout).program


@cache
def obstacle(gpu: Gpu) -> str | None:
    """Why these kernels do not run on this GPU; None: they do. It is looked for once, since `takes` is asked often."""
    return obstacle_to(programs(), gpu, on_later=False)


def takes(x: Tensor, active: Tensor, of: Unit, past: Tensor | None, following: Snake) -> bool:
    """Whether a unit has such weights, and enough values, of a kind that our kernels take."""
    gpu = gpu_of(x.device)
    batch, steps, channels = x.shape
    if gpu is None or of.int8 is None or channels not in LAYOUTS:
        return False
    return (
        LAYOUTS[channels].use(batch, steps, channels) >= _LEAST_USE
        and unit.refusal(x, active, of, past, following) is None
        and obstacle(gpu) is None
        and _works(channels, x.device)
    )


@cache
def _works(channels: int, device: torch.device) -> bool:
    """Whether the kernel's results are right, which is tried once on a GPU: it relies on so many details of one machine
    that on another it could be wrong unnoticed."""
    if device.type != "cuda":
        return True
    with beside_captures(device):
        return conv.conv_kernel(LAYOUTS[channels]).is_ready(device) and _is_right(channels, device)


@torch.inference_mode()
def _is_right(channels: int, device: torch.device) -> bool:
    """Compare two tiles of values with the reference on the CPU."""
    cpu, given = torch.device("cpu"), unit.trial(channels, 2 * LAYOUTS[channels].tile)
    weight = reference.int8_weight(given[2].wide, given[1].abs().amax((0, 1)))

    def made(compute: Callable[..., tuple[Tensor, Tensor]], where: torch.device) -> list[Tensor]:
        x, active, of, past, following = (conv.moved(part, where) for part in given)
        of = of._replace(int8=Int8Weight(*(part.to(where) for part in weight)))
        return [result.float().cpu() for result in compute(x, active, of, past, following)]

    pairs = zip(made(residual_unit, device), made(reference.int8_unit, cpu), strict=True)
    error = max(float((got - expected).norm() / expected.norm()) for got, expected in pairs)
    if not error < _RELATIVE_ERROR:
        _LOG.warning("units of %d channels run in sixteen bits: our kernel of eight is off by %.2g", channels, error)
    return error < _RELATIVE_ERROR


def _in_pairs(values: Tensor) -> Tensor:
    """Values [..., inputs] of eight bits as the kernel counts them: two of them as one of sixteen."""
    return values.view(torch.bfloat16)


def residual_unit(
    x: Tensor, active: Tensor, of: Unit, past: Tensor | None, following: Snake, *, keep: bool = True
) -> tuple[Tensor, Tensor]:
    """For tensors without a `unit.refusal`, with weights of eight bits."""
    from sonant.kernels.triton.conv import causal_conv
    from sonant.kernels.triton.int8_lines import int8_lines

    assert of.int8 is not None
    lines = _in_pairs(int8_lines(active, past, of.history, of.int8.inverse))
    before, fresh = lines[:, : of.history], lines[:, of.history :]
    columns = _in_pairs(of.int8.values.permute(0, 2, 1)).permute(0, 2, 1)
    layout, step = LAYOUTS[x.shape[2]], of.int8.scale
    if layout.point:
        paired = of._replace(wide=columns)
        return conv.residual_unit(x, fresh, paired, before, following, keep=keep, layout=layout, step=step)
    _, inner = conv.causal_conv(
        fresh, columns, of.wide_bias, before, of.dilation, snake=of.between, keep=False, layout=layout, step=step
    )
    return causal_conv(inner, of.point, of.point_bias, None, residual=x, snake=following, keep=keep)
