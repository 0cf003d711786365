"""Clips are trimmed alike, their labels stay aligned with their sound, and the index finds them again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from training.carry import compact, folded, split_evenly, voice_for
from training.clip import FRAME, SAMPLE_RATE, STEP, labels_of, tidy
from training.codec.data import Crops
from training.corpus import given_voices
from training.shards import Corpus, ShardWriter, hours_by_speaker
from training.teachers.hibari import label_ids
from training.teachers.kokoro import grouped


def tone(seconds: float, level: float = 0.3) -> np.ndarray:
    t = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return (level * np.sin(2 * np.pi * 220 * t)).astype(np.float32)


@pytest.mark.parametrize(("before", "after", "level"), [(0.5, 1.0, 0.01), (0.0, 0.0, 0.3), (0.03, 0.4, 0.9)])
def test_margins_loudness_and_length_do_not_depend_on_the_teacher(before: float, after: float, level: float) -> None:
    silence = [np.zeros(int(s * SAMPLE_RATE), np.float32) for s in (before, after)]
    samples = np.concatenate([silence[0], tone(1.0, level), silence[1]])
    clip = tidy(samples, np.ones(-(-len(samples) // STEP), np.uint8))
    assert clip is not None
    assert len(clip.samples) % FRAME == 0
    assert len(clip.labels) * STEP == len(clip.samples)
    heard = np.flatnonzero(np.abs(clip.samples) > 300)
    assert heard[0] / SAMPLE_RATE == pytest.approx(0.08, abs=0.012)
    assert 0.15 < (len(clip.samples) - heard[-1]) / SAMPLE_RATE < 0.26  # the tail fills the last frame
    loud = clip.samples[heard[0] : heard[-1]] / 32768
    assert 10 * np.log10(np.mean(loud**2)) == pytest.approx(-23, abs=0.5)


def test_silence_is_no_clip() -> None:
    assert tidy(np.zeros(SAMPLE_RATE, np.float32), np.zeros(100, np.uint8)) is None


def test_labels_stay_with_their_sound() -> None:
    samples = np.concatenate([np.zeros(12000, np.float32), tone(0.5), tone(0.5, 0.15)])
    labels = np.repeat([0, 7, 9], 50).astype(np.uint8)
    clip = tidy(samples, labels)
    assert clip is not None
    first = np.flatnonzero(np.abs(clip.samples) > 300)[0]
    assert clip.labels[first // STEP + 1] == 7
    assert clip.labels[(first + 12000) // STEP + 1] == 9


def test_durations_become_labels() -> None:
    ids, durations = np.array([0, 5, 6, 0]), np.array([1, 2, 1, 1])
    np.testing.assert_array_equal(labels_of(ids, durations, 600, 3000), [0, 0, 5, 5, 5, 5, 5, 6, 6, 6, 0, 0, 0])


def test_stress_sounds_like_what_follows_and_punctuation_like_nothing() -> None:
    vocabulary = {"ˈ": 156, "ˌ": 157, "a": 43, " ": 16, ".": 4}
    np.testing.assert_array_equal(label_ids([0, 156, 43, 16, 157, 43, 4, 0], vocabulary), [0, 43, 43, 0, 43, 43, 0, 0])


def test_the_index_finds_every_clip(corpus: Corpus) -> None:
    assert [e.speaker for e in corpus.entries] == ["anna"] * 6 + ["bert"] * 6
    assert [e.samples // FRAME for e in corpus.entries[:6]] == [12, 17, 22, 27, 32, 37]
    assert corpus.entries[6].start == sum(e.samples for e in corpus.entries[:6])
    np.testing.assert_array_equal(corpus.clip(corpus.entries[2]), corpus.clip(corpus.entries[8]))
    assert hours_by_speaker(corpus.entries)["anna"] == pytest.approx(147 * 0.08 / 3600)


def test_a_shard_without_its_index_is_not_seen(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"training\.corpus"):
        Corpus.open(tmp_path)
    np.save(tmp_path / "cut-000.samples.npy", np.zeros(5, np.int16))
    writer = ShardWriter(tmp_path, "whole", limit_s=0)
    clip = tidy(tone(0.5), np.ones(50, np.uint8))
    assert clip is not None
    writer.add(clip, "Hello.", "anna", "train")
    assert len(Corpus.open(tmp_path).entries) == 1


def test_crops_come_with_their_labels_and_end_in_silence(corpus: Corpus) -> None:
    crops = Crops(corpus, torch.device("cpu"))
    generator = torch.Generator().manual_seed(3)
    samples, labels, _ = crops.draw(64, 20 * FRAME, generator)
    assert samples.shape == (64, 20 * FRAME)
    assert labels.shape == (64, 20 * FRAME // STEP)
    flat = torch.from_numpy(corpus.samples).float() / 32768
    for row, marks in zip(samples[:8], labels[:8], strict=True):
        start = next(s for s in range(0, len(flat) - FRAME, STEP) if torch.equal(flat[s : s + FRAME], row[:FRAME]))
        np.testing.assert_array_equal(marks[:8], corpus.labels[start // STEP : start // STEP + 8])
    short = crops.draw(64, 40 * FRAME, generator)[0]
    assert (short[:, 38 * FRAME :] == 0).all()  # no clip is that long


def test_batches_have_one_size_and_keep_to_their_budget() -> None:
    items = [n for n in (3, 5, 5, 3, 5) for _ in range(10)]
    batches = list(grouped(items, lambda n: n, budget=20))
    assert all(len(set(b)) == 1 and sum(b) <= 20 for b in batches)
    assert sorted(n for b in batches for n in b) == sorted(items)


def test_packed_weights_are_close_and_parts_are_even() -> None:
    weight = torch.randn(8, 4, 3)
    stored = dict(compact("decoder.generator.x.weight", weight))
    restored = stored["decoder.generator.x.weight"].float() * stored["decoder.generator.x.weight@scale"]
    assert (restored - weight).abs().max() < weight.abs().max() / 200
    assert dict(compact("bert.x", weight))["bert.x"].dtype == torch.float16
    parts = split_evenly({f"t{i}": torch.zeros(100 + i) for i in range(10)}, 2)
    sizes = [sum(t.numel() for t in p.values()) for p in parts]
    assert abs(sizes[0] - sizes[1]) < 15


def test_published_weights_are_flattened_and_their_norm_folded() -> None:
    conv = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(3, 4, 5))
    g, v = (getattr(conv.parametrizations.weight, n).detach() for n in ("original0", "original1"))
    flat = folded({"decoder": {"module.c.weight_g": g, "module.c.weight_v": v, "module.c.bias": conv.bias.detach()}})
    assert flat.keys() == {"decoder.c.weight", "decoder.c.bias"}
    torch.testing.assert_close(flat["decoder.c.weight"], conv.weight.detach())


def test_a_sentence_keeps_its_voice() -> None:
    weights = {"af_heart": 2, "am_michael": 1}
    drawn = [voice_for(f"Sentence {i}.", weights) for i in range(300)]
    assert drawn == [voice_for(f"Sentence {i}.", weights) for i in range(300)]
    assert 150 < drawn.count("af_heart") < 250


def test_sentences_go_to_the_voices_that_are_wanted() -> None:
    drawn = ["af_heart", "af_bella", "bf_emma", "am_michael", "af_heart", "af_heart"]
    rows = [{"voice": voice, "text": str(i)} for i, voice in enumerate(drawn)]
    given = given_voices(rows, ["af_bella", "am_michael"])
    assert [row["voice"] for row in given] == ["af_bella", "af_bella", "am_michael", "am_michael", "af_bella"]
    assert [row["text"] for row in given] == ["0", "1", "3", "4", "5"]
    assert rows[0]["voice"] == "af_heart"
