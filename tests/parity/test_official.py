"""Our codes are the official package's codes, and our sound is its sound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

import sonant
from clips import reference_clip
from parity.cases import CASES, ENGLISH, GREEDY, MAX_FRAMES, MIXED, REFERENCE_TEXT, Case
from sonant import Engine, EngineConfig, Voice

Golden = Callable[[str], Mapping[str, np.ndarray]]
Engines = Callable[[str], Engine]
WAV_TOLERANCE = 1e-5
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


@pytest.fixture(scope="module", params=DEVICES)
def engines(request: pytest.FixtureRequest, tiny_checkpoints: Mapping[str, Path]) -> Iterator[Engines]:
    opened: dict[str, Engine] = {}

    def get(name: str) -> Engine:
        if name not in opened:
            opened[name] = sonant.load(
                tiny_checkpoints[name], device=request.param, dtype="float32", codec_dtype="float32",
                config=EngineConfig(max_rows=8),  # by default a GPU would have thousands
            )  # fmt: skip
        return opened[name]

    yield get
    for engine in opened.values():
        engine.close()


def voice_of(case: Case, engine: Engine) -> str | Voice | None:
    if case.checkpoint != "base":
        return case.voice
    return engine.clone(reference_clip(), REFERENCE_TEXT if case.voice == "in_context" else None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("live", [False, True], ids=["file", "listener"])
def test_speaks_the_official_codes_and_sound(case: Case, live: bool, engines: Engines, golden: Golden) -> None:
    engine = engines(case.checkpoint)
    stream = engine.stream(
        case.text,
        voice=voice_of(case, engine),
        sampling=case.sampling,
        max_frames=MAX_FRAMES,
        live=live,
        **case.options,
    )
    speech = stream.result()
    expected = golden(case.checkpoint)
    np.testing.assert_array_equal(speech.frames, expected[f"{case.name}/codes0"])
    assert speech.finish_reason == ("length" if len(speech.frames) == MAX_FRAMES else "stop")
    if f"{case.name}/wav0" in expected:
        np.testing.assert_allclose(speech.samples, expected[f"{case.name}/wav0"], rtol=0, atol=WAV_TOLERANCE)


def test_two_at_once_are_the_official_batch_of_two(engines: Engines, golden: Golden) -> None:
    engine = engines("custom")
    options = {"sampling": GREEDY, "max_frames": MAX_FRAMES}
    streams = [
        engine.stream(ENGLISH, voice="Ryan", language="English", **options),
        engine.stream(MIXED, voice="Dylan", language="Auto", **options),
    ]
    for i, stream in enumerate(streams):
        np.testing.assert_array_equal(stream.result().frames, golden("custom")[f"cv_batch2/codes{i}"])


def test_a_cloned_voice_is_the_official_prompt(engines: Engines, golden: Golden) -> None:
    voice = engines("base").clone(reference_clip(), REFERENCE_TEXT)
    expected = golden("base")
    embedding = expected["prompt_xvec0/ref_spk_embedding"]
    np.testing.assert_allclose(voice.tensors["embedding"], embedding, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(voice.tensors["codes"], expected["prompt_xvec0/ref_code"])


@pytest.mark.parametrize("chunks", [(1,), (1, 3), (1, 2, 4, 8, 16, 32)], ids=str)
@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_chunk_sizes_and_pipelining_change_nothing(
    chunks: tuple[int, ...], steps_ahead: int, tiny_checkpoints: Mapping[str, Path], golden: Golden
) -> None:
    config = EngineConfig(chunk_s=tuple(0.08 * n for n in chunks), steps_ahead=steps_ahead, prefill_tokens=2)
    with sonant.load(tiny_checkpoints["custom"], device="cpu", config=config) as engine:
        stream = engine.stream(ENGLISH, voice="ryan", language="english", sampling=GREEDY, max_frames=MAX_FRAMES)
        speech = stream.result()
    expected = golden("custom")
    np.testing.assert_array_equal(speech.frames, expected["cv_nonstream/codes0"])
    np.testing.assert_allclose(speech.samples, expected["cv_nonstream/wav0"], rtol=0, atol=WAV_TOLERANCE)


def test_every_case_of_the_golden_files_is_here(golden: Golden) -> None:
    held = {key.split("/")[0] for name in ("custom", "design", "base") for key in golden(name) if "/codes" in key}
    assert held == {case.name for case in CASES} | {"cv_batch2", "codec_long"}
