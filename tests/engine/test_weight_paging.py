"""Speech is the same to the bit if weights are paged, and a model whose weights all stay has no paging at all."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sonant
from clips import reference_clip
from engine.conftest import MakeEngine
from engine.families import HIGGS_AUDIO_V2, QWEN3_TTS, VOXCPM2, Family
from engine.scripted_traffic import arrivals, heard
from sonant import Engine, EngineConfig
from sonant.engine.weight_budget import WeightBudget
from sonant.engine.weight_lane import WeightLane
from sonant.engine.weight_plan import (
    WeightPlan,
    fixed_bytes,
    least_bytes,
    plan_weights,
    planned_blocks,
    travelling,
)
from sonant.errors import ConfigError
from sonant.models.registry import load_model
from sonant.models.weight_blocks import ModelWeights

CHECKPOINTS = {"qwen3_tts": "custom", "higgs_audio_v2": "higgs", "voxcpm2": "voxcpm2"}
CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float32)
# One frame in a chunk: sums would depend on how many frames are vocoded at once, and that depends on the clock.
ONE_FRAME = {"chunk_s": (0.01,), "max_rows": 3, "steps_ahead": 1}


@cache
def sketch(folder: Path) -> ModelWeights:
    return load_model(folder, EngineConfig(), torch.device("meta"), *DTYPES).weights()


def least_of(folder: Path) -> int:
    weights = sketch(folder)
    return least_bytes(planned_blocks(weights), fixed_bytes(weights))


def lanes(engine: Engine) -> Mapping[str, int]:
    """How many blocks are paged in each lane."""
    paging = engine.loop.runner.paging
    assert paging is not None
    return {name: len(blocks) for name, blocks in paging.plan.lanes.items()}


@pytest.fixture(params=[QWEN3_TTS, HIGGS_AUDIO_V2, VOXCPM2], ids=lambda family: family.name, scope="module")
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = request.param
    return found


@pytest.fixture
def folder(family: Family, tiny_checkpoints: Mapping[str, Path]) -> Path:
    return tiny_checkpoints[CHECKPOINTS[family.name]]


def test_random_arrivals_and_aborts_are_spoken_to_the_bit_at_any_budget(
    family: Family, folder: Path, make_any: MakeEngine
) -> None:
    script, least = arrivals(seed=7, count=5), least_of(folder)
    wanted = heard(make_any(**ONE_FRAME), family, script)
    between = (least + sketch(folder).total_bytes) // 2
    for budget in (least, between):
        engine = make_any(**ONE_FRAME, gpu_weights=str(budget))
        if budget == least:
            assert all(count >= 3 for count in lanes(engine).values()) and lanes(engine)
        for expected, got in zip(wanted, heard(engine, family, script), strict=True):
            np.testing.assert_array_equal(expected[0], got[0])
            np.testing.assert_array_equal(expected[1], got[1])


def test_a_clip_is_encoded_to_the_bit(family: Family, tiny_checkpoints: Mapping[str, Path]) -> None:
    folder = tiny_checkpoints["base" if family is QWEN3_TTS else CHECKPOINTS[family.name]]
    clip = reference_clip()
    voices = []
    for budget in (None, str(least_of(folder))):
        with sonant.load(folder, device="cpu", config=EngineConfig(max_rows=1, gpu_weights=budget)) as engine:
            voices.append([engine.clone(clip, text) for text in ("hello the world", None)])
    for whole, paged in zip(*voices, strict=True):
        assert whole.tensors.keys() == paged.tensors.keys()
        for name, tensor in whole.tensors.items():
            np.testing.assert_array_equal(tensor, paged.tensors[name])


def test_a_budget_for_all_leaves_nothing_on_the_way(family: Family, folder: Path, make_any: MakeEngine) -> None:
    engine = make_any(gpu_weights="1GiB", max_rows=1)
    assert engine.loop.runner.paging is None and engine.config.gpu_weights is None
    for module in engine.model.weights().modules:
        assert not any(part._forward_pre_hooks or part._forward_hooks for part in module.modules())


def test_what_comes_and_what_it_costs_is_counted(family: Family, folder: Path, make_any: MakeEngine) -> None:
    engine = make_any(gpu_weights=str(least_of(folder)), max_rows=1)
    engine.speak(**family.request(1))
    before = engine.telemetry.paged
    spoken = engine.speak(**family.request(1))
    paged = engine.telemetry.paged
    assert 0 < paged.wait_s <= paged.pass_s
    assert engine.loop.runner.paging is not None
    lanes = engine.loop.runner.paging.plan.lanes
    stacks = [lane for name, lane in lanes.items() if name != "codec"]  # one call of the codec serves several frames
    every_step = sum(b.size for lane in stacks for b in travelling(lane) if b.reads >= 1)
    assert paged.copied_bytes - before.copied_bytes >= len(spoken.frames) * every_step > 0
    assert engine.host_weight_bytes >= every_step


def test_too_little_is_refused_before_anything_is_loaded(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"must stay on the GPU.* the least that works is \d+[MK]iB"):
        sonant.load(folder, device="cpu", config=EngineConfig(gpu_weights=str(least_of(folder) - 1)))


def test_weights_lie_on_the_host_once_and_on_the_device_within_the_budget(folder: Path, family: Family) -> None:
    budget = least_of(folder) + 5000
    with sonant.load(folder, device="cpu", config=EngineConfig(gpu_weights=str(budget), max_rows=1)) as engine:
        paging = engine.loop.runner.paging
        assert paging is not None
        weights = engine.model.weights()
        slots = sum(s.numel() for g in (paging.steps, paging.aside) for lane in g.lanes for s in lane.slots)
        pages = {block.memory.untyped_storage()._cdata for block in paging.host.blocks.values()}
        held = {h.untyped_storage()._cdata: h.untyped_storage().nbytes() for h in tensors(weights)}
        on_device = sum(size for storage, size in held.items() if storage not in pages)
        assert on_device <= budget and slots < on_device
        assert paging.host.total_bytes <= 1.1 * paging.plan.host_bytes
        if family is HIGGS_AUDIO_V2:  # these have left the device, since only prompts read them
            assert set(paging.host.names) >= {"text embedding", "text 0 widening", "text 2 narrowing"}


def tensors(weights: ModelWeights) -> list[torch.Tensor]:
    found = [t for module in weights.modules for t in (*module.parameters(), *module.buffers())]
    return [t.data for t in found]


def test_a_pass_that_fails_leaves_the_first_weights_in_their_slots(make_engine: MakeEngine) -> None:
    folder_weights = least_budget(make_engine)
    engine = make_engine(gpu_weights=folder_weights, max_rows=1)
    paging = engine.loop.runner.paging
    assert paging is not None
    lane = next(lane for lane in paging.steps.lanes if lane.parts[0].block.lane == "talker")

    def fails() -> None:
        lane.end(0)  # brings the third block into the first one's slot
        assert not torch.equal(lane._copies[0], lane.parts[0].host.memory)
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        paging.step(fails)()
    assert torch.equal(lane._copies[0], lane.parts[0].host.memory)
    assert torch.equal(lane._copies[1], lane.parts[1].host.memory)


def test_slots_that_there_is_no_memory_for_keep_none(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clip cannot be encoded then; what the first lanes have taken is for others again."""
    folder, lease = tiny_checkpoints["base"], WeightLane.lease
    config = EngineConfig(max_rows=1, gpu_weights=str(least_of(folder)))
    with sonant.load(folder, device="cpu", config=config) as engine:
        paging = engine.loop.runner.paging
        assert paging is not None and len(paging.aside.lanes) > 1

        def lacks_memory(lane: WeightLane) -> None:
            if lane is paging.aside.lanes[-1]:
                raise torch.OutOfMemoryError
            lease(lane)

        monkeypatch.setattr(WeightLane, "lease", lacks_memory)
        with pytest.raises(torch.OutOfMemoryError):
            engine.clone(reference_clip(), "hello the world")
        slots = [slot for lane in paging.aside.lanes for slot in lane.slots]
        assert sum(slot.untyped_storage().nbytes() for slot in slots) == 0
        monkeypatch.undo()
        assert engine.clone(reference_clip(), "hello the world").tensors


def least_budget(make_engine: MakeEngine) -> str:
    weights = make_engine(max_rows=1).model.weights()
    return str(least_bytes(planned_blocks(weights), fixed_bytes(weights)))


@pytest.mark.parametrize("wrong", ["", "3 apples", "GiB", "-1GiB", "much"])
def test_a_size_is_a_size(wrong: str) -> None:
    with pytest.raises(ConfigError, match="gpu_weights must be a size"):
        EngineConfig(gpu_weights=wrong)


def test_auto_is_everything_where_there_is_no_gpu(tiny_checkpoints: Mapping[str, Path]) -> None:
    found = WeightBudget.of(tiny_checkpoints["custom"], EngineConfig(gpu_weights="auto"), CPU, DTYPES)
    assert found.plan is None and found.config.gpu_weights is None


def test_the_same_plan_is_made_of_the_same_checkpoint(tiny_checkpoints: Mapping[str, Path]) -> None:
    """The engine plans before it loads, and the process that compiles its kernels makes the plan again."""
    folder = tiny_checkpoints["higgs"]
    budget = least_of(folder)
    planned: WeightPlan | None = plan_weights(sketch(folder), budget)
    loaded: Any = load_model(folder, EngineConfig(), CPU, *DTYPES)
    assert planned is not None and planned == plan_weights(loaded.weights(), budget)
