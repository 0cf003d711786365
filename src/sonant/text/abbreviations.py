"""Abbreviations, initials and Roman numerals in words."""

from __future__ import annotations

import re

from sonant.text import numbers
from sonant.text.amounts import TextRule
from sonant.text.capitals import spelled
from sonant.text.dates import MONTHS
from sonant.text.full_stop import STARTERS, ends_sentence, word_set

_BEFORE_SAINT = word_set("In At To From The On Of By And Near Visit Or For With Is Was When Where Mount Fort Sault")

# These are read out before a name only, since some are words of their own.
_TITLES = {
    "Prof": "Professor", "Capt": "Captain", "Sgt": "Sergeant", "Gen": "General", "Sen": "Senator",
    "Rep": "Representative", "Rev": "Reverend", "Gov": "Governor", "Lt": "Lieutenant", "Col": "Colonel",
    "Maj": "Major", "Hon": "Honorable", "Pres": "President", "Cmdr": "Commander", "Mt": "Mount", "Ft": "Fort",
}  # fmt: skip
# These are read out with or without their full stop.
_ANYWHERE = {
    "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Messrs": "Messers", "Jr": "Junior", "Sr": "Senior",
    "Ltd": "Limited", "Inc": "Incorporated", "Corp": "Corporation", "vs": "versus", "etc": "et cetera",
    "Blvd": "Boulevard",
}  # fmt: skip
# These are read out with their full stop only.
_DOTTED = {
    "Ave": "Avenue", "Rd": "Road", "Co": "Company", "Bros": "Brothers", "Univ": "University", "Assn": "Association",
    "Dept": "Department", "Govt": "Government", "approx": "approximately", "dept": "department", "tel": "telephone",
    "est": "established", "govt": "government", "max": "maximum", "cf": "compare", "viz": "namely",
    "esp": "especially", "incl": "including", "misc": "miscellaneous", "ext": "extension",
}  # fmt: skip
# These are read out before a number only.
_COUNTED = {
    "p": "page", "pp": "pages", "vol": "volume", "ch": "chapter", "fig": "figure", "figs": "figures", "sec": "section",
    "eq": "equation", "art": "article", "c": "circa", "ca": "circa", "ver": "version", "no": "number", "nos": "numbers",
    "Vol": "volume", "Ch": "chapter", "Fig": "figure", "Figs": "figures", "Sec": "section", "Art": "article",
    "No": "number", "Nos": "numbers", "Ver": "version",
}  # fmt: skip
_LATIN = {"e.g": "for example", "i.e": "that is", "a.k.a": "also known as", "w/o": "without", "w/": "with "}
_DEGREES = {"Ph.D": "P H D", "PhD": "P H D", "B.Sc": "B S C", "M.Sc": "M S C", "LL.B": "L L B"}

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_WEEKDAY = r"(Mon|Tues?|Wed|Thur?s?|Fri|Sat|Sun)(?:(?:day|sday|nesday|rsday|urday)\b|\b\.?)"

_KINGS = (
    "Henry|Edward|George|William|Charles|James|Richard|Elizabeth|Mary|John|Louis|Philip|Francis|Napoleon|Peter|"
    "Catherine|Alexander|Nicholas|Frederick|Wilhelm|Ferdinand|Leopold|Gustav|Christian|Haakon|Pius|Benedict|Gregory|"
    "Innocent|Clement|Leo|Urban|Paul|Victoria|Victor|Robert|David|Malcolm|Otto|Ivan|Carl|Karl|Juan|Carlos|Felipe|Ramses"
)
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
# Up to 399. L and C alone are letters: nobody says "Class one hundred".
_ROMAN = r"(?=[IVXLC])(?![LC](?![IVXLC]))C{0,3}(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})"

# What is numbered with Roman numerals. In small letters some of these are other words: a title, a bowl, a mark.
_DIVISION = "|".join(
    [f"[{w[0].upper()}{w[0]}]{w[1:]}|{w.upper()}" for w in (
        "chapter", "canto", "psalm", "part", "volume", "book", "act", "scene", "section", "war", "phase", "stage",
        "type", "level", "article", "class", "grade", "episode",
    )] + ["Title", "Bowl", "Mark"]
)  # fmt: skip


def roman(text: str) -> int:
    values = [_ROMAN_VALUES[c] for c in text]
    return sum(-v if v < after else v for v, after in zip(values, [*values[1:], 0], strict=True))


def _word_before(match: re.Match[str]) -> str:
    words = match.string[max(0, match.start() - 32) : match.start()].split()
    return words[-1] if words else ""


def _may_be_named(before: str) -> bool:
    """Whether a street's name may end with this word. No name goes on after a mark: "Chicago, St. Louis"."""
    return before[:1].isupper() and before[-1].isalnum() and before not in _BEFORE_SAINT


def saint_or_street(match: re.Match[str]) -> str:
    before = _word_before(match)
    named = re.match(r" ?[A-Z]", match.string[match.end() : match.end() + 2])
    street = _may_be_named(before)
    return "Saint" if named and not street else f"Street{ends_sentence(match)}"


def doctor_or_drive(match: re.Match[str]) -> str:
    named = re.match(r" [A-Z]", match.string[match.end() : match.end() + 2])
    before = _word_before(match)
    if not named and _may_be_named(before):
        return f"Drive{ends_sentence(match)}"
    return "Doctor"


def anywhere(match: re.Match[str]) -> str:
    key = match[1] if match[1] in _ANYWHERE else match[1].capitalize()
    return _ANYWHERE.get(key, _ANYWHERE.get(match[1].lower(), "")) + ends_sentence(match)


def initial(match: re.Match[str]) -> str:
    """An initial as in "J. Smith", but neither "vitamin C. The" nor "at seven P M. The"."""
    before = _word_before(match)
    after = re.match(r"[A-Za-z]+(?![.\w])", match.string[match.end() : match.end() + 24])
    new_sentence = after is not None and len(after[0]) > 1 and after[0] in STARTERS
    spelled_out = len(before) == 1  # the end of "B B C.", which was one word
    named = not before or (before[0].isupper() and not spelled_out) or before[0] in "\"'("
    return f"{match[1]} " if named and not new_sentence else match[0]


def king(match: re.Match[str]) -> str:
    return f"{match[1]} the {numbers.ordinal(str(roman(match[2])))}"


def numbered(match: re.Match[str]) -> str:
    return f"{match[1]} {numbers.count(roman(match[2]))}"


def weekdays(match: re.Match[str]) -> str:
    first, last = (next(d for d in _WEEKDAYS if d.startswith(name)) for name in match.groups())
    return f"{first} to {last}{ends_sentence(match)}"


def _either(words: dict[str, str]) -> str:
    return "|".join(re.escape(w) for w in sorted(words, key=len, reverse=True))


RULES: tuple[TextRule, ...] = (
    (re.compile(rf"(?<![\w.])({_either(_LATIN)})(?:(?<!/)\b\.?|(?<=/))", re.I), lambda m: _LATIN[m[1].lower()]),
    (re.compile(rf"(?<![\w.])({_either(_DEGREES)})\b\.?"), lambda m: _DEGREES[m[1]] + ends_sentence(m)),
    (re.compile(rf"\b({_either(_ANYWHERE)})\b\.?(?!\w)", re.I), anywhere),
    (re.compile(rf"\b({_either(_TITLES)})\.(?= ?[A-Z])"), lambda m: _TITLES[m[1]]),
    (re.compile(rf"\b({_either(_COUNTED)})\. ?(?=\d)"), lambda m: f"{_COUNTED[m[1]]} "),
    (re.compile(r"\bSt\b\.?(?![\w'])"), saint_or_street),
    (re.compile(r"\bDr\b\.?(?![\w'])", re.I), doctor_or_drive),
    (
        re.compile(rf"\b({_either(_DOTTED)})\.(?=\s*(?:$|[a-z\d,;:)]|\b(?:{'|'.join(sorted(STARTERS))})\b))"),
        lambda m: _DOTTED[m[1]] + ends_sentence(m),
    ),
    (re.compile(rf"\b{_WEEKDAY}\s?-\s?{_WEEKDAY}"), weekdays),
    (re.compile(r"\b(Jan|Feb|Mar|Apr|Aug|Sept?|Oct|Nov|Dec)\.(?!\w)"), lambda m: _month(m) + ends_sentence(m)),
    (
        re.compile(r"(?<![\w.])((?:[A-Za-z]\.){2,})(?![A-Za-z]\b)"),
        lambda m: spelled(m[1].replace(".", "")) + ends_sentence(m),
    ),
    (re.compile(rf"\b({_DIVISION}) (?!I\b)({_ROMAN})(?!\w|'|-)"), numbered),
    # "I" is a number only in some contexts: "the book I read" is not the first.
    (re.compile(r"\b((?i:World War)) (I)\b"), numbered),
    (re.compile(rf"\b({_DIVISION}) (I)(?=\s*$|\s*\n|[,;:.!?)]| (?:of|and) )"), numbered),
    (
        re.compile(r"\b(Chapter|Part|Act|Scene|Type|Phase|Book) (I)(?= (?:is|was|in|begins|ends) )"),
        numbered,
    ),
    (re.compile(r"\b([Tt]ype) (I)(?= (?:error|diabet|or II\b))"), numbered),
    (re.compile(r"(?<![\w.])([A-Z])\.[ ]?(?=[A-Z])"), initial),
    # "James V Smith" has an initial; and before a full stop V and X may be one too.
    (
        re.compile(
            rf"\b(?!Malcolm X\b)({_KINGS}) (?![VX](?:\.| [A-Z]))({_ROMAN})(?![\w'-]|\.\w)(?=[ ,;:!?.)\"]|$)(?<! I)",
            re.M,
        ),
        king,
    ),
    (re.compile(rf"\b({_KINGS}) (I)(?=[,;:!?.)]| of | and | was |$)"), king),
    (re.compile(rf"\b([A-Z][a-z]+) (?=[IVX]{{2}})({_ROMAN})(?!\w|'|-)"), numbered),
)


def _month(match: re.Match[str]) -> str:
    return next(m for m in MONTHS if m.startswith(match[1][:3]))
