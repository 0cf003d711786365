"""The corpus on disk: int16 samples and phoneme labels in plain .npy files, with an index line for each clip.

A shard is three files of one name. Its index is written last, so a shard that a time limit cut off is not seen.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.clip import SAMPLE_RATE, STEP, Clip


@dataclass(frozen=True)
class Entry:
    text: str
    speaker: str
    split: str
    samples: int
    start: int = 0  # index of its first sample in all that was opened


class ShardWriter:
    """Collects clips and writes a shard whenever it holds `limit_s` seconds."""

    def __init__(self, folder: Path, name: str, limit_s: float = 300) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.name, self.limit = folder, name, int(limit_s * SAMPLE_RATE)
        self.written = 0
        self.seconds = 0.0
        self._empty()

    def _empty(self) -> None:
        self.clips: list[Clip] = []
        self.lines: list[dict[str, Any]] = []
        self.held = 0

    def add(self, clip: Clip, text: str, speaker: str, split: str) -> None:
        self.clips.append(clip)
        self.lines.append({"text": text, "speaker": speaker, "split": split, "samples": len(clip.samples)})
        self.held += len(clip.samples)
        self.seconds += len(clip.samples) / SAMPLE_RATE
        if self.held >= self.limit:
            self.flush()

    def flush(self) -> None:
        if not self.clips:
            return
        stem = f"{self.name}-{self.written:03d}"
        np.save(self.folder / f"{stem}.samples.npy", np.concatenate([c.samples for c in self.clips]))
        np.save(self.folder / f"{stem}.labels.npy", np.concatenate([c.labels for c in self.clips]))
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in self.lines)
        (self.folder / f"{stem}.jsonl").write_text(text, encoding="utf-8")
        self.written += 1
        self._empty()


@dataclass(frozen=True)
class Corpus:
    """All clips end to end, in the order of the shards' names."""

    entries: list[Entry]
    samples: NDArray[np.int16]
    labels: NDArray[np.uint8]

    @classmethod
    def open(cls, folder: Path) -> Corpus:
        samples, labels = [], []
        for index in _indexes(folder):
            samples.append(np.load(index.with_suffix(".samples.npy"), mmap_mode="r"))
            labels.append(np.load(index.with_suffix(".labels.npy")))
        corpus = cls(read_index(folder), np.concatenate(samples), np.concatenate(labels))
        listed = sum(e.samples for e in corpus.entries)
        if not len(corpus.samples) == listed == len(corpus.labels) * STEP:
            raise ValueError(f"{folder}: {listed} samples in the index, {len(corpus.samples)} in the shards")
        return corpus

    def clip(self, entry: Entry) -> NDArray[np.int16]:
        return self.samples[entry.start : entry.start + entry.samples]

    def labels_of(self, entry: Entry) -> NDArray[np.uint8]:
        return self.labels[entry.start // STEP : (entry.start + entry.samples) // STEP]


def read_index(folder: Path) -> list[Entry]:
    entries: list[Entry] = []
    start = 0
    for index in _indexes(folder):
        for line in index.read_text(encoding="utf-8").splitlines():
            entries.append(Entry(**json.loads(line), start=start))
            start += entries[-1].samples
    return entries


def hours_by_speaker(entries: Iterable[Entry]) -> dict[str, float]:
    totals: Counter[str] = Counter()
    for entry in entries:
        totals[entry.speaker] += entry.samples
    return {speaker: n / SAMPLE_RATE / 3600 for speaker, n in sorted(totals.items())}


def _indexes(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.jsonl"))
    if not found:
        raise FileNotFoundError(f"{folder} holds no corpus: run training.corpus first")
    return found
