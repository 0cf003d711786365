"""Any Unicode text as ASCII and a few symbols that have a spoken name: the alphabet that the later rules read.

Accents are dropped, other Latin letters get their usual spelling, Greek and Cyrillic are transliterated, kana and
Hangul are read off their Unicode names. What has no sound that we know (emoji, Chinese) leaves a space.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

CURRENCIES = "$£€¥₹¢"
# Before a unit it is the sign for a millionth, which keyboards and normal forms give as the Greek letter.
_MICRO = re.compile(r"(?<![Ͱ-Ͽ])μ(?=(?:[gmslLVAFWJ]|mol|Sv)(?![A-Za-zͰ-Ͽ]))")
# Superscript digits are a power after a digit, a bracket or a lone letter, or with a sign; else the number of a note.
_RAISED = re.compile(r"(?P<base>(?<![A-Za-zÀ-ɏͰ-ӿ])[A-Za-zÀ-ɏͰ-ӿ]|[\d)])?(?P<sign>[⁺⁻]?)(?P<digits>[⁰¹²³⁴-⁹]+)")
# Unicode's own sign. Without spaces some publishers set it for a range.
_MINUS = re.compile(r"(?<=[\d)])\s−\s(?=[\d(.])")
_SPACES = re.compile(r"[^\S\n]+")
KEPT = frozenset(CURRENCIES + "°±×÷µ")  # beyond ASCII: later rules know how to say these

_PUNCTUATION = {
    **dict.fromkeys("‘’‚‛′ʼʹ`´", "'"),
    **dict.fromkeys("“”„‟″«»‹›「」『』《》〈〉", '"'),
    **dict.fromkeys("‐‑‒–−﹣－", "-"),
    **dict.fromkeys("—―⸺〜～", ", "),
    **dict.fromkeys("、，،；", ", "),
    **dict.fromkeys("。．｡", ". "),
    **dict.fromkeys("•·‣▪●○◦∙・", ", "),
    **dict.fromkeys("¿¡", ""),
    **dict.fromkeys("∕⁄", "/"),
    "؟": "?",
    "…": "...",
    "：": ": ",
    "\n": "\n",
    "\u2028": "\n",
    "\u2029": "\n",
    "\u00ad": "",
}
_SYMBOLS = {
    "≈": " about ", "≠": " is not equal to ", "≤": " at most ", "≥": " at least ", "∞": " infinity ",
    "√": " square root of ", "∑": " sum ", "∆": " delta ", "∂": " d ", "∫": " integral ", "§": " section ",
    "¶": " paragraph ", "№": " number ", "℃": " °C ", "℉": " °F ", "Ω": " ohms ", "²": "^2", "³": "^3",
    "→": " to ", "←": " from ", "⇒": " so ", "₽": " rubles ", "₩": " won ", "₿": " bitcoin ", "™": " ", "®": " ",
    "©": " ", "ª": "a", "º": "°", "⋅": " times ",
}  # fmt: skip
_LATIN = {
    "ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O", "đ": "d", "Đ": "D", "ð": "th",
    "Ð": "Th", "þ": "th", "Þ": "Th", "ł": "l", "Ł": "L", "ı": "i", "ŋ": "ng", "Ŋ": "Ng", "ħ": "h", "Ħ": "H", "ə": "e",
    "ƒ": "f",
}  # fmt: skip


def _spellings(letters: str, sounds: str) -> dict[str, str]:
    return dict(zip(letters, sounds.split(), strict=True))


_GREEK = _spellings("αβγδεζηθικλμνξοπρσςτυφχψω", "a v g d e z i th i k l m n x o p r s s t y f ch ps o")
_CYRILLIC = _spellings(
    "абвгдежзийклмнопрстуфхцчшщъыьэюяіїєґ",
    "a b v g d e zh z i y k l m n o p r s t u f kh ts ch sh shch . y . e yu ya i yi ye g",
)


def fold(text: str) -> str:
    """The text in that alphabet; white space becomes single spaces and line ends."""
    if not (text.isascii() and text.isprintable()):
        text = "".join(
            map(_fold_character, _named_letters(_RAISED.sub(_raised, _MICRO.sub("µ", _MINUS.sub(" minus ", text)))))
        )
    return _SPACES.sub(" ", text)


def _raised(match: re.Match[str]) -> str:
    base, digits = match["base"] or "", unicodedata.normalize("NFKC", match["digits"])
    if base or match["sign"]:
        return f"{base}^{match['sign'].replace('⁻', '-').replace('⁺', '')}{digits}"
    of_unit = digits in ("2", "3") and match.string[match.start() - 1 : match.start()].isalpha()
    return f"^{digits}" if of_unit else ""


def _named_letters(text: str) -> list[str]:
    """The characters of a text. A Greek letter that stands alone is a symbol, and is replaced by its name."""
    letters = list(text)
    for i, c in enumerate(text):
        if not "α" <= c.lower() <= "ω":
            continue
        alone = not (text[i - 1 : i] if i else "").isalpha() and not text[i + 1 : i + 2].isalpha()
        name = unicodedata.name(c.lower(), "")
        if alone and name.startswith("GREEK SMALL LETTER "):
            word = name.removeprefix("GREEK SMALL LETTER ").split()[0].lower()
            letters[i] = "lambda" if word == "lamda" else word
    return letters


@lru_cache(maxsize=4096)
def _fold_character(c: str) -> str:
    if len(c) > 1:  # a name that `_named_letters` put there
        return c
    for table in (_PUNCTUATION, _SYMBOLS, _LATIN):
        if c in table:
            return table[c]
    if c in KEPT or (c.isascii() and c.isprintable()):
        return c
    script = _transliterated(c)
    if script is not None:
        return script
    category = unicodedata.category(c)
    if category[0] == "M" or category in ("Cf", "Cs"):
        return ""
    if category == "Nd":
        return str(unicodedata.decimal(c))
    if category in ("Ps", "Pe"):
        return ", "
    if category == "Pd":
        return "-"
    plain = unicodedata.normalize("NFKD", c)
    if plain == c:
        return " "
    folded = "".join(part if part in KEPT else _fold_character(part) for part in plain)
    # The spaces make "1½" one and a half, and not eleven halves.
    return f" {folded} " if category in ("No", "Nl", "So") else folded


def _transliterated(c: str) -> str | None:
    small = c.lower()
    for table in (_GREEK, _CYRILLIC):
        if small in table:
            latin = table[small].replace(".", "")
            return latin if small == c else latin.capitalize()
    name = unicodedata.name(c, "")
    for script in ("HANGUL SYLLABLE ", "HIRAGANA LETTER ", "KATAKANA LETTER "):
        if name.startswith(script):
            sound = name.removeprefix(script).lower()
            return sound.removeprefix("small ") if sound not in ("small tu", "small tsu") else ""
    return None
