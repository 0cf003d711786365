"""Text as people type it → plain English words, for voices trained on nothing else.

A published checkpoint reads digits and abbreviations itself and must get its text untouched; a small voice asks
for this front end in its `sonant.json`. The result is ASCII letters, spaces and , . ? ! ; : ' - and normalising
it again changes nothing.
"""

from __future__ import annotations

import re

from sonant.errors import NothingToSay
from sonant.text import abbreviations, amounts, capitals, dates
from sonant.text.folding import fold

_MOST_PASSES = 4  # one is nearly always enough; a rule's result may make another's pattern

_ENDINGS = (
    "com|org|net|edu|gov|mil|io|ai|dev|app|info|biz|co|uk|de|fr|eu|jp|cn|au|nz|ie|nl|tv|pdf|txt|docx?|py|js|html?|jpe?g|"
    "png|gif|mp3|mp4|zip|exe|csv|json|xml"
)
_ADDRESS = re.compile(
    r"(?P<mail>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"
    r"|(?:[A-Za-z][A-Za-z+]{0,9}://|(?=www\.))(?P<link>\S+)"
    rf"|(?P<host>(?:[A-Za-z0-9_-]+\.)+(?:{_ENDINGS})(?::\d+)?(?:/\S*)?)"
)
_CHUNK = re.compile(r"\S+")
# Of a Markdown link only the text is read, and a note's number is not: after a mark it cannot be an index.
_LINK = re.compile(r"!?\[([^\[\]\n]*)\]\((?:[^()\s]|\([^()\s]*\))*(?: \"[^\"\n]*\")?\)")
_NOTE = re.compile(r"(?<=[.,;:!?\"')])(?:\[\d{1,3}\])+")
_ADDRESS_SIGNS = {
    ".": "dot", "/": "slash", "-": "dash", "_": "underscore", "@": "at", ":": "colon", "?": "question mark",
    "=": "equals", "&": "and", "#": "hash", "%": "percent", "~": "tilde", "+": "plus",
}  # fmt: skip

# These are the symbols that may be left once numbers are words.
_SIGNS = (
    (re.compile(r"\s&\s|&"), " and "),
    (re.compile(r"@"), " at "),
    (re.compile(r"(?<=\b[A-GJ])#(?!\w)"), " sharp"),
    (re.compile(r"#(?=\w)"), " hashtag "),
    (re.compile(r"\+"), " plus "),
    (re.compile(r"(?<![<>!])=+(?!>)"), " equals "),
    (re.compile(r"(?<=\s)<(?=\s)"), " is less than "),
    (re.compile(r"(?<=\s)>(?=\s\w)"), " is greater than "),
    (re.compile(r"%"), " percent "),
    (re.compile(r"°"), " degrees "),
    (re.compile(r"µ"), "u"),
    (re.compile(r"±"), " plus or minus "),
    (re.compile(r"×"), " times "),
    (re.compile(r"÷"), " divided by "),
    (re.compile(r"\$"), " dollars "),
    (re.compile(r"£"), " pounds "),
    (re.compile(r"€"), " euros "),
    (re.compile(r"¥"), " yen "),
    (re.compile(r"₹"), " rupees "),
    (re.compile(r"¢"), " cents "),
    (re.compile(r"[()\[\]{}|]"), ", "),
    (re.compile(r"\n\s*\n|\n(?=\s*[-*])"), ". "),
    (re.compile(r"(?<![A-Za-z])-+|-+(?![A-Za-z])"), " , "),
    (re.compile(r"--+"), " , "),
    (re.compile(r"(?<![A-Za-z])'|'(?![A-Za-z])"), " "),
    (re.compile(r"[^A-Za-z ,.?!;:'-]+"), " "),
)
_PAUSE = re.compile(r"[ ,.?!;:]+")
_DIGIT = re.compile(r"\d")


def normalize_english(text: str) -> str:
    """Raises `NothingToSay` if nothing is left to say, and never anything else."""
    result = _once(text)
    for _ in range(_MOST_PASSES - 1):
        again = _once(result)
        if again == result:
            break
        result = again
    return result


def _once(text: str) -> str:
    plain = fold(text)
    plain = _NOTE.sub("", _LINK.sub(r"\1", plain))
    plain = _CHUNK.sub(lambda m: _address(m[0]), plain)
    plain = capitals.calm(plain)
    # Dates come before abbreviations: "7 p.m." has its own reading, and "Sept. 5" is not a sentence's end.
    rules = abbreviations.RULES
    for pattern, words in (*dates.RULES, *rules, *amounts.RULES) if _DIGIT.search(plain) else rules:
        plain = pattern.sub(words, plain)
    plain = capitals.initials(plain)
    for sign, spoken in _SIGNS:
        plain = sign.sub(spoken, plain)
    plain = _PAUSE.sub(_pause, plain).strip(" ")
    if not re.search("[A-Za-z]", plain):
        raise NothingToSay(
            f"nothing is left to say of {text.strip()[:40]!r}: it has no letters or digits that can be read"
        )
    if plain[-1] in ",;:-'":
        plain = plain[:-1]
    return plain if plain[-1] in ".?!" else f"{plain}."


def _address(chunk: str) -> str:
    """Spells out a web or mail address as for someone who writes it down; other words are left alone."""
    bare = chunk.strip(".,;:!?()[]{}<>\"'")
    match = _ADDRESS.fullmatch(bare) if "." in bare else None
    if match is None or not any(c.isalpha() for c in bare):
        return chunk
    start = chunk.index(bare)
    spoken = (match["mail"] or match["link"] or match["host"]).rstrip("/")
    words = [_address_word(w) for w in re.findall(r"[A-Za-z]+|\d+|[^A-Za-z\d]", spoken)]
    return f"{chunk[:start]} {' '.join(words)} {chunk[start + len(bare) :]}"


def _address_word(word: str) -> str:
    if not word.isalnum():
        return _ADDRESS_SIGNS.get(word, " ")
    spell = word.isalpha() and len(word) < 6 and word.lower() != "com" and not capitals.is_sayable(word)
    return capitals.spelled(word) if spell or word.lower() in ("uk", "io", "ai", "eu", "au") else word


def _pause(match: re.Match[str]) -> str:
    """One mark for a run of them: the strongest. An ellipsis inside a sentence is a short pause."""
    marks = match[0]
    if not marks.strip(" "):
        return " "
    if match.start() == 0:
        return ""
    if (
        "..." in marks
        and "?" not in marks
        and "!" not in marks
        and match.string[match.end() : match.end() + 1].islower()
    ):
        return ", "
    mark = next(m for m in "?!.;:," if m in marks)
    return f"{mark} "
