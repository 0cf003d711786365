"""Full stops that end no sentence: those of abbreviations and initials, and of ordinals and numbers in a list.

For every language that is spoken here at once, since nobody says which one a text is in. To miss an end costs little:
two sentences are spoken as one.
"""

from __future__ import annotations

import re

# A letter of an alphabet that has capitals. In others one letter can be a word, and so the last one of a sentence.
_LETTER = "[A-Za-zÀ-ɏͰ-ӿ]"
_SHORT_FORMS = (
    "Mr|Mrs|Ms|Messrs|Dr|Prof|St|Mt|Ft|Sr|Jr|Gen|Col|Capt|Lt|Sgt|Cpl|Maj|Cmdr|Rev|Hon|Sen|Rep|Gov|Pres|Supt|"
    "Inc|Ltd|Corp|Co|Bros|Dept|Univ|Ave|Blvd|Rd|vs|No|Nos|Fig|Figs|Vol|pp|approx|etc|cf|viz|et al|Ph\\.D|"
    "Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec|"
    "Hr|Nr|Str|Tel|Abb|Bd|bzw|ca|evtl|ggf|inkl|Mio|Mrd|Std|usw|vgl|zzgl|av|env|éd|chap|"
    "Sra|Srta|Srs|Dra|Ud|Uds|EE|UU|pág|núm|Avda|Sig|Dott|Ing|Avv|pag|ecc|"
    "гг|гл|др|млн|млрд|руб|см|стр|тыс|ул"
)
# The "t" of "can't" is no initial, nor is the "s" of "Bob's".
_ABBREVIATION = re.compile(rf"(?<![\w.-])(?<!\w['’])(?:(?:{_LETTER}\.)*{_LETTER}|{_SHORT_FORMS})\.$")
# "Am 3. Mai" is the third of May.
_ORDINAL = re.compile(r"(?<!\w)(?i:am|ab|beim|bis|das|dem|den|der|des|die|im|seit|und|vom|zum) \d{1,2}\.$")
# "1. Buy milk", at the beginning of a sentence or of a line.
_FIRST_MARKER, _MARKER = re.compile(r"\W*\d{1,3}\.$"), re.compile(r"\n[^\w\n]*\d{1,3}\.$")
_LOOKED_AT = 24  # characters searched up to the full stop: more than any of these has, so that time stays linear


def is_inner_stop(text: str, start: int, stop: int) -> bool:
    """Whether the full stop that ends text[start:stop] ends nothing, where a sentence begins at `start`."""
    before = text[max(start, stop - _LOOKED_AT) : stop]
    if any(kind.search(before) for kind in (_ABBREVIATION, _ORDINAL, _MARKER)):
        return True
    return _FIRST_MARKER.match(text, start, stop) is not None
