"""The reference ops against slow, literal implementations of what they must do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.reference import LogitMask, Ras, SamplingParams


def naive_distribution(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """The published order of processors, one step at a time: temperature, top-k, top-p, softmax."""
    scores = logits / temperature
    if top_k:
        kth = scores.topk(min(top_k, len(scores))).values[-1]
        scores = scores.masked_fill(scores < kth, -math.inf)
    ascending, order = scores.sort()
    remove = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    remove[-1] = False
    scores = scores.masked_fill(torch.zeros_like(remove).scatter(0, order, remove), -math.inf)
    return scores.softmax(-1)


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("top_k", [0, 1, 5, 100])
@pytest.mark.parametrize("top_p", [0.1, 0.8, 1.0])
def test_draws_follow_the_distribution_of_the_published_processors(
    temperature: float, top_k: int, top_p: float
) -> None:
    torch.manual_seed(int(100 * temperature) + top_k)
    logits = torch.randn(40) * 2
    expected = naive_distribution(logits, temperature, top_k, top_p)
    draws = 4000
    uniform = (torch.arange(draws) + 0.5) / draws  # evenly spread, so that counts are exact to one in `draws`
    drawn = reference.sample(
        logits.expand(draws, -1),
        uniform,
        SamplingParams(
            greedy=torch.zeros(draws, dtype=torch.bool),
            temperature=torch.full((draws,), temperature),
            top_k=torch.full((draws,), top_k),
            top_p=torch.full((draws,), top_p),
        ),
    )
    counts = torch.bincount(drawn, minlength=40) / draws
    torch.testing.assert_close(counts, expected, rtol=0, atol=2 / draws)


def test_greedy_rows_take_the_best_and_others_do_not_disturb_them() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    greedy = torch.tensor([True, False, True, False, True, False])
    options = {"temperature": torch.full((6,), 5.0), "top_k": torch.zeros(6, dtype=torch.int32), "top_p": torch.ones(6)}
    uniform = torch.rand(6, generator=torch.Generator().manual_seed(2))
    together = reference.sample(logits, uniform, SamplingParams(greedy, **options))
    assert (together == logits.argmax(-1))[greedy].all()
    for n in range(6):
        params = SamplingParams(greedy[n : n + 1], **{k: v[:1] for k, v in options.items()})
        alone = reference.sample(logits[n : n + 1], uniform[n : n + 1], params)
        assert alone[0] == together[n]


@pytest.mark.parametrize("edge", [0.0, 1 - 2**-23])
def test_the_edges_of_the_uniform_range_draw_allowed_ids(edge: float) -> None:
    logits = torch.full((1, 3072), -math.inf)
    logits[0, 100:103] = torch.tensor([0.0, 1.0, 0.5])
    one = torch.ones(1)
    params = SamplingParams(greedy=one < 0, temperature=one, top_k=(50 * one).int(), top_p=one)
    drawn = reference.sample(logits, torch.tensor([edge]), params)
    assert int(drawn) in (100, 101, 102)


def alike(rows: int, **values: float) -> SamplingParams:
    """The same sampling parameters for every row."""
    named = {"greedy": 0, "temperature": 1.0, "top_k": 0, "top_p": 1.0} | values
    return SamplingParams(**{name: torch.full((rows,), value) for name, value in named.items()})


def test_a_top_p_of_one_keeps_even_the_least_likely_ids() -> None:
    logits = 4 * torch.randn(8, 3072, generator=torch.Generator().manual_seed(3))
    drawn = reference.sample(logits, torch.zeros(8), alike(8))  # the first id that is kept
    assert (drawn == 0).all()


@pytest.mark.parametrize("strange", [math.nan, math.inf])
def test_a_row_whose_logits_have_gone_wrong_draws_some_id_and_does_not_disturb_the_others(strange: float) -> None:
    logits = torch.randn(3, 1, 50, generator=torch.Generator().manual_seed(1))
    uniform, params = torch.tensor([[0.3, 0.6]] * 3), alike(3, top_k=5, top_p=0.8)
    ras = Ras(torch.zeros(3, 4, 1, dtype=torch.int32), torch.full((3,), 4), torch.ones(3), first_special=50)
    expected = reference.sample(logits[:, 0], uniform[:, 0], params), reference.ras_sample(logits, uniform, params, ras)
    logits[1] = strange
    for drawn, sound in zip(
        (reference.sample(logits[:, 0], uniform[:, 0], params), reference.ras_sample(logits, uniform, params, ras)),
        expected, strict=True,
    ):  # fmt: skip
        assert (drawn[::2] == sound[::2]).all() and 0 <= int(drawn[1]) < 50


@pytest.mark.parametrize("greedy", [0, 1])
def test_ras_draws_again_by_the_logits_themselves(greedy: int) -> None:
    """The first draw can only be id 3, which was drawn before: the second draw is from the whole distribution."""
    draws, vocab = 4000, 40
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(5)) * 2
    logits[3] = logits.max() + 0.1
    second = (torch.arange(draws) + 0.5) / draws
    uniform = torch.stack([torch.full((draws,), 0.5), second], 1)
    length = torch.full((draws,), 4, dtype=torch.int32)
    ras = Ras(torch.tensor([3, -1, 3, 8, 9])[None, :, None].expand(draws, 5, 1).int(), length, 0 * length + 1, vocab)
    params = alike(draws, greedy=greedy, temperature=0.7, top_k=1, top_p=0.2)
    drawn = reference.ras_sample(logits.expand(draws, 1, -1), uniform, params, ras)[:, 0]
    counts = torch.bincount(drawn, minlength=vocab) / draws
    torch.testing.assert_close(counts, logits.softmax(-1), rtol=0, atol=2 / draws)
    # Id 3 occurs twice in the last five rows, and once in the last four.
    twice = ras._replace(repeats=0 * length + 2)
    assert (reference.ras_sample(logits.expand(draws, 1, -1), uniform, params, twice) == 3).all()
    further = twice._replace(length=length + 1)
    assert (reference.ras_sample(logits.expand(draws, 1, -1), uniform, params, further)[:, 0] == drawn).all()


def test_ras_does_not_count_what_begins_and_ends_a_stream_nor_looks_back_over_no_rows() -> None:
    logits = torch.full((2, 2, 10), 0.0)
    logits[:, 0, 4], logits[:, 1, 8] = 1.0, 1.0
    recent = torch.tensor([4, 8]).expand(2, 3, 2).int()
    ras = Ras(recent, torch.tensor([3, 0]), torch.tensor([2, 2]), first_special=8)
    drawn = reference.ras_sample(logits, torch.full((2, 4), 0.999), alike(2, greedy=1), ras)
    assert drawn.tolist() == [[9, 8], [4, 8]]


def test_ras_needs_nothing_of_a_rows_neighbours_nor_of_other_codebooks() -> None:
    g = torch.Generator().manual_seed(6)
    rows, books, vocab, window = 5, 3, 12, 6
    logits, uniform = 2 * torch.randn(rows, books, vocab, generator=g), torch.rand(rows, 2 * books, generator=g)
    recent = torch.randint(0, 4, (rows, window, books), generator=g).int()
    length, repeats = torch.full((rows,), window), torch.ones(rows, dtype=torch.int32)
    together = reference.ras_sample(logits, uniform, alike(rows, top_k=5), Ras(recent, length, repeats, vocab))
    without = Ras(recent, 0 * length, repeats, vocab)
    assert (together != reference.ras_sample(logits, uniform, alike(rows, top_k=5), without)).any()
    for row in range(rows):
        for book in range(books):
            ras = Ras(recent[row : row + 1, :, book : book + 1], length[:1], repeats[:1], vocab)
            alone = reference.ras_sample(
                logits[row, book].view(1, 1, -1), uniform[row, book::books].view(1, 2), alike(1, top_k=5), ras
            )
            assert alone.item() == together[row, book]


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox-4×32-10 in Python's integers."""
    for _ in range(10):
        p0, p1 = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (p1 >> 32) ^ counter[1] ^ key[0],
            p1 & 0xFFFFFFFF,
            (p0 >> 32) ^ counter[3] ^ key[1],
            p0 & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def test_the_plain_philox_gives_the_published_vectors() -> None:
    assert philox([0] * 4, [0, 0]) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert philox([ones] * 4, [ones, ones]) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def test_uniforms_are_philox_at_seed_frame_and_index() -> None:
    words = torch.tensor([[5, 0], [-1, 7], [2**31 - 1, -(2**31)]], dtype=torch.int32)
    frames = torch.tensor([0, 3, 100_000])
    got = reference.uniforms(words, frames, 4)
    for row, (word, frame) in enumerate(zip(words.tolist(), frames.tolist(), strict=True)):
        for index in range(4):
            bits = philox([index, frame, 0, 0], [w & 0xFFFFFFFF for w in word])[0]
            assert float(got[row, index]) == (bits >> 9) * 2.0**-23


def test_uniforms_are_uniform() -> None:
    seeds = torch.stack([torch.arange(500), torch.zeros(500)], 1).int()
    values = reference.uniforms(seeds, torch.zeros(500), 16).flatten()
    assert values.min() >= 0 and values.max() < 1
    assert abs(float(values.mean()) - 0.5) < 0.01 and abs(float(values.var()) - 1 / 12) < 0.005


def test_penalty_then_suppressed_ids_and_stops_that_come_too_early() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 5.0, 4.0]]).repeat(2, 1)
    seen = torch.tensor([[True, True, False, False, False]]).repeat(2, 1)
    suppressed = torch.tensor([False, False, False, False, True])
    got = reference.penalize(
        logits, LogitMask(seen, torch.tensor([2.0, 1.0]), suppressed, 3, torch.tensor([True, False]))
    )
    inf = math.inf
    torch.testing.assert_close(got, torch.tensor([[1.0, -4.0, 1.0, -inf, -inf], [2.0, -2.0, 1.0, 5.0, -inf]]))


@pytest.mark.parametrize("queries", [1, 3])
def test_paged_attention_is_attention_over_the_pages_in_order(queries: int) -> None:
    g = torch.Generator().manual_seed(3)
    heads, kv_heads, dim, block, blocks = 4, 2, 8, 4, 9
    cache = torch.full((2, blocks, block, kv_heads, dim), float("nan"))
    lengths = [7, 1 + queries, 12]
    tables = torch.tensor([[5, 2, 0], [8, 0, 0], [1, 3, 7]], dtype=torch.int32)
    q = torch.randn(3, queries, heads, dim, generator=g)
    positions = torch.stack([torch.arange(n - queries, n) for n in lengths])
    expected = []
    for row, length in enumerate(lengths):
        k, v = torch.randn(2, length, kv_heads, dim, generator=g)
        slots = tables[row].long().repeat_interleave(block)[:length] * block + torch.arange(length) % block
        reference.paged_write(cache, k, v, slots)
        scores = torch.einsum("thd,shd->hts", q[row], k.repeat_interleave(2, 1)) * dim**-0.5
        scores = scores.masked_fill(torch.arange(length) > positions[row][:, None], -math.inf)
        expected.append(torch.einsum("hts,shd->thd", scores.softmax(-1), v.repeat_interleave(2, 1)))
    got = reference.paged_attention(q, cache, tables, positions, 3)
    torch.testing.assert_close(got, torch.stack(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dilation", [1, 3, 9])
@pytest.mark.parametrize("taps", [2, 7])
def test_depthwise_is_torchs_own_with_as_many_groups_as_channels(taps: int, dilation: int) -> None:
    g = torch.Generator().manual_seed(taps + dilation)
    channels, history = 12, (taps - 1) * dilation
    x = torch.randn(2, history + 20, channels, generator=g)
    weight, bias = torch.randn(channels, 1, taps, generator=g), torch.randn(channels, generator=g)
    alpha = torch.randn(channels, generator=g)
    past, fresh = x[:, :history], x[:, history:]
    for before, values in ((past, x), (None, torch.cat([torch.zeros_like(past), fresh], dim=1))):
        expected = torch.nn.functional.conv1d(values.mT, weight, bias, dilation=dilation, groups=channels).mT
        for with_gradients in (True, False):
            with torch.set_grad_enabled(with_gradients):
                got = reference.depthwise(fresh, weight, bias, before, dilation)
                active = reference.depthwise(fresh, weight, bias, before, dilation, snake=reference.Snake(alpha, alpha))
            assert got.shape == (2, 20, channels)
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(active, reference.snake_beta(expected, alpha, alpha), rtol=1e-5, atol=1e-5)
