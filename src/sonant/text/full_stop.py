"""Where a sentence ends although its full stop belongs to an abbreviation.

Such a full stop also ends the sentence if nothing follows, or a usual first word does; it is then kept.
"""

from __future__ import annotations

import re


def word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


STARTERS = word_set(
    "The A An It He She They We You This That These Those There Then But And So In On At For If When What Why How Who "
    "Where His Her Their Its My Our Your No Yes Not All Some However After Before As"
)


def ends_sentence(match: re.Match[str]) -> str:
    """ "." if the full stop that `match` swallowed was also the sentence's."""
    rest = match.string[match.end() : match.end() + 40]
    word = re.match(r"[\"')]*\s*([A-Za-z]*)", rest)
    if not match[0].endswith(".") or word is None:
        return ""
    nothing_left = not rest.strip(" \"')") or rest.lstrip(" ").startswith("\n")
    return "." if nothing_left or (rest[:1].isspace() and word[1] in STARTERS) else ""
