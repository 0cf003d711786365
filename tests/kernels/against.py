"""Shared helpers of the tests that compare a kernel with its reference."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch

from sonant.kernels import dispatch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16]
RELATIVE_ERROR = {torch.float32: 1e-6, torch.bfloat16: 2e-2}  # the interpreter truncates where a GPU rounds

T = TypeVar("T")


def cases(*here: T, gpu: Iterable[T] = ()) -> list[T]:
    """A test's cases: for the slow interpreter one for each path through the code, on a GPU the models' sizes too."""
    return [*here, *(gpu if DEVICE == "cuda" else ())]


def kernel(op: str) -> Any:
    choice = dispatch.choose(op, "cuda")
    assert choice.implementation == "triton"
    return choice.function


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def close(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, roundings: int = 1) -> None:
    assert got.shape == expected.shape and got.dtype == expected.dtype and got.isfinite().all()
    allowed = roundings * RELATIVE_ERROR[dtype]
    assert float((got.double() - expected.double()).norm() / expected.double().norm()) < allowed
