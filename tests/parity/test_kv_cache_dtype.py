"""A cache of eight bits changes a model's logits only by the rounding of its keys and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import sonant
from parity import test_batch_sizes, test_higgs_batch_sizes, test_voxcpm2_batch_sizes
from sonant import EngineConfig

# Of logits, or of the flow's prefixes, compared with one pass without a cache in float32. A value of e4m3 is off by
# 2.6 % on average, much of which is averaged out over positions and layers.
RELATIVE_ERROR = 0.05
WORST: Mapping[str, Callable[..., Mapping[int, float]]] = {
    "qwen3_tts": test_batch_sizes.worst,
    "higgs_audio_v2": test_higgs_batch_sizes.worst,
    "voxcpm2": test_voxcpm2_batch_sizes.worst,
}


@pytest.mark.parametrize("family", WORST)
def test_steps_over_a_cache_of_eight_bits(
    family: str,
    tiny_checkpoints: Mapping[str, Path],
    tiny_higgs: Path,
    tiny_voxcpm2: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders = {"qwen3_tts": tiny_checkpoints["custom"], "higgs_audio_v2": tiny_higgs, "voxcpm2": tiny_voxcpm2}
    engine = sonant.load(folders[family], device="cpu", config=EngineConfig(max_rows=3, kv_cache_dtype="fp8"))
    model: Any = engine.model
    errors = WORST[family](engine, model, [1, 3], monkeypatch)
    print(errors)
    assert all(1e-4 < error < RELATIVE_ERROR for error in errors.values()), errors
