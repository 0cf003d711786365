"""Causal convolutions of many steps in CUDA C++: the wrapper of `source/conv.cu` and `source/panel.cu`.

They take what the reference takes (kernels/reference/conv.py), in bfloat16 and without a residual. Tiles are large, so
they need many values: few go to Triton's kernels, whose tiles are smaller, span rows, and are shared among programs.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.cuda.compiler import Program, obstacle_to
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.cuda.tensor_map import BYTES, tensor_map
from sonant.kernels.cuda.trial import beside_captures
from sonant.kernels.gpu import Gpu, gpu_of
from sonant.kernels.reference import Bounds, Snake, Unit

_LOG = logging.getLogger(__name__)
_DEPTH, _MOST_PAST, _RUN = 64, 54, 64  # as conv_parts.cuh has it
PROCESSORS = 132  # of an H100 or H200
_LEAST_USE = 0.75
_LEAST_PANEL_TILES = 1024  # a block reads all of its weights first
_RELATIVE_ERROR = 2e-2
_NO_MAP = bytes(BYTES)
_ARGS = struct.Struct("<" + 5 * "128s" + "10Q11i4x")  # ConvArgs


@dataclass(frozen=True)
class Layout:
    """Constants of a program: the size of a tile, and how much of it shared memory holds at a time."""

    columns: int
    most_past: int
    buffers: int  # of lines
    parts: int  # of weights
    groups: int = 2  # warpgroups that multiply
    halves: int = 2  # times 64 lines, in each of them
    inputs: int = 0  # not 0: a panel's weights stay in shared memory, and warpgroups have tiles of their own
    taps: int = 0
    short: bool = False  # rows are shorter than a tile, which has runs of several
    point: bool = False  # a unit's second convolution follows, and the sum with the unit's input
    eight: bool = False  # bits of inputs and weights; two values count as one input

    @property
    def tile(self) -> int:
        return 64 if self.inputs else 64 * self.groups * self.halves

    @property
    def run(self) -> int:
        """Consecutive steps of one row in a tile."""
        return _RUN if self.short else self.tile

    @property
    def most_channels(self) -> int:
        return 1536 if self.short else 768

    def use(self, batch: int, steps: int, columns: int) -> float:
        """The part of what processors compute, in whole rounds of tiles, that is wanted values."""
        rounds = -(-self.tiles(batch, steps, columns) // PROCESSORS)
        return batch * steps * columns / (rounds * PROCESSORS * self.tile * self.columns)

    def tiles(self, batch: int, steps: int, columns: int) -> int:
        return -(-batch * -(-steps // self.run) // (self.tile // self.run)) * (columns // self.columns)

    @property
    def shared_bytes(self) -> int:
        buffer = -(-(self.tile + self.tile // self.run * self.most_past) * 2 * _DEPTH // 1024) * 1024
        factors = 4 * (3 + self.eight) * self.most_channels + 4 * 3 * self.columns * self.point
        inner = self.groups * self.columns // 8 * 66 * 16 * self.point
        rings = self.parts * self.columns * 2 * _DEPTH + self.buffers * buffer
        return rings + inner + factors + 16 * (self.parts + self.buffers)


WIDE = Layout(192, _MOST_PAST, buffers=2, parts=5)
_NARROW = Layout(192, 1, buffers=3, parts=4)
_SHORT = Layout(192, 6, buffers=2, parts=5, short=True)
_PANEL = Layout(96, 1, buffers=9, parts=6, groups=3, halves=1, inputs=192, taps=2)
UNIT = Layout(192, _MOST_PAST, buffers=2, parts=3, groups=3, halves=1, point=True)


@cache
def conv_kernel(layout: Layout) -> CudaKernel:
    defines = {name.upper(): int(value) for name, value in asdict(layout).items()}
    if not layout.inputs:
        del defines["INPUTS"], defines["TAPS"]
    program = Program("panel.cu" if layout.inputs else "conv.cu", defines, features="a")
    return CudaKernel(program, "causal_conv", _ARGS, layout.shared_bytes, 128 * (layout.groups + 1))


def layout_for(batch: int, steps: int, weight: Tensor, dilation: int) -> Layout | None:
    """The layout for this convolution of so many rows and steps; None: none is known to be fast."""
    columns, inputs, taps = weight.shape
    history = (taps - 1) * dilation
    if (inputs, taps) == (_PANEL.inputs, _PANEL.taps) and history <= _PANEL.most_past and columns % 96 == 0:
        return _PANEL if _PANEL.tiles(batch, steps, columns) >= _LEAST_PANEL_TILES else None
    if taps == 1 or columns % 192:  # with a single tap Triton's are as fast
        return None
    found = (layout for layout in (_NARROW, WIDE, _SHORT) if history <= layout.most_past)
    return next((layout for layout in found if layout.use(batch, steps, columns) >= _LEAST_USE), None)


def programs() -> Iterator[Program]:
    for layout in (WIDE, _NARROW, _SHORT, _PANEL):
        yield conv_kernel(layout).program


def obstacle(gpu: Gpu) -> str | None:
    """Why these kernels do not run on this GPU; None: they do."""
    return obstacle_to(programs(), gpu, on_later=False)


@cache
def _obstacle(gpu: Gpu) -> str | None:
    """`obstacle`, looked for and logged once."""
    found = obstacle(gpu)
    if found is not None:
        _LOG.info("convolutions run in Triton, not in CUDA C++: %s", found)
    return found


def takes(
    x: Tensor, weight: Tensor, bias: Tensor, past: Tensor | None, dilation: int, residual: Tensor | None,
    snake: Snake | None, bounds: Bounds | None,
) -> bool:  # fmt: skip
    """Whether these kernels take a convolution."""
    gpu = gpu_of(x.device)
    if gpu is None or x.dtype != torch.bfloat16 or residual is not None or bounds is not None:
        return False
    layout = layout_for(len(x), x.shape[1], weight, dilation)
    return (
        layout is not None
        and len(bias) <= layout.most_channels
        and refusal(x, weight, bias, past, dilation, snake) is None
        and _obstacle(gpu) is None
        and _works(layout, x.device)
    )


def refusal(
    x: Tensor, weight: Tensor, bias: Tensor, past: Tensor | None, dilation: int, snake: Snake | None
) -> str | None:
    """Why these tensors are not for our kernel; None: they are."""
    columns, inputs, taps = weight.shape
    given = [t for t in (x, weight, bias, past, *(snake or ())[:2]) if t is not None]
    if any(t.dtype != torch.bfloat16 for t in given):
        return "not all values are bfloat16"
    if snake is not None and not snake.log_scale:
        return "an activation's factors are no logarithms"
    if inputs % _DEPTH or columns % 96 or len(bias) % 32:
        return f"weights of {columns} columns, {len(bias)} channels, and {inputs} inputs"
    if (taps - 1) * dilation > _MOST_PAST:
        return f"a convolution that looks back {(taps - 1) * dilation} steps"
    if not weight.permute(0, 2, 1).is_contiguous():
        return "weights do not have their inputs last"
    if not x.is_contiguous():
        return "values are not in lines"
    if past is not None and (past.stride()[1:] != (inputs, 1) or past.stride(0) % 8 or past.storage_offset() % 8):
        return "what came before is not in lines"
    return None


@cache
def _works(layout: Layout, device: torch.device) -> bool:
    """Whether the kernel's results are right, which is tried once on a GPU: it relies on so many details of one machine
    that on another it could be wrong unnoticed."""
    if device.type != "cuda":
        return True
    with beside_captures(device):
        return conv_kernel(layout).is_ready(device) and _is_right(layout, device)


@torch.inference_mode()
def _is_right(layout: Layout, device: torch.device) -> bool:
    """Compare two tiles, of values that bfloat16 has, with float32 on the CPU."""
    generator = torch.Generator().manual_seed(0)

    def values(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=generator)).bfloat16().float()

    columns, inputs = layout.columns, layout.inputs or 2 * _DEPTH
    taps, dilation = min(7, layout.most_past + 1), max(1, layout.most_past // 6)
    snake = Snake(values(columns, scale=0.3), values(columns, scale=0.3))
    weight = values(columns, taps, inputs, scale=(taps * inputs) ** -0.5).permute(0, 2, 1)
    x, past = values(1, 2 * layout.tile, inputs), values(1, (taps - 1) * dilation, inputs)
    given = (x, weight, values(columns), past, dilation)
    expected = reference.causal_conv(*given, snake=snake)
    got = causal_conv(*(moved(part, device) for part in given), snake=moved(snake, device), layout=layout)
    error = max(float((g.float().cpu() - e).norm() / e.norm()) for g, e in zip(got, expected, strict=True))
    if not error < _RELATIVE_ERROR:
        _LOG.warning("convolutions run in Triton: our own kernel, %s, is off by %.2g", layout, error)
    return error < _RELATIVE_ERROR


def moved(part: Any, device: torch.device) -> Any:
    """An op's argument in bfloat16, on a device."""
    if isinstance(part, Snake | Unit):
        return type(part)(*(moved(p, device) for p in part))
    return part.bfloat16().to(device) if isinstance(part, Tensor) else part


def maps_of_lines(x: Tensor, past: Tensor | None, history: int, tile: int, depth: int) -> tuple[bytes, ...]:
    """Tensor maps for copies of parts of `depth` channels: x by `tile` lines, x and `past` by `history` lines."""

    def lines(values: Tensor | None, part: int) -> bytes:
        if values is None or part == 0 or values.device.type == "meta":
            return _NO_MAP
        batch, steps, inputs = values.shape
        return tensor_map(values.data_ptr(), (batch, steps, inputs), values.stride(0), part, depth)

    return lines(x, tile), lines(x, history), lines(past, history)


def _map_of_weights(weight: Tensor, layout: Layout) -> bytes:
    """A tensor map whose lines are the weight's columns, each with the inputs of all taps."""
    columns, inputs, taps = weight.shape
    if weight.device.type == "meta":
        return _NO_MAP
    return tensor_map(weight.data_ptr(), (1, columns, taps * inputs), weight.numel(), layout.columns, _DEPTH)


def resident_blocks(tiles: int, panels: int = 1) -> int:
    """How many blocks a launch has: one on each processor, and as many for each panel."""
    return min(tiles, max(1, PROCESSORS // panels) * panels)


def _address(value: Tensor | None) -> int:
    return 0 if value is None else value.data_ptr()


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    past: Tensor | None,
    dilation: int = 1,
    *,
    snake: Snake | None = None,
    keep: bool = True,
    layout: Layout | None = None,
    step: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """For tensors without a `refusal`. `step`: see int8_unit.py, whose values of eight bits come in pairs."""
    batch, steps, inputs = x.shape
    columns, _, taps = weight.shape
    layout = layout or layout_for(batch, steps, weight, dilation)
    assert layout is not None, "nobody asked whether it takes this"
    raw = x.new_empty(batch, steps, columns) if keep or snake is None else None
    active = None if snake is None else x.new_empty(batch, steps, columns)
    row_runs, column_tiles = -(-steps // layout.run), columns // layout.columns
    tiles = layout.tiles(batch, steps, columns)
    blocks = resident_blocks(tiles, column_tiles if layout.inputs else 1)
    conv_kernel(layout).launch(
        x.device, (blocks, 1, 1), _map_of_weights(weight, layout), _NO_MAP,
        *maps_of_lines(x, past, (taps - 1) * dilation, layout.run, _DEPTH), 0, bias.data_ptr(),
        *_factors(snake), 0, 0, 0, _address(raw), _address(active), _address(step), steps, inputs, columns, len(bias),
        taps, dilation, row_runs, column_tiles, tiles, past is not None, batch,
    )  # fmt: skip
    first = active if raw is None else raw
    assert first is not None
    return x.new_empty(0) if raw is None else raw, first if active is None else active


def _factors(snake: Snake | None) -> tuple[int, int]:
    return (0, 0) if snake is None else (snake.alpha.data_ptr(), snake.beta.data_ptr())


def residual_unit(
    x: Tensor, active: Tensor, unit: Unit, past: Tensor | None, following: Snake, *, keep: bool = True,
    layout: Layout = UNIT, step: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """For a unit of as many channels as the layout has columns, without a `unit.refusal`. `step`: as above."""
    batch, steps, channels = x.shape
    raw, result = x.new_empty(x.shape if keep else 0), x.new_empty(x.shape)
    tiles = layout.tiles(batch, steps, channels)
    conv_kernel(layout).launch(
        x.device, (resident_blocks(tiles), 1, 1), _map_of_weights(unit.wide, layout),
        _map_of_weights(unit.point, layout), *maps_of_lines(active, past, unit.history, layout.run, _DEPTH),
        x.data_ptr(), unit.point_bias.data_ptr(), *_factors(following), unit.wide_bias.data_ptr(),
        *_factors(unit.between), raw.data_ptr() if keep else 0, result.data_ptr(), _address(step), steps,
        active.shape[2], channels, channels, unit.wide.shape[2], unit.dilation, tiles // batch, 1, tiles,
        past is not None, batch,
    )  # fmt: skip
    return raw, result
