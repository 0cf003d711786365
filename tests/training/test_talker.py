"""The talker trainer sees exactly what the engine will see, learns, resumes, and then speaks what it learnt."""

from __future__ import annotations

import wave
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from training.clip import FRAME
from training.export import export
from training.guess import guesses, lay_out
from training.shards import Entry
from training.talker import checkpoint
from training.talker.batches import Batches
from training.talker.config import TalkerTraining
from training.talker.folder import write_folder
from training.talker.guide import Guide, guide_batch
from training.talker.lessons import lines_of
from training.talker.listen import listen
from training.talker.trainer import Trainer
from training.talker.utterances import Line, builder_of, gather, hold_out, request_of
from training.talker.vocabulary import character_bpe

import sonant
import tiny_voice
from sonant.kernels.reference import LogitMask, Lookup
from sonant.models.qwen3_tts.model import Qwen3TTS
from sonant.models.qwen3_tts.predictor import Draw
from sonant.models.qwen3_tts.tokenizer import TextTokenizer
from sonant.text.lexicon import alphabet
from sonant.types import Sampling
from training import encode

CPU = torch.device("cpu")
GREEDY = replace(Sampling.greedy(), repetition_penalty=1.0)


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_voice.write_codec(tmp_path_factory.mktemp("codec") / "speech_tokenizer")


@pytest.fixture(scope="module")
def config() -> TalkerTraining:
    return tiny_voice.tiny_config()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, config: TalkerTraining, codec: Path) -> Path:
    """The JSON files alone, with every speaker."""
    made = tmp_path_factory.mktemp("folder")
    write_folder(made, config, codec, tuple(config.speakers))
    return made


def batches_of(config: TalkerTraining, folder: Path, lines: list[Line], positions: int = 2048) -> Batches:
    model = builder_of(folder).config
    data = gather(folder, lines, config.batch, workers=1)
    stop = model.talker.codec_eos_token_id
    return Batches(data, CPU, pad_text=model.tts_pad_token_id, stop=stop, positions=positions)


def trainer_of(config: TalkerTraining, folder: Path) -> Trainer:
    return Trainer(config, builder_of(folder).config, CPU)


def random_weights(trainer: Trainer, stop_gain: float) -> None:
    """Far from the small start, so that every part of the model matters; it stops by itself now and then."""
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for name, weight in trainer.talker.named_parameters():
            spread = 1.0 if "embedding" in name else 0.1 if weight.ndim < 2 else weight.shape[1] ** -0.5
            offset = 1.0 if name.endswith("norm.weight") else 0.0
            weight.copy_(offset + spread * torch.randn(weight.shape, generator=generator))
            trainer.averaged[name].copy_(weight)
        stop = trainer.book + 102
        for table in (trainer.talker.codec_head.weight, trainer.averaged["codec_head.weight"]):
            table[stop] *= stop_gain


# ------------------------------------------------------------------ text


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


# ------------------------------------------------------------------ layout


def test_prompts_are_the_engines_own(config: TalkerTraining, folder: Path) -> None:
    lines = tiny_voice.lines()
    data = gather(folder, lines, config.batch, workers=1)
    builder = builder_of(folder)
    starts = np.cumsum(data.prompt_length) - data.prompt_length
    languages = set()
    for line, start, length in zip(lines, starts, data.prompt_length, strict=True):
        request = request_of(line, config.batch)
        layout = builder.layout(request)
        languages.add(request.language)
        np.testing.assert_array_equal(data.prompt_text[start : start + length], layout.text)
        np.testing.assert_array_equal(data.prompt_code[start : start + length], layout.codes[:, 0])
    assert languages == {"auto", "english"}


def test_some_words_are_spelt_in_training_and_none_when_served(config: TalkerTraining, folder: Path) -> None:
    lines = tiny_voice.lines()

    def letters(spelt: float) -> int:
        data = gather(folder, lines, replace(config.batch, spelt=spelt, lower_case=0.0), workers=1)
        return int(((data.prompt_text >= ord("a")) & (data.prompt_text <= ord("z"))).sum())

    none, some, every = letters(0.0), letters(0.5), letters(1.0)
    assert none < some < every


def test_processes_lay_out_the_same(config: TalkerTraining, folder: Path) -> None:
    lines = tiny_voice.lines() * 150
    one, two = (gather(folder, lines, config.batch, workers=n) for n in (1, 2))
    np.testing.assert_array_equal(one.prompt_text, two.prompt_text)
    np.testing.assert_array_equal(one.frames, two.frames)


def test_every_utterance_comes_once_an_epoch(config: TalkerTraining, folder: Path) -> None:
    batches = batches_of(config, folder, tiny_voice.lines(), positions=150)
    assert batches.per_epoch > 3
    for epoch in range(2):
        seen = [batches.of_step(epoch * batches.per_epoch + i, seed=1) for i in range(batches.per_epoch)]
        assert sorted(np.concatenate(seen)) == list(range(len(tiny_voice.SENTENCES)))


def test_a_row_is_its_prompt_then_its_frames_and_ends_with_the_stop_code(config: TalkerTraining, folder: Path) -> None:
    lines = tiny_voice.lines()
    batches = batches_of(config, folder, lines)
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


@pytest.mark.parametrize("text", [tiny_voice.SENTENCES[2], tiny_voice.SENTENCES[3], "Hi."])
def test_teacher_forcing_gives_the_engines_logits(
    config: TalkerTraining, folder: Path, codec: Path, tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine speaks greedily and we note its logits; the trainer, given the codes it drew, must get the same."""
    trainer = trainer_of(config, folder)
    random_weights(trainer, stop_gain=1.2)
    export(trainer.averaged, config, codec, tmp_path / "voice", dtype=torch.float32, codec_dtype=torch.float32)
    first: list[torch.Tensor] = []
    rest: list[torch.Tensor] = []

    draw = Draw.pick

    def noted(
        self: Draw,
        logits: torch.Tensor,
        uniform: torch.Tensor,
        mask: LogitMask | None = None,
        lookup: Lookup | None = None,
    ) -> torch.Tensor:
        (rest if mask is None else first).append(logits[:1].clone())
        return draw(self, logits, uniform, mask, lookup)

    monkeypatch.setattr(Draw, "pick", noted)
    request = request_of(Line(text, "ben", np.zeros((1, 1), np.int16)), config.batch)
    with sonant.load(tmp_path / "voice", device="cpu") as engine:
        groups = engine.model.spec.codebooks - 1
        speech = engine.speak(text, voice="ben", language=request.language, sampling=GREEDY, max_frames=30)
    frames = len(speech.codes)
    assert frames > 3

    line = Line(text, "ben", speech.codes.astype(np.int16))
    batch = batches_of(config, folder, [line]).make(np.arange(1), 1.0, np.random.default_rng(0))
    mine_first, mine_rest = trainer.logits(batch, noisy=False)
    theirs = torch.cat(first)[: frames + 1]
    torch.testing.assert_close(mine_first[: len(theirs)], theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine_rest.flatten(0, 1), torch.cat(rest)[: frames * groups], rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------ learning


def test_loss_falls_on_a_fixed_batch(config: TalkerTraining, folder: Path) -> None:
    trainer = trainer_of(config, folder)
    batches = batches_of(config, folder, tiny_voice.lines())
    losses = [trainer.step(batches, 0.0) for _ in range(60)]
    assert losses[-1]["first"] < 0.75 * losses[0]["first"]
    assert losses[-1]["rest"] < 0.95 * losses[0]["rest"]
    figures = trainer.validate(batches)
    assert figures["held_out_first"] < losses[0]["first"]
    assert 0 <= figures["held_out_hits"] <= 1


def test_noise_changes_frames_and_nothing_else(config: TalkerTraining, folder: Path) -> None:
    noisy = replace(config, noise=replace(config.noise, codes=1.0))
    batch = batches_of(config, folder, tiny_voice.lines()).make(np.arange(10), 1.0, np.random.default_rng(0))
    torch.manual_seed(0)
    codes = trainer_of(noisy, folder)._noised(batch.codes, 1.0)
    frames = batch.codes[..., 1] >= 0
    assert torch.equal(codes[~frames], batch.codes[~frames])
    assert 0.2 < (codes[frames] != batch.codes[frames]).float().mean() < 0.7
    assert codes[frames].min() >= 0 and codes[frames].max() < tiny_voice.BOOK_SIZE


def test_a_resumed_run_is_the_run_that_was_not_stopped(config: TalkerTraining, folder: Path, tmp_path: Path) -> None:
    noisy = replace(config, noise=replace(config.noise, codes=0.2, given=0.1, inputs=0.1, branches=0.1))
    batches = batches_of(noisy, folder, tiny_voice.lines(), positions=300)
    through, stopped, resumed = (trainer_of(noisy, folder) for _ in range(3))
    for i in range(8):
        through.step(batches, i / 10)
    for i in range(4):
        stopped.step(batches, i / 10)
    checkpoint.save(stopped, tmp_path, compact=False)
    checkpoint.load(resumed, tmp_path)
    for i in range(4, 8):
        resumed.step(batches, i / 10)
    for name, weight in through.talker.named_parameters():
        torch.testing.assert_close(dict(resumed.talker.named_parameters())[name], weight, rtol=0, atol=0)
        torch.testing.assert_close(resumed.averaged[name], through.averaged[name], rtol=0, atol=0)


def test_a_compact_checkpoint_is_small_and_goes_on(config: TalkerTraining, folder: Path, tmp_path: Path) -> None:
    trainer = trainer_of(config, folder)
    batches = batches_of(config, folder, tiny_voice.lines())
    trainer.step(batches, 0.0)
    checkpoint.save(trainer, tmp_path / "whole", compact=False)
    checkpoint.save(trainer, tmp_path / "compact", compact=True)
    whole, compact = (sum(f.stat().st_size for f in (tmp_path / n).iterdir()) for n in ("whole", "compact"))
    assert compact < whole / 6
    other = trainer_of(config, folder)
    checkpoint.load(other, tmp_path / "compact")
    assert (other.step_number, other.since_restart) == (1, 0)
    other.step(batches, 0.1)
    for name, weight in checkpoint.averaged(tmp_path / "compact").items():
        torch.testing.assert_close(weight.float(), trainer.averaged[name], rtol=1e-3, atol=1e-4)


def test_a_checkpoint_of_another_shape_is_refused(config: TalkerTraining, folder: Path, tmp_path: Path) -> None:
    checkpoint.save(trainer_of(config, folder), tmp_path, compact=True)
    narrower = replace(config, predictor=replace(config.predictor, inner=32))
    with pytest.raises(ValueError, match="does not fit"):
        checkpoint.load(Trainer(narrower, _model(narrower, folder), CPU), tmp_path)


def _model(config: TalkerTraining, folder: Path) -> object:
    model = builder_of(folder).config
    return replace(model, predictor=replace(model.predictor, intermediate_size=config.predictor.inner))


def test_the_engine_speaks_freely_with_what_was_learnt(
    config: TalkerTraining, folder: Path, codec: Path, tmp_path: Path
) -> None:
    trainer = trainer_of(config, folder)
    line = tiny_voice.lines()[0]
    batches = batches_of(config, folder, [line])
    for _ in range(120):
        trainer.step(batches, 0.0)
    export(trainer.averaged, config, codec, tmp_path / "voice")
    language = request_of(line, config.batch).language
    with sonant.load(tmp_path / "voice", device="cpu") as engine:
        speech = engine.speak(line.text, voice=line.speaker, language=language, sampling=GREEDY)
    np.testing.assert_array_equal(speech.codes, line.frames)
    assert speech.finish_reason == "stop"
    label, frames = config.speakers[line.speaker][0], len(line.frames)
    entries = [Entry(line.text, s, "train", n * FRAME) for s, n in (("stranger", 3), (label, frames))]
    codes = np.concatenate([np.zeros_like(line.frames[:3]), line.frames])
    assert isinstance(engine.model, Qwen3TTS)
    made = guesses(engine.model, *lay_out(tmp_path / "voice", config, entries, codes, workers=1), codes)
    assert (made[:3] == -1).all()
    np.testing.assert_array_equal(made[3:], line.frames)
    with pytest.raises(ValueError, match="of another one"):
        lay_out(tmp_path / "voice", config, entries, codes[1:], workers=1)
    figures = listen(trainer.averaged, config, codec, tmp_path / "samples.wav", sentences=(line.text,))
    with wave.open(str(tmp_path / "samples.wav")) as w:
        assert w.getnframes() / w.getframerate() > figures["spoken_seconds"] > 0


# ------------------------------------------------------------------ data


def test_codes_are_read_by_label_and_split(config: TalkerTraining, tmp_path: Path) -> None:
    rows = [("a", "train"), ("a2", "train"), ("b", "eval"), ("stranger", "train"), ("b", "train")]
    entries = [Entry(f"Text {i}.", speaker, split, 0) for i, (speaker, split) in enumerate(rows)]
    encode.write(tmp_path, entries, [np.full((3 + i, 2), i, np.int16) for i in range(len(rows))])
    found = {line.text: (line.speaker, len(line.frames)) for line in lines_of(tmp_path, config)}
    assert found == {"Text 0.": ("anna", 3), "Text 1.": ("anna", 4), "Text 4.": ("ben", 7)}


def test_no_sentence_is_in_both_training_and_validation() -> None:
    lines = [replace(line, speaker=s) for line in tiny_voice.lines() for s in ("anna", "ben")]
    training, held = hold_out(lines, 4)
    assert held
    assert len(training) + len(held) == len(lines)
    assert not {line.text for line in training} & {line.text for line in held}


# ------------------------------------------------------------------ guide


def test_the_guide_follows_a_steady_pace_through_the_text() -> None:
    guide = Guide(layers=(1,), weight=1.0, width=0.0, slack=1.0)
    begin, end, pad, frames = 7, 8, 9, 23
    text = torch.tensor([[0, 0, begin, *range(10, 30), end, pad, *[pad] * frames, pad]])
    codes = torch.full((1, text.shape[1], 2), -1)
    codes[0, 25 : 25 + frames, 1] = 3
    context = guide_batch(guide, text, codes, begin, end)
    guided = context.guided[0].nonzero().flatten().tolist()
    assert guided == list(range(24, 24 + frames))  # the last prompt position says the first frame
    near = [context.near[0, at].nonzero().flatten().tolist() for at in guided]
    assert all(3 <= key < 23 for keys in near for key in keys)
    assert near[0][0] == 3 and near[-1][-1] == 22
    assert all(a[0] <= b[0] for a, b in pairwise(near))

    looking = torch.zeros(1, text.shape[1], 1, 64)
    keys = torch.zeros_like(looking)
    for at, window in zip(guided, near, strict=True):
        looking[0, at, 0, at] = 800.0
        keys[0, window[0], 0, at] = 10.0
    context.attend(0, looking, keys, keys)
    assert context.astray == 0  # a layer that is not guided
    context.attend(1, looking, keys, keys)
    assert context.astray < 1e-3
    context.attend(1, looking, keys.roll(-2, 1), keys)
    assert context.astray > 0.1
