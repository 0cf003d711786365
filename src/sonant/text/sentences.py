"""Text before it is spoken: is there anything to say, and where can a long text be cut?

No normalisation: the models read digits and abbreviations themselves, and the official code changes nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from sonant.errors import BadText
from sonant.text.inner_stop import is_inner_stop

# What may stand between a mark and the white space after it: quotes and brackets (German closes with the quotes that
# open in English), the end of bold or italic text in Markdown, the number of a note.
_CLOSING = r"(?:[\"'“”‘’«»‹›)\]*_]|\[\d{1,3}\]|[⁰¹²³⁴-⁹])*"
_WIDE, _WIDE_CLOSING = "。！？｡।॥။።", "”’」』）》】"
# A sentence ends at a mark before white space, or at any mark that has no other use, such as the full-width full stop
# and the danda. A run of marks is matched from its beginning only, or a long one would take quadratic time.
SENTENCE_END = re.compile(rf"(?:(?<![.!?…؟۔])[.!?…؟۔]+{_CLOSING}(?=\s)|[{_WIDE}]+[{_WIDE_CLOSING}]*|\n+)")
# In a complete text the end of a line ends no sentence unless the line after it is blank: books are broken into lines
# anywhere.
_WHOLE_SENTENCE_END = re.compile(SENTENCE_END.pattern.replace(r"\n+", r"\n\s*\n"))
_LINE_END = re.compile(r"\n+")
WIDE_END = re.compile(f"[{_WIDE}{_WIDE_CLOSING}]+")
CLAUSE_END = re.compile(rf"(?:[,;:—–،؛]{_CLOSING}(?=\s)|[，、；：]+)")

_LONGEST_TAG = 24  # characters, with its brackets


def check_text(text: str, max_chars: int, what: str = "text") -> None:
    """Raise `BadText` unless there is something here that can be spoken."""
    if not isinstance(text, str):
        raise BadText(f"the {what} must be a string, not {type(text).__name__}")
    if len(text) > max_chars:
        raise BadText(f"the {what} has {len(text):,} characters, over the limit of {max_chars:,}; send it in parts")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as e:
        raise BadText(f"the {what} is not valid Unicode at character {e.start}: was it decoded with errors?") from None
    if not text.strip():
        raise BadText(f"the {what} is empty")
    if not speakable(text):
        raise BadText(f"the {what} has no letters or digits, nothing that can be spoken: {text.strip()[:40]!r}")


def split_text(text: str, max_chars: int) -> list[str]:
    """Segments of at most `max_chars`: cut at sentence ends, elsewhere only where a sentence is longer than that.

    Joined, the segments are the text but for white space at the cuts. Each has something to speak.
    """
    if len(text) <= max_chars:
        return [text.strip()]
    segments: list[str] = []
    for clause in (p for sentence in _cut(text, _WHOLE_SENTENCE_END) for p in fit(sentence, max_chars)):
        joined = f"{segments[-1]}{clause}" if segments else clause
        if segments and (len(joined.strip()) <= max_chars or not speakable(clause) or not speakable(segments[-1])):
            segments[-1] = joined
        else:
            segments.append(clause)
    return [s.strip() for s in segments]


def fit(sentence: str, max_chars: int) -> list[str]:
    """Cut a sentence into parts within `max_chars`: into lines, else clauses, else as many words as fit."""
    if len(sentence.strip()) <= max_chars:
        return [sentence]
    for ends in (_LINE_END, CLAUSE_END):
        clauses = _cut(sentence, ends)
        if len(clauses) > 1:
            return [p for clause in clauses for p in fit(clause, max_chars)]
    return _fit_words(sentence, max_chars)


def _fit_words(clause: str, max_chars: int) -> list[str]:
    fitting = []
    while len(clause.strip()) > max_chars:
        cut = clause.rfind(" ", 1, max_chars)
        cut = _before_tag(clause, max_chars if cut <= 0 or not clause[:cut].strip() else cut + 1)
        fitting.append(clause[:cut])
        clause = clause[cut:]
    return [*fitting, clause]


def _before_tag(text: str, cut: int) -> int:
    """The cut, moved to before a tag such as [music start] that it would split: halves of a tag would be spoken."""
    opened = text.rfind("[", max(0, cut - _LONGEST_TAG), cut)
    return opened if opened > 0 and "]" not in text[opened:cut] and text[:opened].strip() else cut


def ends_in(text: str, ends: re.Pattern[str]) -> Iterator[int]:
    """Where sentences or clauses end. The full stop of an abbreviation ends nothing, nor that of an ordinal."""
    start = 0
    for match in ends.finditer(text):
        if match.group().startswith(".") and is_inner_stop(text, start, match.start() + 1):
            continue
        start = match.end()
        yield start


def _cut(text: str, ends: re.Pattern[str]) -> list[str]:
    found, start = [], 0
    for end in ends_in(text, ends):
        found.append(text[start:end])
        start = end
    if text[start:].strip():
        found.append(text[start:])
    elif found:
        found[-1] += text[start:]
    return found


def speakable(text: str) -> bool:
    return any(unicodedata.category(c)[0] in "LN" for c in text)
