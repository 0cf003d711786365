"""A pass over all layers in one kernel, on a CPU (cuda_on_cpu.h; its blocks run at once) or on a GPU."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.against import DEVICE, random
from sonant.kernels import reference
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.reference import FrameLayer, FrameStack

pytest.importorskip("triton")
from kernels.cpu_machine import OnCpu
from sonant.kernels.cuda import frame_pass, usable
from sonant.kernels.cuda.kernel import CudaKernel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(DEVICE == "cpu" and shutil.which("g++") is None, reason="no C++ compiler here"),
]
BF16 = torch.bfloat16
WIDTH, HEADS, KV_HEADS, HEAD, INNER, CODES, POSITIONS = 1024, 16, 8, 128, 3072, 2048, 16


@pytest.fixture(autouse=True)
def on_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    machine = OnCpu(tmp_path)

    def launch(kernel: CudaKernel, device: torch.device, grid: Sequence[int], *values: float) -> None:
        machine.launch(kernel, device, grid, *values)

    if DEVICE == "cpu":
        monkeypatch.setattr(CudaKernel, "launch", launch)
        monkeypatch.setattr(usable, "find_compiler", lambda: "there is one")
        monkeypatch.setattr(usable, "refused", lambda *program: None)
    with torch.inference_mode(), planning_for(Gpu("NVIDIA H200", (9, 0))):
        yield


def weight(columns: int, depth: int, seed: int) -> Tensor:
    return (random(columns, depth, dtype=BF16, seed=seed) / depth**0.5).to(BF16)


def gain(width: int, seed: int) -> Tensor:
    return (1 + 0.1 * random(width, seed=seed)).to(BF16)


def stack_of(layers: int) -> FrameStack:
    made = []
    for n in range(0, 10 * layers, 10):
        qkv, out = weight((HEADS + 2 * KV_HEADS) * HEAD, WIDTH, n), weight(WIDTH, HEADS * HEAD, n + 1)
        heads = gain(HEAD, n + 2), gain(HEAD, n + 3)
        inner = weight(2 * INNER, WIDTH, n + 4), weight(WIDTH, INNER, n + 5)
        made.append(FrameLayer(gain(WIDTH, n + 6), qkv, *heads, out, gain(WIDTH, n + 7), *inner))
    return FrameStack(tuple(made), gain(WIDTH, 8), HEADS, KV_HEADS, 1e-6)


def wide(stack: FrameStack) -> FrameStack:
    layers = tuple(FrameLayer(*(t.float() for t in layer)) for layer in stack.layers)
    return stack._replace(layers=layers, gain=stack.gain.float())


def error(got: Tensor, expected: Tensor) -> float:
    assert got.shape == expected.shape and got.isfinite().all()
    return float((got.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("layers", [2] if DEVICE == "cpu" else [1, 2, 5])
def test_a_frames_passes_one_after_another(layers: int) -> None:
    """The first has no head. What no pass wrote of the cache is NaN; counters are as the last pass left them."""
    stack, head = stack_of(layers), weight(CODES, WIDTH, 9)
    exact = wide(stack)
    cos, sin = (random(POSITIONS, HEAD, dtype=BF16, seed=n) for n in (90, 91))
    cache = torch.full((layers, 2, 1, POSITIONS, KV_HEADS, HEAD), float("nan"), dtype=BF16, device=DEVICE)
    other = cache.float()
    passes = (0, 1, 2) if DEVICE == "cpu" else range(POSITIONS)
    for at in passes:
        x, own = random(1, 1, WIDTH, dtype=BF16, seed=100 + at), head if at else None
        assert frame_pass.fits(stack, x, cache, own)
        turn = cos[at].view(1, 1, 1, HEAD), sin[at].view(1, 1, 1, HEAD)
        got = frame_pass.frame_pass(stack, x, *turn, cache, at, own)
        expected = reference.frame_pass(
            exact, x.float(), *(t.float() for t in turn), other, at, None if own is None else own.float()
        )
        if got is None or expected is None:
            assert got is None and expected is None and at == 0
        else:
            assert error(got, expected) < 0.01 * layers**0.5
    others = stack._replace(gain=stack.gain.clone())
    assert not frame_pass.fits(others, x, cache, head), "two at once could wait for each other for ever"
    assert torch.equal(cache.isnan(), other.isnan())
    assert error(cache.nan_to_num(), other.nan_to_num()) < 0.01 * layers**0.5
