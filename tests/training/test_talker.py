"""The talker trainer computes what the engine computes, learns, resumes, and then speaks what it learnt."""

from __future__ import annotations

import wave
from dataclasses import dataclass, replace
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
from training.talker.listen import listen
from training.talker.trainer import Trainer
from training.talker.utterances import Line, builder_of, request_of

import sonant
import tiny_voice
from sonant.kernels.reference import LogitMask, Lookup
from sonant.models.qwen3_tts.model import Qwen3TTS
from sonant.models.qwen3_tts.predictor import Draw
from sonant.sampling import Sampling
from tiny_voice import batches_of, trainer_of

CPU = torch.device("cpu")
GREEDY = Sampling(greedy=True, repetition_penalty=1.0)


@dataclass(frozen=True)
class Learnt:
    """A line that a talker has learnt by heart, and how."""

    trainer: Trainer
    line: Line
    batches: Batches
    losses: list[dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def learnt(talker_config: TalkerTraining, folder: Path) -> Learnt:
    trainer, line = trainer_of(talker_config, folder), tiny_voice.lines()[0]
    batches = batches_of(talker_config, folder, [line])
    return Learnt(trainer, line, batches, [trainer.step(batches, 0.0) for _ in range(120)])


def random_weights(trainer: Trainer, stop_gain: float) -> None:
    """Give it weights far larger than its small start, so that every part matters; now and then it stops by itself."""
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


@pytest.mark.parametrize("text", [tiny_voice.SENTENCES[2], tiny_voice.SENTENCES[3], "Hi."])
def test_teacher_forcing_gives_the_engines_logits(
    talker_config: TalkerTraining,
    folder: Path,
    speech_tokenizer: Path,
    lexicon: Path,
    tmp_path: Path,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine speaks greedily and its logits are recorded; the trainer, given the same codes, must get the same."""
    trainer = trainer_of(talker_config, folder)
    random_weights(trainer, stop_gain=1.2)
    whole = {"dtype": torch.float32, "codec_dtype": torch.float32}
    export(trainer.averaged, talker_config, speech_tokenizer, tmp_path / "voice", lexicon=lexicon, **whole)
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
    request = request_of(Line(text, "ben", np.zeros((1, 1), np.int16)), talker_config.batch)
    with sonant.load(tmp_path / "voice", device="cpu") as engine:
        groups = engine.model.spec.frame.shape[0] - 1
        speech = engine.speak(text, voice="ben", language=request.language, sampling=GREEDY, max_frames=30)
    frames = len(speech.frames)
    assert frames > 3

    line = Line(text, "ben", speech.frames.astype(np.int16))
    batch = batches_of(talker_config, folder, [line]).make(np.arange(1), 1.0, np.random.default_rng(0))
    mine_first, mine_rest = trainer.logits(batch, noisy=False)
    theirs = torch.cat(first)[: frames + 1]
    torch.testing.assert_close(mine_first[: len(theirs)], theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine_rest.flatten(0, 1), torch.cat(rest)[: frames * groups], rtol=1e-4, atol=1e-4)


def test_loss_falls_on_a_fixed_batch(learnt: Learnt) -> None:
    begin, end = learnt.losses[0], learnt.losses[59]
    assert end["first"] < 0.75 * begin["first"]
    assert end["rest"] < 0.95 * begin["rest"]
    figures = learnt.trainer.validate(learnt.batches)
    assert figures["held_out_first"] < begin["first"]
    assert 0 <= figures["held_out_hits"] <= 1


def test_noise_changes_frames_and_nothing_else(talker_config: TalkerTraining, folder: Path) -> None:
    noisy = replace(talker_config, noise=replace(talker_config.noise, codes=1.0))
    batch = batches_of(talker_config, folder, tiny_voice.lines()).make(np.arange(10), 1.0, np.random.default_rng(0))
    torch.manual_seed(0)
    codes = trainer_of(noisy, folder)._noised(batch.codes, 1.0)
    frames = batch.codes[..., 1] >= 0
    assert torch.equal(codes[~frames], batch.codes[~frames])
    assert 0.2 < (codes[frames] != batch.codes[frames]).float().mean() < 0.7
    assert codes[frames].min() >= 0 and codes[frames].max() < tiny_voice.BOOK_SIZE


def test_a_resumed_run_is_the_run_that_was_not_stopped(
    talker_config: TalkerTraining, folder: Path, tmp_path: Path
) -> None:
    noisy = replace(talker_config, noise=replace(talker_config.noise, codes=0.2, given=0.1, inputs=0.1, branches=0.1))
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


def test_a_compact_checkpoint_is_small_and_goes_on(talker_config: TalkerTraining, folder: Path, tmp_path: Path) -> None:
    trainer = trainer_of(talker_config, folder)
    batches = batches_of(talker_config, folder, tiny_voice.lines())
    trainer.step(batches, 0.0)
    checkpoint.save(trainer, tmp_path / "whole", compact=False)
    checkpoint.save(trainer, tmp_path / "compact", compact=True)
    whole, compact = (sum(f.stat().st_size for f in (tmp_path / n).iterdir()) for n in ("whole", "compact"))
    assert compact < whole / 6
    other = trainer_of(talker_config, folder)
    checkpoint.load(other, tmp_path / "compact")
    assert (other.step_number, other.since_restart) == (1, 0)
    other.step(batches, 0.1)
    for name, weight in checkpoint.averaged(tmp_path / "compact").items():
        torch.testing.assert_close(weight.float(), trainer.averaged[name], rtol=1e-3, atol=1e-4)


def test_a_checkpoint_of_another_shape_is_refused(talker_config: TalkerTraining, folder: Path, tmp_path: Path) -> None:
    checkpoint.save(trainer_of(talker_config, folder), tmp_path, compact=True)
    narrower = replace(talker_config, predictor=replace(talker_config.predictor, inner=32))
    with pytest.raises(ValueError, match="does not fit"):
        checkpoint.load(Trainer(narrower, _model(narrower, folder), CPU), tmp_path)


def _model(config: TalkerTraining, folder: Path) -> object:
    model = builder_of(folder).config
    return replace(model, predictor=replace(model.predictor, intermediate_size=config.predictor.inner))


def test_the_engine_speaks_freely_with_what_was_learnt(
    learnt: Learnt, talker_config: TalkerTraining, speech_tokenizer: Path, lexicon: Path, tmp_path: Path
) -> None:
    line, voice = learnt.line, tmp_path / "voice"
    export(learnt.trainer.averaged, talker_config, speech_tokenizer, voice, lexicon=lexicon)
    language = request_of(line, talker_config.batch).language
    with sonant.load(voice, device="cpu") as engine:
        speech = engine.speak(line.text, voice=line.speaker, language=language, sampling=GREEDY)
    np.testing.assert_array_equal(speech.frames, line.frames)
    assert speech.finish_reason == "stop"
    label, frames = talker_config.speakers[line.speaker][0], len(line.frames)
    entries = [Entry(line.text, s, "train", n * FRAME) for s, n in (("stranger", 3), (label, frames))]
    codes = np.concatenate([np.zeros_like(line.frames[:3]), line.frames])
    assert isinstance(engine.model, Qwen3TTS)
    made = guesses(engine.model, *lay_out(voice, talker_config, entries, codes, workers=1), codes)
    assert (made[:3] == -1).all()
    np.testing.assert_array_equal(made[3:], line.frames)
    with pytest.raises(ValueError, match="of another one"):
        lay_out(voice, talker_config, entries, codes[1:], workers=1)
    out = tmp_path / "samples.wav"
    options = {"sentences": (line.text,), "lexicon": lexicon}
    figures = listen(learnt.trainer.averaged, talker_config, speech_tokenizer, out, **options)
    with wave.open(str(out)) as w:
        assert w.getnframes() / w.getframerate() > figures["spoken_seconds"] > 0
