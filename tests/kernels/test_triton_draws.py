"""Kernels that draw pick what the reference picks, for every way to draw. They run as in test_triton.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kernels.against import DEVICE, DTYPES, kernel, random
from sonant.kernels import reference
from sonant.kernels.reference import Ras, SamplingParams

pytest.importorskip("triton")


def params_of(vocab: int, rows: int, seed: int) -> SamplingParams:
    g = torch.Generator().manual_seed(seed)
    values = {
        "greedy": torch.rand(rows, generator=g) < 0.2,
        "temperature": 0.3 + 2 * torch.rand(rows, generator=g),
        "top_k": torch.tensor([0, 1, 5, 50, vocab, 10 * vocab])[torch.randint(0, 6, (rows,), generator=g)].int(),
        "top_p": torch.tensor([0.05, 0.5, 0.9, 1.0])[torch.randint(0, 4, (rows,), generator=g)],
    }
    return SamplingParams(**{name: value.to(DEVICE) for name, value in values.items()})


def column_of_a_table(value: torch.Tensor) -> torch.Tensor:
    """The same values with a stride, as an engine keeps them."""
    return torch.stack([-value.float(), value.float()], 1).to(value.dtype)[:, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("vocab", "penalized"), [(40, False), (40, True), (2048, False), (3072, True)])
def test_sample(vocab: int, penalized: bool, dtype: torch.dtype) -> None:
    rows, indexed = 24, dtype is torch.float32
    g = torch.Generator().manual_seed(vocab)
    logits = 3 * random(rows, vocab, seed=vocab, dtype=dtype)
    uniform = torch.rand(rows, 2, generator=g).to(DEVICE)[:, 1]
    params = SamplingParams(**{k: column_of_a_table(v) for k, v in vars(params_of(vocab, rows, vocab)).items()})
    mask = None
    if penalized:
        mask = reference.LogitMask(
            seen=(torch.rand(rows + 5, vocab, generator=g) < 0.3).to(DEVICE)[: None if indexed else rows],
            repetition_penalty=(1 + torch.rand(rows, 2, generator=g)).to(DEVICE)[:, 1],
            suppressed=(torch.rand(vocab, generator=g) < 0.3).to(DEVICE),
            stop_id=vocab // 2,
            suppress_stop=(torch.rand(rows, generator=g) < 0.5).to(DEVICE),
            seen_rows=torch.randperm(rows + 5, generator=g)[:rows].to(DEVICE) if indexed else None,
        )
    expected = reference.sample(logits, uniform, params, mask)
    got = kernel("sample")(logits, uniform, params, mask)
    assert (got == expected).all(), (got != expected).nonzero()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 96])
def test_sample_fetches_what_its_ids_stand_for(width: int, dtype: torch.dtype) -> None:
    rows, vocab = 9, 40
    table, out = random(vocab, width, seed=1, dtype=dtype), torch.full((rows, width), -1.0, dtype=dtype, device=DEVICE)
    params = params_of(vocab, rows, vocab)
    logits, uniform = random(rows, vocab, seed=2, dtype=dtype), torch.linspace(0, 0.99, rows, device=DEVICE)
    ids = kernel("sample")(logits, uniform, params, lookup=reference.Lookup(table, out))
    assert (ids == reference.sample(logits, uniform, params)).all() and len(set(ids.tolist())) > 3
    assert (out == table[ids]).all()


def test_sample_takes_ties_and_a_lone_candidate() -> None:
    logits = torch.full((2, 64), float("-inf"), device=DEVICE)
    logits[0, 7] = 0.0
    logits[1, 10:14] = 1.0
    one = torch.ones(2, device=DEVICE)
    params = SamplingParams(greedy=one < 0, temperature=one, top_k=(2 * one).int(), top_p=0.3 * one)
    for u in (0.0, 0.3, 0.999):
        got = kernel("sample")(logits, u * one, params)
        assert (got == reference.sample(logits, u * one, params)).all()


@pytest.fixture
def reduced_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two by two, with Triton's own comparison: the interpreter has numpy's, for which NaN is the largest."""
    from triton.runtime.interpreter import ReduceOps

    monkeypatch.setattr(ReduceOps, "apply_impl", ReduceOps.generic_reduce)


@pytest.mark.usefixtures("reduced_as_on_a_gpu")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("first", [0, 30, 39])
def test_a_greedy_row_with_nan_gets_an_id_of_the_vocabulary(first: int) -> None:
    """Past it are columns that only fill a power of two: as ids they would lead past the end of tables."""
    logits = random(2, 3, 40)
    logits[0, :, first:] = float("nan")
    one = torch.ones(2, device=DEVICE)
    params = SamplingParams(greedy=one > 0, temperature=one, top_k=one.int(), top_p=one)
    sane = logits[1].argmax(-1)
    ids = kernel("sample")(logits[:, 0].contiguous(), 0.5 * one, params)
    assert 0 <= int(ids[0]) < 40 and ids[1] == sane[0]
    none = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    recent = torch.full((2, 1, 3), -1, dtype=torch.int32, device=DEVICE)
    ids = kernel("ras_sample")(logits, torch.full((2, 6), 0.5, device=DEVICE), params, Ras(recent, none, none, 40))
    assert (ids[0] >= 0).all() and (ids[0] < 40).all() and torch.equal(ids[1], sane)


def test_an_id_without_weight_is_not_drawn_where_rounded_sums_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU each thread's last sum comes from the sums of all threads, those before it from its neighbour's. So it
    may be the smaller by a rounding, which the interpreter's sums, one after another, never are."""
    from triton.runtime.interpreter import ScanOps

    def falling(self: ScanOps, given: Any) -> list[Any]:
        sums = np.cumsum(given.handle.data, axis=self.axis)
        sums[20] = np.nextafter(sums[20], np.float32(0))
        return [self.to_tensor(sums, dtype=given.dtype)]

    monkeypatch.setattr(ScanOps, "cumsum", falling)
    logits = torch.full((1, 64), float("-inf"), device=DEVICE)
    logits[0, [3, 40]] = 0.0
    one = torch.ones(1, device=DEVICE)
    params = SamplingParams(greedy=one < 0, temperature=one, top_k=(0 * one).int(), top_p=one)
    below_half = torch.nextafter(0.5 * one, 0 * one)
    assert kernel("sample")(logits, below_half, params).item() == 3


@pytest.mark.parametrize(
    ("vocab", "window", "rows", "books", "dtype"), [(24, 7, 8, 3, torch.float32), (1026, 32, 3, 4, torch.bfloat16)]
)
def test_ras_sample(vocab: int, window: int, rows: int, books: int, dtype: torch.dtype) -> None:
    """Rows look back far, a little or not at all; some ids were drawn often, some never, and some are special."""
    g = torch.Generator().manual_seed(vocab)
    logits = 2 * random(rows, books, vocab, seed=vocab, dtype=dtype)
    uniform = torch.rand(rows, 2 * books + 1, generator=g).to(DEVICE)[:, 1:]
    params = params_of(vocab, rows, vocab)
    none = torch.zeros(rows, dtype=torch.int32, device=DEVICE)
    recent = torch.randint(-1, vocab, (rows, window, books), generator=g).int().to(DEVICE)
    drawn = reference.ras_sample(logits, uniform, params, Ras(recent, none, none, vocab))
    recent = torch.where((torch.rand(recent.shape, generator=g) < 0.4).to(DEVICE), drawn[:, None].int(), recent)
    number = torch.arange(rows, device=DEVICE, dtype=torch.int32)
    ras = Ras(
        recent.mT.contiguous().mT,  # as an engine may keep it: codebooks with a stride
        length=column_of_a_table(torch.tensor([window, 1, window // 2, 0], device=DEVICE)[number.long() % 4].int()),
        repeats=column_of_a_table(1 + number % 3),
        first_special=int(drawn.max()),
    )
    expected = reference.ras_sample(logits, uniform, params, ras)
    got = kernel("ras_sample")(logits, uniform, params, ras)
    assert (got == expected).all(), (got != expected).nonzero()
    assert books < int((expected != drawn).sum()) < rows * books


def test_uniforms() -> None:
    g = torch.Generator().manual_seed(1)
    seed = torch.randint(-(2**31), 2**31, (9, 3), generator=g).int().to(DEVICE)[:, 1:]
    frame = torch.randint(0, 10_000, (9, 2), generator=g).to(DEVICE)[:, 1]
    assert (kernel("uniforms")(seed, frame, 16) == reference.uniforms(seed, frame, 16)).all()
