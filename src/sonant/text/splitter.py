"""Text that comes bit by bit, cut into pieces that can be spoken as soon as each is known to be whole.

A full stop may still become a decimal point and "Mr." is no end: a mark counts once the white space behind it has
come, or at once where the script leaves no doubt. The cuts are those of `text.py`.
"""

from __future__ import annotations

from typing import Literal

from sonant.text.sentences import CLAUSE_END, SENTENCE_END, ends_in, fit, speakable

Granularity = Literal["auto", "none", "sentence", "clause"]

_LEAST_CLAUSE = 12  # letters of a piece that only a comma ends: shorter ones are spoken badly, and heard as haste
_WIDE_FROM, _WIDE = "\u2e80", 3  # an ideograph says about as much as three letters


class TextPieces:
    """Feed it with `push`; take what is ready.

    auto: sentences, but what clauses there are when the listener is waiting ("eager") and no sentence is whole.
    none: only `flush` gives anything, and all of it.
    """

    def __init__(self, granularity: Granularity, max_chars: int) -> None:
        self.granularity, self.max_chars = granularity, max_chars
        self._held = ""

    @property
    def held_chars(self) -> int:
        return len(self._held)

    def push(self, text: str) -> None:
        self._held += text

    def drop(self) -> None:
        self._held = ""

    def take(self, eager: bool) -> str | None:
        """The next piece; None: there is none yet."""
        if self.granularity == "none":
            return None
        while True:
            self._held = self._held.lstrip()
            window = self._held[: self.max_chars + 1]
            end = self._end(window, eager)
            if end is None and len(window) <= self.max_chars:
                return None
            # without an end nobody pauses here; a breath is better than waiting
            piece = self._cut(len(fit(window, self.max_chars)[0]) if end is None else end)
            if speakable(piece):
                return piece

    def flush(self) -> str | None:
        """As `take`, knowing that nothing more will come. Call until it gives None."""
        piece = self.take(eager=False) or self._cut(len(self._held))
        return piece if speakable(piece) else None

    def _end(self, text: str, eager: bool) -> int | None:
        sentence = next((end for end in ends_in(text, SENTENCE_END) if speakable(text[:end])), None)
        if self.granularity == "clause":
            clause = next((end for end in ends_in(text, CLAUSE_END) if speakable(text[:end])), None)
            return min((end for end in (sentence, clause) if end is not None), default=None)
        if sentence is not None or not eager or self.granularity != "auto":
            return sentence
        *_, clause = (None, *ends_in(text, CLAUSE_END))  # the last: more at once is spoken better, and as soon
        return clause if clause is not None and _letters(text[:clause]) >= _LEAST_CLAUSE else None

    def _cut(self, end: int) -> str:
        piece, self._held = self._held[:end].strip(), self._held[end:]
        return piece


def _letters(text: str) -> int:
    return sum(_WIDE if c >= _WIDE_FROM else 1 for c in text if c.isalnum())
