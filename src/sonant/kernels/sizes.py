"""Integer arithmetic for launches. Triton has the same functions, but they take microseconds a call."""

from __future__ import annotations


def cdiv(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(-x // y)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not less than n ≥ 1."""
    return 1 << (n - 1).bit_length()
