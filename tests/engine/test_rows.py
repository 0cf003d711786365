"""A row's line of numbers: those that the host sets, those that steps count, and all of them in one gather."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from engine.test_scheduler import SPEC
from sonant.engine.rows import Rows
from sonant.models.spec import Field
from sonant.models.speech_spec import StagedNumber

SPEC_OF_LINES = replace(
    SPEC,
    staged_numbers=(StagedNumber("seed", shape=(2,)), StagedNumber("warmth", "float32")),
    state=(Field("input", (3,), torch.float32), Field("frame", (), torch.int32), Field("status", (), torch.int32)),
)


def make_rows() -> Rows:
    return Rows(SPEC_OF_LINES, 3, 2, torch.device("cpu"))


def test_what_the_host_sets_leaves_what_the_steps_count() -> None:
    rows = make_rows()
    rows.fields["frame"][:], rows.fields["status"][:] = 7, 1
    rows.stage(1, {"seed": [3, -4], "warmth": 0.5}, [9, 8])
    rows.apply()
    assert rows.memory({}, 16).tables[1].tolist() == [9, 8] and rows.fields["seed"][1].tolist() == [3, -4]
    assert rows.fields["warmth"].tolist() == [0, 0.5, 0, 0]
    assert rows.fields["frame"].tolist() == [7] * 4 and rows.fields["status"].tolist() == [1] * 4


def test_numbers_of_numpy_are_staged_as_pythons_are() -> None:
    rows = make_rows()
    rows.stage(0, {"seed": np.array([-1, 2**31 - 1], np.int32), "warmth": np.float32(0.1)}, [1])
    rows.stage(2, {"seed": (np.int64(7), True), "warmth": 3}, [2, 5])
    rows.apply()
    assert rows.fields["seed"].tolist() == [[-1, 2**31 - 1], [0, 0], [7, 1], [0, 0]]
    assert rows.fields["warmth"].tolist() == [float(np.float32(0.1)), 0, 3, 0]
    assert rows.memory({}, 16).tables.tolist() == [[1, 0], [0, 0], [2, 5], [0, 0]]


def test_one_gather_reads_all_numbers_of_a_row() -> None:
    rows = make_rows()
    rows.stage(2, {"seed": [5, 6], "warmth": 2.5}, [4])
    rows.apply()
    rows.fields["frame"][2] = 11
    own = rows.memory({}, 16).take(torch.tensor([2, 0]))
    assert own.tables.tolist() == [[4, 0], [0, 0]]
    assert {name: view.tolist() for name, view in own.numbers.items()} == {
        "seed": [[5, 6], [0, 0]],
        "warmth": [2.5, 0],
        "frame": [11, 0],
        "status": [0, 0],
    }


def test_numbers_of_some_rows_are_written_in_one_scatter() -> None:
    rows = make_rows()
    memory = rows.memory({}, 16)
    memory.put(torch.tensor([2, 1]), {"frame": torch.tensor([5, 6]).int(), "status": torch.tensor([1, 2]).int()})
    assert rows.fields["frame"].tolist() == [0, 6, 5, 0] and rows.fields["status"].tolist() == [0, 2, 1, 0]
