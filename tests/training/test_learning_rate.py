from __future__ import annotations

from dataclasses import dataclass

import pytest
from training.learning_rate import learning_rate


@dataclass(frozen=True)
class Schedule:
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-4
    warmup_steps: int = 10


def test_the_rate_falls_from_the_first_to_the_final_one_and_stays_there() -> None:
    rates = [learning_rate(Schedule(), progress / 10, since_restart=100) for progress in range(16)]
    assert rates[0] == pytest.approx(1e-3)
    assert rates[5] == pytest.approx(5.5e-4)
    assert rates[10:] == pytest.approx([1e-4] * 6)
    assert rates[:11] == sorted(rates[:11], reverse=True)


@pytest.mark.parametrize("progress", [0.0, 0.7])
def test_a_new_optimiser_warms_up_wherever_the_run_is(progress: float) -> None:
    warm = learning_rate(Schedule(), progress, since_restart=9)
    rates = [learning_rate(Schedule(), progress, step) for step in range(12)]
    assert rates == pytest.approx([warm * min(1.0, (step + 1) / 10) for step in range(12)])
