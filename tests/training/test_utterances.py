"""The talker learns from what the engine would see: its tokens, its prompts, then one position for each frame."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training.shards import Entry
from training.talker import utterances
from training.talker.config import TalkerTraining
from training.talker.lessons import lines_of
from training.talker.utterances import builder_of, gather, hold_out, request_of
from training.talker.vocabulary import character_bpe

import tiny_voice
from sonant.models.qwen3_tts.tokenizer import TextTokenizer
from sonant.text.lexicon import alphabet
from tiny_voice import batches_of
from training import encode


def test_roles_are_one_token_and_any_text_is_bytes(folder: Path) -> None:
    tokenizer = TextTokenizer(folder)
    vocab, _ = character_bpe()
    assert tokenizer.encode("assistant") == [vocab["assistant"]]
    assert tokenizer.encode("user") == [vocab["user"]]
    assert tokenizer.encode("hello") == [vocab[c] for c in "hello"]
    assert len(tokenizer.encode(alphabet())) == len(alphabet())  # a sound is one token
    names = {i: token for token, i in vocab.items()}
    for text in ("Mississippi assists a user's assistants", "naïve 你好 😀\n\t", "".join(map(chr, range(1, 300)))):
        ids = tokenizer.encode(text)
        assert len("".join(names[i] for i in ids)) == len(text.encode())


def test_prompts_are_the_engines_own(talker_config: TalkerTraining, folder: Path) -> None:
    lines = tiny_voice.lines()
    data = gather(folder, lines, talker_config.batch, workers=1)
    builder = builder_of(folder)
    starts = np.cumsum(data.prompt_length) - data.prompt_length
    languages = set()
    for line, start, length in zip(lines, starts, data.prompt_length, strict=True):
        request = request_of(line, talker_config.batch)
        layout = builder.layout(request)
        languages.add(request.language)
        np.testing.assert_array_equal(data.prompt_text[start : start + length], layout.text)
        np.testing.assert_array_equal(data.prompt_code[start : start + length], layout.codes[:, 0])
    assert languages == {"auto", "english"}


def test_some_words_are_spelt_in_training_and_none_when_served(talker_config: TalkerTraining, folder: Path) -> None:
    lines = tiny_voice.lines()

    def letters(spelt: float) -> int:
        data = gather(folder, lines, replace(talker_config.batch, spelt=spelt, lower_case=0.0), workers=1)
        return int(((data.prompt_text >= ord("a")) & (data.prompt_text <= ord("z"))).sum())

    none, some, every = letters(0.0), letters(0.5), letters(1.0)
    assert none < some < every


def test_processes_lay_out_the_same(
    talker_config: TalkerTraining, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utterances, "_CHUNK", 3)
    lines = tiny_voice.lines()
    one, two = (gather(folder, lines, talker_config.batch, workers=n) for n in (1, 2))
    np.testing.assert_array_equal(one.prompt_text, two.prompt_text)
    np.testing.assert_array_equal(one.frames, two.frames)


def test_every_utterance_comes_once_an_epoch(talker_config: TalkerTraining, folder: Path) -> None:
    batches = batches_of(talker_config, folder, tiny_voice.lines(), positions=150)
    assert batches.per_epoch > 3
    for epoch in range(2):
        seen = [batches.of_step(epoch * batches.per_epoch + i, seed=1) for i in range(batches.per_epoch)]
        assert sorted(np.concatenate(seen)) == list(range(len(tiny_voice.SENTENCES)))


def test_a_row_is_its_prompt_then_its_frames_and_ends_with_the_stop_code(
    talker_config: TalkerTraining, folder: Path
) -> None:
    lines = tiny_voice.lines()
    batches = batches_of(talker_config, folder, lines)
    batch = batches.make(np.arange(len(lines)), 1.0, np.random.default_rng(0))
    length = batch.text.shape[1]
    at = 0
    for i, line in enumerate(lines):
        prompt, frames = int(batches.prompt_length[i]), len(line.frames)
        given = torch.from_numpy(line.frames).long()
        assert torch.equal(batch.codes[i, prompt : prompt + frames], given)
        assert (batch.codes[i, prompt + frames :] == -1).all()
        assert (batch.text[i, prompt:] == batches.pad_text).all()
        places = batch.predicting[at : at + frames + 1]
        assert places.tolist() == list(range(i * length + prompt - 1, i * length + prompt + frames))
        assert batch.first[at : at + frames + 1].tolist() == [*given[:, 0].tolist(), batches.stop]
        at += frames + 1
    assert at == len(batch.first)
    assert torch.equal(batch.frames, torch.cat([torch.from_numpy(line.frames) for line in lines]).long())


def test_codes_are_read_by_label_and_split(talker_config: TalkerTraining, tmp_path: Path) -> None:
    rows = [("a", "train"), ("a2", "train"), ("b", "eval"), ("stranger", "train"), ("b", "train")]
    entries = [Entry(f"Text {i}.", speaker, split, 0) for i, (speaker, split) in enumerate(rows)]
    encode.write(tmp_path, entries, [np.full((3 + i, 2), i, np.int16) for i in range(len(rows))])
    found = {line.text: (line.speaker, len(line.frames)) for line in lines_of(tmp_path, talker_config)}
    assert found == {"Text 0.": ("anna", 3), "Text 1.": ("anna", 4), "Text 4.": ("ben", 7)}


def test_no_sentence_is_in_both_training_and_validation() -> None:
    lines = [replace(line, speaker=s) for line in tiny_voice.lines() for s in ("anna", "ben")]
    training, held = hold_out(lines, 4)
    assert held
    assert len(training) + len(held) == len(lines)
    assert not {line.text for line in training} & {line.text for line in held}
