"""A residual unit of a codec's decoder in CUDA C++: the wrapper of `source/unit.cu`.

It takes what the reference takes (kernels/reference/conv.py), of 96 channels in bfloat16. A block reads all
weights before or while it works, so it wants many tiles: few values are for Triton's convolutions, which share one tile
among several programs.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.cuda.compiler import Program, unavailable
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.gpu import Gpu, gpu_of
from sonant.kernels.reference import Snake, Unit

_LOG = logging.getLogger(__name__)
_HOPPER = (9, 0)  # and no other: its products of warpgroups are not on later ones
_CHANNELS = (96,)  # with 192 it is right too, but Triton's two kernels take 1,079 µs for 64 × 640 steps and it 1,432
_TAPS, _TILE, _MOST_PAST = 7, 128, 54  # as unit_parts.cuh has it
_LEAST_TILES = 512  # with 240 Triton's programs, which share out what is too little for a block, are faster
_PROCESSORS = 132  # of an H100 or H200
_RING = 6  # as unit.cu has it
_THREADS = 384
_RELATIVE_ERROR = 2e-2
_ARGS = struct.Struct("<14Qq5i4x")  # UnitArgs


@cache
def unit_kernel(channels: int) -> CudaKernel:
    lines = 2 * channels // 8 * (_TILE + _MOST_PAST + 1) * 16
    weights = (_TAPS + 1) * channels * channels * 2 if channels == 96 else _RING * 4 * channels * 16
    factors, barriers = 8 * 4 * channels, 32 if channels == 96 else 32 + 16 * _RING
    program = Program("unit.cu", {"CHANNELS": channels}, features="a")
    return CudaKernel(program, "residual_unit", _ARGS, weights + lines + factors + barriers, _THREADS)


def programs() -> Iterator[Program]:
    for channels in _CHANNELS:
        yield unit_kernel(channels).program


def obstacle(gpu: Gpu) -> str | None:
    """Why none of this runs there; None: it does."""
    if gpu.capability != _HOPPER:
        return f"it needs compute capability 9.0, and {gpu.name} has {gpu.capability[0]}.{gpu.capability[1]}"
    return unavailable(programs(), gpu.arch)


def takes(like: Tensor, batch: int, steps: int, channels: int) -> bool:
    """Whether values [batch, steps, channels] of this type and device are for this kernel."""
    gpu = gpu_of(like.device)
    return (
        gpu is not None
        and like.dtype == torch.bfloat16
        and channels in _CHANNELS
        and steps >= _MOST_PAST
        and batch * -(-steps // _TILE) >= _LEAST_TILES
        and _obstacle(gpu) is None
        and _works(channels, like.device)
    )


@cache
def _obstacle(gpu: Gpu) -> str | None:
    """Looked for once, and told once."""
    found = obstacle(gpu)
    if found is not None:
        _LOG.info("residual units run in Triton, not in CUDA C++: %s", found)
    return found


@cache
def _works(channels: int, device: torch.device) -> bool:
    """On a GPU it is tried once: what counts on so much of one machine must not be wrong on another, unnoticed.

    The first of a captured step's runs comes here, none that is captured.
    """
    return device.type != "cuda" or (unit_kernel(channels).is_ready(device) and _is_right(channels, device))


@torch.inference_mode()
def _is_right(channels: int, device: torch.device) -> bool:
    x, unit = _example(channels)
    expected, _ = reference.residual_unit(x, unit, None, None)  # on the CPU, in float32
    there = Unit(*(_on(part, device) for part in unit))
    got, _ = residual_unit(_on(x, device), there, None, None)
    error = float((got.float().cpu() - expected).norm() / expected.norm())
    if not error < _RELATIVE_ERROR:
        _LOG.warning("residual units run in Triton: our own kernel of %d channels is off by %.2g", channels, error)
    return error < _RELATIVE_ERROR


def _example(channels: int) -> tuple[Tensor, Unit]:
    """Values that bfloat16 has, two tiles of them."""
    generator = torch.Generator().manual_seed(0)

    def values(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=generator)).bfloat16().float()

    before, between = (Snake(values(channels, scale=0.3), values(channels, scale=0.3)) for _ in range(2))
    wide = values(channels, _TAPS, channels, scale=(_TAPS * channels) ** -0.5).permute(0, 2, 1)
    point = values(channels, 1, channels, scale=channels**-0.5).permute(0, 2, 1)
    unit = Unit(before, wide, values(channels), 3, between, point, values(channels))
    return values(1, 2 * _TILE, channels), unit


def _on(part: Snake | Tensor | int, device: torch.device) -> Any:
    if isinstance(part, Snake):
        return Snake(*(_on(t, device) for t in part[:2]))
    return part.bfloat16().to(device) if isinstance(part, Tensor) else part


def refusal(x: Tensor, unit: Unit, past: Tensor | None, following: Snake | None) -> str | None:
    """Why these tensors are not for our kernel; None: they are."""
    channels = x.shape[2]
    snakes = [unit.before, unit.between, *([] if following is None else [following])]
    values = [unit.wide_bias, unit.point_bias, *(t for s in snakes for t in s[:2])]
    if any(t.dtype != torch.bfloat16 for t in (x, unit.wide, unit.point, *values)):
        return "not all values are bfloat16"
    if not all(snake.log_scale for snake in snakes):
        return "an activation's factors are no logarithms"
    if unit.wide.shape != (channels, channels, _TAPS) or unit.point.shape != (channels, channels, 1):
        return f"weights are {tuple(unit.wide.shape)} and {tuple(unit.point.shape)}"
    if not unit.wide.permute(0, 2, 1).is_contiguous() or not unit.point.permute(0, 2, 1).is_contiguous():
        return "weights do not have their inputs last"
    if unit.history > _MOST_PAST or x.shape[1] < unit.history:
        return f"a unit that looks back {unit.history} steps, at {x.shape[1]}"
    if past is not None and (past.stride()[1:] != (channels, 1) or past.stride(0) % 8 or past.storage_offset() % 8):
        return "what came before is not in lines"
    return None


def residual_unit(x: Tensor, unit: Unit, past: Tensor | None, following: Snake | None) -> tuple[Tensor, Tensor | None]:
    """Of what `refusal` has nothing against."""
    batch, steps, channels = x.shape
    x = x.contiguous()
    out = x.new_empty(x.shape)
    tail = None if past is None else x.new_empty(batch, unit.history, channels)
    row_tiles = -(-steps // _TILE)
    tiles = batch * row_tiles
    last = unit.between if following is None else following
    kernel = unit_kernel(channels)
    grid = min(tiles if channels == 192 else -(-tiles // 2), _PROCESSORS)
    kernel.launch(
        x.device, (grid, 1, 1),
        x.data_ptr(), 0 if past is None else past.data_ptr(), unit.wide.data_ptr(), unit.wide_bias.data_ptr(),
        unit.point.data_ptr(), unit.point_bias.data_ptr(), *(t.data_ptr() for t in unit.before[:2]),
        *(t.data_ptr() for t in unit.between[:2]), *(t.data_ptr() for t in last[:2]),
        out.data_ptr(), 0 if tail is None else tail.data_ptr(), 0 if past is None else past.stride(0),
        steps, unit.dilation, row_tiles, tiles, following is not None,
    )  # fmt: skip
    return out, tail
