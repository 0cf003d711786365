"""A step costs what it costs today, and no more: operators on the CPU, kernels, copies and syncs on a GPU.

If a limit is broken on purpose, put the number that the failure names in its place, and say in the commit what it buys.
If a step has become cheaper, lower the limit, so that it stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

import sonant
from engine.conftest import MakeEngine
from sonant import EngineConfig
from sonant.bench.engine.breakdown import count_steps
from sonant.bench.engine.step_counts import Counts, show_copies
from sonant.bench.engine.step_rig import StepRig
from sonant.models.qwen3_tts.model import Qwen3TTS

FRAMES = 4
# tiny CustomVoice model, two rows, torch 2.13: operators that torch dispatches
CPU_FRAME_OPERATORS = 3740
CPU_CODEC_OPERATORS = {1: 822, 16: 813}  # by frames in a chunk; views count too
# 1.7B shapes, one row. Kernels: counted on an H200 on 2026-11-15. The rest is what the design asks for: the row index
# in, the result to memory of its own, the records out, no wait but for the step before. A codec step has eight memsets
# of four bytes besides, as many as it has attentions.
GPU_FRAME = {"kernels": 603, "copies": 3, "syncs": 0, "waits": 1}
GPU_CODEC = {"kernels": 229, "copies": 11, "syncs": 0, "waits": 1}  # of 16 frames


def within(counts: Counts, limits: Mapping[str, float]) -> list[str]:
    return [
        f"{name} is {getattr(counts, name):g} a step, over its limit of {limit:g}; see the top of {Path(__file__).name}"
        f" ({', '.join(f'{n:g} × {what}' for what, n in list(counts.names.items())[:12])} …)"
        for name, limit in limits.items()
        if getattr(counts, name) > limit
    ]


@pytest.fixture
def rig(make_engine: MakeEngine) -> Iterator[StepRig]:
    engine = make_engine("custom", max_rows=2)
    engine.close()
    with StepRig(engine, 2, FRAMES) as opened:
        yield opened


def test_a_frame_step_dispatches_no_more_operators(rig: StepRig) -> None:
    counts = count_steps(rig, rig.draw)
    assert within(counts, {"kernels": CPU_FRAME_OPERATORS, "copies": 1, "syncs": 0}) == []


@pytest.mark.parametrize("frames", CPU_CODEC_OPERATORS)
def test_a_codec_step_dispatches_no_more_operators(rig: StepRig, frames: int) -> None:
    counts = count_steps(rig, lambda: rig.voice(frames))
    assert within(counts, {"kernels": CPU_CODEC_OPERATORS[frames], "copies": 1, "syncs": 0}) == []


def test_the_count_is_of_the_step_and_not_of_the_length(rig: StepRig) -> None:
    """Or the limits would say nothing: the same step counts the same again."""
    assert count_steps(rig, rig.draw).names == count_steps(rig, rig.draw).names


def test_one_more_operator_is_noticed(rig: StepRig, monkeypatch: pytest.MonkeyPatch) -> None:
    before = count_steps(rig, rig.draw)
    frame = Qwen3TTS.frame
    monkeypatch.setattr(Qwen3TTS, "frame", lambda self, rows, span: frame(self, rows, span) + 0)
    after = count_steps(rig, rig.draw)
    assert after.kernels == before.kernels + 1
    assert within(after, {"kernels": before.kernels})[0].startswith(f"kernels is {after.kernels:g} a step, over")


def test_a_value_that_the_host_reads_is_noticed(rig: StepRig, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = Qwen3TTS.frame

    def peeking(self: Qwen3TTS, rows: torch.Tensor, span_blocks: int) -> torch.Tensor:
        out = frame(self, rows, span_blocks)
        assert out[0, 0].item() is not None
        return out

    monkeypatch.setattr(Qwen3TTS, "frame", peeking)
    counts = count_steps(rig, rig.draw)
    assert counts.syncs == 1
    assert within(counts, {"syncs": 0})[0].startswith("syncs is 1 a step")


@pytest.mark.gpu
def test_a_frame_step_of_the_1_7b_shapes_on_a_gpu(full_checkpoint: Path) -> None:
    config = EngineConfig(max_rows=1, kv_tokens=4096)
    show_copies(torch.device("cuda"))
    with sonant.load(full_checkpoint, device="cuda", config=config) as engine:
        pass
    with StepRig(engine, 1, FRAMES) as opened:
        assert within(count_steps(opened, opened.draw), GPU_FRAME) == []
        assert within(count_steps(opened, lambda: opened.voice(16)), GPU_CODEC) == []
