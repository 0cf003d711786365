"""Compiles every kernel for a Hopper GPU on a machine that has none: run by test_compile.py in a process of its own.

Kernels are called through their wrappers, on CPU tensors, with a launch that only compiles. So code that the
interpreter accepts and the compiler does not is found here, not on the GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction, KernelParam

from sonant.bench.kernels.tune_cases import conv_cases, product_cases
from sonant.kernels.cuda import conv as cuda_conv
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.reference import (
    Bounds,
    DelayPattern,
    FlowEnds,
    FlowGiven,
    FrameCounters,
    FrameMemory,
    FrameTables,
    Heads,
    LogitMask,
    Lookup,
    PatchCounters,
    PatchMemory,
    PatchStatuses,
    Place,
    QuantizedWeight,
    Ras,
    RingPlace,
    RowCounters,
    SamplingParams,
    Sides,
    Snake,
    Statuses,
    Unscaled,
    split_kinds,
)
from sonant.kernels.triton import (
    conv,
    delay,
    depthwise,
    dual_ffn,
    flow,
    frame_step,
    gemv,
    host_weights,
    int8_lines,
    local,
    local_out,
    norm,
    paged,
    patch,
    pcm,
    pdl,
    qk_rope,
    ras_sample,
    ring,
    sample,
    short,
    snake,
    swiglu,
    uniforms,
)  # fmt: skip
from sonant.kernels.tuning import Tile
from sonant.models.qwen3_tts import workload

TARGET, HOPPER = GPUTarget("cuda", 90, 32), Gpu("NVIDIA H200", (9, 0))
POINTERS = {
    torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int64: "*i64", torch.int32: "*i32", torch.int16: "*i16",
    torch.int8: "*i8", torch.bool: "*i1", torch.float8_e4m3fn: "*fp8e4nv",
}  # fmt: skip
SHARED_BYTES = 227 << 10  # the most that a program can have
OPTIONS = ("num_warps", "num_stages", "launch_pdl")
Shape = tuple[int, ...]
PRODUCTS: tuple[Shape, ...] = ((1, 1024), (1, 6144), (8, 1024))  # rows, depth; `tuned_kernels` has more of both
CONVOLUTIONS: tuple[Shape, ...] = (  # inputs, columns, taps
    (1536, 6144, 2), (96, 96, 7), (96, 1, 7), (768, 768, 1),
)  # fmt: skip
compiled: list[str] = []


def signature_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def compile_instead(self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    bound = dict(zip(self.arg_names, args, strict=False)) | kwargs
    constants = {p.name for p in self.params if p.is_constexpr}
    signature = {n: "constexpr" if n in constants else signature_of(bound[n]) for n in self.arg_names}
    # Alignments as a launch would find them: without them loads are not wide, and nothing goes through shared memory.
    aligned = {(p.num,): [["tt.divisibility", 16]] for p in self.params if is_aligned(p, bound[p.name])}
    source = ASTSource(self, signature, {(self.arg_names.index(n),): bound[n] for n in constants}, aligned)
    kernel = triton.compile(source, target=TARGET, options=options)
    if kernel.metadata.shared > SHARED_BYTES:
        raise MemoryError(f"{self.__name__} needs {kernel.metadata.shared} bytes of shared memory: {bound}")
    compiled.append(self.__name__)


def is_aligned(parameter: KernelParam, value: Any) -> bool:
    if parameter.is_constexpr or parameter.do_not_specialize:
        return False
    return isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0)


def all_kernels(
    dtype: torch.dtype, products: Sequence[Shape], convolutions: Sequence[Shape], *, every_form: bool = True
) -> None:
    """With `every_form`, compile an op that has several forms (with and without norms, masks, lookups) in each of them.

    Without it heads are small, since products without tensor cores are unrolled.
    """
    values = partial(torch.zeros, dtype=dtype)
    norm.rms_norm(values(2, 1, 2048), values(2048), 1e-6)
    norm.add_norm(values(2, 1, 2048), values(2, 1, 2048), values(2048), 1e-6)
    swiglu.swiglu(values(2, 1, 6144))
    left = Unscaled(values(2, 1, 2048), 1e-6)
    swiglu.swiglu(values(2, 1, 6144), left)
    for rows, depth in products:
        x, gain, weight = values(rows, 1, depth), values(depth), values(256, depth)
        gemv.norm_gated(x, gain, 1e-6, weight)
        gemv.linear(x, weight)
        gemv.linear_add(x, weight, values(rows, 1, 256))
        gemv.norm_linear(x, gain, 1e-6, weight)
    if every_form:
        gemv.linear(values(1, 1, 1024), values(256, 1024), values(256))
        x, gain, weight = values(22, 1, 1024), values(1024), values(256, 1024)
        gemv.norm_gated(x, gain, 1e-6, weight, tile=Tile(0, 64, 128, stages=3, splits=2))
    convolution_kernels(dtype, convolutions, every_form)
    snake.snake_beta(values(2, 9, 96), values(96), values(96))
    attention_kernels(dtype, every_form)
    pcm.pcm16(torch.zeros(2, 1920))
    flow_kernels(dtype)
    paging_kernels(dtype)
    sampling_kernels(dtype, every_form)


def attention_kernels(dtype: torch.dtype, every_form: bool) -> None:
    values, dim = partial(torch.zeros, dtype=dtype), 128 if every_form else 32
    cache, slots = values(2, 5, 16, 8, dim), torch.zeros(2, dtype=torch.int64)
    rotations = values(2, 1, 1, dim), values(2, 1, 1, dim)
    for weights in ((values(dim), values(dim)), (None, None)):
        places = (None, Place(cache, slots), Place(cache.to(torch.float8_e4m3fn), slots))
        for place in places if every_form else (None,):
            qk_rope.qk_rope(values(2, 1, 32 * dim), Heads(*weights, *rotations, 16, 8, 1e-6), place)
    tables, positions = torch.zeros(2, 4, dtype=torch.int32), torch.zeros(2, 1, dtype=torch.int64)
    caches = (cache, cache.to(torch.float8_e4m3fn)) if every_form else (cache,)
    for pages in caches:
        paged.paged_attention(values(2, 1, 16, dim), pages, tables, positions, 4)
    for steps in (1, 2) if every_form else (1,):
        of = Heads(values(dim), values(dim), values(1, steps, 1, dim), values(1, steps, 1, dim), 16, 8, 1e-6)
        for first in (0, 14):
            short.short_attention(values(2, steps, 32 * dim), of, values(2, 2, 16, 8, dim), first)
        left = Unscaled(values(17, steps, 1024), 1e-6)  # so many rows that a program has several heads
        short.short_attention(values(17, steps, 32 * dim), of._replace(unscaled=left), values(2, 17, 16, 8, dim), 4)
        if steps == 1:
            for pages in caches:
                paged.paged_step(values(2, 1, 32 * dim), of, pages, tables, positions.int(), 4)
    for steps in (5, 11):
        of = Heads(None, None, values(1, steps, 1, dim), values(1, steps, 1, dim), 16, 2, 1e-5)
        local.local_attention(values(2, steps, 20 * dim), of)
        weight = values(64, 16 * dim)
        local_out.local_attention_add(values(2, steps, 20 * dim), of, weight, values(2, steps, 64))
    for steps in (1, 16) if every_form else (1,):
        of = Heads(None, None, values(2, steps, 1, dim), values(2, steps, 1, dim), 16, 16, 1e-5)
        place = RingPlace(torch.zeros(2, dtype=torch.int64), torch.zeros(2, steps, dtype=torch.int64), 72, 88)
        ring.ring_attention(values(2, steps, 48 * dim), of, values(2, 3, 88, 16, dim), place)


def convolution_kernels(dtype: torch.dtype, convolutions: Sequence[Shape], every_form: bool) -> None:
    values = partial(torch.zeros, dtype=dtype)
    for dilation in (1, 3):
        fixed = values(2, 27, 96), values(96, 1, 7), values(96)
        depthwise.depthwise(*fixed, None, dilation)
        factors = torch.ones(96)
        activation = Snake(factors, factors, log_scale=False)
        depthwise.depthwise(*fixed, values(2, 6 * dilation, 96), dilation, snake=activation)
    for inputs, columns, taps in convolutions:
        channels = min(columns, 768)
        x, bias = values(32, 640, inputs), values(channels)
        weight = values(columns, taps, inputs).permute(0, 2, 1)
        past = values(32, taps - 1, inputs)
        residual = values(32, 640, columns)
        if columns == 1:
            conv.causal_conv(x, weight, bias, past)
        if taps > 1:
            # With the tile for a GPU, and its own sine. So many values would otherwise be for the kernel in CUDA C++.
            with planning_for(HOPPER), mock.patch.object(cuda_conv, "takes", return_value=False):
                conv.causal_conv(x, weight, bias, past, snake=Snake(bias, bias), keep=False)
            conv.causal_conv(x, weight, bias, past, snake=Snake(bias, bias), keep=False)
        else:
            conv.causal_conv(x, weight, bias, None, residual=residual, snake=Snake(bias, bias))
        if every_form and taps < 7:  # one whose columns are samples of channels, one whose columns are channels
            edges, fine = torch.zeros(32, dtype=torch.int32), Snake(bias.float(), bias.float(), log_scale=False)
            window = values(32, 700, columns)[:, 30:-30]
            conv.causal_conv(x, weight, bias, past, residual=window, snake=fine, bounds=Bounds(edges, edges, 8, -3))


def paging_kernels(dtype: torch.dtype) -> None:
    host_weights.host_rows(torch.zeros(100, 2048, dtype=dtype), torch.zeros(2, 3, dtype=torch.int64))
    clock = torch.zeros(3, dtype=torch.int64)
    host_weights.pass_begins(clock)
    host_weights.pass_ends(clock, 5)
    host_weights.wait_begins(clock)
    host_weights.wait_ends(clock)


def flow_kernels(dtype: torch.dtype) -> None:
    values = partial(torch.zeros, dtype=dtype)
    given = FlowGiven(values(2, 2, 1024), values(2, 4, 1024), torch.zeros(2))
    ends = FlowEnds(values(1024, 64), values(1024), values(1024), 1e-5, values(64, 1024), values(64))
    x, hidden, time = torch.zeros(2, 4, 64), values(4, 11, 1024), values(1024)
    flow.flow_open(x, time, given, ends)
    flow.flow_turn(x, hidden, 0.1, time, given, ends)
    flow.flow_move(x, hidden, 0.1, given, ends)
    lines, rows = torch.zeros(3, 9, dtype=torch.int32), torch.zeros(2, dtype=torch.int64)
    kept = PatchMemory(torch.zeros(3, 16, 4, 64), torch.zeros(3, 4, 64), values(3, 2048), lines[:, :4])
    own = PatchCounters(*lines[:2, :5].unbind(1))
    patch.patch_step(x, values(2, 2048), values(2, 2), own, rows, kept, PatchStatuses(0, 2, 3))
    uniforms.normals(torch.zeros(2, 2, dtype=torch.int32), torch.zeros(2, dtype=torch.int64), torch.zeros(2), 256)


def sampling_kernels(dtype: torch.dtype, every_form: bool) -> None:
    values = partial(torch.zeros, dtype=dtype)
    flags = torch.zeros(2, dtype=torch.bool)
    params = SamplingParams(flags, torch.ones(2), torch.ones(2, dtype=torch.int32), torch.ones(2))
    lookup = Lookup(values(2048, 1024), values(2, 1024))
    mask = LogitMask(flags.new_zeros(2, 3072), torch.ones(2), flags, 1, flags)
    if every_form:  # with a mask, logits become float32
        sample.sample(values(2, 2048), torch.zeros(2), params, lookup=lookup)
        sample.sample(values(2, 3072), torch.zeros(2), params, mask)
    recent = torch.zeros(2, 32, 8, dtype=torch.int32)
    ras = Ras(recent, recent[:, 0, 0], recent[:, 1, 0], 1024)
    ras_sample.ras_sample(values(2, 8, 1026), torch.zeros(2, 16), params, ras)
    if every_form:
        lines = torch.zeros(3, 9, dtype=torch.int32)
        own, pattern = RowCounters(*lines[:2, :5].unbind(1)), DelayPattern(1024, 1025, 31, Statuses(0, 1, 2, 4))
        codes, rows = torch.zeros(2, 8, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
        delay.delay_step(codes, own, rows, torch.zeros(3, 84, 8, dtype=torch.int32), lines[:, 1:5], pattern)
    lines, rows = torch.zeros(3, 9, dtype=torch.int32), torch.zeros(2, dtype=torch.int64)
    kept = FrameMemory(torch.zeros(3, 32, 16, dtype=torch.int32), values(3, 2048), lines[:, :3], values(3, 64, 2048))
    tables = FrameTables(values(64, 2048), torch.zeros(16, dtype=torch.int64), values(2048))
    drawn = torch.zeros(2, 15, dtype=torch.int64)
    frame_step.frame_step(rows, drawn, lines[:2, 0], FrameCounters(*lines[:2, :3].unbind(1)), rows, kept, tables, 1)
    uniforms.uniforms(torch.zeros(2, 2, dtype=torch.int32), torch.zeros(2, dtype=torch.int64), 16)


def dual_kernels(dtype: torch.dtype, counts: Sequence[int], hidden: int = 3072, inner: int = 8192) -> None:
    """Compile each tile that the rule chooses for these numbers of rows. Tensors have no values: only shapes matter."""

    def values(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    gains, up, down = (Sides(*(values(*s) for _ in "ab")) for s in ((hidden,), (2 * inner, hidden), (hidden, inner)))
    for rows in counts:
        split = split_kinds(torch.zeros(1, rows))
        dual_ffn.dual_norm_gated(values(1, rows, hidden), split, gains, 1e-5, up)
        dual_ffn.dual_linear_add(values(1, rows, inner), split, down, values(1, rows, hidden))


def quantized_kernels() -> None:
    """Compile products whose weights have eight bits."""

    def values(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=torch.bfloat16, device="meta")

    def weight(columns: int, depth: int) -> QuantizedWeight:
        eight_bits = torch.empty(columns, depth, dtype=torch.float8_e4m3fn, device="meta")
        return QuantizedWeight(eight_bits, torch.empty(columns, device="meta"))

    for rows in (70, 512):
        gemv.norm_gated(values(rows, 1, 2048), values(2048), 1e-6, weight(512, 2048))
    gemv.linear_add(values(70, 1, 2048), weight(256, 2048), values(70, 1, 256))
    for rows, depth in ((1, 2048), (1, 3072), (16, 2048), (64, 2048)):
        gemv.norm_gated(values(rows, 1, depth), values(depth), 1e-6, weight(512, depth))
    gemv.linear_add(values(24, 1, 2048), weight(256, 2048), values(24, 1, 256))
    heads = Heads(None, None, values(1, 5, 1, 128), values(1, 5, 1, 128), 16, 2, 1e-5)
    local_out.local_attention_add(values(2, 5, 20 * 128), heads, weight(64, 2048), values(2, 5, 64))
    split, sides = split_kinds(torch.zeros(1, 32)), Sides(weight(3072, 8192), weight(3072, 8192))
    dual_ffn.dual_linear_add(values(1, 32, 8192), split, sides, values(1, 32, 3072))


def int8_kernels() -> None:
    """Compile the rounding of a convolution's inputs, with a past and without."""
    x, past = (torch.empty(2, steps, 384, dtype=torch.bfloat16, device="meta") for steps in (40, 18))
    for before in (past, None):
        int8_lines.int8_lines(x, before, 18, torch.empty(384, device="meta"))


def tuned_kernels() -> None:
    """Compile a sample of what a tuner tries: the first and then every n-th of the kernels that it would compile."""
    shapes = workload.workloads(["1.7b"])
    for cases, every in ((product_cases(shapes.stacks), 240), (conv_cases(shapes.codec), 280)):
        tried = {case.compiled_as(tile): (case.least(), tile) for case in cases for tile in case.candidates()}
        for case, tile in list(tried.values())[::every]:
            case.run(case.make(torch.device("cpu")), tile)


def main() -> None:
    JITFunction.run = compile_instead  # type: ignore[method-assign]
    pdl.supported = lambda device: True  # type: ignore[assignment]
    all_kernels(torch.bfloat16, PRODUCTS, CONVOLUTIONS)
    all_kernels(torch.float32, PRODUCTS[:1] + PRODUCTS[2:3], CONVOLUTIONS[-2:-1], every_form=False)
    dual_kernels(torch.bfloat16, (32, 600))
    dual_kernels(torch.float32, (600,))
    quantized_kernels()
    int8_kernels()
    tuned_kernels()
    sys.stdout.write(" ".join(sorted(set(compiled))))


if __name__ == "__main__":
    main()
