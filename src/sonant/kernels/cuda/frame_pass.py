"""A pass over all layers of a code predictor in one kernel, in CUDA C++: the wrapper of `source/frame_pass.cu`.

One row, one position, the published predictor's shape. Its blocks wait for each other, so all of them must be on the
GPU at once, which has as many processors as there are blocks. Of several stacks in a process the first one has it: two
whose steps run at once could each hold half of the processors.
"""

from __future__ import annotations

import math
import struct
from functools import cache

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sonant.kernels.cuda.compiler import Program
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.cuda.usable import is_usable
from sonant.kernels.reference import FrameStack

_BLOCKS, _THREADS = 128, 288
_WIDTH, _HEADS, _KV_HEADS, _HEAD, _INNER, _CODES, _POSITIONS = 1024, 16, 8, 128, 3072, 2048, 16
_QKV = (_HEADS + 2 * _KV_HEADS) * _HEAD
_PAGES, _PAGE_BYTES = 11, 16384
_SHAPES = (
    (_WIDTH,), (_QKV, _WIDTH), (_HEAD,), (_HEAD,), (_WIDTH, _HEADS * _HEAD), (_WIDTH,), (2 * _INNER, _WIDTH),
    (_WIDTH, _INNER),
)  # fmt: skip


@cache
def pass_kernel(layers: int, pages: int = _PAGES) -> CudaKernel:
    gains = 2 * ((2 * layers + 1) * _WIDTH + 2 * layers * _HEAD + 2 * _HEAD)
    rows = 2 * (_WIDTH + _INNER + 2 * _POSITIONS * _HEAD)
    scores = 4 * (_HEADS // _KV_HEADS) * (_HEAD + _POSITIONS)
    shared = pages * (_PAGE_BYTES + 8) + gains + rows + scores + 16  # as frame_pass.cu has it
    arguments = struct.Struct(f"<{9 * layers}Q12Qqi2f4x")  # FramePassArgs
    program = Program("frame_pass.cu", {"LAYERS": layers, "PAGES": pages, "SHARED_BYTES": shared})
    return CudaKernel(program, "frame_pass", arguments, shared, _THREADS, cluster=1, resident=_BLOCKS)


def fits(stack: FrameStack, x: Tensor, cache_: Tensor, head: Tensor | None) -> bool:
    """Whether this is the predictor that the kernel knows, on a GPU that can have it."""
    layers = len(stack.layers)
    if x.shape != (1, 1, _WIDTH) or cache_.shape != (layers, 2, 1, _POSITIONS, _KV_HEADS, _HEAD) or layers > 5:
        return False
    if stack.heads != _HEADS or stack.kv_heads != _KV_HEADS or (head is not None and head.shape != (_CODES, _WIDTH)):
        return False
    given = [x, cache_, stack.gain, *(t for layer in stack.layers for t in layer)]
    given += [] if head is None else [head]
    tensors = [t for t in given if isinstance(t, Tensor) and t.dtype == torch.bfloat16 and t.is_contiguous()]
    if len(tensors) < len(given):
        return False
    same = all(tuple(t.shape for t in layer) == _SHAPES for layer in stack.layers)
    aligned = not any(t.data_ptr() % 16 for t in tensors)
    alone = all(owner is stack.gain or owner.device != x.device for owner in _owners())
    return same and aligned and alone and _has_room(x.device) and is_usable(pass_kernel(layers), x.device)


def _has_room(device: torch.device) -> bool:
    """One block for each processor."""
    return device.type != "cuda" or torch.cuda.get_device_properties(device).multi_processor_count >= _BLOCKS


def frame_pass(
    stack: FrameStack, x: Tensor, cos: Tensor, sin: Tensor, cache_: Tensor, at: int, head: Tensor | None,
    clock: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    """As the reference has it, for what `fits`. Who measures gives a clock [blocks, barriers, 2] int64: a processor's
    cycles before and after each barrier."""
    from sonant.kernels.triton.split_k import counters

    _owners()[stack.gain] = True
    scratch = torch.empty(_QKV + _INNER + _WIDTH + 2 * _KV_HEADS * _WIDTH, dtype=torch.bfloat16, device=x.device)
    qkv, inner, hidden, partials = scratch.split([_QKV, _INNER, _WIDTH, 2 * _KV_HEADS * _WIDTH])
    logits = x.new_empty(1, _CODES) if head is not None else None
    values: list[float] = []
    for number, layer in enumerate(stack.layers):
        values += [t.data_ptr() for t in layer if isinstance(t, Tensor)] + [cache_[number].data_ptr()]
    pass_kernel(len(stack.layers)).launch(
        x.device, (_BLOCKS, 1, 1), *values,
        x.data_ptr(), cos.data_ptr(), sin.data_ptr(), stack.gain.data_ptr(), 0 if head is None else head.data_ptr(),
        0 if logits is None else logits.data_ptr(), qkv.data_ptr(), inner.data_ptr(), hidden.data_ptr(),
        partials.data_ptr(), counters(stack.gain, 1, splits=2).data_ptr(),
        0 if clock is None else clock.data_ptr(), cache_.stride(1), at, stack.eps,
        _HEAD**-0.5 * math.log2(math.e),
    )  # fmt: skip
    return logits


@cache
def _owners() -> WeakTensorKeyDictionary:
    """The stacks that were passed through on a GPU, by their last norm's gain, for as long as they live."""
    return WeakTensorKeyDictionary()
