"""The parts of a text as requests, but for those that a voice has no sound for.

Whether a text can be said must not hang on where it is cut: a paragraph in Chinese is passed over by an English voice,
as one word of it in the middle of a sentence is. A text of which nothing else is left is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sonant.engine.request import Request
from sonant.errors import NothingToSay
from sonant.types import SpeechRequest


def lay_out_parts(
    speech: SpeechRequest, seed: int, texts: Sequence[str], first: int, lay_out: Callable[[SpeechRequest, int], Request]
) -> list[Request]:
    """Parts `first` and on; `seed` is the whole text's."""
    parts: list[Request] = []
    unsaid: NothingToSay | None = None
    for text in texts:
        index = first + len(parts)
        try:
            parts.append(lay_out(replace(speech, text=text, seed=(seed + index) % 2**64), index))
        except NothingToSay as e:
            unsaid = e
    if unsaid is not None and not parts:
        raise unsaid
    return parts
