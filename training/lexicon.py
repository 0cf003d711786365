"""Asks the teachers' reader how words sound, and keeps the answers: the lexicon that the voice carries.

    python -m training.lexicon --sentences carry/voice1/sentences.jsonl.gz \\
        --words /usr/share/dict/american-english-large

A word is kept as it is mostly read in the corpus' sentences (`training.carry` read them); words of the list that no
sentence has are read alone. What a rule finds as well ("'s") and what needs other sounds is left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sonant.audio.lexicon import OTHER_SOUNDS, PLAIN_SOUNDS, Lexicon
from sonant.audio.normalize import normalize_english
from sonant.errors import BadText

FILE = Path(__file__).parent / "lexicon.zz"
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
    """Less what the lexicon finds anyway."""
    kept: dict[str, str] = {}
    for word in sorted(sounds, key=len):
        if Lexicon(kept).find(word) != sounds[word]:
            kept[word] = sounds[word]
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=Path, required=True, help="with phonemes, as training.carry packs them")
    parser.add_argument("--words", type=Path, required=True, help="a word list, one on a line")
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    from hibari import Hibari

    reader = Hibari()
    with gzip.open(options.sentences, "rt", encoding="utf-8") as f:
        known = collect(read_in_sentences(json.loads(line) for line in f))
    print(f"{len(known):,} words in sentences", flush=True)
    words = options.words.read_text(encoding="utf-8").split()
    known |= collect(read_alone(words, known, lambda word: " ".join(reader.phonemize(word)).strip(_MARKS)))
    kept = without_rules(known)
    Lexicon(kept).write(options.out)
    print(f"{len(kept):,} of {len(known):,} words kept, {options.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
