"""Compares what was to be said with what was heard: both in one plain form, and the edits from one to the other."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from sonant.errors import BadText
from sonant.text.normalize import normalize_english

_NO_SPACES = frozenset({"chinese", "japanese"})  # a word is a character there


@dataclass(frozen=True)
class Errors:
    word_errors: int
    words: int
    char_errors: int
    chars: int


def plain(text: str, language: str) -> str:
    """Letters and digits only, in lower case; English numbers as words, so that "$5" equals "five dollars"."""
    if language == "english":
        try:
            text = normalize_english(text)
        except BadText:
            return ""
    text = unicodedata.normalize("NFKC", text.lower().replace("'", "").replace("’", ""))
    text = re.sub(r"[\W_]+", " ", text).strip()
    return text.replace(" ", "") if language in _NO_SPACES else text


def errors(asked: str, heard: str, language: str) -> Errors:
    wanted, got = plain(asked, language), plain(heard, language)
    words = [list(t) if language in _NO_SPACES else t.split() for t in (wanted, got)]
    chars = [t.replace(" ", "") for t in (wanted, got)]
    return Errors(distance(*words), len(words[0]), distance(*chars), len(chars[0]))


def distance(a: Sequence[str], b: Sequence[str]) -> int:
    """The fewest insertions, deletions and replacements."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]
