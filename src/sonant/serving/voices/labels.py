"""The labels that uploaders may give. A label is shown and compared, and never becomes part of a path or of SQL.

Two labels that look alike must not be two voices: keys ignore case and Unicode's several encodings of a character, and
invisible characters are refused.
"""

from __future__ import annotations

import re
import unicodedata

from sonant.errors import BadRequest

_PUNCTUATION = frozenset(" -_.")
# Invisible characters that are letters or marks by category: fillers, joiners and variation selectors.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_ID = re.compile(r"(voice|cons)_[0-9a-f]{24}", re.IGNORECASE)
_LANGUAGE = re.compile(r"[A-Za-z0-9]+([-_][A-Za-z0-9]+)*")
MAX_LANGUAGE_CHARS = 35  # what BCP 47 asks implementations to support
MAX_STATEMENT_CHARS = 2000


def checked_label(label: object, max_chars: int, what: str = "name") -> str:
    """Return the label in normal form; raise `BadRequest` if it is not allowed."""
    if not isinstance(label, str):
        raise BadRequest(f"{what} must be a string, not {type(label).__name__}")
    if len(label) > max_chars:  # before any work that grows with it
        raise BadRequest(f"{what} has {len(label):,} characters; at most {max_chars} are allowed")
    clean = unicodedata.normalize("NFC", label).strip(" ")
    if not clean or not _letter_or_digit(clean[0]):
        raise BadRequest(f"{what} must begin with a letter or a digit")
    for char in clean:
        mark = unicodedata.category(char) in ("Mn", "Mc")  # many scripts cannot be written without
        if not (_letter_or_digit(char) or mark or char in _PUNCTUATION) or _INVISIBLE.match(char):
            raise BadRequest(f"{what} may hold letters, digits, spaces, '-', '_' and '.', not U+{ord(char):04X}")
    if _ID.fullmatch(clean):
        raise BadRequest(f"{what} looks like an id; ids are given by the server")
    return clean


def label_key(label: str) -> str:
    """A key that is equal for labels that a reader would take for the same."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", label).casefold())
    return " ".join(folded.split())


def checked_language(language: object) -> str:
    if not isinstance(language, str) or len(language) > MAX_LANGUAGE_CHARS or not _LANGUAGE.fullmatch(language):
        raise BadRequest("language must be a name or tag such as english, en or en-US")
    return language


def checked_statement(statement: object) -> str:
    if not isinstance(statement, str) or not statement.strip():
        raise BadRequest("a consent statement must say, in words, who agreed to what")
    if len(statement) > MAX_STATEMENT_CHARS:
        raise BadRequest(f"the consent statement is over {MAX_STATEMENT_CHARS} characters")
    if not statement.isprintable():  # lone surrogates and control characters, which no store keeps faithfully
        raise BadRequest("the consent statement must be one line of printable text")
    return statement.strip()


def is_id(text: str, prefix: str) -> bool:
    return text.startswith(f"{prefix}_") and _ID.fullmatch(text) is not None


def _letter_or_digit(char: str) -> bool:
    category = unicodedata.category(char)
    return category[0] == "L" or category == "Nd"
