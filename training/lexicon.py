"""Asks the teachers' reader how words sound, and keeps the answers: the lexicon that the voice carries.

    python -m training.lexicon --sentences carry/voice1/sentences.jsonl.gz \\
        --words /usr/share/dict/american-english-large --out runs/lexicon.zz

A word is kept as it is mostly read in the corpus' sentences (`training.carry` had them read); words of the list that
are in no sentence are read alone. Words that a rule would give as well ("'s"), or that need other sounds, are left out.
Names that the reader gets wrong are taken from `names.txt`; without sentences and words, only that is done, to an
existing lexicon. The one that ships lies with its voice. A new one is given to `training.talker.train` and
`training.export` or, when only names have changed, written into the voice folder that `training.ship` will take.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sonant.errors import BadText
from sonant.text.lexicon import OTHER_SOUNDS, PLAIN_SOUNDS, Lexicon
from sonant.text.normalize import normalize_english
from training.ship import PLACE

FILE_NAME = "lexicon.zz"
SHIPPED = PLACE / FILE_NAME
NAMES = Path(__file__).parent / "names.txt"
_WORD = re.compile(r"[a-z]+('[a-z]+)*")
_SOUNDS = re.compile(f"[{PLAIN_SOUNDS}{OTHER_SOUNDS}]+")
_MARKS = ".,;:!?-"


def read_in_sentences(rows: Iterable[dict[str, str]]) -> Iterator[tuple[str, str]]:
    """(word, sounds) as the American voices said them in training; sentences whose words do not pair are left out."""
    for row in rows:
        if not row["voice"].startswith("a") or row["split"] != "train":
            continue
        try:
            words = normalize_english(row["text"]).split()
        except BadText:
            continue
        sounds = row["phonemes"].split()
        if len(words) == len(sounds):
            yield from ((w.strip(_MARKS).lower(), s.strip(_MARKS)) for w, s in zip(words, sounds, strict=True))


def collect(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Each word as it is mostly read."""
    readings: dict[str, Counter[str]] = {}
    for word, sounds in pairs:
        if _WORD.fullmatch(word) and _SOUNDS.fullmatch(sounds):
            readings.setdefault(word, Counter())[sounds] += 1
    return {word: counts.most_common(1)[0][0] for word, counts in readings.items()}


def read_alone(words: Iterable[str], known: dict[str, str], reader: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    for word in words:
        if len(word) > 1 and _WORD.fullmatch(word.lower()) and word.lower() not in known:
            yield word.lower(), reader(word)


def without_rules(sounds: dict[str, str]) -> dict[str, str]:
    """Leave out what the lexicon's rules find anyway."""
    kept: dict[str, str] = {}
    for word in sorted(sounds, key=len):
        if Lexicon(kept).find(word) != sounds[word]:
            kept[word] = sounds[word]
    return kept


def read_names(path: Path) -> dict[str, str]:
    """Lines of a word and its sounds; those that begin with # are remarks."""
    names: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#"):
            continue
        word, _, sounds = line.partition(" ")
        if not _WORD.fullmatch(word) or not _SOUNDS.fullmatch(sounds) or word in names:
            raise ValueError(f"{path}, line {number}: {line!r} is not a new word and its sounds")
        names[word] = sounds
    return names


def with_names(known: dict[str, str], names: dict[str, str]) -> dict[str, str]:
    """Replace the sounds of names; a name's possessive, which had the old sounds, is dropped."""
    return {word: sounds for word, sounds in known.items() if word.removesuffix("'s") not in names} | names


def read_all(sentences: Path, words: Path) -> dict[str, str]:
    from hibari import Hibari

    reader = Hibari()
    with gzip.open(sentences, "rt", encoding="utf-8") as f:
        known = collect(read_in_sentences(json.loads(line) for line in f))
    print(f"{len(known):,} words in sentences", flush=True)
    listed = words.read_text(encoding="utf-8").split()
    return known | collect(read_alone(listed, known, lambda word: " ".join(reader.phonemize(word)).strip(_MARKS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=Path, help="with phonemes, as training.carry packs them")
    parser.add_argument("--words", type=Path, help="a word list, one on a line")
    parser.add_argument("--names", type=Path, default=NAMES, help=f"default: {NAMES.name}, beside this file")
    parser.add_argument(
        "--known", type=Path, default=SHIPPED, help="what names are put into, without sentences; default: what ships"
    )
    parser.add_argument("--out", type=Path, required=True, help=f"for example voice/{FILE_NAME}")
    options = parser.parse_args()
    if (options.sentences is None) != (options.words is None):
        parser.error("--sentences and --words go together")
    names = read_names(options.names)
    if options.sentences is None:
        known = dict(Lexicon.read(options.known).sounds)
    else:
        known = read_all(options.sentences, options.words)
    kept = without_rules(with_names(known, names))
    Lexicon(kept).write(options.out)
    print(f"{len(kept):,} words, {len(names)} of them names, {options.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
