"""Whose turn it is in each part of a text of several speakers, wherever it is cut: [SPEAKER0] Hello. [SPEAKER1] Hi."""

from __future__ import annotations

import re
from collections.abc import Iterable

_TURN = re.compile(r"\[SPEAKER\d+\]")


def without_turns(text: str) -> str:
    return _TURN.sub("", text)


def with_turns(parts: Iterable[str], speaker: str = "") -> tuple[list[str], str]:
    """The parts, each beginning with the tag of the speaker whose turn it is there, and the speaker after the last.

    `speaker` is the one before the first part; "": none was named. A part that only names a speaker is left out.
    """
    named: list[str] = []
    for part in parts:
        words = _without_last_tags(part)
        if words.strip():
            named.append(words if not speaker or _TURN.match(words) else f"{speaker} {words}")
        speaker = (_TURN.findall(part) or [speaker])[-1]
    return named, speaker


def _without_last_tags(part: str) -> str:
    """The part without tags at its end, which name who speaks in the next one. No pattern does this in linear time."""
    end = len(part)
    for tag in reversed(list(_TURN.finditer(part))):
        if part[tag.end() : end].strip():
            break
        end = tag.start()
    return part[:end].rstrip() if end < len(part) else part
