"""Every part of a dialogue says who speaks it, wherever the text was cut."""

from __future__ import annotations

import time

import pytest

from sonant.text.splitter import IncrementalSplitter
from sonant.text.turns import with_turns


@pytest.mark.parametrize(
    ("parts", "before", "named", "after"),
    [
        (["Hello.", "Again."], "", ["Hello.", "Again."], ""),
        (["[SPEAKER0] Hello.", "Again."], "", ["[SPEAKER0] Hello.", "[SPEAKER0] Again."], "[SPEAKER0]"),
        (["[SPEAKER0] Hi. [SPEAKER1] Ho.", "So."], "", ["[SPEAKER0] Hi. [SPEAKER1] Ho.", "[SPEAKER1] So."],
         "[SPEAKER1]"),
        (["Hello."], "[SPEAKER3]", ["[SPEAKER3] Hello."], "[SPEAKER3]"),
        (["[SPEAKER0] Hi. [SPEAKER1]", "Ho."], "", ["[SPEAKER0] Hi.", "[SPEAKER1] Ho."], "[SPEAKER1]"),
        (["[SPEAKER0]", "Hi.", "[SPEAKER1]"], "", ["[SPEAKER0] Hi."], "[SPEAKER1]"),
        (["So he did. [SPEAKER2] Well."], "[SPEAKER1]", ["[SPEAKER1] So he did. [SPEAKER2] Well."], "[SPEAKER2]"),
        (["[SPEAKER0][SPEAKER1]"], "", [], "[SPEAKER1]"),
    ],
)  # fmt: skip
def test_each_part_begins_with_its_speaker(parts: list[str], before: str, named: list[str], after: str) -> None:
    assert with_turns(parts, before) == (named, after)


@pytest.mark.parametrize(
    "part", ["a" + " " * 200_000 + "b", "[SPEAKER0] " * 20_000 + "b", "a" + "[SPEAKER0]\n" * 20_000]
)
def test_time_grows_with_length_only(part: str) -> None:
    """A quadratic search for the last tags would need minutes."""
    began_s = time.perf_counter()
    with_turns([part])
    assert time.perf_counter() - began_s < 2


@pytest.mark.parametrize("granularity", ["sentence", "clause"])
def test_a_turn_on_a_line_of_its_own_stays_with_what_is_said(granularity: str) -> None:
    splitter = IncrementalSplitter(granularity, 100)  # type: ignore[arg-type]
    splitter.push("[SPEAKER0]\nHello there.\n[SPEAKER1]\nWell.")
    found = []
    while (segment := splitter.flush()) is not None:
        found.append(segment)
    assert found == ["[SPEAKER0]\nHello there.", "[SPEAKER1]\nWell."]
