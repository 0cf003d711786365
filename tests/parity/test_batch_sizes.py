"""Steps with given codes at every batch size that has a graph: a kernel may be right for one row and not for sixteen.

Rows of a batch have different codes, so it shows if one reads another's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

import sonant
from parity.forcing import forced
from sonant import Engine, EngineConfig
from sonant.bench.engine.listener import TEXT
from sonant.bench.engine.step_rig import StepRig
from sonant.config import Quantization
from sonant.engine.graphs import buckets_up_to
from sonant.kernels.reference import LogitMask, Lookup
from sonant.layers.quantized import QuantizedLinear
from sonant.models.base import decode_frame
from sonant.models.qwen3_tts import frame
from sonant.models.qwen3_tts.model import Qwen3TTS
from sonant.models.registry import load_model
from sonant.models.status import Status
from sonant.types import SpeechRequest

FRAMES, KINDS = 3, 5  # frames of an utterance; different utterances, which the rows have in turn
LARGEST = 1024  # rows of the largest graph that an engine of these shapes has on an H200


class Forced:
    """Replaces `Draw`: returns given codes, and keeps the logits."""

    def __init__(self, codes: Tensor) -> None:
        self.left = [column for frame in codes.unbind(1) for column in frame.unbind(1)]
        self.logits: list[Tensor] = []

    def __call__(self, **values: Tensor) -> Forced:
        return self

    def pick(
        self, logits: Tensor, uniform: Tensor, mask: LogitMask | None = None, lookup: Lookup | None = None
    ) -> Tensor:
        self.logits.append(logits.float())
        code = self.left.pop(0)
        if lookup is not None:
            lookup.fetch(code)
        return code


@torch.inference_mode()
def stepped(
    engine: Engine, rows: list[int], codes: Tensor, last: Tensor, monkeypatch: pytest.MonkeyPatch
) -> list[Tensor]:
    """Logits [rows, vocab] for every code in turn, by frame steps of these rows from the end of their prompt on."""
    model, runner = engine.model, engine.loop.runner
    assert isinstance(model, Qwen3TTS)
    index, fields = torch.tensor(rows, device=engine.device), runner.rows.fields
    fields["input"][index] = last
    for name, value in (
        ("position", model.prompter.prompt(SpeechRequest(text=TEXT)).length - 1),
        ("frame", 0),
        ("status", Status.RUNNING),
    ):
        fields[name][index] = value
    given = Forced(codes)
    monkeypatch.setattr(frame, "Draw", given)
    for _ in range(FRAMES):
        decode_frame(model, index, runner.table_blocks)
    return given.logits


def worst(engine: Engine, truth: Qwen3TTS, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """The largest relative error of any row's logits for any code, by batch size."""
    assert isinstance(engine.model, Qwen3TTS)
    engine.close()
    generator = torch.Generator().manual_seed(0)
    shape = (KINDS, FRAMES, *engine.model.spec.frame.shape)
    kinds = torch.randint(engine.model.config.predictor.vocab_size, shape, generator=generator).to(engine.device)
    prompts, first, rest = zip(*(forced(truth, SpeechRequest(text=TEXT), codes) for codes in kinds), strict=True)
    expected = [
        torch.stack([first[k][t] if group == 0 else rest[k][t, group - 1] for k in range(KINDS)]).float()
        for t in range(FRAMES)
        for group in range(shape[2])
    ]
    errors: dict[int, float] = {}
    with StepRig(engine, max(sizes), FRAMES) as rig:
        for size in sizes:
            kind = torch.arange(size, device=engine.device) % KINDS
            last = prompts[0][-1].to(engine.model.decoder.pad_text)
            logits = stepped(engine, rig.rows[:size], kinds[kind], last, monkeypatch)
            errors[size] = max(
                float(((ours - right[kind]).norm(dim=-1) / right[kind].norm(dim=-1)).max())
                for ours, right in zip(logits, expected, strict=True)
            )
    return errors


def test_any_batch_on_the_cpu(tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = sonant.load(tiny_checkpoints["custom"], device="cpu", config=EngineConfig(max_rows=9))
    assert isinstance(engine.model, Qwen3TTS)
    errors = worst(engine, engine.model, [1, 2, 9], monkeypatch)
    assert max(errors.values()) < 1e-4, errors


def exact_model(folder: Path, device: str, quantize: Quantization | None = None) -> Qwen3TTS:
    """The model in fp32 without an engine, so that nothing is batched, cached or captured."""
    config = EngineConfig(max_rows=1, quantize=quantize)
    model = load_model(folder, config, torch.device(device), torch.float32, torch.float32)
    assert isinstance(model, Qwen3TTS)
    return model


def widen(model: Qwen3TTS) -> None:
    """Replace weights of eight bits by the same numbers in float32."""
    for part in model.modules.talker.modules():
        for name, child in list(part.named_children()):
            if isinstance(child, QuantizedLinear):
                wide = torch.nn.Linear(1, 1, bias=False).requires_grad_(False)
                wide.weight.data = child.weight.dequantized(torch.float32)
                setattr(part, name, wide)


def test_any_batch_of_fp8_weights_on_the_cpu(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits are those of the same numbers in float32, and near those of the weights as stored."""
    folder, config = tiny_checkpoints["custom"], EngineConfig(max_rows=9)
    published, widened = exact_model(folder, "cpu"), exact_model(folder, "cpu", quantize="fp8")
    widen(widened)
    found = []
    for truth in (widened, published):
        engine = sonant.load(folder, device="cpu", config=config, quantize="fp8")
        with monkeypatch.context() as patches:
            found.append(worst(engine, truth, [1, 9], patches))
    exact, errors = found
    assert max(exact.values()) < 1e-4, exact
    assert min(errors.values()) > 1e-3 and max(errors.values()) < 0.25, errors


@pytest.fixture(scope="module")
def full_exact(full_checkpoint: Path) -> Qwen3TTS:
    return exact_model(full_checkpoint, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(("quantize", "most"), [(None, 0.05), ("fp8", 0.25)])
def test_every_captured_batch_of_the_1_7b_shapes(
    quantize: Quantization | None,
    most: float,
    full_exact: Qwen3TTS,
    full_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compared with the weights as stored, in fp32. With FP8 weights, from 17 rows on the input has eight bits too."""
    # All kernels are compiled in parallel before the engine answers. Few chunk sizes, since sound is not compared.
    config = EngineConfig(max_rows=LARGEST, kv_tokens=256 * LARGEST, chunk_s=(0.32,), quantize=quantize)
    engine = sonant.load(full_checkpoint, device="cuda", config=config)
    errors = worst(engine, full_exact, buckets_up_to(LARGEST), monkeypatch)
    print(quantize or "bf16", {size: round(error, 4) for size, error in errors.items()})
    assert max(errors.values()) < most, errors
    assert max(errors.values()) < (1.5 if quantize is None else 2.5) * errors[1], errors
