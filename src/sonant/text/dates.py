"""Dates and times of day in words. Where the order of day and month is ambiguous, it is the American one."""

from __future__ import annotations

import re

from sonant.text import numbers
from sonant.text.amounts import TextRule
from sonant.text.full_stop import ends_sentence

MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September", "October"),
    *("November", "December"),
)
_SHORT = {m[:3]: m for m in MONTHS if m != "May"} | {"Sept": "September"}
_MONTH = "|".join(MONTHS)
_SHORTS = "|".join(sorted(_SHORT, key=len, reverse=True))
_RANK = r"(?:st|nd|rd|th|ST|ND|RD|TH)?"
_YEAR = r"(?:(?P<comma>,)? (?P<year>\d{4})(?!\d|,\d|\.\d))?"


def _spoken(month: int, day: int, year: int) -> str:
    return f"{MONTHS[month - 1]} {numbers.ordinal(str(day))}, {numbers.year(year)}"


def _valid(month: int, day: int) -> bool:
    return 1 <= month <= 12 and 1 <= day <= 31


def iso_date(match: re.Match[str]) -> str:
    year, month, day = (int(g) for g in match.groups())
    return _spoken(month, day, year) if _valid(month, day) else match[0]


def slash_date(match: re.Match[str]) -> str:
    month, day, year = (int(g) for g in match.groups())
    if not _valid(month, day):
        month, day = day, month
    if not _valid(month, day):
        return " ".join(numbers.cardinal(g) for g in match.groups())
    if len(match[3]) == 2:
        year += 2000 if year < 50 else 1900
    return _spoken(month, day, year)


def dotted_date(match: re.Match[str]) -> str:
    day, month, year = (int(g) for g in match.groups())
    return _spoken(month, day, year) if _valid(month, day) else match[0]


def day_month(match: re.Match[str]) -> str:
    if not 1 <= int(match["day"]) <= 31:
        return match[0]
    year = f"{match['comma'] or ''} {numbers.year(int(match['year']))}" if match["year"] else ""
    return f"{match['the'] or 'the '}{numbers.ordinal(match['day'])} of {match['month']}{year}"


def month_day(match: re.Match[str]) -> str:
    if not 1 <= int(match["day"]) <= 31:
        return match[0]
    year = f", {numbers.year(int(match['year']))}" if match["year"] else ""
    return f"{match['month']} {numbers.ordinal(match['day'])}{year}"


def clock(match: re.Match[str]) -> str:
    hour, minute, second, half = int(match["hour"]), int(match["minute"]), match["second"], match["half"]
    if hour > 24 or minute > 59:
        return f"{numbers.count(hour)} to {numbers.cardinal(match['minute'])}"
    words = [numbers.count(hour)]
    if minute == 0 and not half and not second:
        words.append("o'clock" if 1 <= hour <= 12 else "hundred")
    elif minute:
        words.append(f"{'oh ' if minute < 10 else ''}{numbers.count(minute)}")
    if second:
        words.append(f"and {numbers.count(int(second))} seconds")
    return " ".join(words) + _half(match)


def hour_only(match: re.Match[str]) -> str:
    return f"{numbers.count(int(match['hour']))}{_half(match)}"


def _half(match: re.Match[str]) -> str:
    return f" {match['half'].upper()} M{ends_sentence(match)}" if match["half"] else ""


_HALF = r"\s?(?P<half>[AaPp])(?:\.\s?[Mm]\.|[Mm]\b)"

RULES: tuple[TextRule, ...] = (
    (re.compile(rf"\b({_SHORTS})\.?(?= \d{{1,4}}{_RANK}\b)"), lambda m: _SHORT[m[1]]),
    (re.compile(rf"(?<=\d )({_SHORTS})\b\.?(?!\w)"), lambda m: _SHORT[m[1]]),
    (re.compile(r"(?<![\w-])(\d{4})-(\d{1,2})-(\d{1,2})(?![\w-])"), iso_date),
    (re.compile(r"(?<![\w-])(\d{1,2})-(\d{1,2})-(\d{4})(?![\w-])"), slash_date),
    # From one time of day to another: the second must have a colon, or AM or PM.
    (
        re.compile(
            r"(?<![\w:.,/-])(\d{1,2}(?::\d{2})?(?:\s?[AaPp](?:\.\s?[Mm]\.|[Mm]\b))?)\s?-\s?"
            r"(?=\d{1,2}(?::\d{2}(?![\d:])|\s?[AaPp](?:\.\s?[Mm]\.|[Mm]\b)))"
        ),
        lambda m: f"{m[1]} to ",
    ),
    (re.compile(r"(?<![\w/])(\d{1,2})/(\d{1,2})/(\d{4}|\d{2})(?![\w/])"), slash_date),
    (re.compile(r"(?<![\w.])(\d{1,2})\.(\d{1,2})\.(\d{4})(?![\w.]\d|\w)"), dotted_date),
    (
        re.compile(rf"(?<![\w.,:/-])(?P<the>[Tt]he )?(?P<day>\d{{1,2}}){_RANK}(?: of)? (?P<month>{_MONTH})\b{_YEAR}"),
        day_month,
    ),
    (re.compile(rf"\b(?P<month>{_MONTH}) (?:the )?(?P<day>\d{{1,2}}){_RANK}\b(?![:/%]|[.,]\d|-\d){_YEAR}"), month_day),
    (
        re.compile(
            rf"(?<![\w:.,])(?P<hour>\d{{1,2}}):(?P<minute>\d{{2}})(?::(?P<second>\d{{2}}))?(?:{_HALF})?(?![\w:])"
        ),
        clock,
    ),
    (re.compile(rf"(?<![\w:.,])(?P<hour>\d{{1,2}})\.(?P<minute>\d{{2}})(?P<second>){_HALF}(?!\w)"), clock),
    (re.compile(rf"(?<![\w:.,/])(?P<hour>\d{{1,2}}){_HALF}(?!\w)"), hour_only),
    (re.compile(r"(?<![\w:])(\d{1,3}):(?=\d{1,3}(?![\w:]))"), lambda m: f"{m[1]} to "),
)
