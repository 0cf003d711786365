"""The codec's weights of eight bits: which units get them, from what, and that the sound stays near what it was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sonant.kernels import ops, reference
from sonant.kernels.cuda import int8_unit
from sonant.kernels.gpu import Gpu, planning_for
from sonant.models.qwen3_tts import codec_int8
from sonant.models.qwen3_tts.checkpoint import load_modules
from sonant.models.qwen3_tts.codec import CodecDecoder, ResidualUnit
from sonant.models.qwen3_tts.config import CodecConfig, Qwen3TTSConfig
from sonant.models.weights import load_into, open_weights

H200 = Gpu("NVIDIA H200", (9, 0))
WIDTHS = (32, 16)  # the tiny codec has 32, 16, 8 and 4


def made(folder: Path) -> CodecDecoder:
    with torch.device("meta"):
        module = CodecDecoder(CodecConfig.read(folder / "speech_tokenizer").decoder)
    module.to_empty(device="cpu").requires_grad_(False)
    load_into(module, open_weights(folder / "speech_tokenizer"), prefix="decoder.", unused=("encoder.",))
    module.prepare()
    return module


@pytest.fixture
def decoder(tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch) -> CodecDecoder:
    monkeypatch.setattr(codec_int8, "LAYOUTS", WIDTHS)
    return made(tiny_checkpoints["base"])


def units_of(decoder: CodecDecoder) -> list[ResidualUnit]:
    return [unit for unit in decoder.modules() if isinstance(unit, ResidualUnit)]


def weights_of(decoder: CodecDecoder) -> list[Tensor]:
    return [part for unit in units_of(decoder) if unit.int8 is not None for part in unit.int8.weight]


def spoken(decoder: CodecDecoder, codes: Tensor) -> Tensor:
    with torch.inference_mode():
        sound: Tensor = decoder(codes[None], torch.zeros(1, dtype=torch.long))[0]
    return sound


def codes_of(frames: int) -> Tensor:
    return torch.randint(0, 2048, (frames, 16), generator=torch.Generator().manual_seed(9))


def test_wide_units_have_them_and_all_else_stays(decoder: CodecDecoder) -> None:
    codes, stored = codes_of(8), set(decoder.state_dict())
    before = spoken(decoder, codes)
    codec_int8.quantize_units(decoder)
    assert [unit.int8 is not None for unit in units_of(decoder)] == [True] * 6 + [False] * 6
    assert torch.equal(spoken(decoder, codes), before)  # a CPU has no kernel for them
    assert set(decoder.state_dict()) == stored
    assert not any(unit.conv1._forward_pre_hooks for unit in units_of(decoder))


def test_the_sound_in_eight_bits_is_near(decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_eight_bits(*given: Any, **options: Any) -> tuple[Tensor, Tensor]:
        computed = reference.residual_unit if given[2].int8 is None else reference.int8_unit
        return computed(*given, **options)

    before = spoken(decoder, codes_of(30))
    codec_int8.quantize_units(decoder)
    monkeypatch.setattr(ops, "residual_unit", in_eight_bits)
    error = (spoken(decoder, codes_of(30)) - before).norm() / before.norm()
    assert 0 < float(error) < 0.03


def test_all_who_load_a_model_round_alike(decoder: CodecDecoder, tiny_checkpoints: Mapping[str, Path]) -> None:
    torch.manual_seed(1)
    codec_int8.quantize_units(decoder)
    first = weights_of(decoder)
    torch.manual_seed(2)
    other = made(tiny_checkpoints["base"])
    codec_int8.quantize_units(other)
    assert len(first) == 18 and all(map(torch.equal, first, weights_of(other)))


def test_codes_are_drawn_as_often_as_they_were_used(decoder: CodecDecoder) -> None:
    for part in (decoder.quantizer.rvq_first, decoder.quantizer.rvq_rest):
        for layer in part.vq.layers:
            usage = layer._codebook.cluster_usage
            usage.zero_()
            usage[torch.tensor([5, 7])] = 1e6
    drawn = torch.cat(list(codec_int8._drawn_codes(decoder)), 1)
    assert set(drawn.flatten().tolist()) == {5, 7}


@pytest.mark.parametrize(
    ("gpu", "dtype", "quantize", "has"),
    [
        (H200, torch.bfloat16, "fp8", True),
        (H200, torch.bfloat16, None, False),
        (H200, torch.float32, "fp8", False),
        (Gpu("NVIDIA L4", (8, 9)), torch.bfloat16, "fp8", False),
    ],
)
def test_a_quantised_model_on_hopper_has_them(
    gpu: Gpu, dtype: torch.dtype, quantize: str | None, has: bool, tiny_checkpoints: Mapping[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The model is planned on the meta device, as for compiling its kernels ahead."""
    monkeypatch.setattr(codec_int8, "LAYOUTS", WIDTHS)
    monkeypatch.setattr(int8_unit, "obstacle", lambda g: None if g == H200 else "another")
    folder = tiny_checkpoints["base"]
    with planning_for(gpu):
        decoder = load_modules(
            folder, Qwen3TTSConfig.read(folder), torch.device("meta"), dtype, dtype, quantize=quantize
        ).decoder
    assert bool(weights_of(decoder)) is has
    assert all(part.device.type == "meta" for part in weights_of(decoder))
