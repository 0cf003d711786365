"""Numbers in English words: as counts, ranks, years, decimals and strings of digits."""

from __future__ import annotations

_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SCALES = ("", "thousand", "million", "billion", "trillion")
_RANKS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
LONGEST = 3 * len(_SCALES)  # digits of the longest number that has a name here


def digits(text: str) -> str:
    """Digits one after another; any other character is skipped."""
    return " ".join(_SMALL[int(c)] for c in text if c.isdigit())


def cardinal(text: str) -> str:
    """A number such as "1,234" as a count; one that is too long for that, or has a leading zero, digit by digit."""
    plain = text.replace(",", "")
    if len(plain) > LONGEST or (plain.startswith("0") and len(plain) > 1):
        return digits(plain)
    return count(int(plain))


def count(n: int) -> str:
    if n == 0:
        return _SMALL[0]
    words: list[str] = []
    for scale in reversed(range(len(_SCALES))):
        group = n // 1000**scale % 1000
        if group:
            words += [*_below_thousand(group), _SCALES[scale]]
    return " ".join(w for w in words if w)


def _below_thousand(n: int) -> list[str]:
    words = [_SMALL[n // 100], "hundred"] if n >= 100 else []
    n %= 100
    if n >= 20:
        words.append(_TENS[n // 10])
        n %= 10
    return [*words, _SMALL[n]] if n else words


def ordinal(text: str) -> str:
    words = cardinal(text).split()
    last = words[-1]
    words[-1] = _RANKS.get(last) or (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")
    return " ".join(words)


def year(n: int) -> str:
    """Years such as 1066, 1905 and 2024 in two halves, where people do so."""
    century, rest = divmod(n, 100)
    if not 10 <= century <= 99 or (century % 10 == 0 and rest < 10):
        return count(n)
    if rest == 0:
        return f"{count(century)} hundred"
    return f"{count(century)} {'oh ' if rest < 10 else ''}{count(rest)}"


def plural(words: str) -> str:
    """The number with its last word in the plural: nineteen ninety → nineteen nineties."""
    if words.endswith("y"):
        return f"{words[:-1]}ies"
    return f"{words}es" if words.endswith("six") else f"{words}s"


def decimal(text: str) -> str:
    """A number such as "3.14", "0.5" or ".5"; without a point it is a count."""
    whole, point, fraction = text.partition(".")
    if not point or not fraction:
        return cardinal(whole)
    spoken = cardinal(whole) if whole else ""
    return f"{spoken} point {digits(fraction)}".strip()


def fraction(above: int, below: int) -> str:
    if below == 2:
        part = "half" if above == 1 else "halves"
    elif below == 4:
        part = "quarter" if above == 1 else "quarters"
    else:
        part = ordinal(str(below)) + ("" if above == 1 else "s")
    return f"{count(above)} {part}"
