"""The integer arithmetic of launches gives what Triton's gives."""

from __future__ import annotations

import pytest

from sonant.kernels.sizes import cdiv, next_power_of_2

triton = pytest.importorskip("triton")


def test_they_are_tritons_own() -> None:
    numbers = [*range(1, 300), *(2**n + by for n in range(9, 40, 3) for by in (-1, 0, 1))]
    for n in numbers:
        assert next_power_of_2(n) == triton.next_power_of_2(n)
        for by in (1, 2, 7, 64, 192):
            assert cdiv(n, by) == triton.cdiv(n, by)
            assert cdiv(0, by) == 0
