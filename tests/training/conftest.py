"""Fixtures. `training` lies beside the package, and this folder has the same name: the root comes first on the path."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from training.clip import FRAME, STEP, Clip
from training.codec.config import CodecTraining
from training.codec.data import Crops
from training.codec.trainer import Trainer
from training.shards import Corpus, ShardWriter
from training.talker.config import TalkerTraining
from training.talker.folder import write_folder

import tiny_voice
from training import settings


def speechlike(seed: int, frames: int) -> Clip:
    """A gliding buzz with pauses: enough for a codec to have something to learn."""
    rng = np.random.default_rng(seed)
    t = np.arange(frames * FRAME) / 24000
    pitch = 120 + 60 * rng.random() + 20 * np.sin(2 * np.pi * (0.5 + rng.random()) * t)
    phase = 2 * np.pi * np.cumsum(pitch) / 24000
    wave = sum(np.sin(k * phase) / k for k in range(1, 8)) * (np.sin(2 * np.pi * 1.5 * t + rng.random()) > -0.5)
    labels = rng.integers(0, 5, 2 * frames).repeat(FRAME // STEP // 2).astype(np.uint8)  # more kinds than codes
    return Clip((wave * 4000).astype(np.int16), labels)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    for speaker in ("anna", "bert"):
        writer = ShardWriter(folder, speaker)
        for i in range(6):
            writer.add(speechlike(i, frames=12 + 5 * i), f"Sentence {i}.", speaker, "train")
        writer.flush()
    return Corpus.open(folder)


@pytest.fixture(scope="session")
def config() -> CodecTraining:
    tiny = settings.read(settings.CONFIGS / "codec-tiny.toml", CodecTraining)
    shape = replace(tiny.shape, codebooks=3, codebook_size=16, entry_dim=16, decoder_dim=32, latent_dim=32)
    batch = replace(tiny.batch, rows=2, seconds=0.32, long_seconds=0.64, adversarial_seconds=0.16, adversarial_rows=2)
    return replace(tiny, shape=shape, batch=batch, schedule=replace(tiny.schedule, quantize_after=2, warmup_steps=2))


@pytest.fixture(scope="session")
def crops(corpus: Corpus) -> Crops:
    return Crops(corpus, torch.device("cpu"))


class OneBatch(Crops):
    """The same crops at every step, which a codec learns quickly."""

    def __init__(self, crops: Crops) -> None:
        self.crops, self.labels = crops, crops.labels

    def draw(
        self, rows: int, samples: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        return self.crops.draw(rows, samples, torch.Generator().manual_seed(7))


@pytest.fixture(scope="session")
def one_batch(crops: Crops) -> OneBatch:
    return OneBatch(crops)


@pytest.fixture(scope="session")
def after_four_steps(config: CodecTraining, crops: Crops) -> Trainer:
    """Only for `trained`, which gives every test a copy."""
    trainer = Trainer(config, torch.device("cpu"))
    for _ in range(4):
        trainer.step(crops, progress=0.1)
    return trainer


@pytest.fixture
def trained(after_four_steps: Trainer) -> Trainer:
    return copy.deepcopy(after_four_steps)


@pytest.fixture(scope="session")
def talker_config() -> TalkerTraining:
    return tiny_voice.tiny_config()


@pytest.fixture(scope="session")
def speech_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_voice.write_codec(tmp_path_factory.mktemp("codec") / "speech_tokenizer")


@pytest.fixture(scope="session")
def lexicon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_voice.write_lexicon(tmp_path_factory.mktemp("lexicon") / "lexicon.zz")


@pytest.fixture(scope="session")
def folder(
    tmp_path_factory: pytest.TempPathFactory, talker_config: TalkerTraining, speech_tokenizer: Path, lexicon: Path
) -> Path:
    """A voice's JSON files and lexicon alone, with every speaker."""
    made = tmp_path_factory.mktemp("folder")
    write_folder(made, talker_config, speech_tokenizer, tuple(talker_config.speakers), lexicon=lexicon)
    return made
