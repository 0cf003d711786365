"""SnakeBeta in one pass over [B, T, C], whose rows may lie apart (a slice of a longer buffer)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.gpu import gpu_of
from sonant.kernels.sizes import cdiv
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior


def quick_sine(x: Tensor) -> bool:
    """Whether to use the GPU's own sine: on a GPU, for values that are rounded to eight significant bits anyway."""
    return x.dtype == torch.bfloat16 and gpu_of(x.device) is not None


@triton.jit
def snake_factors(alpha, beta, LOG_SCALE: tl.constexpr):
    """Half-waves of the sine per unit of x, and the factor of its square."""
    alpha, beta = alpha.to(tl.float32), beta.to(tl.float32)
    if LOG_SCALE:
        alpha, beta = tl.exp(alpha), tl.exp(beta)
    return alpha * 0.3183098861837907, 1 / (beta + 1e-9)


@triton.jit
def snake(x, half_waves, factor, QUICK: tl.constexpr):
    """x + sin²(x·e^α) / (e^β + 1e-9), all float32.

    sin² repeats every half-wave, so the nearest whole number of them is subtracted (adding and subtracting 3 · 2²²
    rounds), and a polynomial of degree 9, within 2e-7, gives the rest. The library's sine is exact for any angle and
    was two thirds of a convolution's instructions. Angles above 10⁷ have no fraction in float32: sin² is some value
    up to 1 there. `QUICK`: the GPU's own sine, within 2⁻¹⁴ up to angles of 300, in half the instructions.
    """
    if QUICK:
        angle = x * (half_waves * 3.14159265)
        sine = tl.inline_asm_elementwise("sin.approx.ftz.f32 $0, $1;", "=f,f", [angle], tl.float32, True, 1)
        return x + sine * sine * factor
    phase = x * half_waves
    part = phase - ((phase + 12582912.0) - 12582912.0)
    square = part * part
    wave = 0.0776552808 * square - 0.598294351
    wave = wave * square + 2.55007915
    wave = wave * square - 5.16771029
    wave = part * (wave * square + 3.14159265)
    return x + tl.minimum(wave * wave, 1.0) * factor


@triton.jit
def _snake_beta(
    x, alpha, beta, out, count, steps, channels, batch_stride, step_stride, LOG_SCALE: tl.constexpr,
    QUICK: tl.constexpr, PDL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    channel, row = at % channels, at // channels
    source = (row // steps) * batch_stride + (row % steps) * step_stride + channel
    half_waves, factor = snake_factors(
        tl.load(alpha + channel, mask=inside, other=0.0), tl.load(beta + channel, mask=inside, other=0.0), LOG_SCALE
    )
    wait_prior(PDL)
    value = tl.load(x + source, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, snake(value, half_waves, factor, QUICK).to(out.dtype.element_ty), mask=inside)


def snake_beta(x: Tensor, alpha: Tensor, beta: Tensor, log_scale: bool = True) -> Tensor:
    if x.stride(-1) != 1:
        x = x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _, steps, channels = x.shape
    block = 1024
    _snake_beta[(cdiv(out.numel(), block),)](
        x, alpha, beta, out, out.numel(), steps, channels, x.stride(0), x.stride(1),
        LOG_SCALE=log_scale, QUICK=quick_sine(x), BLOCK=block, num_warps=4, **launch_options(x),
    )  # fmt: skip
    return out
