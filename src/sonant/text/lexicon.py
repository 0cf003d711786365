"""How words sound: a table that comes with a small voice, since English spelling would be hardest for it to learn.

A word that the table holds is replaced by its sounds, written in an alphabet of their own (IPA, with wide letters where
IPA has plain ones), so that the voice can tell sounds from letters. Any other word stays as it is spelt, and a voice
that has seen some words spelt reads it as well as it can.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from string import ascii_lowercase

from sonant.errors import CheckpointError

# One symbol for a sound, as the teachers write American English: A, I, O, W, Y are the diphthongs of day, my, go, now
# and boy, T is the flap of "water".
PLAIN_SOUNDS = "AIOTWYbdfhijklmnpstuvwz"
OTHER_SOUNDS = "ɐɑɔəɛɜɡɪŋɹʃʊʌʒʤʧæðθᵊᵻˈˌ"
_LETTER_NAMES = (
    "ˈA bˈi sˈi dˈi ˈi ˈɛf ʤˈi ˈAʧ ˈI ʤˈA kˈA ˈɛl ˈɛm ˈɛn ˈO pˈi kjˈu ˈɑɹ ˈɛs tˈi jˈu vˈi dˈʌbᵊlju ˈɛks wˈI zˈi"
)
_NAME_OF = dict(zip(ascii_lowercase, _LETTER_NAMES.split(), strict=True))
_WIDER = 0xFEE0  # from a plain letter to its wide form
_WIDE = {ord(c): chr(ord(c) + _WIDER) for c in PLAIN_SOUNDS}
_WORD = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*")
_ARTICLE = re.compile(r" [A-Za-z]{2}")
_POSSESSIVE = "'s"


def never(word: str) -> bool:
    return False


class Lexicon:
    def __init__(self, sounds: Mapping[str, str]) -> None:
        """`sounds`: by lower-case word."""
        self.sounds = sounds

    @classmethod
    def read(cls, path: Path) -> Lexicon:
        try:
            lines = zlib.decompress(path.read_bytes()).decode().splitlines()
            return cls(dict(line.split("\t") for line in lines))
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing: sonant.json names it") from None
        except (OSError, zlib.error, UnicodeDecodeError, ValueError) as e:
            raise CheckpointError(f"{path} is no lexicon: {e}") from e

    def write(self, path: Path) -> None:
        text = "".join(f"{word}\t{sounds}\n" for word, sounds in sorted(self.sounds.items()))
        path.write_bytes(zlib.compress(text.encode(), 9))

    def pronounce(self, text: str, spelt: Callable[[str], bool] = never) -> str:
        """`text`, as `normalize_english` returns it, with sounds for words that are known and not to be `spelt`."""

        def sounding(match: re.Match[str]) -> str:
            word = match[0]
            if spelt(word):
                return word
            if len(word) == 1 and word not in "aI" and not (word == "A" and _ARTICLE.match(text, match.end())):
                found: str | None = _NAME_OF[word.lower()]
            else:
                found = self.find(word.lower())
            return word if found is None else found.translate(_WIDE)

        return _WORD.sub(sounding, text)

    def find(self, word: str) -> str | None:
        found = self.sounds.get(word)
        if found is None and word.endswith(_POSSESSIVE):
            owner = self.sounds.get(word.removesuffix(_POSSESSIVE))
            return None if owner is None else owner + _ending(owner[-1])
        return found


def _ending(last: str) -> str:
    if last in "szʃʒʧʤ":
        return "ᵻz"
    return "s" if last in "ptkfθ" else "z"


def alphabet() -> str:
    """Every symbol that `pronounce` may write for a sound."""
    return PLAIN_SOUNDS.translate(_WIDE) + OTHER_SOUNDS
