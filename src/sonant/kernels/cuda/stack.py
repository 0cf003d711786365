"""All layers of a stack over few rows in one launch, in CUDA C++: the wrapper of `source/stack.cu`.

With few rows a layer's kernels wait for each other longer than for their weights. So a grid of blocks that are all
resident at once passes through the layers, with a barrier after each of their steps, and prefetches weights meanwhile.
Its launch is cooperative, so that all of its blocks run or none: otherwise two such grids at once could each keep the
other from becoming complete. Beside kernels that end by themselves, as a codec's on another stream, it only begins
later. Inputs without a kernel here go through Triton's, layer by layer.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from sonant.kernels.cuda.compiler import Program, obstacle_to
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.gpu import Gpu
from sonant.kernels.reference import LocalWeights, Weight

_DIM = 128
_RANKS = 2  # blocks of a cluster
_CLUSTERS = 64  # of which an H100 or H200 has room for 66; with four blocks each it has room for about 30, not for 32
_WARPS = 8
_THREADS = 32 * (_WARPS + 1)
_MOST_ROWS = 32
_MOST_STEPS = 16
_MOST_LAYERS = 28
_AHEAD = 16  # chunks of weights that a warp prefetches, if there is room
_PACE = 1000  # cycles from one prefetch to the next
_SHARED_BYTES = 232_448  # all there is
_LOG2_E = math.log2(math.e)
WHAT, ELSE = "a stack over few rows", "more than 32 rows, other widths, or weights not in bfloat16, go to Triton"
VARIABLE = "SONANT_STACK"

_ARGS = struct.Struct(f"<6Q3i2f4xQ{6 * _MOST_LAYERS}Q")  # StackArgs


@dataclass(frozen=True)
class Grid:
    """What only tests and measurements change."""

    clusters: int = _CLUSTERS
    ranks: int = _RANKS
    ahead: int = _AHEAD
    pace: int = _PACE
    marks: Tensor | None = None  # [blocks, 4 · 28, 6] int64: each block's clock, at six points of each layer's steps


@dataclass(frozen=True)
class Form:
    """Which program a call needs."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    row_tiles: int
    clusters: int = _CLUSTERS
    ranks: int = _RANKS
    ahead: int = _AHEAD
    pace: int = _PACE
    marked: bool = False

    @classmethod
    def of(cls, x: Tensor, layer: LocalWeights, grid: Grid) -> Form:
        rows = x.shape[0] * x.shape[1]
        hidden, inner = layer.down.shape
        return cls(
            hidden, inner, layer.heads.heads, layer.heads.kv_heads, -(-rows // 8), grid.clusters, grid.ranks,
            grid.ahead, grid.pace, grid.marks is not None,
        )  # fmt: skip

    def refusal(self) -> str | None:
        """Why there is no such program; None: there is."""
        tiles = 16 * self.clusters
        for name, count, most in (("hidden", self.hidden, 2), ("inner", self.inner, _WARPS), ("qkv", self.qkv, _WARPS)):
            if count % tiles and name != "qkv":
                return f"{name} {count} is no multiple of {tiles}"
            if count > most * tiles:
                return f"{name} {count} is too wide for {self.clusters} clusters"
        if self.hidden & (self.hidden - 1) or self.inner % (64 * self.ranks) or self.hidden % (64 * self.ranks):
            return f"a share of {self.hidden} or of {self.inner} is not made of pieces that warps share"
        if self.heads % self.ranks or (self.heads // self.kv_heads) % (self.heads // self.ranks):
            return f"a block's share of {self.heads} heads has no keys in common, of which there are {self.kv_heads}"
        return None

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * _DIM


_USUAL = Grid()


@cache
def stack_kernel(form: Form) -> CudaKernel:
    defines = {
        "HIDDEN": form.hidden, "INNER": form.inner, "HEADS": form.heads, "KV_HEADS": form.kv_heads,
        "ROW_TILES": form.row_tiles, "CLUSTERS": form.clusters, "RANKS": form.ranks, "MOST_AHEAD": form.ahead,
        "PACE": form.pace, "MARKED": int(form.marked),
    }  # fmt: skip
    program, blocks = Program("stack.cu", defines), form.clusters * form.ranks
    return CudaKernel(program, "local_stack", _ARGS, _SHARED_BYTES, _THREADS, form.ranks, blocks)


def programs() -> Iterator[Program]:
    """Programs for one listener: for a flow of eleven tokens, guided and free (22 rows), and for five tokens."""
    for row_tiles in (1, 3):
        yield stack_kernel(Form(1024, 4096, 16, 2, row_tiles)).program


def obstacle(gpu: Gpu) -> str | None:
    """Why these kernels do not run on this GPU; None: they do."""
    return obstacle_to(programs(), gpu)


def refusal(x: Tensor, layers: Sequence[LocalWeights], grid: Grid = _USUAL) -> str | None:
    """Why these tensors are not for our kernel; None: they are."""
    rows, steps = x.shape[0] * x.shape[1], x.shape[1]
    heads = layers[0].heads
    if not 0 < rows <= _MOST_ROWS or steps > _MOST_STEPS:
        return f"{rows} rows in sequences of {steps} are more than {_MOST_ROWS} in sequences of {_MOST_STEPS}"
    if len(layers) > _MOST_LAYERS:
        return f"{len(layers)} layers are more than {_MOST_LAYERS}"
    if heads.cos.shape[-1] != _DIM or len(heads.cos) != 1 or heads.q_weight is not None:
        return f"heads have not {_DIM} values, or norms of their own, or rotations that differ by sequence"
    weights = [weight for layer in layers for weight in _parts(layer)]
    tensors = [x, heads.cos, heads.sin, *(weight for weight in weights if isinstance(weight, Tensor))]
    if len(tensors) < 3 + len(weights):
        return "weights are of eight bits"
    if any(t.dtype != torch.bfloat16 or not t.is_contiguous() or t.data_ptr() % 16 for t in tensors):
        return "not all of it is bfloat16, in one piece and at an address that is a multiple of 16"
    return Form.of(x, layers[0], grid).refusal()


def _parts(layer: LocalWeights) -> tuple[Weight, ...]:
    """A layer's weights and gains, in the kernel's order."""
    return layer.qkv, layer.out, layer.gate_up, layer.down, layer.first_gain, layer.second_gain


def local_stack(x: Tensor, layers: Sequence[LocalWeights], *, grid: Grid = _USUAL) -> Tensor:
    kernel = None
    if refusal(x, layers, grid) is None:
        kernel = stack_kernel(Form.of(x, layers[0], grid))
    if kernel is None or not kernel.is_ready(x.device):
        from sonant.kernels.triton import local_stack as chain

        return chain.local_stack(x, layers)
    from sonant.kernels.triton.split_k import counters

    batch, steps, _ = x.shape
    heads, rows = layers[0].heads, batch * steps
    qkv, inner = x.new_empty(rows, layers[0].qkv.shape[0]), x.new_empty(rows, layers[0].down.shape[1])
    # kept with a gain, since no product keeps counters of its own with that
    counter = counters(layers[0].first_gain, 1, 2)
    pointers = [part.data_ptr() for layer in layers for part in _parts(layer) if isinstance(part, Tensor)]
    kernel.launch(
        x.device, (grid.clusters * grid.ranks, 1, 1),
        x.data_ptr(), qkv.data_ptr(), inner.data_ptr(), heads.cos.data_ptr(), heads.sin.data_ptr(), counter.data_ptr(),
        rows, steps, len(layers), heads.eps, _DIM**-0.5 * _LOG2_E, 0 if grid.marks is None else grid.marks.data_ptr(),
        *pointers, *[0] * (6 * _MOST_LAYERS - len(pointers)),
    )  # fmt: skip
    return x
