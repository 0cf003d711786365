"""Codes that arrive while the talker trains are learnt from then on; faulty ones do not lose what was learnt."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from training.curves import Curves
from training.shards import Entry
from training.talker.config import TalkerTraining
from training.talker.lessons import Lessons
from training.talker.train import train
from training.talker.trainer import Trainer

import tiny_voice
from training import encode

CPU = torch.device("cpu")
LOG_STEPS = 2  # new codes are taken up whenever a line of the log is written


def write_codes(folder: Path, texts: list[str], config: TalkerTraining, book: int = 8) -> None:
    """Write codes in which every speaker reads every text. They appear at once, as in the recipe."""
    entries = [Entry(text, labels[0], "train", 0) for text in texts for labels in config.speakers.values()]
    frames = tiny_voice.lines()[0].frames
    part = folder.with_suffix(".part")
    encode.write(part, entries, [frames % book] * len(entries))
    part.rename(folder)


@pytest.fixture
def lessons(
    talker_config: TalkerTraining,
    speech_tokenizer: Path,
    lexicon: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Lessons:
    monkeypatch.setattr("training.talker.train.LOG_STEPS", LOG_STEPS)
    write_codes(tmp_path / "codes", [f"Sentence {i}." for i in range(20)], talker_config)
    return Lessons(tmp_path / "codes", speech_tokenizer, talker_config, CPU, 1, lexicon)


def learn(lessons: Lessons, more: Path, steps: int) -> Trainer:
    trainer = Trainer(lessons.config, lessons.model, CPU)
    with ThreadPoolExecutor(1) as beside:
        arriving = beside.submit(lessons.more, more)
        while more.exists() and not arriving.done():
            time.sleep(0.01)
        train(trainer, lessons, Curves(more.parent / "out", ("first",)), time.time() + 60, steps, arriving)
        lessons.over.set()
    return trainer


def test_codes_that_arrive_are_learnt_but_for_sentences_that_are_held_out(lessons: Lessons, tmp_path: Path) -> None:
    held = sorted(lessons.held_texts)
    assert held
    new = [f"New sentence {i}." for i in range(7)]
    write_codes(tmp_path / "more", [*held, *new], lessons.config)
    before = len(lessons.training.lengths)
    grown = lessons.more(tmp_path / "more")
    assert grown is not None
    assert len(grown.lengths) == before + len(new) * len(lessons.config.speakers)
    everything = np.concatenate([grown.of_step(i, 0) for i in range(grown.per_epoch)])
    assert sorted(everything) == list(range(len(grown.lengths)))
    assert learn(lessons, tmp_path / "more", LOG_STEPS + 2).step_number == LOG_STEPS + 2


def test_training_ends_though_no_more_codes_came(lessons: Lessons, tmp_path: Path) -> None:
    assert learn(lessons, tmp_path / "never", 2).step_number == 2


def test_codes_of_another_codec_are_told_and_training_goes_on(
    lessons: Lessons, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "more"
    encode.write(folder, [Entry("Hello.", "b", "train", 0)], [np.full((3, 9), 1, np.int16)])
    assert learn(lessons, folder, LOG_STEPS + 1).step_number == LOG_STEPS + 1
    assert "going on without more codes" in caplog.text
    assert "were not made with" in caplog.text


def test_the_first_line_of_a_piece_is_a_mean_of_the_steps_that_it_has_made(
    lessons: Lessons, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces end at any step: divided by all steps of a line, losses would seem to fall at the start of each."""
    monkeypatch.setattr("training.talker.train.LOG_STEPS", 10)
    trainer = Trainer(lessons.config, lessons.model, CPU)
    trainer.step_number = 7

    def step(*given: object) -> dict[str, torch.Tensor]:
        trainer.step_number += 1
        return {"first": torch.tensor(3.0), "rest": torch.tensor(5.0)}

    monkeypatch.setattr(trainer, "step", step)
    curves = Curves(tmp_path, ("first",))
    train(trainer, lessons, curves, time.time() + 60, 13)
    rows = [json.loads(line) for line in curves.path.read_text(encoding="utf-8").splitlines()]
    assert [(row["step"], row["first"], row["rest"]) for row in rows] == [(10, 3.0, 5.0), (20, 3.0, 5.0)]
