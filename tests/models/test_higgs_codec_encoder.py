"""The codec's encoder against the same network built from torch's own parts, and clips of any length."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.small_higgs_codec import CONFIG, config_of, random_weights
from sonant.errors import BadAudio
from sonant.models.higgs_audio_v2.codec_encoder import CodecEncoder
from sonant.models.higgs_audio_v2.sinc_resample import sinc_resample

pytestmark = pytest.mark.usefixtures("no_gradients")

WEIGHTS = random_weights()
LENGTHS = [119, 120, 959, 960, 961, 1440, 4799, 4800, 9001]  # some are padded with silence on both sides


@pytest.fixture(scope="module")
def encoder() -> CodecEncoder:
    module = CodecEncoder(config_of(CONFIG))
    module.load_state_dict({name: WEIGHTS[name] for name in module.state_dict()})
    return module.eval()


def noise(samples: int) -> Tensor:
    return 0.3 * torch.randn(samples, generator=torch.Generator().manual_seed(samples))


def part(prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in WEIGHTS.items() if name.startswith(prefix)}


def dac(samples: Tensor) -> Tensor:
    """Samples [1, 1, T] → acoustic features [1, channels, frames]."""

    def snake(x: Tensor, name: str) -> Tensor:
        alpha = WEIGHTS[f"acoustic_encoder.{name}.alpha"]
        return x + torch.sin(alpha * x) ** 2 / (alpha + 1e-9)

    def conv(x: Tensor, name: str, **options: int) -> Tensor:
        own = part(f"acoustic_encoder.{name}.")
        return F.conv1d(x, own["weight"], own["bias"], **options)

    x = conv(samples, "conv1", padding=3)
    for index, stride in enumerate((8, 5, 4, 2, 3)):
        block = f"block.{index}"
        for unit, dilation in (("res_unit1", 1), ("res_unit2", 3), ("res_unit3", 9)):
            inner = conv(snake(x, f"{block}.{unit}.snake1"), f"{block}.{unit}.conv1", padding=3 * dilation,
                         dilation=dilation)  # fmt: skip
            x = x + conv(snake(inner, f"{block}.{unit}.snake2"), f"{block}.{unit}.conv2")
        x = conv(snake(x, f"{block}.snake1"), f"{block}.conv1", stride=stride, padding=math.ceil(stride / 2))
    return conv(snake(x, "snake1"), "conv2", padding=1)


def hubert(samples: Tensor) -> Tensor:
    """Samples [1, T] at 16 kHz → semantic features [1, frames, 12], with torch's own transformer layers."""
    x = samples[:, None]
    for index, (kernel, stride) in enumerate(zip((10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2), strict=True)):
        own = part(f"semantic_model.feature_extractor.conv_layers.{index}.")
        assert own["conv.weight"].shape[2] == kernel
        x = F.conv1d(x, own["conv.weight"], stride=stride)
        if index == 0:
            x = (x - x.mean(2, keepdim=True)) / (x.var(2, correction=0, keepdim=True) + 1e-5).sqrt()
            x = x * own["layer_norm.weight"][:, None] + own["layer_norm.bias"][:, None]
        x = F.gelu(x)
    own = part("semantic_model.feature_projection.")
    x = F.layer_norm(x.mT, (6,), own["layer_norm.weight"], own["layer_norm.bias"])
    x = F.linear(x, own["projection.weight"], own["projection.bias"])
    positions = nn.utils.parametrizations.weight_norm(nn.Conv1d(12, 12, 8, padding=4, groups=2), dim=2)
    positions.load_state_dict(part("semantic_model.encoder.pos_conv_embed.conv."))
    own = part("semantic_model.encoder.layer_norm.")
    x = F.layer_norm(x + F.gelu(positions(x.mT)[..., :-1]).mT, (12,), own["weight"], own["bias"])
    states = [x]
    for index in range(2):
        states.append(official_layer(index)(states[-1]))
    return sum(states[1:], states[0]) / len(states)


def official_layer(index: int) -> nn.Module:
    own = part(f"semantic_model.encoder.layers.{index}.")
    layer = nn.TransformerEncoderLayer(12, 3, 20, 0.0, "gelu", batch_first=True, norm_first=False)
    names = {
        "linear1": "feed_forward.intermediate_dense",
        "linear2": "feed_forward.output_dense",
        "norm1": "layer_norm",
        "norm2": "final_layer_norm",
        "self_attn.out_proj": "attention.out_proj",
    }
    state = {f"{a}.{kind}": own[f"{b}.{kind}"] for a, b in names.items() for kind in ("weight", "bias")}
    for kind in ("weight", "bias"):
        state[f"self_attn.in_proj_{kind}"] = torch.cat([own[f"attention.{p}_proj.{kind}"] for p in "qkv"])
    layer.load_state_dict(state)
    return layer.eval()


def semantic_encoder(x: Tensor) -> Tensor:
    own = part("encoder_semantic.")
    x = F.conv1d(x, own["conv.weight"], padding=1)
    for block in ("conv_blocks.0", "conv_blocks.1"):
        for unit in (f"{block}.res_units.0", f"{block}.res_units.1"):
            inner = F.elu(F.conv1d(F.elu(x), own[f"{unit}.conv1.weight"], padding=1))
            x = x + F.conv1d(inner, own[f"{unit}.conv2.weight"])
        x = F.conv1d(x, own[f"{block}.conv.weight"], own[f"{block}.conv.bias"], padding=1)
    return x


def expected_codes(clip: Tensor) -> Tensor:
    heard = hubert(F.pad(sinc_resample(clip[None], 24000, 16000), (160, 160)))[:, ::2]
    semantic = semantic_encoder(heard.mT)
    acoustic = dac(clip[None, None]) if len(clip) >= 959 else torch.zeros(1, 6, 0)
    if acoustic.shape[2] != semantic.shape[2]:
        acoustic = dac(F.pad(clip, (480, 480))[None, None])
    x = F.linear(torch.cat([acoustic, semantic], 1)[0].T, WEIGHTS["fc.weight"], WEIGHTS["fc.bias"])
    codes = []
    for level in range(8):
        own = part(f"quantizer.quantizers.{level}.")
        inner = F.linear(x, own["project_in.weight"], own["project_in.bias"])
        codes.append(torch.cdist(inner.double(), own["codebook.embed"].double()).argmin(1))
        x = x - F.linear(own["codebook.embed"][codes[-1]], own["project_out.weight"], own["project_out.bias"])
    return torch.stack(codes, 1)


@pytest.mark.parametrize("samples", LENGTHS)
def test_codes_are_those_of_the_published_network(encoder: CodecEncoder, samples: int) -> None:
    clip = noise(samples)
    got = encoder.encode(clip)
    assert got.shape == (encoder.frames(samples), 8) and got.dtype is torch.int64
    assert torch.equal(got, expected_codes(clip))


def test_a_clip_of_any_length_has_as_many_frames_of_both_kinds(encoder: CodecEncoder) -> None:
    """Otherwise they could not be concatenated. Silence around a clip changes only the number of acoustic frames."""
    for samples in range(119, 119 + 2 * 960):
        wanted, alone = encoder.frames(samples), encoder.acoustic_encoder.frames(samples)
        assert wanted in (alone, encoder.acoustic_encoder.frames(samples + 960)), samples
    assert encoder.frames(24000 * 10) == 250


@pytest.mark.parametrize("samples", [0, 1, 118])
def test_a_clip_too_short_for_a_frame_is_refused(encoder: CodecEncoder, samples: int) -> None:
    with pytest.raises(BadAudio, match=r"too short for one frame.*some seconds"):
        encoder.encode(noise(samples))


@pytest.mark.parametrize(("rate", "to"), [(24000, 16000), (16000, 24000), (24000, 24000)])
def test_resampling_is_a_windowed_sinc(rate: int, to: int) -> None:
    """Each output is compared with the formula itself, over all inputs."""
    samples = noise(200)
    got = sinc_resample(samples[None], rate, to)[0]
    assert len(got) == math.ceil(200 * to / rate)
    if rate == to:
        assert torch.equal(got, samples)
        return
    cutoff = 0.99 * min(rate, to)
    for index in (0, 1, 2, 3, 57, len(got) - 1):
        distance = (torch.arange(200, dtype=torch.float64) / rate - index / to) * cutoff
        window = torch.cos(distance.clamp(-6, 6) * math.pi / 12) ** 2
        value = (samples.double() * torch.sinc(distance) * window).sum() * cutoff / rate
        assert float(got[index]) == pytest.approx(float(value), abs=1e-5)
