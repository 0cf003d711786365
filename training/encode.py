"""Turns the corpus into codes with an exported codec: what the talker is trained on, a thousandth of the audio's size.

    python -m training.encode --corpus /tmp/corpus --codec voice/speech_tokenizer --checkpoint runs/codec --out codes

The first code of a frame follows from its labels, by the kinds of sounds that the codec's checkpoint holds: the
encoder's own may be wrong. The audio stays where it was made; the codes go home, in files of at most 15 MiB that `read`
opens.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sonant.models.qwen3_tts.codec_encoder import CodecEncoder
from sonant.models.qwen3_tts.config import CodecConfig
from sonant.models.weights import load_into, open_weights
from training import state
from training.clip import FRAME
from training.codec.checkpoint import NAME, SOUNDS
from training.codec.sounds import Sounds
from training.shards import Corpus, Entry

BATCH_FRAMES = 6000
SHARD_BYTES = 14 << 20


def load_encoder(folder: Path, device: torch.device) -> CodecEncoder:
    config = CodecConfig.read(folder)
    encoder = CodecEncoder(config.encoder, config.encoder_valid_num_quantizers)
    load_into(encoder, open_weights(folder), prefix="encoder.", unused=("decoder.",))
    return encoder.eval().requires_grad_(False).to(device)


@torch.no_grad()
def encode_batch(encoder: CodecEncoder, clips: list[Tensor]) -> list[Tensor]:
    """Encode clips of whole frames, padded at the end: the encoder is causal, so padding changes no codes."""
    padded = torch.nn.utils.rnn.pad_sequence(clips, batch_first=True)
    codes = encoder.quantizer.encode(encoder(padded.float() / 32768), encoder.codebooks)
    return [row[: len(clip) // FRAME].to(torch.int16).cpu() for row, clip in zip(codes, clips, strict=True)]


def batches(entries: list[Entry]) -> Iterator[list[int]]:
    """Indices of clips of about one length."""
    batch: list[int] = []
    for i in sorted(range(len(entries)), key=lambda i: entries[i].samples):
        if batch and (len(batch) + 1) * entries[i].samples > BATCH_FRAMES * FRAME:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def load_sounds(checkpoint: Path, device: torch.device) -> Sounds:
    kinds = state.read(checkpoint, NAME)[0].get(f"codec.{SOUNDS}")
    if kinds is None:
        raise ValueError(f"{checkpoint} holds no kinds of sounds: it is of an older codec, or of a talker")
    sounds = Sounds(len(kinds))
    sounds.kinds.copy_(kinds)
    return sounds.to(device)


@torch.no_grad()
def encode_corpus(encoder: CodecEncoder, sounds: Sounds, corpus: Corpus, device: torch.device) -> list[np.ndarray]:
    """The codes [frames, codebooks] of each clip, in the corpus's order."""
    codes: list[np.ndarray] = [np.empty(0, np.int16)] * len(corpus.entries)
    for batch in batches(corpus.entries):
        entries = [corpus.entries[i] for i in batch]
        clips = [torch.from_numpy(corpus.clip(e)).to(device) for e in entries]
        labels = [torch.from_numpy(corpus.labels_of(e)).to(device) for e in entries]
        first = sounds(torch.nn.utils.rnn.pad_sequence(labels, batch_first=True)).to(torch.int16).cpu().numpy()
        for i, row, told in zip(batch, encode_batch(encoder, clips), first, strict=True):
            codes[i] = row.numpy()
            codes[i][:, 0] = told[: len(row)]
    return codes


def write(out: Path, entries: list[Entry], codes: list[np.ndarray]) -> None:
    """Replace what `out` holds. Speakers stay mixed: any shard alone is a fair sample."""
    out.mkdir(parents=True, exist_ok=True)
    for stale in out.glob("codes-*.npz"):  # of another corpus or codec: `read` would take them along
        stale.unlink()
    order = np.random.default_rng(0).permutation(len(entries))
    sizes = np.cumsum([codes[i].size * 5 // 4 + 60 for i in order])  # about ten bits a code, and the text
    shards = np.split(order, np.searchsorted(sizes, np.arange(SHARD_BYTES, sizes[-1], SHARD_BYTES)))
    for number, part in enumerate(shards):
        flat = np.concatenate([codes[i] for i in part]).astype(np.uint16)
        lines = [{n: getattr(entries[i], n) for n in ("text", "speaker", "split")} for i in part]
        text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
        np.savez_compressed(
            out / f"codes-{number:02d}.npz",
            # Low and high bytes apart: deflate cannot see that high bytes are nearly constant if they alternate.
            low=(flat & 255).astype(np.uint8),
            high=(flat >> 8).astype(np.uint8),
            frames=np.array([len(codes[i]) for i in part], np.int32),
            index=np.frombuffer(text.encode(), np.uint8),
        )


def read(folder: Path) -> Iterator[tuple[dict[str, str], np.ndarray]]:
    """Every clip's index line and codes [frames, codebooks]."""
    for path in sorted(folder.glob("codes-*.npz")):
        with np.load(path) as data:
            codes = data["low"].astype(np.int64) | data["high"].astype(np.int64) << 8
            pieces = np.split(codes, np.cumsum(data["frames"])[:-1])
            lines = data["index"].tobytes().decode().split("\n")
        for line, piece in zip(lines, pieces, strict=True):
            yield json.loads(line), piece


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--codec", type=Path, required=True, help="speech_tokenizer folder")
    parser.add_argument("--checkpoint", type=Path, required=True, help="of the codec, which it was exported from")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--flat", type=Path, help="also all of them in the corpus's order, as .npy, for training.guess")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    began = time.time()
    if options.flat:
        options.flat.parent.mkdir(parents=True, exist_ok=True)
    device = torch.device(options.device)
    corpus = Corpus.open(options.corpus)
    encoder, sounds = load_encoder(options.codec, device), load_sounds(options.checkpoint, device)
    codes = encode_corpus(encoder, sounds, corpus, device)
    write(options.out, corpus.entries, codes)
    if options.flat:
        np.save(options.flat, np.concatenate(codes))
    frames = sum(len(c) for c in codes)
    print(f"{len(codes):,} clips, {frames:,} frames in {time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
