"""Judges the tars of tests/gpu_fp8_voice.py: do words, quality and voice equal those of the first tar?

    python tests/judge_voice.py bf16.tar bf16-reseeded.tar fp8.tar --asr base.en.pt \\
        --speaker-model embedding_model.ckpt --out judged

The judges are those of `sonant bench quality`; docs/bench.md says where they come from. A clip takes about three
seconds on one core. The judgement of each tar is kept as JSON in the folder `--out`, and is not made again.
Intervals are of 95 %, by a bootstrap over sentences, with the same draws on both sides.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile as sf

from gpu_fp8_voice import INDEX, RATE_HZ
from sonant.bench.client.load import Load
from sonant.bench.client.load_level import LoadLevel
from sonant.bench.client.prompts import Prompt, Reference
from sonant.bench.client.sample import Sample
from sonant.bench.quality.judges import Judges
from sonant.bench.quality.scores import Judged, Quality, judge_level
from sonant.text_table import grid
from sonant.types import Samples

SPEAKERS = Path(__file__).parents[1] / "docs" / "samples"  # holds a clip of each speaker
RESAMPLES = 10_000

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Reading:
    """All sentences as one variant spoke them, and their judgement."""

    name: str
    rows: list[Judged]
    vectors: Array  # [sentences, features] of unit length: the voice of each sentence
    index: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        quality = Quality(self.name, len(self.rows), 0, self.rows)
        return quality.to_json() | {"vectors": self.vectors.tolist(), "index": self.index}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Reading:
        return cls(data["label"], Quality.from_json(data).rows, np.array(data["vectors"]), data["index"])


def judge(tar_path: Path, judges: Judges) -> Reading:
    with tarfile.open(tar_path) as tar:
        files = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        data = {name: file.read() for name, file in files.items() if file is not None}
    index = json.loads(data[INDEX])
    prompts = [Prompt(e["name"], e["text"], "english", Reference(SPEAKERS / f"{e['voice']}.wav")) for e in index]
    sounds = [Sample(e["name"], 0.0, sound=data[e["name"]], sample_rate=RATE_HZ) for e in index]
    vectors: list[Samples] = []

    def embed(sound: Samples) -> Samples:
        assert judges.embed is not None
        vectors.append(judges.embed(sound))
        return vectors[-1]

    def progress(done: int, of: int) -> None:
        print(f"{tar_path.stem}: {done} of {of}", end="\r", file=sys.stderr, flush=True)

    level = LoadLevel(Load(len(index), concurrency=1), 0.0, [with_length(sound) for sound in sounds], None)
    quality = judge_level(level, prompts, "flac", replace(judges, embed=embed), progress)
    # Speakers' own clips are embedded after all the others.
    return Reading(tar_path.stem, quality.rows, np.array(vectors[: len(index)], np.float64), index)


def with_length(sample: Sample) -> Sample:
    return replace(sample, audio_s=sf.info(BytesIO(sample.sound)).duration)


# For each figure, what is summed, and by what sum that is divided.
FIGURES: dict[str, tuple[Callable[[Judged], float], Callable[[Judged], float]]] = {
    "CER, %": (lambda row: 100 * (row.char_errors or 0), lambda row: row.chars or 0),
    "WER, %": (lambda row: 100 * (row.word_errors or 0), lambda row: row.words or 0),
    "MOS": (lambda row: row.mos or 0, lambda row: 1),
    "similarity to the speaker": (lambda row: row.similarity or 0, lambda row: 1),
    "seconds": (lambda row: row.audio_s, lambda row: 1),
}


def drawn(count: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(0).integers(count, size=(RESAMPLES, count))


def figure_of(reading: Reading, name: str, draws: npt.NDArray[np.int64]) -> tuple[float, Array]:
    """Return the figure as it is, and in each draw."""
    over, under = (np.array([part(row) for row in reading.rows], np.float64) for part in FIGURES[name])
    return float(over.sum() / under.sum()), over[draws].sum(axis=1) / under[draws].sum(axis=1)


def limits(draws: Array, form: str = ".3f") -> str:
    low, high = np.percentile(draws, [2.5, 97.5])
    return f"{low:{form}} to {high:{form}}"


def compare(first: Reading, other: Reading) -> str:
    draws = drawn(len(first.rows))
    lines = [("figure", first.name, "its interval", other.name, "difference", "its interval", "ratio, its interval")]
    for name in FIGURES:
        (old, olds), (new, news) = (figure_of(reading, name, draws) for reading in (first, other))
        ratio = f"{new / old:.4f}, {limits(news / olds, '.4f')}" if (olds > 0).all() else "-"
        lines.append(
            (name, f"{old:.3f}", limits(olds), f"{new:.3f}", f"{new - old:+.3f}", limits(news - olds, "+.3f"), ratio)
        )
    alike = (first.vectors * other.vectors).sum(axis=1)
    same = np.mean([a["codes"] == b["codes"] for a, b in zip(first.index, other.index, strict=True)])
    return (
        f"{grid(lines)}\nvoice of the same sentence: similarity {alike.mean():.4f} "
        f"({limits(alike[draws].mean(axis=1))}), least {alike.min():.3f}; all codes equal in {same:.1%}"
    )


def summary(reading: Reading, voices: dict[str, Array]) -> str:
    """`voices`: the mean voice of each speaker, to see whether every sentence is nearest to its own speaker."""
    names = list(voices)
    nearest = np.array([names[n] for n in (reading.vectors @ np.array(list(voices.values())).T).argmax(axis=1)])
    own = np.mean(nearest == [e["voice"] for e in reading.index])
    ended = sum(e["finish_reason"] == "stop" for e in reading.index)
    odd = sum(row.too_short or row.runaway for row in reading.rows)
    wrong = sum(bool(row.char_errors) for row in reading.rows)
    return (
        f"{reading.name}: {ended} of {len(reading.rows)} ended by themselves, {odd} of an odd length, "
        f"nearest to the own speaker {own:.1%}, some wrong character in {wrong}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tars", type=Path, nargs="+")
    parser.add_argument("--asr", required=True, help="a Whisper checkpoint, as `sonant bench quality` takes it")
    parser.add_argument("--speaker-model", type=Path, required=True, help="ECAPA-TDNN of SpeechBrain")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    judges: Judges | None = None
    readings = []
    for path in args.tars:
        kept = args.out / f"{path.stem}.json"
        if not kept.exists():
            judges = judges or Judges.open(args.asr, args.speaker_model)
            kept.write_text(json.dumps(judge(path, judges).to_json(), ensure_ascii=False), encoding="utf-8")
        readings.append(Reading.from_json(json.loads(kept.read_text(encoding="utf-8"))))
    first = readings[0]
    speaker = np.array([e["voice"] for e in first.index])
    voices = {name: first.vectors[speaker == name].mean(axis=0) for name in dict.fromkeys(speaker.tolist())}
    print("\n".join(summary(reading, voices) for reading in readings))
    for other in readings[1:]:
        print(f"\n{compare(first, other)}")


if __name__ == "__main__":
    main()
