"""The figures that a voice must show: on sentences it never saw, alone and with many requests at once.

    python -m training.evaluate --voice voice --corpus held-out --whisper base.en.pt --ecapa embedding_model.ckpt \\
        --random carry/sentences.jsonl.gz --at-once 1 32 --out runs/evaluation.json

`--corpus` holds the teachers' own readings of these sentences (training.corpus --split eval): our durations and
voices are compared with theirs. Judges that are not installed are left out, with a note: DistillMOS (`distillmos`),
Whisper (`openai-whisper` and its base.en), ECAPA-TDNN (`speechbrain` and its VoxCeleb weights).
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sonant
from sonant import Engine, EngineConfig, Speech
from sonant.bench.quality.transcript import distance
from sonant.errors import BadText
from sonant.text.normalize import normalize_english
from training import settings
from training.clip import SAMPLE_RATE
from training.evaluate_codec import Judge, at_16k, mos_judge, plain, transcriber
from training.shards import Corpus
from training.talker.config import TalkerTraining

RATIOS = (0.6, 1.6)  # of our duration to the teacher's: outside, something was skipped or repeated
SLOWEST_LETTERS_PER_S = 5.0  # random sentences have no teacher's reading; slower than this is a runaway
SPARE_S = 1.5
_LABELS = ("cer", "mos", "similarity", "own_voice", "ended", "in_range", "ratio", "seconds", "rtf")

Embed = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    text: str
    speaker: str
    teacher: Tensor  # samples


@dataclass(frozen=True)
class Judges:
    mos: Judge | None
    transcribe: Callable[[Tensor], str] | None
    embed: Embed | None


def embedder(checkpoint: Path | None) -> Embed | None:
    """ECAPA-TDNN as trained on VoxCeleb: a unit vector for a voice."""
    if checkpoint is None or importlib.util.find_spec("speechbrain") is None:
        print("no ECAPA: no speaker similarity")
        return None
    from speechbrain.lobes.features import Fbank
    from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN
    from speechbrain.processing.features import InputNormalization

    shape: dict[str, Any] = {"channels": [1024] * 4 + [3072], "kernel_sizes": [5, 3, 3, 3, 1]}
    model = ECAPA_TDNN(80, **shape, dilations=[1, 2, 3, 4, 1], attention_channels=128, lin_neurons=192)
    model.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True))
    features, norm = Fbank(n_mels=80), InputNormalization(norm_type="sentence", std_norm=False)
    model.eval()

    @torch.no_grad()
    def embed(samples: Tensor) -> Tensor:
        bands = norm(features(at_16k(samples)[None]), torch.ones(1))
        return torch.nn.functional.normalize(model(bands)[0, 0], dim=0)

    return embed


def cases_of(corpus: Corpus, config: TalkerTraining, count: int) -> list[Case]:
    """Take cases of shipped speakers only, speaker by speaker in turn."""
    found: dict[str, list[Case]] = {name: [] for name in config.voice.shipped}
    for entry in corpus.entries:
        speaker = config.speaker_of.get(entry.speaker)
        if speaker in found:
            samples = torch.from_numpy(corpus.clip(entry)).float() / 32768
            found[speaker].append(Case(entry.text, speaker, samples))
    longest = max(len(group) for group in found.values())
    return [group[i] for i in range(longest) for group in found.values() if i < len(group)][:count]


def say_all(engine: Engine, texts: list[tuple[str, str]], at_once: int) -> Iterator[Speech]:
    """(text, voice) → speech in order, with `at_once` requests in flight."""
    flying: deque[Any] = deque()
    for i, (text, voice) in enumerate(texts):
        flying.append(engine.stream(text, voice=voice, seed=i, live=False))
        if len(flying) == at_once:
            yield flying.popleft().result()
    while flying:
        yield flying.popleft().result()


def words(text: str) -> str:
    """Both what was asked for and what was heard, in one form: "$5" and "five dollars" are equal."""
    try:
        return plain(normalize_english(text))
    except BadText:
        return ""


@torch.no_grad()
def judge(case: Case, speech: Speech, judges: Judges, voices: dict[str, Tensor]) -> dict[str, Any]:
    samples = torch.from_numpy(speech.samples)
    ratio = speech.duration_s / (len(case.teacher) / SAMPLE_RATE)
    row: dict[str, Any] = {
        "text": case.text,
        "speaker": case.speaker,
        "seconds": speech.duration_s,
        "ratio": ratio,
        "ended": float(speech.finish_reason == "stop"),
        "in_range": float(speech.finish_reason == "stop" and RATIOS[0] <= ratio <= RATIOS[1]),
    }
    if judges.mos is not None:
        row["mos"] = judges.mos(samples)
    if judges.transcribe is not None:
        heard = judges.transcribe(samples)
        expected = words(case.text)
        row |= {"heard": heard, "errors": distance(expected, words(heard)), "characters": len(expected)}
    if judges.embed is not None:
        mine = judges.embed(samples)
        likeness = {name: float(mine @ voice) for name, voice in voices.items()}
        row |= {"similarity": likeness[case.speaker], "closest": max(likeness, key=lambda name: likeness[name])}
        row["own_voice"] = float(row["closest"] == case.speaker)
    return row


def teacher_voices(cases: list[Case], embed: Embed | None) -> dict[str, Tensor]:
    """The mean vector of each speaker's teacher."""
    if embed is None:
        return {}
    vectors: dict[str, list[Tensor]] = {}
    for case in cases:
        vectors.setdefault(case.speaker, []).append(embed(case.teacher))
    return {name: torch.nn.functional.normalize(torch.stack(v).mean(0), dim=0) for name, v in vectors.items()}


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    names = ("mos", "similarity", "own_voice", "ended", "in_range", "ratio", "seconds")
    figures = {n: float(np.mean([r[n] for r in rows])) for n in names if n in rows[0]}
    if "errors" in rows[0]:
        figures["cer"] = sum(r["errors"] for r in rows) / max(1, sum(r["characters"] for r in rows))
    return figures


def random_texts(path: Path, count: int, voices: tuple[str, ...]) -> list[tuple[str, str]]:
    raw = path.read_bytes()
    rows = [json.loads(line) for line in (gzip.decompress(raw) if path.suffix == ".gz" else raw).splitlines()]
    texts = [row["text"] for row in rows if row["split"] == "random"][:count]
    return [(text, voices[i % len(voices)]) for i, text in enumerate(texts)]


def runaways(engine: Engine, texts: list[tuple[str, str]], at_once: int) -> dict[str, Any]:
    """Sentences that did not end by themselves, or took far longer than anyone would."""
    found = []
    for (text, voice), speech in zip(texts, say_all(engine, texts, at_once), strict=True):
        longest = SPARE_S + len(normalize_english(text)) / SLOWEST_LETTERS_PER_S
        if speech.finish_reason != "stop" or speech.duration_s > longest:
            found.append({"text": text, "voice": voice, "seconds": speech.duration_s, "finish": speech.finish_reason})
    return {"sentences": len(texts), "runaways": len(found), "which": found}


def table(figures: dict[str, dict[str, float]]) -> str:
    lines = [f"{'':<14}" + "".join(f"{label:>12}" for label in _LABELS)]
    for name, values in figures.items():
        cells = (f"{values[label]:>12.4f}" if label in values else f"{'-':>12}" for label in _LABELS)
        lines.append(f"{name:<14}" + "".join(cells))
    return "\n".join(lines)


def evaluate(
    engine: Engine, cases: list[Case], judges: Judges, voices: dict[str, Tensor], at_once: int
) -> dict[str, Any]:
    began = time.time()
    speeches = list(say_all(engine, [(c.text, c.speaker) for c in cases], at_once))
    took = time.time() - began
    rows = [judge(case, speech, judges, voices) for case, speech in zip(cases, speeches, strict=True)]
    speakers = sorted({case.speaker for case in cases})
    figures = {"all": summary(rows)} | {s: summary([r for r in rows if r["speaker"] == s]) for s in speakers}
    figures["all"]["rtf"] = took / sum(s.duration_s for s in speeches)
    print(f"{at_once} at once, {len(cases)} sentences\n{table(figures)}", flush=True)
    return {"at_once": at_once, "figures": figures, "rows": rows}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=settings.CONFIGS / "talker.toml")
    parser.add_argument("--voice", type=Path, required=True, help="an exported folder")
    parser.add_argument("--corpus", type=Path, required=True, help="made with training.corpus --split eval")
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--whisper", type=Path, help="base.en.pt")
    parser.add_argument("--ecapa", type=Path, help="embedding_model.ckpt")
    parser.add_argument("--random", type=Path, help="sentences.jsonl[.gz]: look for runaways in its split 'random'")
    parser.add_argument("--random-sentences", type=int, default=1000)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, help="of torch; all cores if not given")
    parser.add_argument("--out", type=Path, help="JSON with every figure and every transcript")
    options = parser.parse_args()
    if options.out is not None and options.out.is_dir():
        parser.error(f"--out {options.out} is a folder; name a file")
    return options


def main() -> None:
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    config = settings.read(options.config, TalkerTraining)
    cases = cases_of(Corpus.open(options.corpus), config, options.sentences)
    judges = Judges(mos_judge(), transcriber(options.whisper), embedder(options.ecapa))
    voices = teacher_voices(cases, judges.embed)
    result: dict[str, Any] = {"runs": []}
    rows = max(options.at_once)
    with sonant.load(options.voice, device=options.device, config=EngineConfig(max_rows=rows)) as engine:
        for at_once in options.at_once:
            result["runs"].append(evaluate(engine, cases, judges, voices, at_once))
        if options.random is not None:
            texts = random_texts(options.random, options.random_sentences, engine.voices)
            result["random"] = runaways(engine, texts, rows)
            print(f"{result['random']['runaways']} runaways in {len(texts)} random sentences")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
