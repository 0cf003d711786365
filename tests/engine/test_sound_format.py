"""An engine whose sound leaves the device in 16 bits gives the sound of a float engine, rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import sonant
from sonant import Engine, EngineConfig
from sonant.audio.pcm import pcm16
from sonant.errors import ConfigError, EngineError
from sonant.types import SoundFormat
from toy_family.model import ToyModel


def toy(sound: SoundFormat, kind: type[ToyModel] = ToyModel) -> Engine:
    config, device = EngineConfig(max_rows=4, kv_tokens=4096, segment_chars=60), torch.device("cpu")
    return Engine(kind(config, device), config, device, sound)


@pytest.mark.parametrize("live", [True, False])
def test_it_is_the_same_sound_rounded(live: bool) -> None:
    """It is equal to the bit if chunks are the same. A listener's chunks depend on the clock, and so do a float's last
    bits."""
    with toy("float32") as exact, toy("int16") as rounded:
        for n in range(4):
            asked: dict[str, Any] = {"text": "hello the world", "seed": n, "max_frames": 3 + 7 * n, "live": live}
            whole, sent = exact.stream(**asked).result(), rounded.stream(**asked).result()
            assert sent.samples.dtype == np.int16
            assert np.abs(sent.samples.astype(int) - pcm16(whole.samples)).max() <= live
            np.testing.assert_array_equal(sent.frames, whole.frames)


def test_a_format_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="sound must be float32 or int16, not 's16'"):
        sonant.load("nowhere", device="cpu", sound="s16")  # type: ignore[arg-type]


def test_seams_of_a_long_text_are_faded_as_before() -> None:
    asked: dict[str, Any] = {"text": "on and on the world said hello. " * 5, "seed": 1, "live": False}
    with toy("float32") as exact, toy("int16") as rounded:
        whole, sent = exact.speak(**asked), rounded.speak(**asked)
    assert len(sent.samples) == len(whole.samples) and sent.samples.dtype == np.int16
    difference = np.abs(sent.samples.astype(int) - pcm16(whole.samples))
    assert difference.max() <= 1  # a fade is rounded before and after


class Damaged(ToyModel):
    """Gives NaN as the sound of rows with odd numbers."""

    def codec(self, rows: torch.Tensor, frames: int) -> torch.Tensor:
        sound = super().codec(rows, frames)
        return torch.where(rows[:, None] % 2 == 1, float("nan"), sound)


def test_what_is_no_sound_ends_its_own_request_and_no_other() -> None:
    with toy("int16", Damaged) as engine:
        streams = [engine.stream("hello the world", seed=n, max_frames=20) for n in range(4)]
        outcomes = []
        for stream in streams:
            try:
                outcomes.append(len(stream.result().samples) > 0)
            except EngineError as e:
                assert "NaN" in str(e)
                outcomes.append(False)
        assert sorted(outcomes) == [False, False, True, True]
        assert engine.stats().running == 0 and engine.loop.alive
