"""A residual unit of a codec's decoder in one kernel of CUDA C++: `source/unit.cu` for 96 channels, and for 192
`source/conv.cu`, with the second convolution behind the first.

They take what the reference takes (kernels/reference/conv.py), in bfloat16, and need many tiles: few values go to
Triton's convolutions, which share one tile among several programs.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.cuda import conv
from sonant.kernels.cuda.compiler import Program, obstacle_to
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.cuda.trial import beside_captures
from sonant.kernels.gpu import Gpu, gpu_of
from sonant.kernels.reference import Snake, Unit

_LOG = logging.getLogger(__name__)
_THIN = 96
_TAPS, _TILE, _SLAB, _MOST_PAST, _GROUPS = 7, 64, 32, 54, 3  # as in unit_parts.cuh
_TILES = {_THIN: _TILE, conv.UNIT.columns: conv.UNIT.tile}  # by channels
_LEAST_TILES = 768  # of 96 channels: a block reads all weights first
_LEAST_USE = 0.75  # of 192
_RELATIVE_ERROR = 2e-2
_ARGS = struct.Struct("<" + 3 * "128s" + "11Q5i20x")  # UnitArgs


@cache
def thin_kernel() -> CudaKernel:
    weights = (_TAPS + 1) * _THIN * _THIN * 2
    slab = -(-(_TILE + _MOST_PAST) * 2 * _SLAB // 1024) * 1024
    lines, factors = _GROUPS * _THIN // _SLAB * slab, 6 * 4 * _THIN
    shared = weights + lines + factors + 16 * _GROUPS
    return CudaKernel(Program("unit.cu", {}, features="a"), "residual_unit", _ARGS, shared, 128 * (_GROUPS + 1))


def unit_kernel(channels: int) -> CudaKernel:
    return thin_kernel() if channels == _THIN else conv.conv_kernel(conv.UNIT)


def programs() -> Iterator[Program]:
    for channels in _TILES:
        yield unit_kernel(channels).program


def obstacle(gpu: Gpu) -> str | None:
    """Why these kernels do not run on this GPU; None: they do."""
    return obstacle_to(programs(), gpu, on_later=False)


def takes(x: Tensor, active: Tensor, unit: Unit, past: Tensor | None, following: Snake) -> bool:
    """Whether one kernel takes a unit of these values."""
    gpu = gpu_of(x.device)
    batch, steps, channels = x.shape
    if gpu is None or channels not in _TILES:
        return False
    return (
        _is_much(batch, steps, channels)
        and refusal(x, active, unit, past, following) is None
        and _obstacle(gpu) is None
        and _works(channels, x.device)
    )


def _is_much(batch: int, steps: int, channels: int) -> bool:
    """Whether one kernel was faster than Triton's two with so many values."""
    if channels != _THIN:
        return conv.UNIT.use(batch, steps, channels) >= _LEAST_USE
    return steps >= _TILE and batch * -(-steps // _TILE) >= _LEAST_TILES


@cache
def _obstacle(gpu: Gpu) -> str | None:
    """`obstacle`, looked for and logged once."""
    found = obstacle(gpu)
    if found is not None:
        _LOG.info("residual units run in Triton, not in CUDA C++: %s", found)
    return found


def refusal(x: Tensor, active: Tensor, unit: Unit, past: Tensor | None, following: Snake) -> str | None:
    """Why these tensors are not for our kernels; None: they are."""
    channels, snakes = x.shape[2], (unit.between, following)
    values = [unit.wide_bias, unit.point_bias, *(t for s in snakes for t in s[:2])]
    if any(t.dtype != torch.bfloat16 for t in (x, active, unit.wide, unit.point, *values)):
        return "not all values are bfloat16"
    if not all(snake.log_scale for snake in snakes):
        return "an activation's factors are no logarithms"
    if unit.wide.shape != (channels, channels, _TAPS) or unit.point.shape != (channels, channels, 1):
        return f"weights are {tuple(unit.wide.shape)} and {tuple(unit.point.shape)}"
    if not unit.wide.permute(0, 2, 1).is_contiguous() or not unit.point.permute(0, 2, 1).is_contiguous():
        return "weights do not have their inputs last"
    if unit.history > _MOST_PAST:
        return f"a unit that looks back {unit.history} steps"
    if not x.is_contiguous() or not active.is_contiguous():
        return "values are not in lines"
    if past is not None and (past.stride()[1:] != (channels, 1) or past.stride(0) % 8 or past.storage_offset() % 8):
        return "what came before is not in lines"
    return None


@cache
def _works(channels: int, device: torch.device) -> bool:
    """Whether the kernel's results are right, which is tried once on a GPU: it relies on so many details of one machine
    that on another it could be wrong unnoticed."""
    if device.type != "cuda":
        return True
    with beside_captures(device):
        return unit_kernel(channels).is_ready(device) and _is_right(channels, device)


def trial(channels: int, steps: int) -> tuple[Tensor, Tensor, Unit, Tensor, Snake]:
    """A unit and its arguments, of values that bfloat16 has, in float32."""
    generator = torch.Generator().manual_seed(0)

    def values(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=generator)).bfloat16().float()

    between, following = (Snake(values(channels, scale=0.3), values(channels, scale=0.3)) for _ in range(2))
    wide = values(channels, _TAPS, channels, scale=(_TAPS * channels) ** -0.5).permute(0, 2, 1)
    point = values(channels, 1, channels, scale=channels**-0.5).permute(0, 2, 1)
    unit = Unit(wide, values(channels), 3, between, point, values(channels))
    x, active = (values(1, steps, channels) for _ in range(2))
    return x, active, unit, values(1, unit.history, channels), following


@torch.inference_mode()
def _is_right(channels: int, device: torch.device) -> bool:
    """Compare two tiles with float32 on the CPU."""
    given = trial(channels, 2 * _TILES[channels])
    got = residual_unit(*(conv.moved(part, device) for part in given))
    expected = reference.residual_unit(*given)
    error = max(float((g.float().cpu() - e).norm() / e.norm()) for g, e in zip(got, expected, strict=True))
    if not error < _RELATIVE_ERROR:
        _LOG.warning("residual units run in Triton: our own kernel of %d channels is off by %.2g", channels, error)
    return error < _RELATIVE_ERROR


def residual_unit(
    x: Tensor, active: Tensor, unit: Unit, past: Tensor | None, following: Snake, *, keep: bool = True
) -> tuple[Tensor, Tensor]:
    """For tensors without a `refusal`."""
    if x.shape[2] != _THIN:
        return conv.residual_unit(x, active, unit, past, following, keep=keep)
    batch, steps, _ = x.shape
    raw, result = x.new_empty(x.shape if keep else 0), x.new_empty(x.shape)
    row_tiles = -(-steps // _TILE)
    tiles = batch * row_tiles
    thin_kernel().launch(
        x.device, (conv.resident_blocks(tiles), 1, 1), *conv.maps_of_lines(active, past, unit.history, _TILE, _SLAB),
        x.data_ptr(), unit.wide.data_ptr(), unit.wide_bias.data_ptr(), unit.point.data_ptr(),
        unit.point_bias.data_ptr(), *(t.data_ptr() for s in (unit.between, following) for t in s[:2]),
        raw.data_ptr() if keep else 0, result.data_ptr(), steps, unit.dilation, row_tiles, tiles, past is not None,
    )  # fmt: skip
    return raw, result
