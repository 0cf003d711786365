"""The streaming codec gives the sound of one shot in any chunks and any rows, with any start and stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sonant.kernels import ops, reference
from sonant.kernels.reference import Snake, Unit
from sonant.models.qwen3_tts.codec import CodecDecoder, CodecState
from sonant.models.qwen3_tts.config import CodecConfig
from sonant.models.weights import load_into, open_weights

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def decoder(tiny_checkpoints: Mapping[str, Path]) -> CodecDecoder:
    folder = tiny_checkpoints["base"] / "speech_tokenizer"
    with torch.device("meta"):
        module = CodecDecoder(CodecConfig.read(folder).decoder)
    module.to_empty(device="cpu").requires_grad_(False)
    load_into(module, open_weights(folder), prefix="decoder.", unused=("encoder.",))
    module.prepare()
    return module


class Rows:
    """The state of `count` rows, as the engine keeps it: undefined until it is cleared."""

    def __init__(self, decoder: CodecDecoder, count: int, most_frames: int) -> None:
        layers, two, *slots = decoder.ring_shape(most_frames)
        self.decoder = decoder
        self.tails = torch.full((count, decoder.tails_size), float("nan"))
        self.ring = torch.full((layers, two, count, *slots), float("nan"))

    def clear(self, row: int) -> None:
        self.tails[row], self.ring[:, :, row] = 0, 0

    def decode(self, rows: list[int], codes: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        state = CodecState(self.decoder.unpack(self.tails[rows]), self.ring, torch.tensor(rows))
        samples: torch.Tensor = self.decoder(codes, first, state)
        self.tails[rows] = self.decoder.pack(state.tails)
        return samples


def one_shot(decoder: CodecDecoder, codes: torch.Tensor) -> torch.Tensor:
    return decoder(codes[None], torch.zeros(1, dtype=torch.long))[0]


def test_one_shot_is_the_official_sound(
    decoder: CodecDecoder, golden: Callable[[str], Mapping[str, np.ndarray]]
) -> None:
    expected = golden("base")
    got = one_shot(decoder, torch.from_numpy(expected["codec_long/codes0"]))
    np.testing.assert_allclose(got.numpy(), expected["codec_long/wav0"], rtol=0, atol=TOLERANCE)


@given(sizes=st.lists(st.integers(1, 24), min_size=1, max_size=8), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_chunk_sizes_give_the_one_shot_sound(decoder: CodecDecoder, sizes: list[int], seed: int) -> None:
    total = sum(sizes)
    codes = torch.randint(0, 2048, (total, 16), generator=torch.Generator().manual_seed(seed))
    rows = Rows(decoder, 1, most_frames=max(sizes))
    rows.clear(0)
    parts, at = [], 0
    for size in sizes:
        parts.append(rows.decode([0], codes[None, at : at + size], torch.tensor([at]))[0])
        at += size
    torch.testing.assert_close(torch.cat(parts), one_shot(decoder, codes), rtol=0, atol=TOLERANCE)


def test_units_by_turns_from_one_kernel_or_another_leave_the_same_sound_and_state(
    decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that grows or shrinks may change which kernel computes a unit, but never a row's state."""
    turns = iter(range(1000))
    asked: set[tuple[int, ...]] = set()

    def by_turns(
        x: torch.Tensor, active: torch.Tensor, unit: Unit, past: torch.Tensor, following: Snake, *, keep: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        asked.add(tuple(x.shape))
        if next(turns) % 3 == 0:
            return reference.residual_unit(x, active, unit, past, following, keep=keep)
        _, inner = ops.causal_conv(active, unit.wide, unit.wide_bias, past, unit.dilation, snake=unit.between)
        raw, result = ops.causal_conv(inner, unit.point, unit.point_bias, None, residual=x, snake=following)
        return raw if keep else raw[:0], result.clone()

    monkeypatch.setattr(ops, "residual_unit", by_turns)
    codes = torch.randint(0, 2048, (20, 16), generator=torch.Generator().manual_seed(3))
    rows = Rows(decoder, 1, most_frames=5)
    rows.clear(0)
    with torch.no_grad():
        parts = [rows.decode([0], codes[None, at : at + 5], torch.tensor([at]))[0] for at in range(0, 20, 5)]
    monkeypatch.undo()
    torch.testing.assert_close(torch.cat(parts), one_shot(decoder, codes), rtol=0, atol=TOLERANCE)
    assert asked == {(1, 5 * 32, 32), (1, 5 * 160, 16), (1, 5 * 640, 8), (1, 5 * 1920, 4)}


def test_rows_that_start_and_stop_at_different_times_do_not_mix(decoder: CodecDecoder) -> None:
    g = torch.Generator().manual_seed(4)
    lengths, starts, step = [30, 9, 21, 12], [0, 3, 6, 18], 3
    codes = [torch.randint(0, 2048, (n, 16), generator=g) for n in lengths]
    store = Rows(decoder, 4, most_frames=step)
    heard: list[list[torch.Tensor]] = [[] for _ in lengths]
    for now in range(0, 30, step):
        rows = [r for r in range(4) if starts[r] <= now < starts[r] + lengths[r]]
        first = torch.tensor([now - starts[r] for r in rows])
        for r in rows:
            if now == starts[r]:
                store.clear(r)
        batch = torch.stack([codes[r][now - starts[r] :][:step] for r in rows])
        for r, samples in zip(rows, store.decode(rows, batch, first), strict=True):
            heard[r].append(samples)
    for r, parts in enumerate(heard):
        torch.testing.assert_close(torch.cat(parts), one_shot(decoder, codes[r]), rtol=0, atol=TOLERANCE)


def test_what_follows_the_end_does_not_change_what_came_before(decoder: CodecDecoder) -> None:
    codes = torch.randint(0, 2048, (12, 16), generator=torch.Generator().manual_seed(5))
    padded = torch.cat([codes[:7], torch.zeros(5, 16, dtype=torch.long)])
    torch.testing.assert_close(
        one_shot(decoder, padded)[: 7 * 1920], one_shot(decoder, codes)[: 7 * 1920], rtol=0, atol=TOLERANCE
    )
