"""The corpus as prompts and codes: what the engine would lay out for each text, next to what was spoken.

Laying out is the engine's own code (`PromptBuilder`), in as many processes as there are cores, once a run.
"""

from __future__ import annotations

import hashlib
import multiprocessing
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sonant.errors import BadText
from sonant.models.qwen3_tts.config import Qwen3TTSConfig
from sonant.models.qwen3_tts.manifest import FRONT_ENDS
from sonant.models.qwen3_tts.prompt import PromptBuilder
from sonant.models.qwen3_tts.tokenizer import TextTokenizer
from sonant.text.lexicon import Lexicon
from sonant.types import SpeechRequest
from training.talker.config import Batch
from training.talker.folder import FRONT_END, LEXICON

Shorts = NDArray[np.int16]
_CHUNK = 1000


@dataclass(frozen=True)
class Line:
    text: str
    speaker: str  # one of ours, not the corpus's label
    frames: Shorts  # [frames, codebooks]


@dataclass(frozen=True)
class Utterances:
    """All prompts and all frames end to end."""

    prompt_text: Shorts  # text ids; -1: none
    prompt_code: Shorts  # codec ids; -1: none
    prompt_length: NDArray[np.int64]
    frames: Shorts  # [all frames, codebooks]
    frame_length: NDArray[np.int64]
    source: NDArray[np.int64]  # which of the lines each was made of

    def __len__(self) -> int:
        return len(self.prompt_length)

    def __add__(self, other: Utterances) -> Utterances:
        """`source` counts on from ours."""
        behind = replace(other, source=other.source + self.source.max() + 1)
        return Utterances(*(np.concatenate([getattr(self, f.name), getattr(behind, f.name)]) for f in fields(self)))

    def lengths(self) -> NDArray[np.int64]:
        return self.prompt_length + self.frame_length


def builder_of(folder: Path, spelt: float = 0.0) -> PromptBuilder:
    """The engine's builder, but a share `spelt` of known words is spelt, since the lexicon will not know all words."""
    lexicon, normalize = Lexicon.read(folder / LEXICON), FRONT_ENDS[FRONT_END]

    def front_end(text: str) -> str:
        return lexicon.pronounce(normalize(text), lambda word: chance(text, word) < spelt)

    return PromptBuilder(Qwen3TTSConfig.read(folder), TextTokenizer(folder), front_end)


def chance(text: str, salt: str) -> float:
    """A number in [0, 1) that stays with the text, whatever else is in the corpus."""
    return int.from_bytes(hashlib.sha256((salt + text).encode()).digest()[:4], "big") / 2**32


def request_of(line: Line, batch: Batch) -> SpeechRequest:
    text = line.text.lower() if chance(line.text, "case") < batch.lower_case else line.text
    language = "auto" if chance(line.text, "language") < batch.auto_language else "english"
    return SpeechRequest(text=text, voice=line.speaker, language=language)


def _lay_out(folder: Path, spelt: float, requests: list[SpeechRequest]) -> list[tuple[Shorts, Shorts] | None]:
    builder = builder_of(folder, spelt)
    laid: list[tuple[Shorts, Shorts] | None] = []
    for request in requests:
        try:
            layout = builder.layout(request)
        except BadText:
            laid.append(None)
            continue
        laid.append((layout.text.astype(np.int16), layout.codes[:, 0].astype(np.int16)))
    return laid


def gather(folder: Path, lines: Iterable[Line], batch: Batch, workers: int, start: str = "fork") -> Utterances:
    """`folder` is a checkpoint folder's JSON files. Utterances longer than `batch.longest` are left out.

    Processes are forked, since importing torch anew takes longer than the work. Once the GPU has been touched they must
    not be: `start` is "spawn" then.
    """
    lines = list(lines)
    chunks = [lines[i : i + _CHUNK] for i in range(0, len(lines), _CHUNK)]
    requests = [[request_of(line, batch) for line in chunk] for chunk in chunks]
    if workers > 1 and len(chunks) > 1:
        with ProcessPoolExecutor(workers, multiprocessing.get_context(start)) as pool:
            laid = [pair for part in pool.map(partial(_lay_out, folder, batch.spelt), requests) for pair in part]
    else:
        laid = [pair for part in requests for pair in _lay_out(folder, batch.spelt, part)]
    kept = [
        (*pair, line.frames, i)
        for i, (pair, line) in enumerate(zip(laid, lines, strict=True))
        if pair is not None and len(line.frames) and len(pair[0]) + len(line.frames) <= batch.longest
    ]
    if not kept:
        raise ValueError("no utterance is left to train on: do the speakers' labels fit the corpus?")
    return Utterances(
        prompt_text=np.concatenate([k[0] for k in kept]),
        prompt_code=np.concatenate([k[1] for k in kept]),
        prompt_length=np.array([len(k[0]) for k in kept]),
        frames=np.concatenate([k[2] for k in kept]),
        frame_length=np.array([len(k[2]) for k in kept]),
        source=np.array([k[3] for k in kept]),
    )


def hold_out(lines: list[Line], count: int) -> tuple[list[Line], list[Line]]:
    """(training, validation): all readings of about `count` sentences are kept out, always the same ones."""
    share = min(0.5, count / max(1, len(lines)))
    held = [chance(line.text, "held") < share for line in lines]
    if not any(held):
        held[-1] = True
    training = [line for line, out in zip(lines, held, strict=True) if not out]
    return training, [line for line, out in zip(lines, held, strict=True) if out]


def speakers_in(lines: Iterable[Line]) -> dict[str, float]:
    """Hours of each."""
    frames: Counter[str] = Counter()
    for line in lines:
        frames[line.speaker] += len(line.frames)
    return {name: round(n / 12.5 / 3600, 2) for name, n in sorted(frames.items())}
