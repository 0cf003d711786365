"""Prepares a text as Boson's own script does: half-width marks, sounds as control tokens, tidy lines, a final stop.

Square brackets hold tags: sounds such as [laugh], and [SPEAKER0], [SPEAKER1] … for speakers. Other bracketed text, [1]
or [sic], is text. What only looks like a tag is refused, since it would be read aloud, or spoken in a wrong voice:

- "speaker" and at most one word or number: [speaker 1], [SPEAKERX], [Speaker Ann], but not [speaker of the House];
- a known sound misspelled, case and blanks aside: [lagh], [Laugh], [humming], but not [rough] or [musical];
- a known sound with a word for its beginning or end: [laugh start], [music stop], but not [music video].
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from sonant.errors import BadText, NothingToSay
from sonant.models.higgs_audio_v2.tokenizer import Control, Piece

MOST_SPEAKERS = 8  # in one prompt: each has a clip or a line in it

_HALF_WIDTH = str.maketrans(
    {
        "，": ", ", "。": ".", "：": ":", "；": ";", "？": "?", "！": "!", "、": ",", "·": ".", "…": "...", "—": "-",
        "【": "[", "】": "]", "《": "<", "》": ">", "‘": "'", "’": "'",
        "“": '"', "”": '"', "「": '"', "」": '"', "『": '"', "』": '"',
        "(": " ", ")": " ", "（": " ", "）": " ",
    }
)  # fmt: skip
_DEGREES = {"°F": " degrees Fahrenheit", "°C": " degrees Celsius"}


def _sound(name: str, kind: str = "SE") -> tuple[Piece, ...]:
    return Control(f"<{kind}>"), f"[{name}]", Control(f"</{kind}>")


SOUNDS: Mapping[str, tuple[Piece, ...]] = {
    "[laugh]": _sound("Laughter"),
    "[humming start]": _sound("Humming"),  # as in Boson's script, though the other starts have <SE_s>
    "[humming end]": _sound("Humming", "SE_e"),
    "[music start]": _sound("Music", "SE_s"),
    "[music end]": _sound("Music", "SE_e"),
    "[music]": _sound("Music"),
    "[sing start]": _sound("Singing", "SE_s"),
    "[sing end]": _sound("Singing", "SE_e"),
    "[applause]": _sound("Applause"),
    "[cheering]": _sound("Cheering"),
    "[cough]": _sound("Cough"),
}

_BRACKETED = re.compile(r"(\[[^\[\]\n]*\])")
_SPEAKER = re.compile(r"\[SPEAKER(0|[1-9]\d{0,2})\]", re.ASCII)
_LIKE_SPEAKER = re.compile(r"speaker[ _:#.-]*\w*[ :.]*")
_NAMES = frozenset(
    {
        "laugh", "laughter", "laughing", "hum", "humming", "music", "sing", "singing", "applause",
        "cheer", "cheering", "cough", "coughing",
    }
)  # fmt: skip
_LIKE_SOUNDS = tuple(sorted({tag[1:-1] for tag in SOUNDS} | {name for name in _NAMES if len(name) > 4}))
_EDGES = frozenset({"start", "end", "begin", "stop", "starts", "ends", "begins", "stops", "on", "off"})
_ALIKE = 0.85  # difflib's least ratio: one letter of five may be left out or inserted, but not changed
_LONGEST_LIKE = 24  # letters: longer ones are prose

_NO_STOP_AFTER_TEXT = (".", "!", "?", ",", ";", '"', "'")
_NO_STOP_AFTER_SOUND = ("</SE>", "</SE_e>")


@dataclass(frozen=True)
class SpokenText:
    pieces: tuple[Piece, ...]
    speakers: frozenset[int]  # those whose tags are in the text


def clean(text: str) -> SpokenText:
    """Raises `NothingToSay` if nothing is left to be said, `BadText` if a tag only looks like a known one."""
    text = text.translate(_HALF_WIDTH)
    for sign, words in _DEGREES.items():
        text = text.replace(sign, words)
    lines = (" ".join(line.split()) for line in text.split("\n"))
    pieces: list[Piece] = []
    speakers: set[int] = set()
    something_to_say = False
    for part in _BRACKETED.split("\n".join(line for line in lines if line)):
        if speaker := _SPEAKER.fullmatch(part):
            speakers.add(int(speaker[1]))
        else:
            _refuse_if_like_a_tag(part)
            something_to_say |= bool(part.strip())
        pieces.extend(SOUNDS.get(part, (part,)))
    pieces = [piece for piece in pieces if piece]
    if not something_to_say:
        raise NothingToSay(
            "nothing of the text is left to be said without its tags, brackets and blanks; give it words"
        )
    return SpokenText((*pieces, *_final_stop(pieces[-1])), frozenset(speakers))


def _final_stop(last: Piece) -> tuple[Piece, ...]:
    if isinstance(last, Control):
        return () if last.token in _NO_STOP_AFTER_SOUND else (".",)
    return () if last.endswith(_NO_STOP_AFTER_TEXT) else (".",)


def _refuse_if_like_a_tag(part: str) -> None:
    if part in SOUNDS or not _BRACKETED.fullmatch(part) or not _is_like_a_tag(part[1:-1]):
        return
    known = " ".join(SOUNDS)
    raise BadText(
        f"no tag {part}: there are {known} and, for speakers, [SPEAKER0] to [SPEAKER{MOST_SPEAKERS - 1}]; "
        "write one of these, or leave the square brackets out"
    )


def _is_like_a_tag(inside: str) -> bool:
    folded = " ".join(inside.casefold().split())
    if not folded or len(folded) > _LONGEST_LIKE:
        return False
    if folded in _NAMES or _LIKE_SPEAKER.fullmatch(folded):
        return True
    name, _, edge = folded.partition(" ")
    if name in _NAMES and edge in _EDGES:
        return True
    # A misspelled word usually has its first letter right; [rough] is a word of its own.
    alike = [sound for sound in _LIKE_SOUNDS if sound[0] == folded[0]]
    letters = sorted(folded)  # the same letters in another order are a typing error too
    return bool(get_close_matches(folded, alike, n=1, cutoff=_ALIKE)) or any(letters == sorted(s) for s in alike)
