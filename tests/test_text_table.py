"""Columns of tables line up: to the right, or on request words to the left."""

from __future__ import annotations

from sonant.text_table import grid

ROWS = [("what", "µs"), ("attention", "12.5 µs"), ("norm", "3 µs")]


def test_all_columns_are_to_the_right() -> None:
    assert grid(ROWS).splitlines() == ["     what       µs", "attention  12.5 µs", "     norm     3 µs"]


def test_words_can_be_to_the_left_and_numbers_with_their_unit_stay_right() -> None:
    assert grid([("what", "µ"), ("norm", "3 µ")], words_left=True).splitlines() == ["what    µ", "norm  3 µ"]
    assert grid([("n", "note"), ("10", "cut"), ("2", "")], words_left=True).splitlines() == [
        " n  note",
        "10  cut",
        " 2",
    ]
