"""Each bad request gets an error that says what is wrong, and the engine goes on serving."""

from __future__ import annotations

import errno
import io
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.numpy import save
from safetensors.torch import save as save_torch

import sonant
from clips import reference_clip
from sonant import Engine, EngineConfig, Sampling, Voice
from sonant.errors import (
    BadAudio,
    BadRequest,
    BadSampling,
    BadText,
    ConfigError,
    UnknownLanguage,
    UnknownVoice,
    Unsupported,
)

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"voice": "nobody"}, UnknownVoice, "no voice 'nobody'; this checkpoint has"),
        ({"language": "klingon"}, UnknownLanguage, "no language 'klingon'.*english"),
        ({"language": "beijing_dialect"}, UnknownLanguage, "no language"),
        ({"text": ""}, BadText, "empty"),
        ({"text": " \n\t "}, BadText, "empty"),
        ({"text": "... !? —"}, BadText, "nothing that can be spoken"),
        ({"text": "🙂🙂"}, BadText, "nothing that can be spoken"),
        ({"text": "a" * 100_000}, BadText, "100,000 characters"),
        ({"text": "broken \udcff text"}, BadText, "not valid Unicode at character 7"),
        ({"text": b"bytes"}, BadText, "must be a string"),
        ({"instruct": "calm \ud800"}, BadText, "instruct is not valid Unicode"),
        ({"sampling": Sampling(temperature=-1.0)}, BadSampling, "temperature"),
        ({"sampling": Sampling(temperature=NAN)}, BadSampling, "temperature must be a number"),
        ({"sampling": Sampling(temperature=0.0)}, BadSampling, "temperature"),
        ({"sampling": Sampling(top_p=1.5)}, BadSampling, "top_p"),
        ({"sampling": Sampling(top_p=INF)}, BadSampling, "top_p"),
        ({"sampling": Sampling(top_k=-5)}, BadSampling, "top_k must be a whole number"),
        ({"sampling": Sampling(top_k=2.5)}, BadSampling, "top_k"),  # type: ignore[arg-type]
        ({"sampling": Sampling(repetition_penalty=0.0)}, BadSampling, "repetition_penalty"),
        ({"sampling": Sampling(subtalker_temperature=NAN)}, BadSampling, "subtalker_temperature"),
        ({"sampling": Sampling(subtalker_top_k="x")}, BadSampling, "subtalker_top_k"),  # type: ignore[arg-type]
        ({"sampling": {}}, BadRequest, "sampling must be Sampling"),
        ({"language": None}, BadRequest, "language must be str"),
        ({"voice": 5}, BadRequest, "voice must be str or Voice or None"),
        ({"priority": "high"}, BadRequest, "priority must be int"),
        ({"priority": 2**63}, BadRequest, "priority must be from -2147483647 to 2147483647"),
        ({"priority": -(2**63)}, BadRequest, "priority must be from"),
        ({"max_frames": 2.5}, BadRequest, "max_frames must be int"),
        ({"max_frames": True}, BadRequest, "max_frames must be int"),
        ({"seed": "7"}, BadRequest, "seed must be int"),
        ({"instruct": 3}, BadRequest, "instruct must be str"),
        ({"seed": -1}, BadSampling, "seed"),
        ({"seed": 2**64}, BadSampling, "seed"),
        ({"max_frames": 0}, BadRequest, "max_frames"),
        ({"first_audio_within_s": 0}, BadRequest, "first_audio_within_s must be over 0"),
        ({"first_audio_within_s": float("nan")}, BadRequest, "first_audio_within_s must be over 0"),
        ({"playback_speed": 0}, BadRequest, "playback_speed must be over 0"),
        ({"playback_speed": INF}, BadRequest, "playback_speed must be over 0 and finite"),
        ({"playback_speed": 10**400}, BadRequest, "playback_speed must be over 0 and finite"),
        ({"playback_speed": "fast"}, BadRequest, "playback_speed must be int or float"),
        ({"first_audio_within_s": "soon"}, BadRequest, "first_audio_within_s must be int or float or None"),
        ({"max_frames": 10**9}, BadText, "positions"),
        ({"voice": Voice({"embedding": np.zeros(64, np.float32)})}, Unsupported, "cannot clone"),
    ],
)
def test_bad_requests_are_refused_with_a_reason(
    engine: Engine, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        engine.speak(**{"text": "hello", **options})
    assert len(engine.speak("hello", seed=1, max_frames=2).frames) == 2


def test_a_seed_may_be_any_64_bit_number(engine: Engine) -> None:
    spoken = [engine.speak("hello", seed=s, max_frames=4).frames.tobytes() for s in (0, 2**32, 2**63, 2**64 - 1)]
    assert len(set(spoken)) == 4


@pytest.fixture(scope="module")
def cloner(tiny_checkpoints: Mapping[str, Path]) -> Any:
    with sonant.load(tiny_checkpoints["base"], device="cpu") as engine:
        yield engine


def test_bad_reference_clips_are_refused_with_a_reason(cloner: Engine, tmp_path: Path) -> None:
    empty, text, cut, long = (tmp_path / name for name in ("empty.wav", "text.wav", "cut.wav", "long.wav"))
    empty.write_bytes(b"")
    text.write_text("this is not sound")
    whole = io.BytesIO()
    soundfile.write(whole, *reference_clip(), format="WAV")
    cut.write_bytes(whole.getvalue()[:2000])
    soundfile.write(long, np.zeros(8000 * 600, np.int16), 8000)
    silent, rate = np.zeros(48000, np.float32), 24000
    bad = (
        (empty, "empty"),
        (text, "not|cannot"),
        (cut, ""),
        (long, "600"),
        (tmp_path / "missing.wav", "no|missing"),
        ((silent, rate), "silent|silence"),
        ((np.zeros(0, np.float32), rate), "empty|no samples|short"),
        ((np.full(48000, np.nan, np.float32), rate), "finite|NaN"),
        (b"RIFF" + struct.pack("<I", 4) + b"WAVE", ""),
    )
    for clip, says in bad:
        with pytest.raises(BadAudio, match=f"(?i){says}"):
            cloner.clone(clip)
    with pytest.raises(BadText, match="reference text is empty"):
        cloner.clone(reference_clip(), "  ")
    voice = cloner.clone(reference_clip())
    assert len(cloner.speak("hello", voice=voice, seed=1, max_frames=2).frames) == 2


def test_a_base_checkpoint_needs_a_clip_and_takes_no_instruct(cloner: Engine) -> None:
    for voice in (None, "ryan"):
        with pytest.raises(UnknownVoice, match="reference clip"):
            cloner.speak("hello", voice=voice)
    embedding = np.zeros(64, np.float32)
    for width, largest in ((15, 5), (16, 2048), (16, 2**31 - 1)):
        codes = np.full((4, width), largest, np.int32)
        with pytest.raises(UnknownVoice, match="another model"):
            cloner.speak("hello", voice=Voice({"embedding": embedding, "codes": codes}, "the user"))
    wrong: list[dict[str, Any]] = [
        {"embedding": np.zeros(1024, np.float32)},
        {"embedding": np.zeros((2, 64), np.float32)},
        {"embedding": np.zeros(64, np.int32)},
        {"latents": np.zeros((4, 64), np.float32)},
        {"embedding": embedding, "latents": np.zeros((4, 64), np.float32)},
        {"embedding": embedding, "codes": np.full((4, 16), -1, np.int32)},
        {"embedding": embedding, "codes": np.zeros((4, 16))},
        {"embedding": embedding, "codes": np.zeros(16, np.int32)},
    ]
    for tensors in wrong:
        with pytest.raises(UnknownVoice, match="another model"):
            cloner.speak("hello", voice=Voice(tensors, "the user"))
    with pytest.raises(UnknownVoice, match="another model"):
        cloner.speak("hello", voice=Voice({"embedding": embedding}, family="another"))
    for bad in (np.full(64, np.nan, np.float32), np.zeros((0, 16), np.int32), np.array(["a"])):
        with pytest.raises(BadAudio, match="finite numbers"):
            Voice({"embedding": bad})
    with pytest.raises(BadAudio, match="holds nothing"):
        Voice({})
    with pytest.raises(BadSampling, match="do_sample must be true or false"):
        cloner.speak("hello", voice=cloner.clone(reference_clip()), sampling=Sampling(do_sample="no"))  # type: ignore[arg-type]
    with pytest.raises(BadSampling, match="no 'warmth' to set; it has do_sample, greedy"):
        cloner.speak("hello", voice=cloner.clone(reference_clip()), sampling=Sampling(warmth=1.0))
    with pytest.raises(Unsupported, match="instruct"):
        cloner.speak("hello", voice=cloner.clone(reference_clip()), instruct="calm")


def test_a_voice_survives_a_file(cloner: Engine, tmp_path: Path) -> None:
    voice = cloner.clone(reference_clip(), "the user and the world", name="me")
    voice.save(tmp_path / "me.safetensors")
    again = Voice.load(tmp_path / "me.safetensors")
    assert (again.name, again.text, again.fingerprint) == ("me", "the user and the world", voice.fingerprint)
    spoken = [cloner.speak("hello", voice=v, seed=1, max_frames=5).frames for v in (voice, again)]
    np.testing.assert_array_equal(*spoken)
    (tmp_path / "bad.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(BadAudio, match="cannot be read as a saved voice"):
        Voice.load(tmp_path / "bad.safetensors")


def test_a_voice_that_cannot_be_written_whole_leaves_the_older_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> int:
        write(path, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    older, path, write = Voice({"embedding": np.ones(4, np.float32)}), tmp_path / "me.voice", Path.write_bytes
    older.save(path)
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        Voice({"embedding": np.zeros(4, np.float32)}).save(path)
    assert Voice.load(path).fingerprint == older.fingerprint and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.complex64])
def test_a_voice_of_numbers_that_none_is_saved_in_is_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    made = save_torch({"embedding": torch.ones(64, dtype=dtype)}, metadata={"format": "sonant-voice"})
    (tmp_path / "me.voice").write_bytes(made)
    with pytest.raises(BadAudio, match=r"its embedding is stored as .*, which no saved voice is"):
        Voice.load(tmp_path / "me.voice")


def test_a_voice_whose_numbers_lie_in_another_order_survives_a_file(tmp_path: Path) -> None:
    """Like a transpose's, which safetensors would write in the order of its memory."""
    held = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)
    voice = Voice({"reference": held, "level": np.full((), 3.0, np.float32)}, "words", "me", "some")
    voice.save(tmp_path / "me.voice")
    again = Voice.load(tmp_path / "me.voice")
    assert again.fingerprint == voice.fingerprint
    np.testing.assert_array_equal(again.tensors["reference"], held)
    assert again.tensors["level"].shape == ()


def test_a_voice_file_from_before_families_is_spoken_with(cloner: Engine, tmp_path: Path) -> None:
    """As written by versions whose voices were only an embedding and codes."""
    voice = cloner.clone(reference_clip(), "the user and the world")
    meta = {"text": voice.text or "", "name": "me", "format": "sonant-voice"}
    (tmp_path / "old.voice").write_bytes(save(dict(voice.tensors), metadata=meta))
    old = Voice.load(tmp_path / "old.voice")
    assert old.family is None and (old.name, old.text) == ("me", voice.text)
    spoken = [cloner.speak("hello", voice=v, seed=1, max_frames=5).frames for v in (voice, old)]
    np.testing.assert_array_equal(*spoken)


@pytest.mark.parametrize(
    "options",
    [
        {"max_rows": 0},
        {"chunk_s": (0.0, 1.0)},
        {"steps_ahead": 2},
        {"kv_memory_fraction": 1.5},
        {"budget_s": INF},
        {"budget_s_per_token": NAN},
        {"codec_batch_s": INF},
    ],
    ids=str,
)
def test_bad_engine_options_are_errors(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        EngineConfig(**options)
