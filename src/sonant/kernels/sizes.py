"""Whole numbers that launches are made of. Triton has the same for its kernels, but takes microseconds for a call."""

from __future__ import annotations


def cdiv(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(-x // y)


def next_power_of_2(n: int) -> int:
    """The smallest that is not less than n, which is at least 1."""
    return 1 << (n - 1).bit_length()
