"""An engine reports how long each phase of its start took."""

from __future__ import annotations

import time

import pytest

from engine.conftest import MakeEngine
from sonant.engine.start_times import StartTimes, process_age_s


def test_every_second_is_in_one_phase() -> None:
    began_s = time.monotonic()
    times = StartTimes()
    for phase in ("weights", "graphs", "kernels", "graphs"):
        time.sleep(0.01)
        times.took(phase)
    assert list(times.phases) == ["weights", "graphs", "kernels"]
    assert 0.04 <= times.total_s <= time.monotonic() - began_s
    assert times.phases["graphs"] >= 0.02


def test_what_came_before_is_told_first() -> None:
    times = StartTimes()
    times.took("weights")
    times.came_before("imports", 3.04)
    assert str(times) == "3.04 s: imports 3.04, weights 0.00"


def test_an_engine_tells_all_its_phases(make_engine: MakeEngine) -> None:
    assert list(make_engine().start_times.phases) == ["weights", "memory", "graphs", "kernels"]


def test_a_process_knows_its_age() -> None:
    age_s = process_age_s()
    if age_s is None:
        pytest.skip("this system does not tell")
    time.sleep(0.02)
    later_s = process_age_s()
    assert later_s is not None and 0 < age_s < later_s < 86_400
