"""VoxCPM2: with the same noise our patches and our sound are the official ones, in all four modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sonant
from parity.voxcpm2_cases import CASES, CLIPS, MID_CASES, RATE, Clip, VoxCase
from sonant import Engine, EngineConfig, Sampling, Voice
from sonant.kernels import ops
from sonant.types import SpeechRequest

Golden = Callable[[str], Mapping[str, np.ndarray]]
LATENTS = 1e-5  # relative
WAV_TOLERANCE = 1e-4  # the tiny codec magnifies rounding: the official one's errors are as large
MIN_LEN = 2  # patches after which a stop counts
SIDES = {"reference": "right", "prompt": "left"}  # where a clip is padded
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


@pytest.fixture(autouse=True)
def injected_noise(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A request's seed is the index of its case, so that every row of a step gets its own case's noise."""

    def noise(seed: Tensor, index: Tensor, scale: Tensor, count: int) -> Tensor:
        rows = []
        for low, at in zip(seed[:, 0].tolist(), index.tolist(), strict=True):
            case = (*CASES, *MID_CASES)[low % (len(CASES) + len(MID_CASES))]
            rows.append(case.noise(at + 1, 4, count // 4)[at].reshape(-1))
        return scale[:, None] * torch.from_numpy(np.stack(rows)).to(seed.device)

    monkeypatch.setattr(ops, "normals", noise)
    yield


def open_engine(folder: Path, device: str, **options: Any) -> Engine:
    config = EngineConfig(clip_min_s=0.2, **{"max_rows": 8, **options})  # by default a GPU would have thousands
    engine = sonant.load(folder, device=device, dtype="float32", codec_dtype="float32", config=config)
    engine.loop.runner.graphs.use(False)  # a graph would keep the noise that it was captured with
    return engine


@pytest.fixture(scope="module", params=DEVICES)
def engine(request: pytest.FixtureRequest, tiny_voxcpm2: Path) -> Iterator[Engine]:
    with open_engine(tiny_voxcpm2, request.param) as opened:
        yield opened


def voice_of(engine: Engine, case: VoxCase) -> Voice | None:
    """A voice with both clips of the case, while `clone` makes a voice from one clip."""
    tensors = {}
    if case.reference is not None:
        tensors["reference"] = engine.clone((case.reference.samples(), RATE)).tensors["reference"]
    if case.prompt is not None:
        tensors["prompt"] = engine.clone((case.prompt.samples(), RATE), case.prompt.words).tensors["prompt"]
        tensors.setdefault("reference", tensors["prompt"])
    return Voice(tensors, case.prompt.words if case.prompt else None, family="voxcpm2") if tensors else None


def options_of(engine: Engine, case: VoxCase, cases: tuple[VoxCase, ...] = CASES, **more: Any) -> dict[str, Any]:
    sampling = {"inference_timesteps": case.flow_steps, "cfg_value": case.cfg, "reference": case.reference is not None}
    return {
        "text": case.text,
        "voice": voice_of(engine, case),
        "instruct": case.instruct,
        "sampling": Sampling(**sampling),
        "seed": cases.index(case) + (len(CASES) if cases is MID_CASES else 0),
        "max_frames": case.max_frames,
        **more,
    }


def check(speech: sonant.Speech, case: VoxCase, expected: Mapping[str, np.ndarray]) -> None:
    theirs = expected[f"{case.name}/latents"]
    assert speech.frames.shape == theirs.shape
    assert np.linalg.norm(speech.frames - theirs) / np.linalg.norm(theirs) < LATENTS
    ended = expected[f"{case.name}/stop"][-1] and len(theirs) > MIN_LEN + 1
    assert speech.finish_reason == ("stop" if ended else "length")
    if f"{case.name}/wav" in expected:
        np.testing.assert_allclose(speech.samples, expected[f"{case.name}/wav"], rtol=0, atol=WAV_TOLERANCE)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("live", [False, True], ids=["file", "listener"])
def test_speaks_the_official_patches_and_sound(case: VoxCase, live: bool, engine: Engine, golden: Golden) -> None:
    check(engine.submit(SpeechRequest(**options_of(engine, case, live=live))).result(), case, golden("voxcpm2"))


@pytest.mark.parametrize("rows", [2, 4, 16])
def test_requests_of_all_modes_at_once_are_as_each_alone(rows: int, tiny_voxcpm2: Path, golden: Golden) -> None:
    with open_engine(tiny_voxcpm2, "cpu", max_rows=rows) as engine:
        streams = [engine.submit(SpeechRequest(**options_of(engine, case))) for case in CASES]
        for case, stream in zip(CASES, streams, strict=True):
            check(stream.result(), case, golden("voxcpm2"))


@pytest.mark.parametrize("case", MID_CASES, ids=lambda case: case.name)
def test_heads_of_the_published_size(case: VoxCase, mid_voxcpm2: Path, golden: Golden) -> None:
    with open_engine(mid_voxcpm2, "cpu") as engine:
        options = options_of(engine, case, MID_CASES, live=False)
        check(engine.submit(SpeechRequest(**options)).result(), case, golden("voxcpm2_mid"))


@pytest.mark.parametrize("clip", CLIPS, ids=lambda clip: clip.name)
def test_a_cloned_voice_is_the_official_latents(clip: Clip, engine: Engine, golden: Golden) -> None:
    voice = engine.clone((clip.samples(), RATE), clip.words or "some words")
    for use, side in SIDES.items():
        ours, theirs = voice.tensors[use], golden("voxcpm2_vae")[f"{clip.name}/{side}"]
        assert ours.shape == theirs.shape
        assert np.linalg.norm(ours - theirs) / np.linalg.norm(theirs) < LATENTS


@pytest.mark.parametrize("chunk_s", [(0.16,), (0.16, 0.48), (0.16, 0.32, 0.64, 1.28)], ids=str)
def test_chunk_sizes_change_nothing(chunk_s: tuple[float, ...], tiny_voxcpm2: Path, golden: Golden) -> None:
    case = next(case for case in CASES if case.name == "ref_prompt")
    with open_engine(tiny_voxcpm2, "cpu", chunk_s=chunk_s, prefill_tokens=3) as engine:
        check(engine.submit(SpeechRequest(**options_of(engine, case))).result(), case, golden("voxcpm2"))
