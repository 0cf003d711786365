"""Decode steps of VoxCPM2 with given patches at every batch size that has a graph: a kernel may be right for one row
and not for sixteen. Rows of a batch have different patches, so it shows if one reads another's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import sonant
from parity.forcing import relative
from sonant import Engine, EngineConfig
from sonant.bench.engine.listener import TEXT
from sonant.bench.engine.step_rig import StepRig
from sonant.engine.graphs import buckets_up_to
from sonant.kernels import ops
from sonant.layers.attention import FullContext
from sonant.models.base import decode_frame
from sonant.models.registry import load_model
from sonant.models.status import Status
from sonant.models.voxcpm2 import frame
from sonant.models.voxcpm2.flow import flow, schedule
from sonant.models.voxcpm2.model import VoxCPM2
from sonant.types import SpeechRequest

FRAMES, KINDS, STEPS = 3, 5, 10  # patches of an utterance; different utterances, which rows have in turn; flow steps
MOST = 256  # rows of a step in an engine on a large GPU


class Forced:
    """Replaces the flow: returns given patches, and keeps its prefixes."""

    def __init__(self, patches: Tensor) -> None:
        self.left = list(patches.unbind(1))
        self.prefixes: list[Tensor] = []

    def __call__(self, estimator: object, plan: object, noise: object, prefix: Tensor, *rest: object) -> Tensor:
        self.prefixes.append(prefix.float())
        return self.left.pop(0)


@torch.inference_mode()
def forced_prefixes(model: VoxCPM2, patches: Tensor) -> Tensor:
    """The flow's prefixes for patches [n, …], from one pass without a cache."""
    m, layout = model.modules.model, model.prompter.builder.layout(SpeechRequest(text=TEXT))
    text = m.base_lm.embed_tokens(torch.from_numpy(layout.text).to(model.device).long())[None]
    sound = m.embed_patches(patches[:-1])[None]
    x, given = torch.cat([text, sound], 1), torch.cat([torch.zeros_like(text), sound], 1)
    positions = torch.arange(x.shape[1], device=model.device)[None]
    state = m.base_lm(x, positions, FullContext())
    state = torch.where((positions >= text.shape[1])[..., None], m.fsq_layer(state), state)
    residual = m.residual_lm(m.residual_input(state, given), positions, FullContext())
    at = slice(text.shape[1] - 1, None)
    return m.flow_prefix(state[0, at], residual[0, at]).float()


@torch.inference_mode()
def stepped(engine: Engine, rows: list[int], patches: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The flow's prefixes [rows, …] for every patch in turn, by decode steps from the end of the prompt on."""
    model, runner = engine.model, engine.loop.runner
    assert isinstance(model, VoxCPM2)
    index, fields = torch.tensor(rows, device=engine.device), runner.rows.fields
    layout = model.prompter.builder.layout(SpeechRequest(text=TEXT))
    fields["input"][index] = model.modules.model.base_lm.embed_tokens.weight[int(layout.text[-1])]
    fields["before"][index] = 0
    start = {"position": len(layout.text) - 1, "frame": 0, "text_input": 1, "status": int(Status.RUNNING)}
    for name, value in start.items():
        fields[name][index] = value
    given = Forced(patches)
    monkeypatch.setattr(frame, "flow", given)
    for _ in range(FRAMES):
        decode_frame(model, index, runner.table_blocks, STEPS)
    return given.prefixes


def worst(engine: Engine, truth: VoxCPM2, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """The largest relative error of any row's prefix, by batch size."""
    engine.close()
    shape = (KINDS, FRAMES, *truth.spec.frame.shape)
    kinds = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(engine.device)
    expected = torch.stack([forced_prefixes(truth, patches) for patches in kinds], 1)
    errors: dict[int, float] = {}
    with StepRig(engine, max(sizes), FRAMES + 1) as rig:
        for size in sizes:
            kind = torch.arange(size) % KINDS
            prefixes = stepped(engine, rig.rows[:size], kinds[kind], monkeypatch)
            errors[size] = max(
                relative(ours[n], right[k])
                for ours, right in zip(prefixes, expected, strict=True)
                for n, k in enumerate(kind.tolist())
            )
    return errors


@torch.inference_mode()
def flow_errors(model: VoxCPM2, truth: VoxCPM2, sizes: list[int]) -> dict[int, float]:
    """The largest relative error of any row's patch after a whole flow with the same noise, by batch size."""
    ours, exact = (m.modules.model.feat_decoder.estimator for m in (model, truth))
    plans, made = [schedule(estimator, STEPS) for estimator in (ours, exact)], {}
    hidden, patch = exact.in_proj.weight.shape[0], truth.spec.frame.shape
    generator = torch.Generator().manual_seed(1)
    noise, before = (torch.randn(KINDS, *patch, generator=generator).to(model.device) for _ in range(2))
    prefix = torch.randn(KINDS, 2, hidden, generator=generator).to(model.device)
    guidance = torch.full((KINDS,), 2.0, device=model.device)
    expected = flow(exact, plans[1], noise, prefix, before, guidance)
    for size in sizes:
        kind = torch.arange(size, device=model.device) % KINDS
        asked = prefix[kind].to(ours.in_proj.weight.dtype)
        found = flow(ours, plans[0], noise[kind], asked, before[kind], guidance[kind])
        made[size] = max(relative(found[n], expected[k]) for n, k in enumerate(kind.tolist()))
    return made


def in_place(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    return residual.add_(F.linear(x, weight))


def test_any_batch_on_the_cpu(tiny_voxcpm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums overwrite what they are added to, as a library's kernel does for some batches, so no code may read a stack's
    input again."""
    monkeypatch.setattr(ops, "linear_add", in_place)
    engine = sonant.load(tiny_voxcpm2, device="cpu", config=EngineConfig(max_rows=9))
    assert isinstance(engine.model, VoxCPM2)
    assert max(flow_errors(engine.model, engine.model, [1, 2, 9]).values()) < 1e-4
    errors = worst(engine, engine.model, [1, 2, 9], monkeypatch)
    assert max(errors.values()) < 1e-4, errors


@pytest.mark.gpu
def test_every_captured_batch_of_the_2b_shapes_in_bf16(full_voxcpm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with the same weights in fp32. A number near an edge of the quantiser may fall on the other side in
    bf16, so the language models' states differ by more than rounding."""
    truth = load_model(full_voxcpm2, EngineConfig(), torch.device("cuda"), torch.float32, torch.float32)
    assert isinstance(truth, VoxCPM2)
    engine = sonant.load(full_voxcpm2, device="cuda", config=EngineConfig(max_rows=MOST, warm_rows=1, kv_tokens=65_536))
    assert isinstance(engine.model, VoxCPM2)
    sizes = buckets_up_to(MOST)
    for errors in (flow_errors(engine.model, truth, sizes), worst(engine, truth, sizes, monkeypatch)):
        print({size: round(error, 4) for size, error in errors.items()})
        assert max(errors.values()) < 0.15, errors
        assert max(errors.values()) < 1.5 * errors[1], errors


@pytest.mark.gpu
def test_every_captured_batch_of_the_2b_shapes_with_fp8_weights(
    full_voxcpm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with the weights as stored, in fp32. With more than 64 tokens the input has eight bits too."""
    truth = load_model(full_voxcpm2, EngineConfig(), torch.device("cuda"), torch.float32, torch.float32)
    config = EngineConfig(max_rows=MOST, warm_rows=1, kv_tokens=65_536, quantize="fp8")
    engine = sonant.load(full_voxcpm2, device="cuda", config=config)
    assert isinstance(truth, VoxCPM2) and isinstance(engine.model, VoxCPM2)
    sizes = buckets_up_to(MOST)
    for errors in (flow_errors(engine.model, truth, sizes), worst(engine, truth, sizes, monkeypatch)):
        print("fp8", {size: round(error, 4) for size, error in errors.items()})
        assert max(errors.values()) < 0.5, errors
        assert max(errors.values()) < 2.5 * errors[1], errors
