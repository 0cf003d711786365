"""The golden files of Higgs Audio V2 hold every case, and are consistent."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from parity.higgs_cases import CASES, CLIPS, Clip, HiggsCase

Golden = Callable[[str], Mapping[str, np.ndarray]]
BOS, EOS = 1024, 1025


def test_every_case_and_clip_is_there(golden: Golden) -> None:
    assert {key.split("/")[0] for key in golden("higgs")} == {case.name for case in CASES} | {"meta"}
    assert {key.split("/")[0] for key in golden("higgs_codec")} == {clip.name for clip in CLIPS} | {"random", "meta"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_codes_are_the_rows_without_their_delay(case: HiggsCase, golden: Golden) -> None:
    told = golden("higgs")
    rows, codes = told[f"{case.name}/rows"], told[f"{case.name}/codes"]
    stopped = bool((rows[-1] == EOS).all())
    assert stopped != (len(rows) == case.max_rows)
    assert len(codes) == len(rows) - 8 - stopped <= case.max_frames
    assert (rows[0] == BOS).all()
    for k in range(8):
        assert (rows[: k + 1, k] == BOS).all()
        np.testing.assert_array_equal(codes[:, k], rows[1 + k : 1 + k + len(codes), k].clip(0, BOS - 1))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_prompts_hold_the_clips_codes(case: HiggsCase, golden: Golden) -> None:
    speakers = (case.voice, *case.speakers, *(clip for _, clip in case.context))
    clips = [one for one in speakers if isinstance(one, Clip)]
    rows = golden("higgs")[f"{case.name}/prompt_rows"]
    for clip in clips:
        codes = golden("higgs_codec")[f"{clip.name}/codes"]
        held, rows = rows[: len(codes) + 9], rows[len(codes) + 9 :]
        for k in range(8):
            np.testing.assert_array_equal(held[1 + k : 1 + k + len(codes), k], codes[:, k])
    assert len(rows) == 0
