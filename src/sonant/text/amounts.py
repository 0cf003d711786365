"""Writes digits in words, by what they stand for: money, units, percentages, fractions, telephone and plain numbers.

Every pattern begins at the first digit of a run and has bounded or unambiguous repetition, so that a pass takes
time in proportion to the text. Order matters: a rule sees what the ones before it left as digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import accumulate, pairwise

from sonant.text import numbers
from sonant.text.full_stop import word_set

TextRule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]

NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?"
_START = r"(?<![\w.,])"

_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"),
    "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
    "¢": ("cent", "cents", "", ""),
}
_CODES = {"USD": "$", "GBP": "£", "EUR": "€", "JPY": "¥", "INR": "₹"}
_SCALES = {
    "k": "thousand", "K": "thousand", "m": "million", "M": "million", "mn": "million", "bn": "billion",
    "b": "billion", "B": "billion", "tn": "trillion", "T": "trillion",
}  # fmt: skip
_SCALE = r"(?:\s?(thousand|million|billion|trillion|mn|bn|tn|[kKmMbBT])\b)?"

_UNITS = {
    "km": "kilometer", "cm": "centimeter", "mm": "millimeter", "m": "meter", "um": "micrometer", "nm": "nanometer",
    "kg": "kilogram", "g": "gram", "mg": "milligram", "lb": "pound", "lbs": "pound", "oz": "ounce", "mi": "mile",
    "ft": "foot", "yd": "yard", "yds": "yard", "l": "liter", "L": "liter", "ml": "milliliter", "mL": "milliliter",
    "cl": "centiliter", "gal": "gallon", "s": "second", "sec": "second", "secs": "second", "ms": "millisecond",
    "min": "minute", "mins": "minute", "h": "hour", "hr": "hour", "hrs": "hour", "yr": "year", "yrs": "year",
    "Hz": "hertz", "kHz": "kilohertz", "MHz": "megahertz", "GHz": "gigahertz", "W": "watt", "kW": "kilowatt",
    "MW": "megawatt", "GW": "gigawatt", "kWh": "kilowatt hour", "V": "volt", "mA": "milliamp", "kB": "kilobyte",
    "KB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte", "kbps": "kilobit per second",
    "Mbps": "megabit per second", "Gbps": "gigabit per second", "dB": "decibel", "cal": "calorie",
    "kcal": "kilocalorie", "J": "joule", "kJ": "kilojoule", "N": "newton", "Pa": "pascal", "kPa": "kilopascal",
    "mph": "mile per hour", "kph": "kilometer per hour", "km/h": "kilometer per hour", "m/s": "meter per second",
    "rpm": "revolution per minute", "fps": "frame per second", "px": "pixel", "ha": "hectare", "pt": "point",
    "sq ft": "square foot", "sq m": "square meter", "sq km": "square kilometer", "fl oz": "fluid ounce",
    "µm": "micrometer", "µg": "microgram", "ug": "microgram", "mcg": "microgram", "µs": "microsecond",
    "µl": "microliter", "µL": "microliter", "µV": "microvolt", "µA": "microamp", "mV": "millivolt",
}  # fmt: skip
# What a price or a rate is per, after a slash.
_PER = {
    **{w: w for w in (
        "month", "year", "annum", "week", "day", "night", "hour", "minute", "second", "user", "person", "seat", "head",
        "item", "unit", "piece", "share", "ticket", "request", "word", "page", "mile", "pound", "gallon", "liter",
    )},
    "mo": "month", "yr": "year", "wk": "week", "hr": "hour", "min": "minute", "sec": "second",
    "kg": "kilogram", "lb": "pound", "gal": "gallon",
}  # fmt: skip
_UNIT = "|".join(re.escape(u) for u in sorted(_UNITS, key=len, reverse=True))
_POWERS = {"2": " squared", "3": " cubed"}
_NO_PLURAL = frozenset({"hertz", "kilohertz", "megahertz", "gigahertz"})
# Words ending in s that follow a year without making it a count: "In 1900 was", not "1900 horses".
_NOT_COUNTED = word_set(
    "was is has as its his this does across perhaps always towards yes us plus versus thus during besides"
)
_DENOMINATORS = frozenset({2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 20, 32, 64, 100})


# How the digits of numbers that count nothing are grouped, by their number; others in fours.
_CODE_GROUPS = {3: (3,), 5: (5,), 6: (3, 3), 7: (3, 4), 9: (3, 3, 3), 10: (3, 3, 4), 11: (1, 3, 3, 4)}
# What is followed by a number that identifies it, and counts nothing.
_NUMBERED = (
    r"(?i:(?:pass|zip |area |security |access |verification |confirmation |tracking |post)?code|pin|otp|zip|id|"
    r"(?:order|case|account|ticket|invoice|tracking|confirmation|reference|phone|fax|booking|policy|member|serial|card)"
    r" (?:number|no\.|id))(?: is|:)?|(?i:account|ticket|invoice|tracking|extension)"
)
# What follows such a number if it counts nothing: in "The code is 5000 lines" it counts, and in "12345678901 km".
_COUNTS_NOTHING = rf"(?![\w/-]|[.,:]\d|\s?(?:[£€¥₹¢%°]|(?:{_UNIT})(?!\w))| [a-z]+s\b)"


def _is_one(number: str) -> bool:
    return number in ("1", "1.0")


def money(match: re.Match[str]) -> str:
    sign, amount, scale = match["sign"], match["amount"], match["scale"]
    one, many, small_one, small_many = _CURRENCIES[_CODES.get(sign, sign)]
    if scale:
        return f"{numbers.decimal(amount)} {_SCALES.get(scale, scale)} {many}"
    whole, _, cents = amount.partition(".")
    if len(cents) != 2 or not small_many:
        return f"{numbers.decimal(amount)} {one if _is_one(amount) else many}"
    units = int(whole.replace(",", "")) if len(whole) <= numbers.LONGEST else -1
    parts = [f"{numbers.cardinal(whole)} {one if units == 1 else many}"] if units or not int(cents) else []
    if int(cents):
        parts.append(f"{numbers.count(int(cents))} {small_one if int(cents) == 1 else small_many}")
    return " and ".join(parts)


def money_range(match: re.Match[str]) -> str:
    many = _CURRENCIES[match["sign"]][1]
    scale = f" {_SCALES.get(match['scale'], match['scale'])}" if match["scale"] else ""
    return f"{numbers.decimal(match['low'])} to {numbers.decimal(match['high'])}{scale} {many}"


def measure(match: re.Match[str]) -> str:
    number, hyphen, unit, power = match["number"], match["hyphen"], match["unit"], match["power"]
    head, _, tail = _UNITS[unit].partition(" per ")
    if not (_is_one(number) or hyphen or head in _NO_PLURAL):
        head = head[:-4] + "feet" if head.endswith("foot") else f"{head}s"
    if tail:  # the power is that of the last unit: "m/s²" has seconds squared
        return f"{numbers.decimal(number)} {head} per {tail}{_POWERS.get(power or '', '')}"
    kind = {"2": "square ", "3": "cubic "}.get(power or "", "")
    return f"{numbers.decimal(number)} {kind}{head}"


def temperature(match: re.Match[str]) -> str:
    scale = {"C": " Celsius", "F": " Fahrenheit"}.get(match["scale"] or "", "")
    return f"{numbers.decimal(match['number'])} degree{'' if _is_one(match['number']) else 's'}{scale}"


def mixed(match: re.Match[str]) -> str:
    above, below = int(match["above"]), int(match["below"])
    if below not in _DENOMINATORS or above >= below:
        whole = f"{numbers.cardinal(match['whole'])} " if match["whole"] else ""
        by = "divided by " if match.string[match.end() : match.end() + 2].lstrip(" ").startswith("=") else ""
        return f"{whole}{numbers.cardinal(match['above'])} {by}{numbers.cardinal(match['below'])}"
    if not match["whole"]:
        return numbers.fraction(above, below)
    part = numbers.fraction(above, below)
    return f"{numbers.cardinal(match['whole'])} and {'a' + part[3:] if above == 1 else part}"


def telephone(match: re.Match[str]) -> str:
    groups = re.findall(r"\d+", match[0])
    return ("plus " if match[0].startswith("+") else "") + ", ".join(numbers.digits(g) for g in groups)


def code(match: re.Match[str]) -> str:
    digits = match["digits"]
    sizes = _CODE_GROUPS.get(len(digits), (4,) * (-(-len(digits) // 4)))
    ends = list(accumulate(sizes, initial=0))
    return match["name"].replace("#", "number ") + ", ".join(numbers.digits(digits[a:b]) for a, b in pairwise(ends))


def decade(match: re.Match[str]) -> str:
    n = int(match[1])
    return numbers.plural(numbers.year(n) if n >= 1000 else numbers.count(n))


def several(match: re.Match[str]) -> str:
    space = "" if match.string[match.start() - 1] == "-" else " "
    return f"{space}{numbers.plural(numbers.cardinal(match[1]))}"


def dated(match: re.Match[str]) -> str:
    return f"{match[1]} {numbers.year(int(match[2]))}"


def lone_year(match: re.Match[str]) -> str:
    following = (match["next"] or "").strip()
    counted = following.endswith("s") and following not in _NOT_COUNTED
    n = int(match["year"])
    return (numbers.count(n) if counted else numbers.year(n)) + (match["next"] or "")


def _words(spoken: str) -> Callable[[re.Match[str]], str]:
    return lambda match: spoken


_OPERAND = r"\.?\d[\d.,]*"

RULES: tuple[TextRule, ...] = (
    # A hyphen between numbers is a range, or joins a code; but before an equals sign it is a minus.
    (re.compile(rf"(?<=\d)\s?-\s?(?={_OPERAND}(?:\s?[-+*/×÷]\s?{_OPERAND}){{0,8}}\s?=)"), _words(" minus ")),
    (
        re.compile(r"(?<![\w])\+?(?:\d{1,3}[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w])"),
        telephone,
    ),
    (re.compile(r"(?<![\w-])\d{3}-\d{4}(?![\w-])|(?<![\w-])\d{3}-\d{2}-\d{4}(?![\w-])"), telephone),
    (re.compile(r"(?<!\w)\+\d{1,3}(?:[ -]\d{2,4}){2,5}(?!\d)"), telephone),
    (re.compile(r"~\s?(?=[$£€¥₹]?\.?\d)"), _words(" about ")),
    # Between white space these signs have rules of their own, in `normalize.py`; "<3" is a heart, "b>" a tag's end.
    (re.compile(r"(?<![<>=-])<=\s?(?=[$£€¥₹]?\.?\d)"), _words(" at most ")),
    (re.compile(r"(?<![<>=-])>=\s?(?=[$£€¥₹]?\.?\d)"), _words(" at least ")),
    (re.compile(r"(?<![<>=-])<(?=[$£€¥₹]?\.?\d)(?!3(?:\s*$|\s+[A-Za-z]))"), _words(" less than ")),
    (re.compile(r"(?<![<>=A-Za-z\"'/-])>(?=[$£€¥₹]?\.?\d)"), _words(" more than ")),
    (re.compile(r"(?<![\w.,-])\d+(?:-\d+){2,}(?![\w-])"), telephone),  # no range has three ends: a code, an ISBN
    (re.compile(r"(?<![\w.,-])(?:0\d{1,4}(?: \d{2,4}){2,4}|(?!19|20)\d{4}(?: \d{4}){3})(?![\w-]| \d)"), telephone),
    (re.compile(r"(?<=[Cc]all |[Dd]ial )(?:000|101|11[0-9]|311|[49]11|988|999)(?![\w,.-]*\d)"), telephone),
    (re.compile(rf"\b(?P<name>(?:{_NUMBERED}) #?)(?P<digits>\d{{3,19}}){_COUNTS_NOTHING}"), code),
    (re.compile(rf"(?<![\w.,$£€¥₹-])(?P<name>)(?P<digits>\d{{10,19}})(?<!000){_COUNTS_NOTHING}"), code),
    (
        re.compile(
            rf"(?<!\w)(?P<sign>[$£€¥₹])(?P<low>{NUMBER})\s?(?:-|to)\s?(?P=sign)?(?P<high>{NUMBER})"
            + _SCALE.replace("(t", "(?P<scale>t", 1)
        ),
        money_range,
    ),
    (re.compile(r"(?<=[\w%])(?:-| - )(?=[$£€¥₹]\d)"), _words(" to ")),
    (re.compile(r"(?:(?<=\d[%°])|(?<=°[CF]))-(?=\.?\d)"), _words(" to ")),
    (re.compile(r"([$£€¥₹])-(?=\.?\d)"), lambda m: f" -{m[1]}"),
    (re.compile(r"(?<=[A-Za-z])(?<!\bUS)(?=[$£€¥₹]\.?\d)"), _words(" ")),  # "C$50" is one word only in print
    (re.compile(r"(?<![\w/-])-(?=[$£€¥₹]\.?\d)"), _words("minus ")),
    (re.compile(r"(?<=[$£€])(?=\.\d)"), _words("0")),
    (re.compile(rf"(?<=\d)([kKmMbB]?)/({'|'.join(_PER)})\b"), lambda m: f"{m[1]} per {_PER[m[2]]}"),
    (
        re.compile(
            rf"(?:\bUS)?(?P<sign>[$£€¥₹]|\b(?:USD|GBP|EUR|JPY|INR))\s?(?P<amount>{NUMBER})"
            + _SCALE.replace("(t", "(?P<scale>t", 1)
        ),
        money,
    ),
    (re.compile(rf"{_START}(?P<amount>{NUMBER})(?P<scale>)\s?(?P<sign>[£€¥₹¢]|(?:USD|GBP|EUR|JPY|INR)\b)"), money),
    (
        re.compile(r"(?<![\w.,])(\d)'\s?(\d{1,2})\"(?!\w)"),
        lambda m: f"{numbers.cardinal(m[1])} foot {numbers.cardinal(m[2])}",
    ),
    (re.compile(r"(?<![\w.,])'?([1-9]\d\d\d|[2-9]0)'?s\b"), decade),
    # "B-52s", "MP3s": several of what the number names, and no seconds.
    (re.compile(r"(?:(?<=[A-Z])|(?<=[A-Za-z]-))(\d{1,4})s\b"), several),
    (re.compile(r"(?<![\w/-])-(?=\.?\d)"), _words("minus ")),
    (re.compile(rf"(?<![\d.,])({NUMBER})\s?-\s?(?=\d)"), lambda m: f"{m[1]} to "),
    (re.compile(rf"{_START}({NUMBER})\s?%"), lambda m: f"{numbers.decimal(m[1])} percent"),
    (re.compile(rf"{_START}(?P<number>{NUMBER})\s?°(?:\s?(?P<scale>[CF])\b)?"), temperature),
    (
        re.compile(
            rf"{_START}(?P<number>{NUMBER})(?:\s?|(?P<hyphen>-))(?P<unit>{_UNIT})(?:\^(?P<power>[23]))?(?![\w/^'])"
            r"(?:\.(?= [a-z]))?"
        ),
        measure,
    ),
    (re.compile(r"(?<=\w)\^2\b"), _words(" squared")),
    (re.compile(r"(?<=\w)\^3\b"), _words(" cubed")),
    (re.compile(r"(?<=[\w)])\^\(?(?=-?\w|minus )"), _words(" to the power of ")),
    (re.compile(r"(?<![\w/.,])(?:(?P<whole>\d{1,4}) )?(?P<above>\d{1,4})/(?P<below>\d{1,4})(?![\w/])"), mixed),
    (re.compile(r"(?:#|\b[Nn]os?\.) ?(?=\d)"), _words("number ")),
    (
        re.compile(rf"{_START}(\d{{1,3}}(?:,\d{{3}})+|\d+)(?:st|nd|rd|th|ST|ND|RD|TH)\b"),
        lambda m: numbers.ordinal(m[1]),
    ),
    (re.compile(r"(?<=\d)\s?[x×*]\s?(?=\d)"), _words(" by ")),
    (re.compile(r"(?<=\d)k\b"), _words(" thousand")),
    (re.compile(r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])"), _words(" ")),
    (
        re.compile(rf"{_START}\d+(?:\.\d+){{2,}}(?![\w])"),
        lambda m: " point ".join(map(numbers.cardinal, m[0].split("."))),
    ),
    (re.compile(r"\b([Ii]n|[Ss]ince|[Uu]ntil|[Bb]efore|[Aa]fter|[Yy]ear) (\d{4})(?![\w]|[.,]\d| [a-z]+s\b)"), dated),
    (re.compile(r"(?<![\w.,])(\d{3,4})(?= (?:AD|BC|CE|BCE)\b)"), lambda m: numbers.year(int(m[1]))),
    (
        re.compile(r"(?<![\d.,])(?P<year>1[1-9]\d\d|20\d\d)(?![\d]|[.,]\d)(?P<next> [a-z]{1,30}\b)?"),
        lone_year,
    ),
    (re.compile(r"(?<!\d)\.(\d+)"), lambda m: f" {numbers.decimal(m[0])}"),
    (re.compile(NUMBER), lambda m: numbers.decimal(m[0])),
)
