"""What capital letters mean: a shout, a word made of initials, or initials to be spelled.

"STOP SHOUTING" is lower-cased, "NATO" is a word, "BBC" is three letters, which come out apart: "B B C".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sonant.text.full_stop import word_set

# A syllable's beginning and end as English spells them; what does not fit is spelled out.
_ONSET = (
    "b|bl|br|c|ch|chr|cl|cr|d|dr|dw|f|fl|fr|g|gh|gl|gn|gr|h|j|k|kl|kn|kr|l|m|n|p|ph|pl|pr|ps|q|r|rh|s|sc|sch|scr|sh|"
    "shr|sk|sl|sm|sn|sp|spl|spr|sq|st|str|sw|t|th|thr|tr|tw|v|w|wh|wr|y|z"
)
_PRONOUNCEABLE = re.compile(
    rf"(?:{_ONSET})?[aeiouy]+(?:[bcdfghjklmnpqrstvwxz]{{1,3}}[aeiouy]+)*[bcdfghjklmnpqrstvwxz]{{0,3}}"
)
_BAD_CODA = re.compile(
    r"(?:[bcdfghjklmnpqrstvwz][bcdfghjqvwz]|[bdfgjmnpv]l|[bcdfgjmpv]m|[bdfgjkmpv]n|[bdfghjkmnptvz]r|c[dnp]|[dgpt]p|[bdgm]k|jl|lr)$"
)

_WORDS = word_set(  # short words that people put in capitals for emphasis
    "no not yes you all and the but why how who now one two six ten big bad new old out off go do is in on to of or "
    "so if an we he me my be by up can she his her him our any are was has had did get got let say see try use run "
    "man day top red cat dog car bus art fun hey hi oh ah for ever too way war sex end key low hot cut job law own "
    "pay put sad set sit sun ask ate bed box boy buy cry dad die dry ear eat eye far few fit fix fly guy hit ice "
    "ill joy kid lie lot mad may mom mum net nor odd per pop sir sky son tax tea tie tip toy wet win won yet wow "
    "their they them this that these those what when where which with your will well were went then than there here "
    "have been good best stop just only must more most much many some very even never again always both each every "
    "first last free from help into like love make over real same such take true want week work year open sale call "
    "hello world"
)
_SPOKEN = word_set("DOS SIM PIN RAM ROM GIF ZIP LAN WAN SAP ISO NES TED GAP LEGO COBOL BASIC AIDS")
_SPELLED = word_set(
    "USA UCLA ACLU IEEE AARP FBI CIA UK EU UN AI IBM ATM CEO CFO CTO NBA HIV GPS UFO URL FAQ ID IQ VIP UAE IP OS UI "
    "UX API CPU GPU USB IRA IRS NYC EPA FDA IPO ICU AOL ABC ESL GOP IOU IVF MIA POW RIP RSVP SOS SUV UPS YMCA ADHD "
    "AC AM PA PE PI VAT EBIT OECD OED"
)
# Of two letters and more, since a shout has no other words of only these letters.
_ROMAN = re.compile(r"(?=[IVXLC]{2})C{0,3}(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_FIXED = {"OK": "okay", "JPEG": "J peg", "COVID": "Covid"}
_TOKEN = re.compile(r"(?<![A-Za-z'])([A-Z]{2,})('?s|'S)?(?![A-Za-z])")
_CONTRACTION = re.compile(r"(?<![A-Za-z'])([A-Z]+)('(?:[A-Z]{2}|[A-RT-Z]|(?<=[IT]')S))(?![A-Za-z'])")
_SENTENCE = re.compile(r"[^.!?\n]+")
_AND = re.compile(r"(?<![A-Za-z])([A-Z]{1,4})&([A-Z]{1,4})(?![A-Za-z])")


def spelled(letters: Iterable[str]) -> str:
    return " ".join(c.upper() for c in letters)


def is_sayable(word: str) -> bool:
    """Whether a reader who never saw it would try to say it as a word."""
    small = word.lower()
    return bool(_PRONOUNCEABLE.fullmatch(small)) and not _BAD_CODA.search(small)


def _reads_as_word(token: str) -> bool:
    if token.lower() in _WORDS or token in _SPOKEN:
        return True
    if token in _SPELLED or len(token) < 4:
        return False
    return len(token) > 24 or is_sayable(token) or (len(token) > 5 and any(c in "AEIOUY" for c in token))


def calm(text: str) -> str:
    """Puts sentences that shout into small letters; what would be spelled out anyway keeps its capitals."""
    return _SENTENCE.sub(lambda m: _calm_sentence(m[0]), text)


def _calm_sentence(sentence: str) -> str:
    words = re.findall(r"[A-Za-z]{2,}", sentence)
    if len(words) < 2 or sum(w.isupper() for w in words) < 0.8 * len(words):
        return sentence
    if sum(_reads_as_word(w) for w in words if w.isupper()) < 0.5 * len(words):
        return sentence
    calmed = re.sub(r"[A-Z]+(?:'[A-Z]+)?", lambda m: _calm_word(m[0]), sentence)
    first = re.search(r"[A-Za-z]", calmed)
    return calmed if first is None else calmed[: first.start()] + first[0].upper() + calmed[first.end() :]


def _calm_word(word: str) -> str:
    if word == "A":
        return "a"
    keep = (
        len(word) == 1
        or word in _SPELLED
        or _ROMAN.fullmatch(word)
        or (len(word) < 6 and not re.search("[AEIOUY]", word))
    )
    return word if keep else word.lower()


def initials(text: str) -> str:
    """Writes runs of capitals as words, or as letters apart."""
    text = _CONTRACTION.sub(lambda m: m[0].lower() if len(m[1]) > 1 else m[1] + m[2].lower(), text)
    text = _AND.sub(lambda m: f"{spelled(m[1])} and {spelled(m[2])}", text)
    return _TOKEN.sub(lambda m: _read(m[1], m[2] or ""), text)


def _read(token: str, ending: str) -> str:
    ending = ending.lower()
    if token in _FIXED:
        return _FIXED[token] + ending
    if token.lower() in _WORDS:
        return token.lower() + ending
    if _reads_as_word(token):
        return token.capitalize() + ending
    return spelled(token) + ("'s" if ending else "")
