"""`training` lies beside the package, not in it, and this folder has its name: the repository's root comes first."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from training.clip import FRAME, STEP, Clip
from training.shards import Corpus, ShardWriter


def speechlike(seed: int, frames: int) -> Clip:
    """A gliding buzz with pauses: enough for a codec to have something to learn."""
    rng = np.random.default_rng(seed)
    t = np.arange(frames * FRAME) / 24000
    pitch = 120 + 60 * rng.random() + 20 * np.sin(2 * np.pi * (0.5 + rng.random()) * t)
    phase = 2 * np.pi * np.cumsum(pitch) / 24000
    wave = sum(np.sin(k * phase) / k for k in range(1, 8)) * (np.sin(2 * np.pi * 1.5 * t + rng.random()) > -0.5)
    labels = rng.integers(0, 5, frames).repeat(FRAME // STEP).astype(np.uint8)
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
