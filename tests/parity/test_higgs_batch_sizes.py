"""Decode steps of Higgs Audio V2 with given rows at every batch size that has a graph: a kernel may be right for one
row and not for sixteen. Rows of a batch have different codes, so it shows if one reads another's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import sonant
from parity.forcing import relative
from parity.higgs_forcing import forced_logits
from sonant import Engine, EngineConfig
from sonant.bench.engine.listener import TEXT
from sonant.bench.engine.step_rig import StepRig
from sonant.config import Quantization
from sonant.engine.graphs import buckets_up_to
from sonant.kernels.reference import Ras, SamplingParams
from sonant.models.base import decode_frame
from sonant.models.higgs_audio_v2 import frame
from sonant.models.higgs_audio_v2.model import HiggsAudioV2
from sonant.models.higgs_audio_v2.row_state import BEFORE
from sonant.models.status import Status
from sonant.types import SpeechRequest

ROWS, KINDS = 12, 5  # rows of an utterance, more than the delay; different utterances, which a batch has in turn


class Forced:
    """Replaces the draw: returns given rows, and keeps the logits."""

    def __init__(self, rows: Tensor) -> None:
        self.left = list(rows.unbind(1))
        self.logits: list[Tensor] = []

    def __call__(self, logits: Tensor, uniform: Tensor, params: SamplingParams, ras: Ras) -> Tensor:
        self.logits.append(logits.float())
        return self.left.pop(0)


@torch.inference_mode()
def stepped(engine: Engine, rows: list[int], codes: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Logits [rows, codebooks, size] for every row of codes in turn, by decode steps from the end of the prompt on."""
    model, runner = engine.model, engine.loop.runner
    index, fields = torch.tensor(rows, device=engine.device), runner.rows.fields
    length = model.prompter.prompt(SpeechRequest(text=TEXT)).length
    for name, value in (("position", length - 1), ("drawn", 0), ("ending", 0), ("status", Status.RUNNING)):
        fields[name][index] = int(value)
    fields["delayed"][index, BEFORE] = model.config.stream_bos  # type: ignore[attr-defined]
    given = Forced(codes)
    monkeypatch.setattr(frame.ops, "ras_sample", given)
    for _ in range(ROWS):
        decode_frame(model, index, runner.table_blocks)
    return given.logits


def worst(engine: Engine, truth: HiggsAudioV2, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """The largest relative error of any row's logits, by batch size."""
    engine.close()
    config = truth.config
    kinds = torch.randint(config.codes, (KINDS, ROWS, 8), generator=torch.Generator().manual_seed(0))
    early = torch.arange(8) > torch.arange(ROWS)[:, None]
    kinds = torch.where(early, config.stream_bos, kinds)  # as the delay pattern forces them
    start = torch.full((1, 8), config.stream_bos)
    request = SpeechRequest(text=TEXT)
    expected = torch.stack([forced_logits(truth, request, torch.cat([start, rows[:-1]])) for rows in kinds], 1)
    errors: dict[int, float] = {}
    with StepRig(engine, max(sizes), 4) as rig:
        for size in sizes:
            kind = torch.arange(size) % KINDS
            logits = stepped(engine, rig.rows[:size], kinds[kind].to(engine.device), monkeypatch)
            errors[size] = max(
                relative(ours[n], right[k])
                for ours, right in zip(logits, expected.to(engine.device), strict=True)
                for n, k in enumerate(kind.tolist())
            )
    return errors


def test_any_batch_on_the_cpu(tiny_higgs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = sonant.load(tiny_higgs, device="cpu", config=EngineConfig(max_rows=9))
    assert isinstance(engine.model, HiggsAudioV2)
    errors = worst(engine, engine.model, [1, 2, 9], monkeypatch)
    assert max(errors.values()) < 1e-4, errors


@pytest.mark.gpu
@pytest.mark.parametrize(("quantize", "most"), [(None, 0.05), ("fp8", 0.25)])
def test_every_captured_batch_of_the_3b_shapes(
    quantize: Quantization | None, most: float, full_higgs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with the weights as stored, in fp32. With FP8 weights, from 17 rows on the input has eight bits too."""
    exact = EngineConfig(max_rows=1, kv_tokens=512)
    with sonant.load(full_higgs, device="cuda", dtype="float32", config=exact) as opened:
        truth = opened.model
        assert isinstance(truth, HiggsAudioV2)
    config = EngineConfig(max_rows=256, warm_rows=1, kv_tokens=65_536, quantize=quantize)
    engine = sonant.load(full_higgs, device="cuda", config=config)
    errors = worst(engine, truth, buckets_up_to(256), monkeypatch)
    print(quantize or "bf16", {size: round(error, 4) for size, error in errors.items()})
    assert max(errors.values()) < most, errors
    assert max(errors.values()) < (1.5 if quantize is None else 2.5) * errors[1], errors
