"""Judges the sound of a load level request by request: does a busy server still say the right words?

A server can be fast by being wrong: by stopping early, running on, repeating, or mixing requests up. So quality is
measured on the very sound that came back under load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from typing import Any

import numpy as np

from sonant.bench.client.load_level import LoadLevel
from sonant.bench.client.prompts import Prompt
from sonant.bench.client.sample import Sample
from sonant.bench.quality.judges import RATE_HZ, Judges
from sonant.bench.quality.transcript import errors, plain
from sonant.types import Samples

# The fewest and the most letters a second that speech can have (in Chinese, characters). Beyond them something was left
# out, or speech ran on.
_SPEEDS: Mapping[str, tuple[float, float]] = {"chinese": (1.5, 10.0)}
_SPEED = (5.0, 28.0)
_SPARE_S = 1.5  # allowed for pauses before and after

OnJudged = Callable[[int, int], None]  # (requests judged so far, requests in all)


@dataclass(frozen=True)
class Judged:
    prompt: str
    text: str
    audio_s: float
    too_short: bool
    runaway: bool
    heard: str | None = None
    word_errors: int | None = None
    words: int | None = None
    char_errors: int | None = None
    chars: int | None = None
    mos: float | None = None
    similarity: float | None = None  # to the cloned clip, or to the mean voice of the level


@dataclass(frozen=True)
class Quality:
    """The quality of one load level. Shares and errors are of requests that gave sound; `failed` ones gave none."""

    label: str
    requests: int
    failed: int
    rows: list[Judged]

    def mean(self, name: str) -> float | None:
        values = [getattr(row, name) for row in self.rows if getattr(row, name) is not None]
        return float(np.mean(values)) if values else None

    def error_rate(self, of: str) -> float | None:
        """All errors divided by all that was to be said; `of` is "word" or "char"."""
        rows = [row for row in self.rows if row.words is not None]
        total = sum(getattr(row, f"{of}s") for row in rows)
        return sum(getattr(row, f"{of}_errors") for row in rows) / total if total else None

    def to_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "requests": self.requests,
            "failed": self.failed,
            "wer": self.error_rate("word"),
            "cer": self.error_rate("char"),
            "mos": self.mean("mos"),
            "similarity": self.mean("similarity"),
            "too_short": self.mean("too_short"),
            "runaway": self.mean("runaway"),
            "rows": [asdict(row) for row in self.rows],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Quality:
        return cls(data["label"], data["requests"], data["failed"], [Judged(**row) for row in data["rows"]])


def samples_of(sample: Sample, form: str) -> Samples:
    """The kept sound as mono at 16 kHz."""
    import soxr

    if form in ("pcm", "wav"):
        whole = len(sample.sound) // (2 * sample.channels) * 2 * sample.channels
        frames = np.frombuffer(sample.sound[:whole], "<i2").reshape(-1, sample.channels)
        mono = frames.mean(axis=1, dtype=np.float32) / 32768
    else:
        import av

        with av.open(BytesIO(sample.sound), "r") as container:
            to_mono = av.AudioResampler(format="flt", layout="mono", rate=sample.sample_rate)
            frames_out = [f for frame in container.decode(audio=0) for f in to_mono.resample(frame)]
        mono = np.concatenate([f.to_ndarray().reshape(-1) for f in frames_out])
    resampled: Samples = soxr.resample(mono.astype(np.float32), sample.sample_rate, RATE_HZ)
    return resampled


def judge_level(
    level: LoadLevel, prompts: Sequence[Prompt], form: str, judges: Judges, on_judged: OnJudged = lambda done, of: None
) -> Quality:
    by_name = {prompt.name: prompt for prompt in prompts}
    heard = [samples_of(sample, form) for sample in level.good]
    vectors = [judges.embed(sound) if judges.embed else None for sound in heard]
    voices = _references(level.good, by_name, vectors, judges)
    rows = []
    for i, (sample, sound, vector) in enumerate(zip(level.good, heard, vectors, strict=True)):
        voice = voices.get(sample.prompt)
        similarity = float(vector @ voice) if vector is not None and voice is not None else None
        rows.append(_judge(sample, by_name[sample.prompt], sound, similarity, judges))
        on_judged(i + 1, len(heard))
    return Quality(level.load.label, len(level.samples), len(level.samples) - len(level.good), rows)


def duration_limits(text: str, language: str) -> tuple[float, float]:
    """The shortest and the longest that any reading of the text takes, in seconds."""
    slowest, fastest = _SPEEDS.get(language, _SPEED)
    letters = len(plain(text, language).replace(" ", ""))
    return letters / fastest, _SPARE_S + letters / slowest


def _judge(sample: Sample, prompt: Prompt, sound: Samples, similarity: float | None, judges: Judges) -> Judged:
    shortest_s, longest_s = duration_limits(prompt.text, prompt.language)
    figures: dict[str, Any] = {"similarity": similarity}
    if judges.transcribe is not None:
        heard = judges.transcribe(sound, prompt.language)
        figures |= {"heard": heard, **asdict(errors(prompt.text, heard, prompt.language))}
    if judges.mos is not None:
        figures["mos"] = judges.mos(sound)
    return Judged(
        prompt.name, prompt.text, sample.audio_s, sample.audio_s < shortest_s, sample.audio_s > longest_s, **figures
    )


def _references(
    samples: Sequence[Sample], prompts: Mapping[str, Prompt], vectors: Sequence[Samples | None], judges: Judges
) -> dict[str, Samples]:
    """The voice that each prompt should have: that of the clip it clones, or else the mean voice of the level."""
    known = [vector for vector in vectors if vector is not None]
    if judges.embed is None or not known:
        return {}
    from sonant.audio.clip import read_clip

    mean = np.mean(known, axis=0)
    mean /= np.linalg.norm(mean)
    clips: dict[str, Samples] = {}
    voices: dict[str, Samples] = {}
    for name in {sample.prompt for sample in samples}:
        reference = prompts[name].reference
        if reference is None:
            voices[name] = mean
            continue
        path = str(reference.clip)
        if path not in clips:
            clips[path] = judges.embed(read_clip(path, sample_rate=RATE_HZ))
        voices[name] = clips[path]
    return voices
