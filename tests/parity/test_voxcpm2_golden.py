"""The golden files of VoxCPM2 hold every case, and are consistent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from parity.voxcpm2_cases import CASES, CLIPS, MID_CASES, VoxCase

Golden = Callable[[str], Mapping[str, np.ndarray]]
AUDIO_START, REF_START, REF_END = 101, 103, 104
HELD_BACK = 3  # first patches, after which a stop does not count
SAMPLES = 7680  # in a patch
EACH = [("voxcpm2", case) for case in CASES] + [("voxcpm2_mid", case) for case in MID_CASES]
each_case = pytest.mark.parametrize(("file", "case"), EACH, ids=lambda one: getattr(one, "name", one))


def test_every_case_and_clip_is_there(golden: Golden) -> None:
    for file, cases in (("voxcpm2", CASES), ("voxcpm2_mid", MID_CASES)):
        assert {key.split("/")[0] for key in golden(file)} == {case.name for case in cases} | {"meta"}
    held = {key.split("/")[0] for key in golden("voxcpm2_vae")}
    assert held == {clip.name for clip in CLIPS} | {"random", "meta"}


@each_case
def test_speech_goes_on_until_it_may_stop(file: str, case: VoxCase, golden: Golden) -> None:
    told = golden(file)
    latents, stop = told[f"{case.name}/latents"], told[f"{case.name}/stop"]
    assert len(latents) == len(stop) <= case.max_frames
    assert not stop[HELD_BACK:-1].any()
    assert len(stop) == case.max_frames or (stop[-1] and len(stop) > HELD_BACK)
    np.testing.assert_array_equal(stop, np.diff(told[f"{case.name}/stop_logits"])[:, 0] > 0)
    if case.heard:
        assert told[f"{case.name}/wav"].shape == (len(latents) * SAMPLES,)
        assert 0.03 < told[f"{case.name}/wav"].std() < 0.3


def test_some_stop_by_themselves_and_some_are_held_back_or_capped(golden: Golden) -> None:
    stops = [(case, golden("voxcpm2")[f"{case.name}/stop"]) for case in CASES]
    assert any(stop[:HELD_BACK].any() and len(stop) > HELD_BACK + 1 for _, stop in stops)
    assert any(len(stop) > HELD_BACK + 1 and stop[-1] for _, stop in stops)
    assert any(len(stop) == case.max_frames > HELD_BACK for case, stop in stops)


@each_case
def test_the_noise_is_drawn_here_as_it_was_there(file: str, case: VoxCase, golden: Golden) -> None:
    drawn = golden(file)[f"{case.name}/noise"]
    np.testing.assert_array_equal(case.noise(2, *drawn.shape)[0], drawn)


@each_case
def test_prompts_are_laid_out_as_the_mode_asks(file: str, case: VoxCase, golden: Golden, tiny_voxcpm2: Path) -> None:
    told = golden(file)
    text, audio = told[f"{case.name}/text"], told[f"{case.name}/audio"]
    assert not text[audio].any()
    assert len(told[f"{case.name}/patches"]) == audio.sum()
    if case.mode in ("ref", "ref_prompt"):
        end = int(np.flatnonzero(text == REF_END)[0])
        assert text[0] == REF_START and audio[1:end].all() and not audio[end]
        text, audio = text[end + 1 :], audio[end + 1 :]
    start = int(np.flatnonzero(text == AUDIO_START)[0])
    assert audio[start + 1 :].all() and (len(audio) > start + 1) == (case.prompt is not None)
    assert not audio[: start + 1].any()
    tokenizer = Tokenizer.from_file(str(tiny_voxcpm2 / "tokenizer.json"))
    said = (case.prompt.words if case.prompt else "") + case.spoken
    said = said.replace(" 你好", "你好")  # one token, which officially loses its space when it is split
    assert tokenizer.decode(text[:start].tolist()) == said
    tokens = [tokenizer.id_to_token(int(i)).lstrip("▁") for i in text[:start]]
    assert not any(len(token) > 1 and "\u4e00" <= token[0] <= "\u9fff" for token in tokens)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_prompts_hold_the_clips_latents(case: VoxCase, golden: Golden) -> None:
    clips, patches = golden("voxcpm2_vae"), golden("voxcpm2")[f"{case.name}/patches"]
    expected = [clips[f"{case.reference.name}/right"]] if case.reference else []
    expected += [clips[f"{case.prompt.name}/left"]] if case.prompt else []
    np.testing.assert_array_equal(patches, np.concatenate(expected) if expected else patches[:0])


def test_padding_tells_a_reference_from_a_prompt(golden: Golden) -> None:
    """They are equal only if a clip needs no padding."""
    for clip in CLIPS:
        right, left = (golden("voxcpm2_vae")[f"{clip.name}/{side}"] for side in ("right", "left"))
        assert len(right) == len(left) == -(-len(clip.samples()) // 2560)
        assert np.array_equal(right, left) == (len(clip.samples()) % 2560 == 0)


def test_the_flow_ends_where_the_patch_is(golden: Golden) -> None:
    """Each evaluation, guided as in the official code, leads to the next state, and the last one to the latents."""
    told = golden("voxcpm2")
    (case,) = (case for case in CASES if case.name == "plain")
    x, t, v = (told[f"plain/flow_{name}"] for name in "xtv")
    assert len(x) == case.flow_steps - 1  # the first step does nothing
    np.testing.assert_array_equal(x[0], told["plain/noise"])
    positive, negative = v[:, 0], v[:, 1]
    scale = (positive * negative).sum((1, 2)) / ((negative**2).sum((1, 2)) + 1e-8)
    base = negative * scale[:, None, None]
    guided = base + case.cfg * (positive - base)
    following = x - (t - np.append(t[1:], 0.0))[:, None, None] * guided
    np.testing.assert_allclose(following, [*x[1:], told["plain/latents"][0]], atol=2e-6)
