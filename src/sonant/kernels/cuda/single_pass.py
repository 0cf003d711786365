"""A pass of one row over all layers of a stack in one kernel, in CUDA C++: what frame_pass.py and paged_pass.py share.

A kernel's blocks wait for each other, so all of them must be on the GPU at once, which has as many processors as there
are blocks. Of several stacks in a process that could run at once the first one has it: two could each hold half of the
processors.

Another stream's kernels may run beside it (a codec's, engine/codec_stream.py). They hold processors, so that blocks
which are there wait for the others; but they end by themselves and wait for none of these, so it only takes longer.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sonant.kernels.cuda.compiler import Program, obstacle_to
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.gpu import Gpu
from sonant.kernels.reference import FrameStack

HEAD, SHARE = 128, 2  # values of a head, and heads that share keys
STRIPS, WARPS = 16, 8  # blocks for each head of keys, and a block's warps that compute
_WORKERS = 32 * WARPS
_MOST_LAYERS = 50  # of which arguments have four kilobytes
_SCALE = HEAD**-0.5 * math.log2(math.e)


@dataclass(frozen=True)
class Form:
    """Which program. What follows the layers only who measures asks for other than it is."""

    source: str
    width: int
    inner: int
    layers: int
    kv_heads: int
    codes: int  # that the head after the last norm tells apart; 0: there is none
    own_bytes: int  # of shared memory, and
    own_words: int  # that blocks hand to each other, which only this source has
    pages: int = 11
    page: int = 16384
    kept: int = 0  # pages of a block that the second-level cache is to keep from one pass to the next
    replicas: int = 8  # of words that all blocks read
    ahead: int = 2  # pages on their way at once, at most: more would keep words waiting
    clocked: int = 0  # 1: it writes down when it waits for what

    @property
    def blocks(self) -> int:
        return STRIPS * self.kv_heads

    @property
    def heads(self) -> int:
        return SHARE * self.kv_heads

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * HEAD

    @property
    def words(self) -> int:
        return 64 + self.qkv + self.replicas * (self.heads * HEAD + 2 * self.width + self.inner) + self.own_words

    @property
    def shared_bytes(self) -> int:
        """As pass_stream.cuh has it."""
        gains = 2 * 2 * (2 * self.width + 2 * HEAD) + 2 * 2 * HEAD
        rows = 2 * (2 * self.width // self.blocks + self.width + self.inner) + 4 * SHARE * HEAD
        rows += 4 * _WORKERS + 4 * WARPS * max(2 * self.inner, self.qkv) // self.blocks
        return self.pages * (self.page + 16) + gains + rows + self.own_bytes

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of a layer's tensors."""
        width, inner = self.width, self.inner
        return (
            (width,), (self.qkv, width), (HEAD,), (HEAD,), (width, self.heads * HEAD), (width,), (2 * inner, width),
            (width, inner),
        )  # fmt: skip


@dataclass(frozen=True)
class Given:
    """Of one launch, beside the stack."""

    x: Tensor
    cos: Tensor
    sin: Tensor
    caches: Sequence[Tensor]  # of each layer: keys and values
    out: Tensor | None
    head: Tensor | None = None
    table: Tensor | None = None
    position: Tensor | None = None
    numbers: tuple[int, int, int] = field(default=(0, 0, 0))  # at, capacity, block_tokens, as pass_stream.cuh has them
    clock: Tensor | None = None  # [blocks, 5 · layers, 3] int32, for a form that is clocked: see pass_stream.cuh


@cache
def pass_kernel(form: Form) -> CudaKernel:
    arguments = struct.Struct(f"<{9 * form.layers}Q10Qq3i2f4x")  # PassArgs
    defines = {
        "WIDTH": form.width, "INNER": form.inner, "LAYERS": form.layers, "KV_HEADS": form.kv_heads,
        "CODES": form.codes, "PAGES": form.pages, "PAGE": form.page, "KEPT": form.kept, "REPLICAS": form.replicas,
        "AHEAD": form.ahead, "CLOCKED": form.clocked, "SHARED_BYTES": form.shared_bytes,
    }  # fmt: skip
    program = Program(f"{form.source}.cu", defines)
    threads = _WORKERS + 32
    return CudaKernel(program, form.source, arguments, form.shared_bytes, threads, cluster=1, resident=form.blocks)


def obstacle(gpu: Gpu, forms: Sequence[Form]) -> str | None:
    """Why none of this runs there; None: it does."""
    return obstacle_to([pass_kernel(form).program for form in forms], gpu)


def refusal(form: Form, stack: FrameStack, x: Tensor, others: Sequence[object]) -> str | None:
    """Why these tensors are not for such a kernel; None: they are."""
    if len(x) != 1 or x.shape[-1] != form.width or not 2 <= form.layers <= _MOST_LAYERS:
        return f"{len(x)} rows of {x.shape[-1]} through {form.layers} layers, not one of {form.width}"
    given = [x, stack.gain, *(t for layer in stack.layers for t in layer), *others]
    tensors = [t for t in given if isinstance(t, Tensor)]
    if len(tensors) < len(given):
        return "weights are of eight bits"
    same = all(tuple(t.shape for t in layer) == form.shapes for layer in stack.layers)
    if not same or stack.heads != form.heads or stack.kv_heads != form.kv_heads:
        return "weights have other shapes"
    if any(t.dtype != torch.bfloat16 or not t.is_contiguous() or t.data_ptr() % 16 for t in tensors):
        return "not all of it is bfloat16, in one piece and at an address that is a multiple of 16"
    if any(owner is not stack.gain and owner.device == x.device for owner in _owners(form.source)):
        return "another stack in this process has the GPU's processors"
    return None


def launch(form: Form, stack: FrameStack, given: Given) -> None:
    from sonant.kernels.triton.split_k import counters

    if given.x.device.type != "meta":  # else nothing runs
        _owners(form.source)[stack.gain] = True
    values: list[float] = []
    for layer, cache_ in zip(stack.layers, given.caches, strict=True):
        values += [t.data_ptr() for t in layer if isinstance(t, Tensor)] + [cache_.data_ptr()]
    # kept with a gain, which no product keeps counters of its own with
    words = counters(stack.gain, form.words, splits=2)
    tensors = (
        given.x, given.cos, given.sin, stack.gain, given.head, given.out, words, given.clock, given.table,
        given.position,
    )  # fmt: skip
    pass_kernel(form).launch(
        given.x.device, (form.blocks, 1, 1), *values, *(0 if t is None else t.data_ptr() for t in tensors),
        given.caches[0].stride(0), *given.numbers, stack.eps, _SCALE,
    )  # fmt: skip


@cache
def _owners(source: str) -> WeakTensorKeyDictionary:
    """The stacks that were passed through on a GPU, by their last norm's gain, for as long as they live."""
    return WeakTensorKeyDictionary()
