"""Higgs Audio V2's codec, in windows, gives the sound of the whole utterance in any chunks and any rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.small_higgs_codec import CONFIG, config_of, random_weight, random_weights
from sonant.kernels import ops
from sonant.kernels.dispatch import choose
from sonant.models.higgs_audio_v2.codec import CodecDecoder
from sonant.models.higgs_audio_v2.codec_config import AcousticConfig, CodecConfig

pytestmark = pytest.mark.usefixtures("no_gradients")

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
PUBLISHED = config_of(CONFIG)
OTHER_RATIOS = replace(
    PUBLISHED,
    acoustic=AcousticConfig(
        decoder_hidden_size=16, hidden_size=6, downsampling_ratios=(3, 2, 7), upsampling_ratios=(3, 2, 7)
    ),
)


def weights_of(config: CodecConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {name: value.shape for name, value in CodecDecoder(config).state_dict().items()}
    return {name: random_weight(name, shape, generator).to(dtype) for name, shape in shapes.items()}


def decoder_of(config: CodecConfig, dtype: torch.dtype) -> CodecDecoder:
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    decoder = CodecDecoder(config).to(wide)
    decoder.load_state_dict(weights_of(config, wide))
    decoder.prepare(dtype)
    return decoder


def whole(config: CodecConfig, weights: dict[str, Tensor], codes: Tensor) -> Tensor:
    """Codes [T, 8] → sound [T · samples_per_frame], by the padded convolutions of the published codec."""

    def conv(x: Tensor, name: str, dilation: int = 1) -> Tensor:
        weight = weights[f"{name}.weight"]
        padding = (weight.shape[2] - 1) // 2 * dilation
        return F.conv1d(x, weight, weights[f"{name}.bias"], padding=padding, dilation=dilation)

    def snake(x: Tensor, name: str) -> Tensor:
        alpha = weights[f"{name}.alpha"]
        return x + torch.sin(alpha * x) ** 2 / (alpha + 1e-9)

    latent = torch.zeros((), dtype=weights["fc2.weight"].dtype)
    for level, column in enumerate(codes.T):
        name = f"quantizer.quantizers.{level}"
        vectors = weights[f"{name}.codebook.embed"][column]
        latent = latent + F.linear(vectors, weights[f"{name}.project_out.weight"], weights[f"{name}.project_out.bias"])
    x = F.linear(latent, weights["fc2.weight"], weights["fc2.bias"]).T[None]
    x = conv(x, "acoustic_decoder.conv1")
    for index, stride in enumerate(config.acoustic.upsampling_ratios):
        block = f"acoustic_decoder.block.{index}"
        up = weights[f"{block}.conv_t1.weight"], weights[f"{block}.conv_t1.bias"]
        x = F.conv_transpose1d(snake(x, f"{block}.snake1"), *up, stride, -(-stride // 2), stride % 2)
        for unit, dilation in (("res_unit1", 1), ("res_unit2", 3), ("res_unit3", 9)):
            inner = conv(snake(x, f"{block}.{unit}.snake1"), f"{block}.{unit}.conv1", dilation)
            x = x + conv(snake(inner, f"{block}.{unit}.snake2"), f"{block}.{unit}.conv2")
    return conv(snake(x, "acoustic_decoder.snake1"), "acoustic_decoder.conv2")[0, 0]


def frames(count: int, seed: int) -> Tensor:
    return torch.randint(0, 1024, (count, 8), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


def window(codes: Tensor, first: int, size: int) -> Tensor:
    """`size` frames from `first` on; those that the utterance does not have are invalid codes."""
    made = torch.full((size, codes.shape[1]), -(2**31), dtype=torch.int32)
    start, end = max(first, 0), min(first + size, len(codes))
    if start < end:
        made[start - first : end - first] = codes[start:end]
    return made


def decode(decoder: CodecDecoder, codes: Tensor, sizes: list[int]) -> Tensor:
    """Decode in chunks of these sizes. The last size is repeated, and may reach past the end."""
    context, parts, at = decoder.context_frames, [], 0
    while at < len(codes):
        size = sizes[min(len(parts), len(sizes) - 1)]
        first = at - context
        given = window(codes, first, size + 2 * context)[None]
        parts.append(decoder(given, torch.tensor([first]).int(), torch.tensor([len(codes)]).int())[0])
        assert parts[-1].shape == (size * decoder.samples_per_frame,)
        at += size
    samples = torch.cat(parts)
    end = len(codes) * decoder.samples_per_frame
    assert not samples[end:].any()
    return samples[:end]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("config", [PUBLISHED, OTHER_RATIOS], ids=["published ratios", "others"])
@pytest.mark.parametrize("sizes", [[1], [2], [3], [8], [1, 4, 2, 7], [40]], ids=str)
def test_windows_are_the_whole_utterance(config: CodecConfig, sizes: list[int], dtype: torch.dtype) -> None:
    codes = frames(27, seed=2)
    expected = whole(config, weights_of(config, dtype), codes)
    got = decode(decoder_of(config, dtype), codes, sizes)
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE[dtype])
    assert float(expected.abs().max()) > 0.1  # it is not silence


@given(count=st.integers(1, 30), sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_any_chunk_sizes_give_the_sound_of_one_shot(count: int, sizes: list[int], seed: int) -> None:
    with torch.no_grad():
        decoder, codes = decoder_of(OTHER_RATIOS, torch.float64), frames(count, seed)
        one_shot = decode(decoder, codes, [count])
        torch.testing.assert_close(decode(decoder, codes, sizes), one_shot, rtol=0, atol=TOLERANCE[torch.float64])


def test_rows_at_different_places_do_not_mix() -> None:
    decoder = decoder_of(PUBLISHED, torch.float64)
    context, size = decoder.context_frames, 3
    lengths, starts = [30, 2, 13, 9], [12, 0, 12, 6]
    codes = [frames(n, seed=n) for n in lengths]
    first = torch.tensor(starts).int() - context
    windows = torch.stack([window(c, s - context, size + 2 * context) for c, s in zip(codes, starts, strict=True)])
    got = decoder(windows, first, torch.tensor(lengths).int())
    for row, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        expected = F.pad(decode(decoder, codes[row], [length]), (0, size * 960))[start * 960 : (start + size) * 960]
        torch.testing.assert_close(got[row], expected, rtol=0, atol=TOLERANCE[torch.float64])


def test_the_context_is_as_long_as_it_must_be() -> None:
    """It is ten frames to either side for the published ratios, and both of the farthest have an effect."""
    decoder = decoder_of(PUBLISHED, torch.float64)
    assert decoder.context_frames == 10 and decoder.samples_per_frame == 960
    codes = frames(40, seed=5)[None]
    first, total = torch.tensor([100]).int(), torch.tensor([200]).int()  # well inside the utterance
    expected = decoder(codes, first, total)
    for frame in (0, -1):
        other = codes.clone()
        other[0, frame] = (other[0, frame] + 7) % 1024
        assert not torch.equal(decoder(other, first, total), expected)


def test_frames_that_come_later_change_nothing() -> None:
    """While a row still speaks, a window that lies within its frames already has its final sound."""
    decoder, codes = decoder_of(PUBLISHED, torch.float64), frames(31, seed=6)
    context, at, size = decoder.context_frames, 4, 5
    given = window(codes, at - context, size + 2 * context)[None]
    first = torch.tensor([at - context]).int()
    so_far = decoder(given, first, torch.tensor([at + size + context]).int())
    torch.testing.assert_close(so_far, decoder(given, first, torch.tensor([31]).int()), rtol=0, atol=0)


def test_bfloat16_is_close_and_the_same_in_any_chunks() -> None:
    codes = frames(20, seed=7)
    exact = decode(decoder_of(PUBLISHED, torch.float64), codes, [20])
    decoder = decoder_of(PUBLISHED, torch.bfloat16)
    got = decode(decoder, codes, [6])
    assert got.dtype is torch.bfloat16
    assert float((got.double() - exact).norm() / exact.norm()) < 0.03
    torch.testing.assert_close(got, decode(decoder, codes, [20]), rtol=0, atol=0.02)
    kept = {name: value.dtype for name, value in decoder.state_dict().items() if "alpha" in name or "table" in name}
    assert set(kept.values()) == {torch.float32}  # a phase is x·α: with only eight bits it would be audibly wrong


def test_with_the_kernels_that_a_gpu_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton's interpreter, with windows whose past, rest and residual are slices of one tensor."""
    pytest.importorskip("triton")
    decoder, codes = decoder_of(OTHER_RATIOS, torch.float32), frames(9, seed=8)
    expected = decode(decoder, codes, [9])
    monkeypatch.setattr(ops, "pick", lambda op, on: choose(op, "cuda").function)
    torch.testing.assert_close(decode(decoder, codes, [4]), expected, rtol=0, atol=TOLERANCE[torch.float32])


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_in_a_graph(dtype: torch.dtype, error: float) -> None:
    """The graph is captured at one place of an utterance and replayed at others, as in the engine."""
    decoder, codes, size = decoder_of(PUBLISHED, dtype).cuda(), frames(23, seed=9), 8
    context = decoder.context_frames
    exact = whole(PUBLISHED, weights_of(PUBLISHED, torch.float64), codes)
    given = torch.zeros(1, size + 2 * context, 8, dtype=torch.int32, device="cuda")
    first, total = (torch.zeros(1, dtype=torch.int32, device="cuda") for _ in "ab")
    decoder(given, first, total)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        samples = decoder(given, first, total)
    parts = []
    for at in range(0, 24, size):
        given.copy_(window(codes, at - context, size + 2 * context)[None])
        first.fill_(at - context)
        total.fill_(23)
        graph.replay()
        parts.append(samples[0].cpu().double())
    got = torch.cat(parts)
    assert not got[23 * 960 :].any()
    assert float((got[: 23 * 960] - exact).norm() / exact.norm()) < error


def test_a_prepared_decoder_holds_nothing_twice() -> None:
    decoder = decoder_of(PUBLISHED, torch.float32)
    held = sum(value.numel() for value in decoder.acoustic_decoder.state_dict().values())
    published = sum(v.numel() for n, v in random_weights().items() if n.startswith("acoustic_decoder."))
    assert held == published
    assert not [name for name in decoder.state_dict() if name.startswith(("quantizer.", "fc2."))]
