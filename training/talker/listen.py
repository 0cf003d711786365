"""Free running: the talker speaks without given frames, through the engine that will serve it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import sonant
from training.export import export
from training.lexicon import SHIPPED as SHIPPED_LEXICON
from training.talker.config import TalkerTraining
from training.wav import write_wav

SENTENCES = (
    "Hi.",
    "The quick brown fox jumps over the lazy dog.",
    "On May 3rd, 2024, she paid $9.99 for 3 books.",
    "Are you sure that Dr. Smith works for the BBC?",
    "It was a bright cold day in April, and the clocks were striking thirteen; nobody on the street looked up.",
)


def listen(
    weights: Mapping[str, Tensor],
    config: TalkerTraining,
    codec: Path,
    out: Path,
    sentences: tuple[str, ...] = SENTENCES,
    device: str = "cpu",
    lexicon: Path = SHIPPED_LEXICON,
) -> dict[str, float]:
    """Every shipped voice says the sentences, one voice after another into one WAV → figures that need no listener.

    On the CPU by default: a GPU would spend longer on compiling kernels than on these few sentences.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        voice = Path(name) / "voice"
        export(weights, config, codec, voice, dtype=torch.float32, codec_dtype=torch.float32, lexicon=lexicon)
        with sonant.load(voice, device=device) as engine:
            rate = engine.sample_rate
            streams = {
                speaker: [engine.stream(s, voice=speaker, seed=i, live=False) for i, s in enumerate(sentences)]
                for speaker in engine.voices
            }
            speeches = {speaker: [stream.result() for stream in row] for speaker, row in streams.items()}
    every = [speech for row in speeches.values() for speech in row]
    gap = np.zeros(rate // 3, np.float32)
    samples = np.concatenate([part for speech in every for part in (speech.samples, gap)])
    write_wav(out, np.round(np.clip(samples, -1, 1) * 32767).astype(np.int16), rate)
    letters = sum(len(s) for s in sentences) * len(speeches)
    return {
        "spoken_seconds": round(sum(s.duration_s for s in every), 2),
        "letters_per_second": round(letters / max(1e-9, sum(s.duration_s for s in every)), 2),
        "runaways": sum(s.finish_reason != "stop" for s in every),
    }
