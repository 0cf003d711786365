"""What a load test asks a server to say: our own sets, a file with one text on each line, or a seed-tts `meta.lst`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Final

from sonant.errors import ConfigError

LANGUAGES: Final = ("english", "spanish", "chinese")
LENGTHS: Final = ("short", "medium", "long")  # about 2, 6 and 20 seconds of speech
_META_FIELDS = (4, 5)  # utt|prompt_text|prompt_wav|text and, in some lists, a recording of the text


@dataclass(frozen=True)
class Reference:
    """A voice to clone for one request."""

    clip: Path
    text: str = ""


@dataclass(frozen=True)
class Prompt:
    name: str  # stable, since results of two runs are paired by it
    text: str
    language: str = ""
    reference: Reference | None = None


def built_in(languages: Sequence[str] = ("english",), lengths: Sequence[str] = LENGTHS) -> list[Prompt]:
    """Our own prompts. Languages and lengths take turns, so that any beginning of the list is a fair mix."""
    groups = [_read_set(language, length) for language in languages for length in lengths]
    longest = max(len(group) for group in groups)
    return [group[i] for i in range(longest) for group in groups if i < len(group)]


def _read_set(language: str, length: str) -> list[Prompt]:
    if language not in LANGUAGES:
        raise ConfigError(f"there is no prompt set in {language!r}; there are {', '.join(LANGUAGES)}")
    if length not in LENGTHS:
        raise ConfigError(f"there is no prompt set of length {length!r}; there are {', '.join(LENGTHS)}")
    lines = files("sonant.bench").joinpath("prompt_sets", f"{language}.txt").read_text(encoding="utf-8").splitlines()
    texts = [text for kind, _, text in (line.partition("\t") for line in lines) if kind == length]
    return [Prompt(f"{language}-{length}-{i:02d}", text, language) for i, text in enumerate(texts)]


def from_file(path: Path, language: str = "") -> list[Prompt]:
    """Prompts of a file with one text on each line, or of a seed-tts list, whose clips' paths are relative to it."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"the prompts in {path} cannot be read: {e}") from e
    lines = [line for line in lines if line]
    if not lines:
        raise ConfigError(f"{path} holds no prompts: put one on each line")
    fields = [line.split("|") for line in lines]
    if path.suffix == ".lst" or all(len(f) in _META_FIELDS for f in fields):
        return _apart([_from_meta(path, number, f, language) for number, f in enumerate(fields, 1)])
    return [Prompt(f"line-{number:04d}", line, language) for number, line in enumerate(lines, 1)]


def worded(prompts: Sequence[Prompt], wordings: int, seed: int = 0) -> list[Prompt]:
    """Each prompt in `wordings` variants that begin with different numbers, so that a server that caches prefixes
    cannot reuse them for another variant, or another seed's. With one variant texts stay as they are."""
    if wordings == 1:
        return list(prompts)
    numbers = range(seed * wordings, (seed + 1) * wordings)
    return [replace(p, name=f"{p.name}-{n}", text=f"{n}. {p.text}") for n in numbers for p in prompts]


def _apart(prompts: list[Prompt]) -> list[Prompt]:
    """With a number after a name that was there before: speech is judged by the text of its prompt's name."""
    seen: set[str] = set()
    found = []
    for number, prompt in enumerate(prompts, 1):
        found.append(replace(prompt, name=f"{prompt.name}-{number:04d}") if prompt.name in seen else prompt)
        seen.add(prompt.name)
    return found


def _from_meta(path: Path, number: int, fields: list[str], language: str) -> Prompt:
    if len(fields) not in _META_FIELDS:
        raise ConfigError(
            f"{path}:{number} has {len(fields)} fields: a seed-tts list has name|prompt text|prompt clip|text"
        )
    name, prompt_text, clip, text = (f.strip() for f in fields[:4])
    reference = path.parent / clip
    if not reference.is_file():
        raise ConfigError(f"{path}:{number} names the clip {clip}, which is not there")
    return Prompt(name, text, language, Reference(reference, prompt_text))
