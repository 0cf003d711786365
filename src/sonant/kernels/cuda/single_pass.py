"""A pass of one row over all layers of a stack in one kernel, in CUDA C++: what frame_pass.py and paged_pass.py share.

A kernel's blocks wait for each other, so all of them must be on the GPU at once, each on a processor of its own. Of
several stacks in a process that could run at once only the first one uses it: two could each hold half of the
processors.

Weights of layers are all in bfloat16, or all of eight bits, which is another form of the same source.

Another stream's kernels may run beside it (a codec's, engine/codec_stream.py). They hold processors, so that resident
blocks wait for the others; but they end by themselves and wait for none of these, so the pass only takes longer.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sonant.kernels.cuda.compiler import Program, obstacle_to
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.gpu import Gpu
from sonant.kernels.reference import FrameLayer, FrameStack, QuantizedWeight, Weight
from sonant.kernels.reference.quantized import E4M3, parts_of

HEAD, SHARE = 128, 2  # values of a head, and heads that share keys
STRIPS, WARPS = 16, 8  # blocks for each head of keys, and a block's warps that compute
_WORKERS = 32 * WARPS
_SCALE = HEAD**-0.5 * math.log2(math.e)
_ARGUMENT_BYTES = 4096  # of a kernel, at most
_OTHER_ARGUMENTS = struct.Struct("<10Qq3i2f4x")  # of PassArgs, beside its layers


@dataclass(frozen=True)
class Form:
    """Which program to use. Only measurements and tests take other forms than the wrappers' own."""

    source: str
    width: int
    inner: int
    layers: int
    kv_heads: int
    codes: int  # logits of the head after the last norm; 0: there is no head
    own_bytes: int  # of shared memory that only this source has
    own_words: int  # that blocks exchange in this source only
    pages: int = 11
    page: int = 16384
    kept: int = 0  # pages of a block that the L2 cache is to keep from one pass to the next
    replicas: int = 4  # of words that all blocks read
    ahead: int = 2  # pages in flight at once, at most: more would delay words
    clocked: int = 0  # 1: it records when it waits for what
    rows: int = 1  # positions of a launch
    held: int = 0  # registers for a product's first weights, before its input is known
    weight_bytes: int = 2  # 1: e4m3, with a scale for each column; the head's are in bfloat16 even then

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
        shared = self.replicas * (self.heads * HEAD + 2 * self.width + self.inner)
        return 64 + self.rows * (self.qkv + shared) + self.own_words

    @property
    def shared_bytes(self) -> int:
        """A block's shared memory, as laid out in pass_stream.cuh."""
        gains = 2 * 2 * (2 * self.width + 2 * HEAD) + 2 * 4 * self.scales
        row = 2 * (2 * self.width // self.blocks + self.width + self.inner) + 2 * 2 * HEAD + 4 * SHARE * HEAD
        row += 4 * _WORKERS + 4 * WARPS * max(2 * self.inner, self.qkv) // self.blocks
        return self.pages * (self.page + 16) + gains + self.rows * row + self.own_bytes

    @property
    def scales(self) -> int:
        """How many scales of a layer belong to one block's columns."""
        columns = self.qkv + 2 * self.width + 2 * self.inner
        return columns // self.blocks if self.weight_bytes == 1 else 0

    @property
    def layer_pointers(self) -> int:
        """A layer's pointers in the arguments: gains, weights and cache, and scales if there are any."""
        return 13 if self.weight_bytes == 1 else 9

    @property
    def most_layers(self) -> int:
        return (_ARGUMENT_BYTES - _OTHER_ARGUMENTS.size) // (8 * self.layer_pointers)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of a layer's tensors."""
        width, inner = self.width, self.inner
        return (
            (width,), (self.qkv, width), (HEAD,), (HEAD,), (width, self.heads * HEAD), (width,), (2 * inner, width),
            (width, inner),
        )  # fmt: skip


@dataclass(frozen=True)
class Given:
    """The arguments of one launch, beside the stack."""

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
    arguments = struct.Struct(f"<{form.layer_pointers * form.layers}Q{_OTHER_ARGUMENTS.format[1:]}")  # PassArgs
    defines = {
        "WIDTH": form.width, "INNER": form.inner, "LAYERS": form.layers, "KV_HEADS": form.kv_heads,
        "CODES": form.codes, "PAGES": form.pages, "PAGE": form.page, "KEPT": form.kept, "REPLICAS": form.replicas,
        "AHEAD": form.ahead, "CLOCKED": form.clocked, "SHARED_BYTES": form.shared_bytes,
        "ROWS": form.rows, "HELD": form.held, "WEIGHT_BYTES": form.weight_bytes,
    }  # fmt: skip
    program = Program(f"{form.source}.cu", defines)
    threads = _WORKERS + 32
    return CudaKernel(program, form.source, arguments, form.shared_bytes, threads, cluster=1, resident=form.blocks)


def obstacle(gpu: Gpu, forms: Sequence[Form]) -> str | None:
    """Why these kernels do not run on this GPU; None: they do. A form of eight bits that cannot be built keeps no other
    from running: that is logged when it is first needed."""
    return obstacle_to([pass_kernel(form).program for form in forms if form.weight_bytes == 2], gpu)


def in_eight_bits(form: Form, *, page: int = 8192) -> Form:
    """The same form for weights of eight bits: as many bytes are in flight, kept, and in the ring."""
    times = form.page // page
    return replace(
        form, weight_bytes=1, page=page, pages=times * form.pages, kept=times * form.kept, ahead=times * form.ahead
    )


def form_for(stack: FrameStack, forms: Sequence[Form]) -> Form:
    """Of these forms the one for a stack's width and weights; the first if there is none, which will refuse it."""
    weight_bytes = 1 if any(isinstance(w, QuantizedWeight) for w in _weights(stack)) else 2
    own = len(stack.gain), weight_bytes
    like = next((form for form in forms if (form.width, form.weight_bytes) == own), forms[0])
    return replace(like, layers=len(stack.layers))


def refusal(form: Form, stack: FrameStack, x: Tensor, others: Sequence[Weight]) -> str | None:
    """Why these tensors are not for such a kernel; None: they are."""
    if len(x) != 1 or x.shape[-1] != form.width or not 2 <= form.layers <= form.most_layers:
        return f"{len(x)} rows of {x.shape[-1]} through {form.layers} layers, not one of {form.width}"
    same = all(tuple(t.shape for t in layer) == form.shapes for layer in stack.layers)
    if not same or stack.heads != form.heads or stack.kv_heads != form.kv_heads:
        return "weights have other shapes"
    plain = [x, stack.gain, *(gain for layer in stack.layers for gain in _gains(layer)), *others]
    return _refusal_of_weights(form, stack) or _refusal_of_tensors(plain) or _refusal_of_owner(form, stack, x)


def _refusal_of_weights(form: Form, stack: FrameStack) -> str | None:
    weights = list(_weights(stack))
    eight = [weight for weight in weights if isinstance(weight, QuantizedWeight)]
    if not eight:
        return _refusal_of_tensors(weights)
    if len(eight) < len(weights):
        return "some weights are of eight bits, and others are not"
    if form.weight_bytes != 1:
        return "weights are of eight bits"
    parts = [part for weight in eight for part in ((weight.values, E4M3), (weight.scale, torch.float32))]
    if any(t.dtype != dtype or not t.is_contiguous() or t.data_ptr() % 16 for t, dtype in parts):
        return "not all weights are e4m3 with float32 scales, in one piece and at an address that is a multiple of 16"
    return None


def _refusal_of_tensors(given: Sequence[Weight]) -> str | None:
    tensors = [t for t in given if isinstance(t, Tensor)]
    if len(tensors) < len(given):
        return "a head is of eight bits"
    if any(t.dtype != torch.bfloat16 or not t.is_contiguous() or t.data_ptr() % 16 for t in tensors):
        return "not all of it is bfloat16, in one piece and at an address that is a multiple of 16"
    return None


def _refusal_of_owner(form: Form, stack: FrameStack, x: Tensor) -> str | None:
    if any(owner is not stack.gain and owner.device == x.device for owner in _owners(form.source)):
        return "another stack in this process has the GPU's processors"
    return None


def _weights(stack: FrameStack) -> Iterator[Weight]:
    for layer in stack.layers:
        yield from (layer.qkv, layer.out, layer.gate_up, layer.down)


def _gains(layer: FrameLayer) -> tuple[Tensor, ...]:
    return layer.input_gain, layer.q_gain, layer.k_gain, layer.post_gain


def launch(form: Form, stack: FrameStack, given: Given) -> None:
    from sonant.kernels.triton.split_k import counters

    if given.x.device.type != "meta":  # else nothing runs
        _owners(form.source)[stack.gain] = True
    values: list[float] = []
    for layer, cache_ in zip(stack.layers, given.caches, strict=True):
        parts = [parts_of(weight) for weight in layer]
        tensors = [*(read for read, _ in parts), cache_, *(scale for _, scale in parts if scale is not None)]
        values += [t.data_ptr() for t in tensors]
    # kept with a gain, since no product keeps counters of its own with that
    words = counters(stack.gain, form.words, splits=2)
    others = (
        given.x, given.cos, given.sin, stack.gain, given.head, given.out, words, given.clock, given.table,
        given.position,
    )  # fmt: skip
    pass_kernel(form).launch(
        given.x.device, (form.blocks, 1, 1), *values, *(0 if t is None else t.data_ptr() for t in others),
        given.caches[0].stride(0), *given.numbers, stack.eps, _SCALE,
    )  # fmt: skip


@cache
def _owners(source: str) -> WeakTensorKeyDictionary:
    """The stacks that have run on a GPU, by their last norm's gain, for as long as they live."""
    return WeakTensorKeyDictionary()
