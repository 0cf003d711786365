"""FP8 weights of all families: what is quantised, what stays, how many bytes it takes, and that all families speak."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import sonant
from engine.families import HIGGS_AUDIO_V2, QWEN3_TTS, VOXCPM2, Family
from peak_memory import needs_peak_memory, run_python
from sonant import EngineConfig
from sonant.engine.residents import Residents
from sonant.engine.weight_plan import fixed_bytes, least_bytes, planned_blocks
from sonant.errors import CheckpointError, ConfigError
from sonant.kernels.gpu import Gpu
from sonant.layers.quantized import QuantizedLinear
from sonant.layers.transformer import DecoderStack, StackShape
from sonant.loading import check_quantize, expected_weight_bytes
from sonant.models.base import SpeechModel
from sonant.models.registry import check_model, load_model
from sonant.models.weights import SafetensorsFile, allocate, load_into

CPU, META, FLOAT = torch.device("cpu"), torch.device("meta"), torch.float32
PROJECTIONS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
SMALL = {"chunk_s": (0.01,), "max_rows": 2, "steps_ahead": 1, "kv_tokens": 2048}


@pytest.fixture(params=[QWEN3_TTS, HIGGS_AUDIO_V2, VOXCPM2], ids=lambda family: family.name, scope="module")
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = request.param
    return found


@pytest.fixture
def folder(family: Family, tiny_checkpoints: Mapping[str, Path], tiny_higgs: Path, tiny_voxcpm2: Path) -> Path:
    return {"qwen3_tts": tiny_checkpoints["custom"], "higgs_audio_v2": tiny_higgs, "voxcpm2": tiny_voxcpm2}[family.name]


def loaded(folder: Path, quantize: Any, device: torch.device = CPU) -> SpeechModel:
    return load_model(folder, EngineConfig(quantize=quantize), device, FLOAT, FLOAT)


def all_modules(model: SpeechModel) -> dict[str, nn.Module]:
    parts = model.weights().modules
    return {f"{n}.{name}": module for n, part in enumerate(parts) for name, module in part.named_modules()}


def test_projections_are_quantised_and_nothing_else(folder: Path) -> None:
    plain, made = all_modules(loaded(folder, None)), all_modules(loaded(folder, "fp8"))
    assert plain.keys() == made.keys()
    quantized = [name for name, module in made.items() if isinstance(module, QuantizedLinear)]
    assert {name.rpartition(".")[2] for name in quantized} == set(PROJECTIONS)
    for name, module in made.items():
        other = plain[name]
        if isinstance(module, QuantizedLinear):
            assert isinstance(other, nn.Linear)
            back, weight = module.weight.dequantized(FLOAT), other.weight
            assert module.values.dtype == torch.float8_e4m3fn and module.values.shape == weight.shape
            assert torch.equal(module.values.float().abs().amax(1), 448.0 * (weight != 0).any(1))
            assert float((back - weight).norm() / weight.norm()) < 0.04
            continue
        tensors = zip(module.named_parameters(recurse=False), other.named_parameters(recurse=False), strict=True)
        for (_, mine), (kind, theirs) in tensors:
            assert mine.dtype == theirs.dtype and torch.equal(mine, theirs), (name, kind)


def test_heads_embeddings_and_codecs_stay(folder: Path) -> None:
    model = loaded(folder, "fp8", META)
    names = [name for name, module in all_modules(model).items() if isinstance(module, QuantizedLinear)]
    assert names and len(model.weights().modules) > 1
    assert all(name.startswith("0.") for name in names)  # module 0 is the model, the others are the codec's
    assert not any(part in name for name in names for part in ("head", "embed", "fsq", "stop", "pre_transformer"))


def test_memory_is_counted_as_it_will_be(folder: Path) -> None:
    plain, made = loaded(folder, None, META), loaded(folder, "fp8", META)
    layers = sum(m.values.numel() for m in all_modules(made).values() if isinstance(m, QuantizedLinear))
    scales = sum(m.scale.nbytes for m in all_modules(made).values() if isinstance(m, QuantizedLinear))
    assert plain.weights().total_bytes - made.weights().total_bytes == 3 * layers - scales  # four bytes became one
    assert made.spec.frame_weight_bytes < plain.spec.frame_weight_bytes
    config = EngineConfig(quantize="fp8")
    assert expected_weight_bytes(folder, config, (FLOAT, FLOAT)) == made.weights().total_bytes
    weighed = [check_model(folder, EngineConfig(quantize=q), FLOAT, FLOAT).weight_bytes for q in (None, "fp8")]
    assert weighed[0] - weighed[1] == 3 * layers - scales


def test_what_comes_and_goes_is_spoken_to_the_bit(family: Family, folder: Path) -> None:
    """Blocks of eight bits are paged in eight bits, half the bytes of sixteen."""
    weights = loaded(folder, "fp8", META).weights()
    least = least_bytes(planned_blocks(weights), fixed_bytes(weights))
    spoken = []
    for budget in (None, str(least)):
        config = EngineConfig(**SMALL, gpu_weights=budget, quantize="fp8")
        with sonant.load(folder, device="cpu", config=config) as engine:
            assert (engine.loop.runner.paging is not None) == (budget is not None)
            spoken.append(engine.speak(**family.request(1, frames=4)))
    np.testing.assert_array_equal(spoken[0].frames, spoken[1].frames)
    np.testing.assert_array_equal(spoken[0].samples, spoken[1].samples)
    halved = {q: planned_blocks(load_model(folder, EngineConfig(quantize=q), META, torch.bfloat16, FLOAT).weights())
              for q in (None, "fp8")}  # fmt: skip
    layers = [(a.size, b.size) for a, b in zip(halved[None], halved["fp8"], strict=True) if a.size != b.size]
    assert layers and all(0.4 * a < b < 0.8 * a for a, b in layers)


def test_an_engine_that_slept_has_the_same_weights(folder: Path) -> None:
    model = loaded(folder, "fp8")
    parts = [m for m in all_modules(model).values() if isinstance(m, QuantizedLinear)]
    before = [(part.values.view(torch.uint8).clone(), part.scale.clone()) for part in parts]
    residents = Residents(model.weights(), CPU)
    residents.sleep()
    assert not any(part.values.untyped_storage().nbytes() for part in parts)
    residents.wake()
    for part, (values, scale) in zip(parts, before, strict=True):
        assert torch.equal(part.values.view(torch.uint8), values) and torch.equal(part.scale, scale)


@pytest.mark.parametrize("wrong", ["int4", "FP8", ""])
def test_another_kind_is_refused(wrong: Any, tiny_checkpoints: Mapping[str, Path]) -> None:
    with pytest.raises(ConfigError, match="quantize must be fp8, not"):
        EngineConfig(quantize=wrong)
    with pytest.raises(ConfigError, match="quantize must be fp8, not"):
        sonant.load(tiny_checkpoints["custom"], device="cpu", quantize=wrong)


def test_a_gpu_without_such_numbers_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"compute capability 8\.9 or newer.*NVIDIA A100 has 8\.0: leave it out"):
        check_quantize("fp8", Gpu("NVIDIA A100", (8, 0)))
    check_quantize("fp8", Gpu("NVIDIA L4", (8, 9)))
    check_quantize("fp8", None)
    check_quantize(None, Gpu("NVIDIA A100", (8, 0)))


@pytest.mark.parametrize("quantize", [None, "fp8"])
def test_a_checkpoint_that_is_quantised_already_is_refused(
    quantize: Any, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    source = tiny_checkpoints["custom"]
    for path in source.rglob("*"):
        place = tmp_path / path.relative_to(source)
        if path.is_file() and path.name != "model.safetensors":
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path)
    (tmp_path / "speech_tokenizer" / "model.safetensors").symlink_to(source / "speech_tokenizer" / "model.safetensors")
    tensors = load_file(source / "model.safetensors")
    name = next(n for n in tensors if n.endswith("down_proj.weight"))
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"down_proj\.weight is quantised already.*as it was published"):
        loaded(tmp_path, quantize, META)


MEASURE = """
import sys, json, torch
from pathlib import Path
from peak_memory import peak_bytes
torch.set_num_threads(1)
from sonant.layers.transformer import DecoderStack, StackShape
from sonant.models.weights import SafetensorsFile, allocate, load_into
shape = StackShape(**json.loads(sys.argv[2]))
def load(shape, file, quantize):
    with torch.device("meta"):
        stack = DecoderStack(shape)
    stack = allocate(stack, torch.device("cpu"), torch.bfloat16, quantize=quantize)
    load_into(stack, file)
    return stack
before = peak_bytes()
stack = load(shape, SafetensorsFile(Path(sys.argv[1])), sys.argv[3] or None)
print(peak_bytes() - before)
"""


@pytest.mark.slow
@needs_peak_memory
def test_loading_takes_no_more_memory_than_without(tmp_path: Path) -> None:
    shape = {"hidden": 1024, "intermediate": 8192, "layers": 4, "heads": 8, "kv_heads": 4, "head_dim": 64, "eps": 1e-6,
             "rope_theta": 1e4}  # fmt: skip
    stack = DecoderStack(StackShape(**shape)).bfloat16()
    save_file(stack.state_dict(), tmp_path / "a.safetensors")
    arguments = str(tmp_path / "a.safetensors"), json.dumps(shape)
    plain, made = (int(run_python(MEASURE, *arguments, q).stdout) for q in ("", "fp8"))
    assert made < plain


def test_what_was_stored_in_parts_has_each_parts_own_scales(tmp_path: Path) -> None:
    """A channel's scale follows from its own row, whichever tensor and window it was read from."""
    shape = StackShape(hidden=32, intermediate=48, layers=1, heads=2, kv_heads=1, head_dim=16, eps=1e-6, rope_theta=1e4)
    plain = DecoderStack(shape)
    parts = plain.state_dict()
    q, k, v = parts.pop("layers.0.self_attn.qkv_proj.weight").split([32, 16, 16])
    given = {"q": q * 100, "k": k, "v": v / 100}
    parts |= {f"layers.0.self_attn.{n}_proj.weight": t.contiguous() for n, t in given.items()}
    save_file(parts, tmp_path / "a.safetensors")
    with META:
        stack = DecoderStack(shape)
    stack = allocate(stack, CPU, FLOAT, quantize="fp8")
    load_into(stack, SafetensorsFile(tmp_path / "a.safetensors"))
    layer: Any = stack.layers[0]
    back = layer.self_attn.qkv_proj.weight.dequantized(FLOAT)
    for got, wanted in zip(back.split([32, 16, 16]), given.values(), strict=True):
        assert float((got - wanted).norm() / wanted.norm()) < 0.04
