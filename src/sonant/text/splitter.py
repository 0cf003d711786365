"""Splits text that comes bit by bit into segments that can be spoken, each as soon as it is known to be complete.

A full stop may still become a decimal point and "Mr." is no end: a mark counts once the white space after it has
come, or at once where the script leaves no doubt. The cuts are those of `sentences.py`, except that a quote that closes
after such a mark is left out if it comes only when the segment has been taken.
"""

from __future__ import annotations

from typing import Literal

from sonant.text.sentences import CLAUSE_END, SENTENCE_END, WIDE_END, ends_in, fit, speakable
from sonant.text.turns import without_turns

Granularity = Literal["auto", "none", "sentence", "clause"]

_LEAST_CLAUSE = 12  # letters of a segment that ends with a comma: shorter ones are spoken badly, and sound hasty
_WIDE_FROM, _WIDE = "\u2e80", 3  # an ideograph says about as much as three letters


class IncrementalSplitter:
    """Feed it with `push`; take the segments that are ready.

    With "sentence" and "clause" these are the segments. "auto" gives sentences, but also clauses when the listener is
    waiting (`eager`) and no sentence is complete. With "none" only `flush` gives anything, and all of it.
    """

    def __init__(self, granularity: Granularity, max_chars: int) -> None:
        self.granularity, self.max_chars = granularity, max_chars
        self._buffer = ""
        self._may_close = False  # True: nothing has come since a segment that more marks or a quote may still follow

    @property
    def buffered_chars(self) -> int:
        return len(self._buffer)

    def push(self, text: str) -> None:
        self._buffer += text

    def drop(self) -> None:
        self._buffer = ""

    def take(self, eager: bool) -> str | None:
        """The next segment, or None if there is none yet."""
        if self.granularity == "none":
            return None
        while True:
            self._pass_over_end()
            self._buffer = self._buffer.lstrip()
            window = self._buffer[: self.max_chars + 1]
            end = self._end(window, eager)
            if end is None and len(window) <= self.max_chars:
                return None
            # No sentence ends here, but a pause is better than waiting.
            segment = self._cut(self._breath(window) if end is None else end)
            if speakable(segment):
                return segment

    def flush(self) -> str | None:
        """As `take`, when nothing more will come. Call it until it gives None."""
        segment = self.take(eager=False) or self._cut(len(self._buffer))
        return segment if speakable(segment) else None

    def _end(self, text: str, eager: bool) -> int | None:
        sentence = next((end for end in ends_in(text, SENTENCE_END) if _has_words(text[:end])), None)
        if self.granularity == "clause":
            clause = next((end for end in ends_in(text, CLAUSE_END) if _has_words(text[:end])), None)
            return min((end for end in (sentence, clause) if end is not None), default=None)
        if sentence is not None or not eager or self.granularity != "auto":
            return sentence
        *_, clause = (
            None,
            *ends_in(text, CLAUSE_END),
        )  # the last one, since more text at once is spoken better, and as soon
        return clause if clause is not None and _letters(text[:clause]) >= _LEAST_CLAUSE else None

    def _breath(self, window: str) -> int:
        """The last place where a sentence that is too long can be cut."""
        *clauses, rest = fit(window, self.max_chars)
        return len(window) - len(rest) if clauses else len(window)

    def _cut(self, end: int) -> str:
        segment, self._buffer = self._buffer[:end].strip(), self._buffer[end:]
        self._may_close = not self._buffer and WIDE_END.match(segment[-1:]) is not None
        return segment

    def _pass_over_end(self) -> None:
        if self._may_close and self._buffer:
            end = WIDE_END.match(self._buffer)
            self._buffer = self._buffer[end.end() if end else 0 :]
            self._may_close = not self._buffer


def _has_words(text: str) -> bool:
    """Whether there are words besides tags of speakers: a tag is kept with the words after it, on whatever line."""
    return speakable(without_turns(text))


def _letters(text: str) -> int:
    return sum(_WIDE if c >= _WIDE_FROM else 1 for c in text if c.isalnum())
