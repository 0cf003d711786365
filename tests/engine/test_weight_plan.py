"""Which weights leave the device: those that steps need least, no more than must, so that the rest fits the budget."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonant.byte_size import parse_size
from sonant.engine.weight_plan import PlannedBlock, WeightPlan, least_bytes, plan, slot_bytes, travelling
from sonant.errors import ConfigError

MB = 10**6
TABLE = PlannedBlock("words", None, 50 * MB, 0)
TEXT = [PlannedBlock(f"text {n}", "text", 15 * MB, 0) for n in range(10)]
LAYERS = [PlannedBlock(f"layers {n}", "layers", 20 * MB, 1) for n in range(10)]
OFTEN = [PlannedBlock(f"often {n}", "often", 10 * MB, 15) for n in range(5)]
ALL = [*OFTEN, *LAYERS, *TEXT, TABLE]
TOTAL = sum(b.size for b in ALL)


def planned(budget: int, fixed: int = 0) -> WeightPlan:
    found = plan(ALL, fixed, budget)
    assert found is not None
    return found


def test_what_fits_stays() -> None:
    assert plan(ALL, 7, TOTAL + 7) is None


def test_a_table_leaves_first_then_what_only_prompts_read() -> None:
    assert planned(TOTAL - 1).host_names == {"words"}
    later = planned(TOTAL - 60 * MB)
    assert set(later.lanes) == {"text"} and later.step_bytes == 0
    assert {"often", "layers"} & set(planned(TOTAL - 240 * MB).lanes) == {"layers"}


def test_of_a_lane_as_few_leave_as_must_evenly_spread() -> None:
    names = [b.name for b in planned(TOTAL - 80 * MB).lanes["text"]]
    places = [int(name.split()[1]) for name in names]
    assert len(places) == 4 and all(2 <= b - a <= 3 for a, b in pairwise(places))


def test_steps_wait_for_what_they_read_and_as_often() -> None:
    everything = planned(least_bytes(ALL, 0))
    assert everything.step_bytes == sum(b.reads * b.size for b in ALL if b.lane)
    assert everything.host_bytes == TOTAL


def test_slots_take_turns_and_are_no_larger_than_their_own() -> None:
    uneven = [PlannedBlock(str(n), "codec", size, 1) for n, size in enumerate((300, 10, 100, 40, 20))]
    assert slot_bytes(uneven) == 300 + 40


def test_a_block_that_has_its_slot_to_itself_does_not_travel() -> None:
    three = [PlannedBlock(str(n), "layers", 10, 1) for n in range(3)]
    assert [b.name for b in travelling(three)] == ["0", "2"]
    assert travelling(three[:2]) == []


def test_a_lane_whose_slots_would_take_most_of_it_is_left_alone() -> None:
    uneven = [PlannedBlock(str(n), "codec", size, 1) for n, size in enumerate((900, 90, 20, 10))]
    assert least_bytes([*uneven, *LAYERS], 0) == 1020 + 40 * MB
    found = plan([*uneven, *LAYERS], 0, 100 * MB)
    assert found is not None and set(found.lanes) == {"layers"}


def test_slots_of_a_lane_that_steps_do_not_use_take_no_room() -> None:
    aside = [PlannedBlock(str(n), "voice", 5 * MB, 0, aside=True) for n in range(2)]
    assert least_bytes(aside, 0) == slot_bytes(aside) == 0


def test_too_little_is_refused_with_the_least_that_works() -> None:
    least = least_bytes(ALL, 3 * MB)
    with pytest.raises(ConfigError, match="the least that works is") as refused:
        plan(ALL, 3 * MB, least - 1)
    told = parse_size(str(refused.value).rsplit(" ", 1)[1], "test")
    assert least <= told < least + (1 << 20)
    assert plan(ALL, 3 * MB, told) is not None


sizes = st.lists(st.integers(1, 1000), min_size=1, max_size=12)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), sizes, min_size=1), st.integers(0, 500), st.floats(0, 1))
def test_a_plan_keeps_to_its_budget(lanes: dict[str, list[int]], fixed: int, share: float) -> None:
    blocks = [
        PlannedBlock(f"{lane} {n}", lane, size, "abc".index(lane))
        for lane, found in lanes.items()
        for n, size in enumerate(found)
    ]
    least, total = least_bytes(blocks, fixed), fixed + sum(b.size for b in blocks)
    budget = int(least + share * (total - least))
    found = plan(blocks, fixed, budget)
    if found is None:
        assert total <= budget
    else:
        away = found.host_names
        slots = sum(slot_bytes(lane) for lane in found.lanes.values())
        assert found.device_bytes == fixed + sum(b.size for b in blocks if b.name not in away) + slots <= budget
        for lane in found.lanes.values():
            assert [b.name for b in blocks if b in lane] == [b.name for b in lane]
