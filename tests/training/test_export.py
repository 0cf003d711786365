"""An exported voice is a complete checkpoint folder, and states how its text must be read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from training.export import compact_codec, export, published_tensors, sizes
from training.ship import PLACE, ship
from training.talker import checkpoint
from training.talker.config import TalkerTraining
from training.talker.folder import write_folder

import sonant
import tiny_voice
from sonant import Engine
from sonant.bundled import verify
from sonant.errors import BadText, CheckpointError
from sonant.models.qwen3_tts.config import Qwen3TTSConfig
from sonant.models.registry import check_model
from sonant.sampling import Sampling
from sonant.text.lexicon import Lexicon
from training import settings

GREEDY = Sampling.greedy()


@pytest.fixture(scope="module")
def weights(talker_config: TalkerTraining, folder: Path) -> Mapping[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    averaged = tiny_voice.trainer_of(talker_config, folder).averaged
    return {n: w + 0.3 * torch.randn(w.shape, generator=generator) for n, w in averaged.items()}


@pytest.fixture(scope="module")
def voice(
    talker_config: TalkerTraining,
    speech_tokenizer: Path,
    lexicon: Path,
    weights: Mapping[str, Tensor],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    out = tmp_path_factory.mktemp("export") / "voice"
    export(weights, talker_config, speech_tokenizer, out, lexicon=lexicon)
    return out


@pytest.fixture(scope="module")
def engine(voice: Path) -> Iterator[Engine]:
    with sonant.load(voice, device="cpu") as opened:
        yield opened


def test_the_folder_is_complete_and_nothing_else(voice: Path) -> None:
    assert set(sizes(voice)) == {
        "LICENSE.txt", "config.json", "generation_config.json", "merges.txt", "model.safetensors", "lexicon.zz",
        "preprocessor_config.json", "sonant.json", "speech_tokenizer/config.json", "tokenizer_config.json",
        "speech_tokenizer/configuration.json", "speech_tokenizer/model.safetensors",
        "speech_tokenizer/preprocessor_config.json", "vocab.json",
    }  # fmt: skip


def test_sonant_speaks_with_it(engine: Engine) -> None:
    assert engine.voices == ("anna", "ben")
    assert engine.languages == ("auto", "english")
    speech = engine.speak("Hello, $5!", voice="ben", max_frames=6, seed=1)
    assert speech.frames.shape[1] == tiny_voice.BOOKS
    assert speech.frames.max() < tiny_voice.BOOK_SIZE
    assert len(speech.samples) == 1920 * len(speech.frames)
    assert np.isfinite(speech.samples).all()


def test_text_is_normalised_before_it_is_read(engine: Engine) -> None:
    options = {"voice": "anna", "sampling": GREEDY, "max_frames": 8}
    typed = engine.speak("Dr. Lee paid $5.", **options)
    spelled = engine.speak("Doctor Lee paid five dollars.", **options)
    np.testing.assert_array_equal(typed.frames, spelled.frames)


def test_nothing_to_say_is_the_callers_error(engine: Engine) -> None:
    with pytest.raises(BadText, match="nothing is left"):
        engine.speak("你好")


def test_a_runaway_is_cut_after_a_few_frames_a_letter(engine: Engine) -> None:
    model = engine.model
    assert model.prompter.budget.s_per_token == pytest.approx(3 * 0.08)
    assert engine.config.segment_chars == 200


def test_instructions_are_left_out(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    options = {"voice": "anna", "sampling": GREEDY, "max_frames": 4}
    plain, told = engine.speak("Hi.", **options), engine.speak("Hi.", instruct="Whisper.", **options)
    np.testing.assert_array_equal(plain.frames, told.frames)
    assert "not trained on instruct" in caplog.text


def test_weights_come_back_as_they_went(voice: Path, weights: Mapping[str, Tensor]) -> None:
    stored = load_file(voice / "model.safetensors")
    for name, value in published_tensors(weights, Qwen3TTSConfig.read(voice)).items():
        torch.testing.assert_close(stored[name].float(), value, rtol=1e-3, atol=1e-4)
    assert {t.dtype for t in stored.values()} == {torch.float16}


def test_training_goes_on_from_it(talker_config: TalkerTraining, voice: Path, weights: Mapping[str, Tensor]) -> None:
    trainer = tiny_voice.trainer_of(talker_config, voice)
    checkpoint.load(trainer, voice)
    for name, weight in trainer.talker.named_parameters():
        torch.testing.assert_close(weight, weights[name], atol=1e-3, rtol=1e-3)  # voices are stored in half precision
        torch.testing.assert_close(trainer.averaged[name], weight, atol=0, rtol=0)
    assert (trainer.step_number, trainer.since_restart) == (0, 0)


def test_the_recipe_is_that_of_the_voice_that_ships(tmp_path: Path) -> None:
    """So that training can continue from that voice: config gives its shape, text, lexicon and speakers."""
    config = settings.read(settings.CONFIGS / "talker.toml", TalkerTraining)
    write_folder(tmp_path, config, PLACE / "speech_tokenizer", config.voice.shipped, torch.float16)
    made = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file())
    assert Path("config.json") in made and Path("lexicon.zz") in made
    assert [str(p) for p in made if (tmp_path / p).read_bytes() != (PLACE / p).read_bytes()] == []


def test_a_voice_may_carry_another_lexicon(
    talker_config: TalkerTraining, speech_tokenizer: Path, tmp_path: Path
) -> None:
    other, voice = tmp_path / "other.zz", tmp_path / "voice"
    Lexicon({"cat": "kˈæt"}).write(other)
    write_folder(voice, talker_config, speech_tokenizer, talker_config.voice.shipped, lexicon=other)
    assert (voice / "lexicon.zz").read_bytes() == other.read_bytes()


def test_a_compact_codec_has_the_same_entries(speech_tokenizer: Path) -> None:
    tensors = load_file(speech_tokenizer / "model.safetensors")
    kept = compact_codec(tensors, torch.float32, encoder=True)
    assert kept.keys() == tensors.keys()
    for name in tensors:
        if name.endswith(".cluster_usage"):
            book = name.removesuffix("cluster_usage")
            leaf = "embedding_sum" if name.startswith("decoder.") else "embed_sum"
            entries = tensors[f"{book}{leaf}"] / tensors[name].clamp(min=1e-5)[:, None]
            torch.testing.assert_close(kept[f"{book}{leaf}"] / kept[name][:, None], entries)
    assert not any(n.startswith("encoder.") for n in compact_codec(tensors, torch.float16, encoder=False))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"text_front_end": "klingon"}, "no text_front_end 'klingon'"),
        ({"colour": "red"}, "no key is called 'colour'"),
        ({"license": 3}, "license must be text"),
        ({"frames_per_token": 0}, "frames_per_token must be a number"),
        ({"frames_per_token": True}, "frames_per_token must be a number"),
        ({"segment_chars": 0}, "segment_chars must be a whole number"),
        ({"segment_chars": 99.5}, "segment_chars must be a whole number"),
        ([], "should hold a JSON object"),
    ],
)
def test_a_wrong_sonant_json_is_refused(voice: Path, tmp_path: Path, content: object, says: str) -> None:
    wrong = Path(shutil.copytree(voice, tmp_path / "voice"))
    (wrong / "sonant.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CheckpointError, match=says):
        check_model(wrong, sonant.EngineConfig(), torch.float32, torch.float32)


def test_a_folder_without_sonant_json_gets_its_text_untouched(voice: Path, tmp_path: Path) -> None:
    plain = Path(shutil.copytree(voice, tmp_path / "voice"))
    (plain / "sonant.json").unlink()
    with sonant.load(plain, device="cpu") as engine:
        ids = engine.model.prompter.builder.layout(sonant.SpeechRequest(text="$5", voice="anna")).text.tolist()
    assert [ord("$"), ord("5")] == [i for i in ids if i in (ord("$"), ord("5"))]


def test_what_is_shipped_is_checked(voice: Path, tmp_path: Path) -> None:
    place = tmp_path / "package"
    (place / "old").mkdir(parents=True)
    assert ship(voice, place) == sum(sizes(voice).values())
    assert not (place / "old").exists()
    (place / "vocab.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"vocab\.json is damaged"):
        verify(place)


def test_a_voice_that_is_too_large_is_not_shipped(voice: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.ship.MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="over"):
        ship(voice, tmp_path / "package")
    assert not (tmp_path / "package").exists()


def test_a_voice_is_exported_over_the_folder_that_holds_its_codec_and_lexicon(
    voice: Path, talker_config: TalkerTraining, speech_tokenizer: Path, weights: Mapping[str, Tensor], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(voice, tmp_path / "voice"))
    shutil.rmtree(out / "speech_tokenizer")
    shutil.copytree(speech_tokenizer, out / "speech_tokenizer")
    export(weights, talker_config, out / "speech_tokenizer", out, lexicon=out / "lexicon.zz")
    assert sizes(out) == sizes(voice)
    assert [path.name for path in tmp_path.iterdir()] == ["voice"]


def test_an_export_that_fails_leaves_the_voice_that_was_there(
    voice: Path, talker_config: TalkerTraining, speech_tokenizer: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(voice, tmp_path / "voice"))
    with pytest.raises(ValueError, match="differs from the published layout"):
        export({}, talker_config, speech_tokenizer, out)
    assert sizes(out) == sizes(voice)


def test_a_voice_whose_lexicon_was_changed_where_it_lies_is_shipped_from_there(voice: Path, tmp_path: Path) -> None:
    place = tmp_path / "package"
    ship(voice, place)
    Lexicon({"cat": "kˈæt"}).write(place / "lexicon.zz")
    ship(place, place)
    verify(place)
    assert sizes(place).keys() == {*sizes(voice), "SHA256SUMS"}
    assert [path.name for path in tmp_path.iterdir()] == ["package"]
