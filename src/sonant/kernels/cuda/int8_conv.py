"""Convolutions of which both sides have eight bits: `source/conv.cu` with whole numbers for its sums.

A line of 128 bytes has twice as many inputs, and all else stays: tiles, rings and copies count in pairs of eight bits.
They take what the reference takes (kernels/reference/int8_conv.py), in bfloat16.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.cuda import conv
from sonant.kernels.cuda.compiler import Program, obstacle_to
from sonant.kernels.cuda.trial import beside_captures
from sonant.kernels.gpu import Gpu, gpu_of
from sonant.kernels.reference import Int8Weight, Snake

_LOG = logging.getLogger(__name__)
LAYOUT = replace(conv.WIDE, eight=True)
MULTIPLE = 384  # of channels: whole lines of 128 bytes, and whole tiles of columns
_LEAST_USE = 0.75
_RELATIVE_ERROR = 2e-2


def programs() -> Iterator[Program]:
    yield conv.conv_kernel(LAYOUT).program


def obstacle(gpu: Gpu) -> str | None:
    """Why this does not run there; None: it does."""
    return obstacle_to(programs(), gpu, on_later=False)


def takes(x: Tensor, weight: Int8Weight, bias: Tensor, past: Tensor | None, dilation: int, snake: Snake) -> bool:
    """Whether a convolution has enough values for this kernel, and of a kind that it takes."""
    gpu = gpu_of(x.device)
    batch, steps, _ = x.shape
    return (
        gpu is not None
        and LAYOUT.use(batch, steps, len(weight.values)) >= _LEAST_USE
        and refusal(x, weight, bias, past, dilation, snake) is None
        and obstacle(gpu) is None
        and _works(x.device)
    )


def refusal(
    x: Tensor, weight: Int8Weight, bias: Tensor, past: Tensor | None, dilation: int, snake: Snake
) -> str | None:
    """Why these tensors are not for our kernel; None: they are."""
    columns, inputs, taps = weight.values.shape
    given = [t for t in (x, bias, past, *snake[:2]) if t is not None]
    if any(t.dtype != torch.bfloat16 for t in given):
        return "not all values are bfloat16"
    if not snake.log_scale:
        return "an activation's factors are no logarithms"
    if inputs % MULTIPLE or columns % MULTIPLE or columns > LAYOUT.most_channels:
        return f"weights of {columns} columns and {inputs} inputs"
    if (taps - 1) * dilation > LAYOUT.most_past:
        return f"a convolution that looks back {(taps - 1) * dilation} steps"
    if not x.is_contiguous() or (past is not None and past.stride()[1:] != (inputs, 1)):
        return "values are not in lines"
    return None


@cache
def _works(device: torch.device) -> bool:
    """On a GPU it is tried once: what counts on so much of one machine must not be wrong on another, unnoticed."""
    if device.type != "cuda":
        return True
    with beside_captures(device):
        return conv.conv_kernel(LAYOUT).is_ready(device) and _is_right(device)


@torch.inference_mode()
def _is_right(device: torch.device) -> bool:
    """Two tiles of values against the reference on the CPU."""
    generator = torch.Generator().manual_seed(0)

    def values(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=generator)).bfloat16()

    weight = reference.int8_weight(values(MULTIPLE, MULTIPLE, 7, scale=0.02), values(MULTIPLE).abs() + 2)
    snake, dilation = Snake(values(MULTIPLE, scale=0.3), values(MULTIPLE, scale=0.3)), LAYOUT.most_past // 6
    x, past, bias = values(1, 2 * LAYOUT.tile, MULTIPLE), values(1, 6 * dilation, MULTIPLE), values(MULTIPLE)
    expected = reference.int8_conv(x, weight, bias, past, dilation, snake).float()
    there = Int8Weight(*(part.to(device) for part in weight))
    got = int8_conv(x.to(device), there, bias.to(device), past.to(device), dilation, conv.moved(snake, device))
    error = float((got.float().cpu() - expected).norm() / expected.norm())
    if not error < _RELATIVE_ERROR:
        _LOG.warning("convolutions of eight bits run in sixteen: our own kernel is off by %.2g", error)
    return error < _RELATIVE_ERROR


def _in_pairs(values: Tensor) -> Tensor:
    """Eight bits of [..., inputs] as the kernel counts them: two of them are one of sixteen."""
    return values.view(torch.bfloat16)


def int8_conv(x: Tensor, weight: Int8Weight, bias: Tensor, past: Tensor | None, dilation: int, snake: Snake) -> Tensor:
    """Of what `refusal` has nothing against."""
    from sonant.kernels.triton.int8_lines import int8_lines

    history = (weight.values.shape[2] - 1) * dilation
    lines = _in_pairs(int8_lines(x, past, history, weight.inverse))
    columns = _in_pairs(weight.values.permute(0, 2, 1)).permute(0, 2, 1)
    return conv.causal_conv(
        lines[:, history:], columns, bias, lines[:, :history], dilation, snake=snake, keep=False, layout=LAYOUT,
        step=weight.scale,
    )[1]  # fmt: skip
