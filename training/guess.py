"""What the voice would put in place of a corpus's codes, so that the decoder can learn from what it will be given.

    python -m training.guess --voice runs/voice --corpus /tmp/corpus --codes /tmp/codes.npy --out /tmp/guesses.npy

For every frame its true first code, and the others as the voice's predictor picks them, with the true past before it:
the sound still fits. Frames of clips that the voice cannot say (of other speakers, or too long) are -1.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import sonant
from sonant import EngineConfig
from sonant.layers.attention import FullContext
from sonant.models.qwen3_tts.model import Qwen3TTS
from sonant.models.qwen3_tts.predictor import Draw
from training import settings
from training.clip import FRAME
from training.shards import Entry, read_index
from training.talker.batches import Batch, Batches, allow_any_shape
from training.talker.config import TalkerTraining
from training.talker.utterances import Line, Shorts, Utterances, builder_of, gather

POSITIONS = 16384  # in a batch


@torch.inference_mode()
def guess(model: Qwen3TTS, batch: Batch) -> Tensor:
    """[chosen, codebooks] of a batch of utterances, greedily."""
    talker = model.modules.talker
    x = talker.embed_position(batch.text, batch.codes)
    positions = torch.arange(x.shape[1], device=x.device)[None]
    hidden = talker.model(x, positions, FullContext()).flatten(0, 1)[batch.predicting][batch.chosen]
    first = batch.frames[:, 0]
    some = hidden.new_ones(len(hidden), dtype=torch.float32)
    draw = Draw(greedy=some.bool(), temperature=some, top_k=some.int(), top_p=some)
    uniforms = some[:, None].expand(-1, talker.code_predictor.groups - 1) / 2
    rest = talker.code_predictor.generate(hidden, talker.model.codec_embedding(first), uniforms, draw)
    return torch.cat([first[:, None], rest], 1)


def lay_out(
    folder: Path, config: TalkerTraining, entries: Sequence[Entry], codes: Shorts, workers: int
) -> tuple[Utterances, NDArray[np.int64]]:
    """What the voice in `folder` would be asked for, and where in `codes` [all frames, codebooks] each begins.

    It must be called before anything touches the GPU, since it forks.
    """
    starts = np.cumsum([0, *(e.samples // FRAME for e in entries)])
    if starts[-1] != len(codes):
        raise ValueError(f"{len(codes)} frames of codes for {starts[-1]} of the corpus: of another one?")
    voices = builder_of(folder).voices
    ours = [i for i, e in enumerate(entries) if config.speaker_of.get(e.speaker) in voices]
    if not ours:
        raise ValueError(f"nobody in the corpus is one of the voices of {folder}")
    lines = [
        Line(entries[i].text, config.speaker_of[entries[i].speaker], codes[starts[i] : starts[i + 1]]) for i in ours
    ]
    said = gather(folder, lines, replace(config.batch, spelt=0.0, lower_case=0.0), workers)
    return said, starts[np.array(ours)[said.source]]


def guesses(model: Qwen3TTS, said: Utterances, starts: NDArray[np.int64], codes: Shorts) -> Shorts:
    """Make guesses that take the place of `codes`."""
    out = np.full_like(codes, -1)
    special = {"pad_text": model.config.tts_pad_token_id, "stop": model.config.talker.codec_eos_token_id}
    every = Batches(said, model.device, **special, positions=POSITIONS)
    for step in range(every.per_epoch):
        items = every.of_step(step, seed=0)
        made = guess(model, every.make(items, 1.0, np.random.default_rng(0))).to(torch.int16).cpu().numpy()
        for item, part in zip(items, np.split(made, np.cumsum(said.frame_length[items])[:-1]), strict=True):
            out[starts[item] : starts[item] + len(part)] = part
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=settings.CONFIGS / "talker.toml")
    parser.add_argument("--voice", type=Path, required=True, help="what training.export wrote")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--codes", type=Path, required=True, help="of the corpus: what training.encode wrote to --flat")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that lay out prompts")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    began = time.time()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    allow_any_shape()
    config, codes = settings.read(options.config, TalkerTraining), np.load(options.codes)
    said, starts = lay_out(options.voice, config, read_index(options.corpus), codes, options.workers)
    with sonant.load(options.voice, device=options.device, config=EngineConfig(max_rows=1, kv_tokens=1024)) as engine:
        assert isinstance(engine.model, Qwen3TTS)
        made = guesses(engine.model, said, starts, codes)
    np.save(options.out, made)
    guessed = made[:, 0] >= 0
    hits = (made[guessed, 1:] == codes[guessed, 1:]).mean()
    print(
        f"{guessed.mean():.0%} of {len(codes):,} frames guessed, {hits:.1%} of codes hit, {time.time() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
