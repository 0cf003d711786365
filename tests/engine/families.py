"""The families that the engine's tests run on: the real ones, tiny, and the toy, which uses all of the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sonant
from sonant import Engine, EngineConfig, Sampling, Speech
from toy_family.model import ToyModel

TEXTS = ("hello the world", "speech and the user, 1 2 3.", "on and on and on the world speech hello again", "hi")
VOICES = ("ryan", "vivian", "eric", "serena")
Options = dict[str, Any]
Checkpoints = Mapping[str, Path]


@dataclass(frozen=True)
class Family:
    name: str
    open: Callable[[Checkpoints, EngineConfig], Engine]
    varied: Callable[[int], Options]  # what else differs from request to request, beside text, seed and length

    def request(self, n: int, frames: int = 14) -> Options:
        """The n-th of many requests: text, options, seed and length all vary."""
        return {
            "text": TEXTS[n % 4],
            "seed": 100 + n,
            "max_frames": 2 + (frames * (n % 7)) // 6,
            "live": n % 2 == 0,
            **self.varied(n),
        }


def _open_qwen(checkpoints: Checkpoints, config: EngineConfig) -> Engine:
    return sonant.load(checkpoints["custom"], device="cpu", config=config)


def _open_toy(checkpoints: Checkpoints, config: EngineConfig) -> Engine:
    device = torch.device("cpu")
    return Engine(ToyModel(config, device), config, device)


def _open_higgs(checkpoints: Checkpoints, config: EngineConfig) -> Engine:
    return sonant.load(checkpoints["higgs"], device="cpu", config=config)


def _open_voxcpm2(checkpoints: Checkpoints, config: EngineConfig) -> Engine:
    return sonant.load(checkpoints["voxcpm2"], device="cpu", config=config)


def _varied_qwen(n: int) -> Options:
    sampling = Sampling.greedy() if n % 5 == 0 else Sampling(top_k=[50, 3, 0][n % 3], top_p=[1.0, 0.7][n % 2])
    return {"voice": VOICES[n // 2 % 4], "streaming_text": n % 3 == 0, "sampling": sampling}


def _varied_toy(n: int) -> Options:
    return {"sampling": Sampling(refinements=1 + n % 2, temperature=[0.5, 0.0, 2.0][n % 3], stop_chance=0.05)}


def _varied_higgs(n: int) -> Options:
    sampling = Sampling.greedy() if n % 5 == 0 else Sampling(top_k=[50, 3, 0][n % 3], ras_win_len=[7, 0, 20][n % 3])
    return {"instruct": [None, "", "A small room."][n // 2 % 3], "sampling": sampling}


def _varied_voxcpm2(n: int) -> Options:
    sampling = Sampling(inference_timesteps=[4, 6][n % 2], cfg_value=[2.0, 1.0, 3.0][n % 3], min_len=n % 4)
    return {"instruct": [None, "a low voice"][n // 2 % 2], "sampling": sampling}


QWEN3_TTS = Family("qwen3_tts", _open_qwen, _varied_qwen)
HIGGS_AUDIO_V2 = Family("higgs_audio_v2", _open_higgs, _varied_higgs)
VOXCPM2 = Family("voxcpm2", _open_voxcpm2, _varied_voxcpm2)
TOY = Family("toy", _open_toy, _varied_toy)


def frames_each(frames: int, frame_s: float = 0.08) -> Options:
    """Options of an engine that makes at most `frames` frames of each part; `max_frames` would limit a whole text."""
    return {"budget_s": frames * frame_s, "budget_s_per_token": 1e-12}


def speak_at_once(engine: Engine, requests: Sequence[Options]) -> list[Speech]:
    """Speak files that all arrive before the engine looks at one, so that its steps are the same on any machine."""
    with engine.loop._wake:
        streams = [engine.stream(**{**request, "live": False}) for request in requests]
    return [stream.result() for stream in streams]


def same(a: Speech, b: Speech) -> None:
    same_frames(a.frames, b.frames)
    np.testing.assert_allclose(a.samples, b.samples, rtol=0, atol=1e-5 if a.frames.dtype.kind == "i" else 1e-4)
    assert a.finish_reason == b.finish_reason


def same_frames(a: np.ndarray, b: np.ndarray) -> None:
    """Assert that codes are equal, and latents as nearly as sums over batches of different sizes can be."""
    if a.dtype.kind == "i":
        np.testing.assert_array_equal(a, b)
    else:
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)
