"""VoxCPM2's codec: latents in any pieces give the sound of one shot, and clips become the right latents."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.small_voxcpm2_vae import CONFIG, OTHER_RATES, decoder_of, encoder_of, random_weights
from sonant.errors import BadAudio
from sonant.kernels import ops
from sonant.kernels.dispatch import choose
from sonant.models.voxcpm2.vae import VAEDecoder

pytestmark = pytest.mark.usefixtures("no_gradients")

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


class Plain:
    """The published modules in a few lines. Every convolution sees zeros before its first input."""

    def __init__(self, raw: dict[str, Any], dtype: torch.dtype) -> None:
        self.raw, self.weights = raw, random_weights(raw, dtype)
        self.range = int(torch.bucketize(raw["out_sample_rate"], torch.tensor(raw["sr_bin_boundaries"])))

    def conv(self, x: Tensor, name: str, *, dilation: int = 1, stride: int = 1) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        x = F.pad(x, ((weight.shape[2] - 1) * dilation - (stride - 1), 0))
        groups = x.shape[1] // weight.shape[1]
        return F.conv1d(x, weight, bias, stride=stride, dilation=dilation, groups=groups)

    def snake(self, x: Tensor, name: str) -> Tensor:
        alpha = self.weights[f"{name}.alpha"]
        return x + torch.sin(alpha * x) ** 2 / (alpha + 1e-9)

    def unit(self, x: Tensor, name: str, dilation: int) -> Tensor:
        inner = self.conv(self.snake(x, f"{name}.block.0"), f"{name}.block.1", dilation=dilation)
        return x + self.conv(self.snake(inner, f"{name}.block.2"), f"{name}.block.3")

    def decode(self, latents: Tensor) -> Tensor:
        x = self.conv(self.conv(latents.mT, "decoder.model.0"), "decoder.model.1")
        rates = self.raw["decoder_rates"]
        for at, rate in enumerate(rates, start=2):
            block, condition = f"decoder.model.{at}.block", f"decoder.sr_cond_model.{at}"
            scale, shift = (self.weights[f"{condition}.{n}_embed.weight"][self.range] for n in ("scale", "bias"))
            x = self.snake(x * scale[:, None] + shift[:, None], f"{block}.0")
            x = F.conv_transpose1d(x, self.weights[f"{block}.1.weight"], self.weights[f"{block}.1.bias"], rate)
            x = x[..., :-rate]
            for n, dilation in enumerate((1, 3, 9), start=2):
                x = self.unit(x, f"{block}.{n}", dilation)
        x = self.snake(x, f"decoder.model.{len(rates) + 2}")
        return self.conv(x, f"decoder.model.{len(rates) + 3}")[:, 0].tanh()

    def encode(self, clip: Tensor) -> Tensor:
        x = self.conv(clip[None, None], "encoder.block.0")
        for at, rate in enumerate(self.raw["encoder_rates"], start=1):
            block = f"encoder.block.{at}.block"
            for n, dilation in enumerate((1, 3, 9)):
                x = self.unit(x, f"{block}.{n}", dilation)
            x = self.conv(self.snake(x, f"{block}.3"), f"{block}.4", stride=rate)
        return self.conv(x, "encoder.fc_mu")[0].T


def latents_of(raw: dict[str, Any], rows: int, count: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(rows, count, raw["latent_dim"], generator=generator, dtype=torch.float64).to(dtype)


def in_pieces(decoder: VAEDecoder, latents: Tensor, sizes: list[int], dtype: torch.dtype) -> Tensor:
    """Decode as the engine does: between pieces, the state of all rows is one flat tensor."""
    flat, parts = torch.zeros(len(latents), decoder.tails_size, dtype=dtype), []
    for piece in latents.split(sizes, dim=1):
        state = decoder.unpack(flat)
        parts.append(decoder(piece, state))
        assert parts[-1].shape == (len(latents), piece.shape[1] * decoder.samples_per_latent)
        flat = decoder.pack(state)
        assert flat.shape == (len(latents), decoder.tails_size)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("raw", [CONFIG, OTHER_RATES], ids=["published rates", "others"])
@pytest.mark.parametrize("sizes", [[21], [4, 4, 4, 4, 4, 1], [1] * 21, [12, 2, 7]], ids=str)
def test_pieces_are_the_published_decoder_on_the_whole(
    raw: dict[str, Any], sizes: list[int], dtype: torch.dtype
) -> None:
    latents, decoder = latents_of(raw, 2, 21, dtype), decoder_of(raw, dtype)
    expected = Plain(raw, dtype).decode(latents)
    torch.testing.assert_close(decoder(latents), expected, rtol=0, atol=TOLERANCE[dtype])
    torch.testing.assert_close(in_pieces(decoder, latents, sizes, dtype), expected, rtol=0, atol=TOLERANCE[dtype])
    assert float((expected[0] - expected[1]).std()) > 0.05  # the rows differ


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_any_pieces_are_one_shot(sizes: list[int]) -> None:
    with torch.no_grad():
        decoder, latents = decoder_of(OTHER_RATES, torch.float64), latents_of(OTHER_RATES, 1, sum(sizes), torch.float64)
        got = in_pieces(decoder, latents, sizes, torch.float64)
        torch.testing.assert_close(got, decoder(latents), rtol=0, atol=TOLERANCE[torch.float64])


def test_rows_that_start_at_different_times_do_not_mix() -> None:
    decoder, latents = decoder_of(CONFIG, torch.float64), latents_of(CONFIG, 3, 24, torch.float64)
    tails = torch.full((3, decoder.tails_size), float("nan"), dtype=torch.float64)
    starts, heard = [0, 8, 4], [[], [], []]  # type: tuple[list[int], list[list[Tensor]]]
    for now in range(0, 24, 4):
        rows = [row for row in range(3) if now >= starts[row]]
        tails[[row for row in rows if now == starts[row]]] = 0
        state = decoder.unpack(tails[rows])
        made = decoder(torch.stack([latents[row, now - starts[row] :][:4] for row in rows]), state)
        tails[rows] = decoder.pack(state)
        for row, samples in zip(rows, made, strict=True):
            heard[row].append(samples)
    for row, parts in enumerate(heard):
        got, expected = torch.cat(parts), decoder(latents[row : row + 1])[0]
        torch.testing.assert_close(got, expected[: len(got)], rtol=0, atol=TOLERANCE[torch.float64])


def test_bfloat16_is_close_and_its_phases_are_not_rounded() -> None:
    latents = latents_of(CONFIG, 1, 20, torch.float32)
    exact = decoder_of(CONFIG, torch.float64)(latents)
    decoder = decoder_of(CONFIG, torch.bfloat16)
    got = in_pieces(decoder, latents, [4] * 5, torch.bfloat16)
    assert got.dtype is torch.bfloat16
    assert float((got.double() - exact).norm() / exact.norm()) < 0.03
    kept = {p.dtype for name, p in decoder.named_parameters() if name.endswith("alpha")}
    kept |= {b.dtype for name, b in decoder.named_buffers() if name.endswith("beta")}
    assert kept == {torch.float32}  # a phase is x·α: with only eight bits it would be audibly wrong


def test_with_the_kernels_that_a_gpu_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton's interpreter, with no more launches than the decoder has convolutions."""
    pytest.importorskip("triton")
    decoder, latents = decoder_of(OTHER_RATES, torch.float32), latents_of(OTHER_RATES, 2, 6, torch.float32)
    expected = decoder(latents)
    picked: list[str] = []

    def pick(op: str, on: Tensor) -> Any:
        picked.append(op)
        return choose(op, "cuda").function

    monkeypatch.setattr(ops, "pick", pick)
    got = in_pieces(decoder, latents, [4, 2], torch.float32)
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE[torch.float32])
    blocks = len(OTHER_RATES["decoder_rates"])
    assert (picked.count("depthwise"), picked.count("causal_conv")) == (2 * (1 + 3 * blocks), 2 * (2 + 4 * blocks))
    assert set(picked) == {"depthwise", "causal_conv"}


def test_a_prepared_decoder_holds_nothing_twice() -> None:
    decoder, weights = decoder_of(CONFIG, torch.float32), random_weights(CONFIG)
    held = sum(p.numel() for p in decoder.parameters())
    assert held == sum(v.numel() for n, v in weights.items() if n.startswith("decoder.model."))


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_in_a_graph(dtype: torch.dtype, error: float) -> None:
    """The graph is captured once and replayed for every patch, as in the engine."""
    decoder, latents = decoder_of(CONFIG, dtype).cuda(), latents_of(CONFIG, 2, 20, torch.float32).cuda()
    exact = Plain(CONFIG, torch.float64).decode(latents.double().cpu())
    given, flat = latents[:, :4].clone(), torch.zeros(2, decoder.tails_size, dtype=dtype, device="cuda")
    decoder(given, decoder.unpack(flat.clone()))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        state = decoder.unpack(flat)
        samples = decoder(given, state)
        flat.copy_(decoder.pack(state))
    flat.zero_()
    parts = []
    for piece in latents.split(4, dim=1):
        given.copy_(piece)
        graph.replay()
        parts.append(samples.cpu().double())
    assert float((torch.cat(parts, dim=1) - exact).norm() / exact.norm()) < error


@pytest.mark.parametrize("raw", [CONFIG, OTHER_RATES], ids=["published rates", "others"])
def test_a_clip_becomes_the_published_encoders_means(raw: dict[str, Any]) -> None:
    encoder, plain = encoder_of(raw), Plain(raw, torch.float64)
    hop = encoder.config.clip_samples_per_latent
    for latents in (1, 2, 9):
        clip = torch.randn(latents * hop, generator=torch.Generator().manual_seed(latents))
        got = encoder.encode(clip)
        assert got.shape == (latents, raw["latent_dim"]) and got.dtype is torch.float32
        torch.testing.assert_close(got.double(), plain.encode(clip.double()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("samples", [1, 640, 2560, 2561, 9000])
def test_silence_is_added_on_the_side_asked_for(samples: int) -> None:
    encoder = encoder_of(CONFIG)
    clip = torch.randn(samples, generator=torch.Generator().manual_seed(samples))
    missing = -samples % 2560
    for side, padded in (("right", F.pad(clip, (0, missing))), ("left", F.pad(clip, (missing, 0)))):
        got = encoder.encode_clip(clip, side)  # type: ignore[arg-type]
        assert got.shape == (-(-samples // 2560), 4, CONFIG["latent_dim"])
        assert torch.equal(got.flatten(0, 1), encoder.encode(padded))


def test_no_convolution_of_the_encoder_may_round(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    plain = torch._convolution

    def noted(*args: Any, allow_tf32: bool) -> Tensor:
        told.append(allow_tf32)
        return plain(*args, allow_tf32=allow_tf32)

    monkeypatch.setattr(torch, "_convolution", noted)
    encoder_of(CONFIG).encode(torch.ones(2560))
    assert told == [False] * (2 + 4 * (3 * 2 + 1))


def test_clips_that_cannot_be_encoded() -> None:
    encoder = encoder_of(CONFIG)
    with pytest.raises(BadAudio, match="some seconds of speech"):
        encoder.encode_clip(torch.zeros(0), "right")
    with pytest.raises(ValueError, match="641 samples are no multiple of 640"):
        encoder.encode(torch.zeros(641))
