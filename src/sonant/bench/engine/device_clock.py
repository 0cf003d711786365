"""How long work takes on a device, and what the device could do at best: the floors beside our figures.

On CUDA, time is measured between two events on the stream with many runs in between, so that launching one costs
nothing. On the CPU it is measured by the host's clock. A figure is the median of several batches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from sonant.config import Quantization
from sonant.kernels.gpu import gpu_of
from sonant.kernels.reference import quantize_rows

_HOPPER = (9, 0)
_BATCHES = 7
_BATCH_MS = 20.0
_MOST_RUNS_A_BATCH = 2000
_LEAST_COPIED = 1 << 26  # bytes; fewer would stay in a GPU's cache


def time_ms(run: Callable[[], object], device: torch.device, *, batches: int = _BATCHES) -> float:
    """The time of one run, which must not wait for the device."""
    run()
    once_ms = _batch_ms(run, device, 1)
    runs = min(_MOST_RUNS_A_BATCH, max(1, round(_BATCH_MS / max(once_ms, 1e-3))))
    return statistics.median(_batch_ms(run, device, runs) / runs for _ in range(batches))


def _batch_ms(run: Callable[[], object], device: torch.device, runs: int) -> float:
    if device.type != "cuda":
        began_s = time.perf_counter()
        for _ in range(runs):
            run()
        return 1e3 * (time.perf_counter() - began_s)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    begin.record()
    for _ in range(runs):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written, of a large copy: the ceiling for reading weights."""
    size = (1 << 30) if device.type == "cuda" else (1 << 27)
    while True:
        try:
            source = torch.ones(size, dtype=torch.uint8, device=device)
            target = torch.empty_like(source)
            break
        except torch.OutOfMemoryError:  # an engine may hold the rest of a small GPU's memory
            if size <= _LEAST_COPIED:
                raise
            size //= 2
    return 2 * size / (1e-3 * time_ms(lambda: target.copy_(source), device))


def product_rate(device: torch.device, dtype: torch.dtype, quantize: Quantization | None = None) -> float:
    """Operations a second of a large matrix product of the library: the ceiling for compute. With `quantize` on Hopper
    or later, where the library can have eight bits on both sides, it is the rate of such a product."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    gpu, product = gpu_of(device), lambda: a @ b
    if quantize is not None and gpu is not None and gpu.capability >= _HOPPER:
        (x, scale), (w, channels) = quantize_rows(a), quantize_rows(b)
        product = partial(
            torch._scaled_mm, x, w.T, scale, channels.T, out_dtype=torch.bfloat16, use_fast_accum=True
        )  # fmt: skip
    return 2 * size**3 / (1e-3 * time_ms(product, device))
