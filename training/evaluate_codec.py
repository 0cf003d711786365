"""How much quality the codec costs: three measures of held-out clips, before and after it.

    python -m training.evaluate_codec --corpus held-out --codec voice/speech_tokenizer --whisper base.en.pt --clips 20

Prints a table with a line for each speaker, and writes the figures as JSON. Mel distance needs nothing; DistillMOS
needs the package `distillmos`, CER the package `openai-whisper` and a checkpoint of it. A judge that is not installed
is left out, with a note.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sonant.bench.quality.transcript import distance
from sonant.models.qwen3_tts.codec import CodecDecoder
from sonant.models.qwen3_tts.config import CodecConfig
from sonant.models.weights import load_into, open_weights
from training.clip import SAMPLE_RATE
from training.codec.losses import SpectralLoss
from training.encode import load_encoder
from training.shards import Corpus, Entry

_JUDGES_RATE = 16000

Judge = Callable[[Tensor], float]


def load_decoder(folder: Path) -> CodecDecoder:
    decoder = CodecDecoder(CodecConfig.read(folder).decoder)
    load_into(decoder, open_weights(folder), prefix="decoder.", unused=("encoder.",))
    decoder.requires_grad_(False).eval().prepare()
    return decoder


def at_16k(samples: Tensor) -> Tensor:
    """A windowed-sinc filter, then every 2 of 3 samples: enough for judges, and no dependency."""
    taps = torch.arange(-48, 49, dtype=torch.float64)
    cutoff = 0.94 / 3  # of the raised rate 48 kHz: just under 8 kHz
    kernel = torch.sinc(cutoff * taps) * cutoff * torch.hann_window(97, periodic=False, dtype=torch.float64)
    raised = torch.zeros(2 * len(samples), dtype=torch.float64)
    raised[::2] = 2 * samples.double()
    filtered = torch.nn.functional.conv1d(raised[None, None], kernel[None, None], padding=48)
    return filtered[0, 0, ::3].float()


def plain(text: str) -> str:
    text = unicodedata.normalize("NFKD", text.lower())
    return " ".join(re.sub(r"[^a-z0-9 ]", " ", text.replace("'", "")).split())


def mos_judge() -> Judge | None:
    if importlib.util.find_spec("distillmos") is None:
        print("distillmos is not installed: no MOS")
        return None
    import distillmos

    model = distillmos.ConvTransformerSQAModel().eval()
    return lambda samples: float(model(at_16k(samples)[None])[0])


def transcriber(checkpoint: Path | None) -> Callable[[Tensor], str] | None:
    if checkpoint is None or importlib.util.find_spec("whisper") is None:
        print("no Whisper: no CER")
        return None
    import whisper

    model = whisper.load_model(str(checkpoint), device="cpu")
    options = whisper.DecodingOptions(language="en", fp16=False)

    def transcribe(samples: Tensor) -> str:
        mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(at_16k(samples)))
        return str(whisper.decode(model, mel, options).text)

    return transcribe


def choose(entries: list[Entry], count: int) -> list[Entry]:
    """Choose clips of all speakers in turn."""
    by_speaker: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_speaker[entry.speaker].append(entry)
    turns = [group[i] for i in range(len(entries)) for group in by_speaker.values() if i < len(group)]
    return turns[:count]


@torch.no_grad()
def judge_clip(
    samples: Tensor, made: Tensor, text: str, mos: Judge | None, transcribe: Callable[[Tensor], str] | None
) -> dict[str, Any]:
    row: dict[str, Any] = {"mel": float(SpectralLoss(made.device)(made[None], samples[None])[0])}
    for name, wave in (("original", samples), ("codec", made)):
        if mos is not None:
            row[f"mos_{name}"] = mos(wave)
        if transcribe is not None:
            heard = transcribe(wave)
            row[f"heard_{name}"] = heard
            row[f"errors_{name}"] = distance(plain(text), plain(heard))
    row["characters"] = len(plain(text))
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    names = [n for n in ("mel", "mos_original", "mos_codec") if n in rows[0]]
    figures: dict[str, float] = {n: float(np.mean([r[n] for r in rows])) for n in names}
    characters = sum(r["characters"] for r in rows)
    for name in ("original", "codec"):
        if f"errors_{name}" in rows[0]:
            figures[f"cer_{name}"] = sum(r[f"errors_{name}"] for r in rows) / characters
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="made with training.corpus --split eval")
    parser.add_argument("--codec", type=Path, required=True)
    parser.add_argument("--whisper", type=Path)
    parser.add_argument("--clips", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    encoder, decoder = load_encoder(options.codec, torch.device("cpu")), load_decoder(options.codec)
    mos, transcribe = mos_judge(), transcriber(options.whisper)
    corpus = Corpus.open(options.corpus)

    rows: list[dict[str, Any]] = []
    for entry in choose(corpus.entries, options.clips):
        samples = torch.from_numpy(corpus.clip(entry).astype(np.float32)) / 32768
        with torch.no_grad():
            made = decoder(encoder.encode(samples)[None], torch.zeros(1, dtype=torch.long))[0, : len(samples)]
        row = judge_clip(samples, made, entry.text, mos, transcribe)
        rows.append({"speaker": entry.speaker, "text": entry.text, "seconds": len(samples) / SAMPLE_RATE} | row)
        print(".", end="", flush=True)
    print()
    speakers = sorted({r["speaker"] for r in rows})
    table = {s: summary([r for r in rows if r["speaker"] == s]) for s in speakers} | {"all": summary(rows)}
    print(f"{'':14}" + "".join(f"{n:>14}" for n in table["all"]))
    for name, figures in table.items():
        print(f"{name:14}" + "".join(f"{v:14.3f}" for v in figures.values()))
    if options.out:
        options.out.write_text(json.dumps({"figures": table, "clips": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
