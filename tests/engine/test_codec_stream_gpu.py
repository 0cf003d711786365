"""Two streams on a GPU, for what the queues of test_codec_stream.py cannot show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import sonant
from clips import reference_clip
from engine.families import HIGGS_AUDIO_V2, QWEN3_TTS, VOXCPM2, Family, Options, speak_at_once
from sonant import EngineConfig, Speech
from sonant.config import CodecStreamChoice

pytestmark = pytest.mark.gpu

ROWS = 24  # more than a step may have that keeps the order of frames and sound
CHOICES: tuple[CodecStreamChoice, ...] = get_args(CodecStreamChoice)
CHECKPOINTS = {"qwen3_tts": "custom", "higgs_audio_v2": "higgs", "voxcpm2": "voxcpm2"}
SMALL, LARGE = (0.01,), (0.32, 1.28)  # sizes of chunks; with chunks of one frame every step makes sound for every row


def spoken(
    folder: Path, requests: list[Options], choice: CodecStreamChoice, chunk_s: tuple[float, ...], *, graphs: bool = True
) -> list[Speech]:
    config = EngineConfig(max_rows=ROWS, max_batch=ROWS, kv_tokens=256 * ROWS, chunk_s=chunk_s, codec_stream=choice)
    with sonant.load(folder, device="cuda", config=config) as engine:
        runner = engine.loop.runner
        assert (runner.codec_stream.stream is not None) is (choice == "own")
        runner.graphs.use(graphs)
        return speak_at_once(engine, requests)


def equal(expected: list[Speech], got: list[Speech]) -> None:
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_array_equal(a.frames, b.frames)
        np.testing.assert_array_equal(a.samples, b.samples)
        assert a.finish_reason is b.finish_reason


@pytest.mark.parametrize("family", [QWEN3_TTS, HIGGS_AUDIO_V2, VOXCPM2], ids=lambda family: family.name)
@pytest.mark.parametrize("chunk_s", [SMALL, LARGE], ids=["small", "large"])
def test_equal_requests_are_equal_bits(
    family: Family, chunk_s: tuple[float, ...], tiny_checkpoints: Mapping[str, Path]
) -> None:
    """There are more requests than rows, of different lengths, so rows change hands while sound is made."""
    folder = tiny_checkpoints[CHECKPOINTS[family.name]]
    requests = [{**family.request(n), "max_frames": 10 + 3 * n % 50} for n in range(3 * ROWS)]
    equal(*(spoken(folder, requests, choice, chunk_s) for choice in CHOICES))


def test_without_graphs_too(tiny_checkpoints: Mapping[str, Path]) -> None:
    requests = [{**QWEN3_TTS.request(n), "max_frames": 10 + n} for n in range(ROWS)]
    equal(*(spoken(tiny_checkpoints["custom"], requests, choice, SMALL, graphs=False) for choice in CHOICES))


def test_equal_clones_are_equal_bits(tiny_checkpoints: Mapping[str, Path]) -> None:
    """A clone's codec first processes the voice's own sound, beside the frames of others."""
    folder = tiny_checkpoints["base"]
    with sonant.load(folder, device="cpu") as engine:
        voices = [engine.clone(reference_clip(), text) for text in ("speech and the user", None)]
    requests: list[Options] = [
        {"text": "hello", "voice": voices[n % 2], "seed": n, "max_frames": 10 + n % 30} for n in range(3 * ROWS)
    ]
    equal(*(spoken(folder, requests, choice, SMALL) for choice in CHOICES))


def test_frames_go_before_sound(tiny_checkpoints: Mapping[str, Path]) -> None:
    config = EngineConfig(max_rows=1, codec_stream="own")
    with sonant.load(tiny_checkpoints["custom"], device="cuda", config=config) as engine:
        runner = engine.loop.runner
        frames, sound = runner.graphs.warmup._pool._stream, next(iter(runner.codec.values())).pool
        assert sound is not None and frames.priority < sound._stream.priority
        assert runner.codec_stream.stream is not None and runner.codec_stream.stream.priority == sound._stream.priority
