"""Repetition-aware sampling in the engine, against a plain implementation of transformers' rule on the same logits.

`HiggsAudioV2GenerationMixin._sample` draws a row of codes, then draws each code anew that occurs too often in the last
rows before it: those of the prompt, then those of the speech as they were kept, with BOS and EOS forced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import sonant
from clips import reference_clip
from sonant import Engine, EngineConfig, Sampling, Speech, SpeechRequest, Voice
from sonant.kernels import ops
from sonant.kernels.reference import Ras, SamplingParams

BOOKS, BOS, EOS = 8, 1024, 1025
FRAMES = 30
TEXT = "hello the world"


@dataclass(frozen=True)
class Step:
    logits: torch.Tensor  # [codebooks, codes], float64
    uniform: list[float]  # for each codebook's first draw, then for its draw after RAS
    drawn: list[int]


@pytest.fixture(scope="module")
def engine(tiny_higgs: Path) -> Iterator[Engine]:
    with sonant.load(tiny_higgs, device="cpu", config=EngineConfig(max_rows=1)) as engine:
        yield engine


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Each step's logits, uniform numbers and drawn codes."""
    noted: list[Step] = []
    draw = ops.ras_sample

    def recorded(logits: torch.Tensor, uniform: torch.Tensor, params: SamplingParams, ras: Ras) -> torch.Tensor:
        codes = draw(logits, uniform, params, ras)
        noted.append(Step(logits[0].double(), uniform[0].tolist(), codes[0].tolist()))
        return codes

    monkeypatch.setattr(ops, "ras_sample", recorded)
    return noted


def inverted(probabilities: torch.Tensor, uniform: float) -> int:
    """The id at which the cumulative distribution, in id order, passes a uniform number."""
    running = probabilities.cumsum(-1)
    return int((running <= uniform * running[-1]).sum())


def warped(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """transformers' TemperatureLogitsWarper, TopKLogitsWarper and TopPLogitsWarper, in this order."""
    scores = logits / temperature
    scores = scores.masked_fill(scores < scores.topk(top_k).values[-1], -torch.inf)
    rising, at = scores.sort()
    removed = rising.softmax(-1).cumsum(-1) <= 1 - top_p
    removed[-1:] = False
    return scores.masked_fill(removed.scatter(0, at, removed), -torch.inf).softmax(-1)


class Restated:
    """The rows of codes that transformers would have kept."""

    def __init__(self, prompt_rows: Sequence[list[int]], window: int | None, repeats: int | None) -> None:
        self.rows = list(prompt_rows)
        self.window, self.repeats = window, repeats
        self.begun = self.ending = self.drawn_anew = 0

    def next(self, step: Step, temperature: float, top_k: int, top_p: float) -> list[int]:
        codes = [inverted(warped(step.logits[k], temperature, top_k, top_p), step.uniform[k]) for k in range(BOOKS)]
        if self.window is not None and self.repeats is not None:
            for k in range(BOOKS):
                recent = [row[k] for row in self.rows[-self.window :]]
                stood = sum(code == codes[k] and code not in (BOS, EOS) for code in recent)
                if stood >= self.repeats:
                    codes[k] = inverted(step.logits[k].softmax(-1), step.uniform[BOOKS + k])
                    self.drawn_anew += 1
        self._keep(list(codes))
        return codes

    def _keep(self, row: list[int]) -> None:
        self.begun += 1
        row[self.begun :] = [BOS] * (BOOKS - self.begun)  # codebooks whose first frame is still to come
        row[: self.ending] = [EOS] * self.ending
        self.ending += self.ending > 0 or EOS in row
        self.rows.append(row)


def prompt_rows(engine: Engine, voice: Voice | None) -> list[list[int]]:
    """Rows of codes in the prompt; the last one is all BOS."""
    codes = engine.model.prompter.prompt(SpeechRequest(text=TEXT, voice=voice)).payload.codes
    return [list(map(int, row)) for row in codes if row[0] >= 0]


@pytest.mark.parametrize("cloned", [False, True], ids=["no voice", "cloned"])
@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_codes_are_drawn_as_transformers_rule_says(
    engine: Engine, steps: list[Step], cloned: bool, temperature: float
) -> None:
    voice = engine.clone(reference_clip(), "what it says") if cloned else None
    knobs = {"temperature": temperature, "top_k": 20, "top_p": 0.9}
    sampling = Sampling(**knobs, ras_win_len=7, ras_win_max_num_repeat=1)
    spoken = engine.speak(TEXT, voice=voice, sampling=sampling, seed=11, max_frames=FRAMES)
    rows = prompt_rows(engine, voice)
    assert rows[-1] == [BOS] * BOOKS and (len(rows) > 40) == cloned
    restated = Restated(rows, 7, 1)
    assert [restated.next(step, **knobs) for step in steps] == [step.drawn for step in steps]
    assert restated.drawn_anew > 0
    matches(spoken, restated.rows[len(rows) :])


def matches(spoken: Speech, rows: list[list[int]]) -> None:
    """Assert that the frames are the diagonals of the rows."""
    frames = [[rows[n + k][k] for k in range(BOOKS)] for n in range(len(spoken.frames))]
    np.testing.assert_array_equal(spoken.frames, np.minimum(frames, BOS - 1))


def test_ras_changes_no_draw_but_those_that_stood_too_often(engine: Engine, steps: list[Step]) -> None:
    """Up to the first row that RAS changes, speech is the same with and without it."""
    knobs = {"temperature": 0.4, "top_k": 20, "top_p": 0.9}
    engine.speak(TEXT, sampling=Sampling(**knobs, ras_win_len=0), seed=11, max_frames=FRAMES)
    without = [step.drawn for step in steps]
    assert without == [Restated([], None, None).next(step, **knobs) for step in steps]
    steps.clear()
    engine.speak(TEXT, sampling=Sampling(**knobs, ras_win_max_num_repeat=1), seed=11, max_frames=FRAMES)
    with_ras = [step.drawn for step in steps]
    restated = Restated(prompt_rows(engine, None), 7, 1)
    for step, plain in zip(steps, without, strict=False):
        restated.next(step, **knobs)
        if restated.drawn_anew:
            assert step.drawn != plain
            break
        assert step.drawn == plain
    assert restated.drawn_anew and with_ras != without
