"""Words, lengths and voices of the sound that came back, judged by stand-ins for the real models."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from bench.samples import level, sample
from sonant.bench.client.prompts import Prompt, Reference
from sonant.bench.client.sample import Sample
from sonant.bench.quality.compare import compare_quality, quality_table
from sonant.bench.quality.ggml import is_ggml, read_ggml
from sonant.bench.quality.judges import Judges, open_transcriber, windows
from sonant.bench.quality.scores import Judged, Quality, duration_limits, judge_level, samples_of
from sonant.bench.quality.transcript import distance, errors
from sonant.errors import ConfigError
from sonant.serving.encode import open_encoder
from sonant.types import Samples

TEXT = "The train leaves in ten minutes."


def spoken(seconds: float, prompt: str = "p", rate: int = 24000) -> Sample:
    """A tone, as 16-bit PCM."""
    wave = 8000 * np.sin(np.arange(int(seconds * rate)) * 0.1)
    return replace(sample(prompt, audio_s=seconds), sound=wave.astype("<i2").tobytes(), sample_rate=rate)


@pytest.mark.parametrize(
    ("asked", "heard", "language", "word_errors", "char_errors"),
    [
        ("It costs $5.", "it costs five dollars", "english", 0, 0),
        ("The cat's hat.", "the cats hat", "english", 0, 0),
        ("The cat sat.", "the dog sat", "english", 1, 3),
        ("¿Qué tal, señor?", "que tal señor", "spanish", 1, 1),
        ("火车十分钟以后开。", "火车,十分钟 以后来", "chinese", 1, 1),
        ("Hello there.", "", "english", 2, 10),
    ],
)
def test_errors_are_counted_after_both_are_made_plain(
    asked: str, heard: str, language: str, word_errors: int, char_errors: int
) -> None:
    found = errors(asked, heard, language)
    assert (found.word_errors, found.char_errors) == (word_errors, char_errors)


def test_distance() -> None:
    assert distance("kitten", "sitting") == 3
    assert distance("", "abc") == distance("abc", "") == 3


def test_a_level_is_judged_by_its_sound() -> None:
    prompts = [Prompt("p", TEXT, "english"), Prompt("q", TEXT, "english")]
    ears = Judges(
        transcribe=lambda sound, language: TEXT if len(sound) == 32000 else "the train", mos=lambda sound: 4.0
    )
    found = judge_level(level([spoken(2.0, "p"), spoken(3.0, "q")]), prompts, "pcm", ears)
    assert [row.word_errors for row in found.rows] == [0, 4]
    assert found.error_rate("word") == pytest.approx(4 / 12)
    assert found.mean("mos") == 4.0 and found.mean("similarity") is None
    assert "33.33%" in quality_table([found])


def test_lengths_that_no_reader_has() -> None:
    prompts = [Prompt("p", TEXT, "english")]
    found = judge_level(level([spoken(s) for s in (0.2, 2.0, 60.0)]), prompts, "pcm", Judges())
    assert [(row.too_short, row.runaway) for row in found.rows] == [(True, False), (False, False), (False, True)]
    short_s, long_s = duration_limits("火车十分钟以后开。", "chinese")
    assert short_s < 1.5 < long_s < 10


def test_voices_are_held_against_the_clip_or_against_each_other(tmp_path: Path) -> None:
    sf.write(tmp_path / "clip.wav", 0.3 * np.sin(np.arange(16000) * 0.1), 16000)

    def embed(sound: Samples) -> Samples:
        return np.array([1, 0], np.float32) if len(sound) == 32000 else np.array([0.6, 0.8], np.float32)

    ears = Judges(embed=embed)
    plain = [Prompt("p", TEXT), Prompt("q", TEXT)]
    alike = judge_level(level([spoken(2.0, "p"), spoken(2.0, "q")]), plain, "pcm", ears)
    assert alike.mean("similarity") == pytest.approx(1.0)
    cloning = [Prompt("p", TEXT, reference=Reference(tmp_path / "clip.wav"))]
    assert judge_level(level([spoken(2.0)]), cloning, "pcm", ears).mean("similarity") == pytest.approx(0.6)


@pytest.mark.parametrize("form", ["pcm", "mp3", "flac"])
def test_sound_comes_out_at_16_khz(form: str) -> None:
    kept = spoken(1.0)
    if form != "pcm":
        encoder = open_encoder(form, 24000, streaming=True)
        wave = np.frombuffer(kept.sound, "<i2").astype(np.float32) / 32768
        kept = replace(kept, sound=encoder.push(wave) + encoder.finish())
    found = samples_of(kept, form)
    assert len(found) / 16000 == pytest.approx(1.0, abs=0.12)
    assert np.abs(found).max() == pytest.approx(8000 / 32768, rel=0.1)


def test_long_sound_is_cut_where_it_is_quiet() -> None:
    sound = np.ones(70 * 16000, np.float32)
    sound[25 * 16000 : 26 * 16000] = sound[50 * 16000 : 51 * 16000] = 0
    parts = windows(sound)
    assert len(parts) == 3 and sum(len(part) for part in parts) == len(sound)
    assert 25 <= len(parts[0]) / 16000 <= 26 and 50 <= (len(parts[0]) + len(parts[1])) / 16000 <= 51
    assert len(windows(sound[: 30 * 16000])) == 1


def quality(errors_a_prompt: list[int], mos: float = 4.0) -> Quality:
    rows = [
        Judged(f"p{i}", TEXT, 2.0, False, False, "", wrong, 10, wrong, 50, mos + 0.01 * (i % 3))
        for i, wrong in enumerate(errors_a_prompt)
    ]
    return Quality("8", len(rows), 0, rows)


def test_two_runs_are_compared_prompt_by_prompt() -> None:
    before, after = quality([0, 1] * 20), quality([2, 3] * 20)
    table, worse = compare_quality(before, after)
    assert worse and "WORSE" in table
    assert not compare_quality(before, before)[1]
    assert not compare_quality(after, before)[1]
    assert compare_quality(quality([0] * 30), quality([0] * 30, mos=3.5))[1]  # a lower MOS is worse
    assert Quality.from_json(before.to_json()) == before


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("nowhere", "no such file"),
        ("package:no_such_package/x", "is not installed"),
        ("package:no.such.package/x", "is not installed"),
        ("package:sys/x", "is not installed"),
        ("package:", "is not installed"),
        ("package:numpy/no/such/path", "has no no/such/path"),
        (".", "no Whisper checkpoint there"),
    ],
)
def test_recognisers_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        open_transcriber(where)


def ggml(tensors: dict[str, np.ndarray], kind: int = 1) -> bytes:
    """A file as whisper.cpp's converter writes it, with two bands of three bins and two words."""

    def whole(*numbers: int) -> bytes:
        return struct.pack(f"<{len(numbers)}i", *numbers)

    head = b"lmgg" + whole(*range(1, 11), 1) + whole(2, 3) + bytes(24) + whole(2) + whole(2) + b"ab" + whole(1) + b"c"
    return head + b"".join(
        whole(values.ndim, len(name), kind) + whole(*values.shape[::-1]) + name.encode() + values.tobytes()
        for name, values in tensors.items()
    )


def test_a_checkpoint_of_whisper_cpp(tmp_path: Path) -> None:
    path = tmp_path / "ggml-tiny.bin"
    weight, bias = np.arange(6, dtype=np.float16).reshape(2, 3), np.arange(2, dtype=np.float16)
    data = ggml({"encoder.ln.weight": weight, "encoder.conv1.bias": bias[:, None]})
    path.write_bytes(data)
    sizes, tensors = read_ggml(path)
    assert is_ggml(path) and sizes["n_vocab"] == 1 and sizes["n_text_layer"] == 9 and sizes["n_mels"] == 10
    assert tensors["encoder.ln.weight"].tolist() == weight.tolist()
    assert tensors["encoder.conv1.bias"].tolist() == bias.tolist()
    path.write_bytes(data[:-1])
    with pytest.raises(ConfigError, match="breaks off"):
        read_ggml(path)
    path.write_bytes(ggml({"encoder.ln.weight": weight}, kind=8))
    with pytest.raises(ConfigError, match="quantised weights"):
        read_ggml(path)
    path.write_bytes(b"")
    assert not is_ggml(path)
