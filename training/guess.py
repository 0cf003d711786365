"""What the voice would put in place of a corpus's codes, so that the decoder can learn from what it will be given.

    python -m training.guess --voice runs/voice --codec runs/speech_tokenizer --corpus /tmp/corpus --out guesses.npy

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
from training.encode import encode_corpus, load_encoder
from training.shards import Corpus
from training.talker.batches import Batch, Batches
from training.talker.config import TalkerTraining
from training.talker.utterances import Line, gather

POSITIONS = 16384  # of a batch


@torch.inference_mode()
def guess(model: Qwen3TTS, batch: Batch) -> Tensor:
    """[chosen, codebooks] of a batch of utterances, greedily."""
    talker = model.modules.talker
    x = talker.embed_position(batch.text, batch.codes, with_groups=True)
    positions = torch.arange(x.shape[1], device=x.device)[None]
    hidden = talker.model(x, positions, FullContext()).flatten(0, 1)[batch.predicting][batch.chosen]
    first = batch.frames[:, 0]
    some = hidden.new_ones(len(hidden), dtype=torch.float32)
    draw = Draw(greedy=some.bool(), temperature=some, top_k=some.int(), top_p=some)
    uniforms = some[:, None].expand(-1, talker.code_predictor.groups - 1) / 2
    rest = talker.code_predictor.generate(hidden, talker.model.codec_embedding(first), uniforms, draw)
    return torch.cat([first[:, None], rest], 1)


def guesses(
    model: Qwen3TTS,
    folder: Path,
    config: TalkerTraining,
    corpus: Corpus,
    codes: Sequence[NDArray[np.int16]],
    workers: int,
) -> NDArray[np.int16]:
    """[all frames of the corpus, codebooks]. `folder` is the voice's, `codes` those of each clip."""
    starts = np.cumsum([0, *(len(c) for c in codes)])
    out = np.full((starts[-1], codes[0].shape[1]), -1, np.int16)
    ours = [i for i, e in enumerate(corpus.entries) if config.speaker_of.get(e.speaker) in model.spec.voices]
    if not ours:
        raise ValueError(f"nobody in the corpus is one of the voices of {folder}")
    lines = [Line(corpus.entries[i].text, config.speaker_of[corpus.entries[i].speaker], codes[i]) for i in ours]
    plain = replace(config.batch, spelt=0.0, lower_case=0.0)
    said = gather(folder, lines, plain, workers)
    special = {"pad_text": model.config.tts_pad_token_id, "stop": model.config.talker.codec_eos_token_id}
    every = Batches(said, model.device, **special, positions=POSITIONS)
    for step in range(every.per_epoch):
        items = every.of_step(step, seed=0)
        made = guess(model, every.make(items, 1.0, np.random.default_rng(0))).to(torch.int16).cpu().numpy()
        for item, part in zip(items, np.split(made, np.cumsum(said.frame_length[items])[:-1]), strict=True):
            start = starts[ours[said.source[item]]]
            out[start : start + len(part)] = part
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=settings.CONFIGS / "talker.toml")
    parser.add_argument("--voice", type=Path, required=True, help="what training.export wrote")
    parser.add_argument("--codec", type=Path, required=True, help="the exported speech_tokenizer, with its encoder")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that lay out prompts")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    began = time.time()
    config = settings.read(options.config, TalkerTraining)
    corpus = Corpus.open(options.corpus)
    device = torch.device(options.device)
    codes = encode_corpus(load_encoder(options.codec, device), corpus, device)
    with sonant.load(options.voice, device=options.device, config=EngineConfig(max_rows=1, kv_tokens=1024)) as engine:
        assert isinstance(engine.model, Qwen3TTS)
        made = guesses(engine.model, options.voice, config, corpus, codes, options.workers)
    np.save(options.out, made)
    true, guessed = np.concatenate(codes), made[:, 0] >= 0
    hits = (made[guessed, 1:] == true[guessed, 1:]).mean()
    print(f"{guessed.mean():.0%} of {len(true):,} frames guessed, {hits:.1%} of codes hit, {time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
