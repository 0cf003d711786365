"""Sentences that dictionaries lack: numbers, dates, times, money, abbreviations, initials, very short ones.

Templates filled by a seeded generator. The written form stays as a person types it ("$9.99", "7:30 p.m."): how
it is read is the front end's affair, and the teacher's front end decides it for the corpus.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from training import settings

SEED = 20
TRIES = 6  # templates repeat themselves; so many draws for each sentence that is wanted

_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Phrases:
    numbers: tuple[str, ...]
    names: tuple[str, ...]
    short: tuple[str, ...]
    short_with_fields: tuple[str, ...]
    pools: dict[str, list[str]]


def generate(limits: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """(kind, text); about `TRIES` times as many as `limits` says, with repetitions."""
    phrases = settings.read(settings.CONFIGS / "phrases.toml", Phrases)
    rng = Random(SEED)
    yield from (("short", text) for text in phrases.short)
    for kind, templates in (
        ("numbers", phrases.numbers),
        ("names", phrases.names),
        ("short", phrases.short_with_fields),
    ):
        for _ in range(TRIES * limits[kind]):
            text = _FIELD.sub(lambda field: fill(field[1], phrases.pools, rng), rng.choice(templates))
            yield kind, text[0].upper() + text[1:]


def fill(field: str, pools: Mapping[str, list[str]], rng: Random) -> str:
    if field in pools:
        return rng.choice(pools[field])
    return _GENERATED[field](pools, rng)


def _ordinal(rng: Random) -> str:
    n = rng.randint(1, 31)
    return f"{n}{'th' if 10 < n < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"


def _date(pools: Mapping[str, list[str]], rng: Random) -> str:
    day, year = rng.randint(1, 28), rng.randint(1900, 2035)
    month = rng.choice(pools["month"])
    return rng.choice(
        [
            f"{month} {day}",
            f"{month} {day}, {year}",
            f"{day} {month} {year}",
            f"{rng.choice(pools['day'])}, {month} {day}",
            f"{rng.choice(pools['short_month'])} {day}, {year}",
            f"{rng.randint(1, 12)}/{day}/{year}",
            f"the {_ordinal(rng)} of {month}",
        ]
    )


def _time(rng: Random) -> str:
    hour, minute = rng.randint(1, 12), rng.choice([0, 5, 10, 15, 20, 30, 40, 45, 50, 59])
    clock = f"{hour}:{minute:02d}"
    half = rng.choice(["a.m.", "p.m.", "am", "pm", "AM", "PM"])
    return rng.choice([clock, f"{clock} {half}", f"{hour} {half}", f"{hour} o'clock", "noon", "midnight"])


def _money(rng: Random) -> str:
    sign = rng.choice("$$$£€")
    return rng.choice(
        [
            f"{sign}{rng.randint(1, 99)}.{rng.choice([99, 50, 95, 25, 10])}",
            f"{sign}{rng.randint(1, 999)}",
            f"{sign}{rng.randint(1000, 99999):,}",
            f"{rng.randint(2, 99)} dollars",
            f"{rng.randint(2, 99)} cents",
        ]
    )


def _large_money(rng: Random) -> str:
    amount = f"{rng.choice('$£€')}{rng.randint(1, 99)}{rng.choice(['', '.5', '.2'])}"
    return f"{amount} {rng.choice(['million', 'billion'])}"


def _year(rng: Random) -> str:
    return str(rng.choice([rng.randint(1500, 1899), rng.randint(1900, 1999), rng.randint(2000, 2035)]))


def _any_number(rng: Random) -> str:
    top = rng.choice([20, 100, 1000, 10000])
    n = rng.randint(top // 10, top)
    return rng.choice([str(n), f"{n:,}"])


_GENERATED: dict[str, Callable[[Mapping[str, list[str]], Random], str]] = {
    "n": lambda _, rng: _any_number(rng),
    "small": lambda _, rng: str(rng.randint(2, 60)),
    "large": lambda _, rng: f"{rng.choice([rng.randint(2, 99) * 1000, rng.randint(10_000, 9_999_999)]):,}",
    "big": lambda _, rng: _large_money(rng),
    "decimal": lambda _, rng: f"{rng.randint(0, 40)}.{rng.choice([5, 25, 75, 1, 2, 4, 7, 9, 33])}",
    "percent": lambda _, rng: f"{rng.randint(1, 99)}{rng.choice(['%', ' percent', '.5%'])}",
    "ord": lambda _, rng: _ordinal(rng),
    "date": _date,
    "time": lambda _, rng: _time(rng),
    "money": lambda _, rng: _money(rng),
    "year": lambda _, rng: _year(rng),
    "phone": lambda _, rng: f"{rng.randint(200, 999)}-{rng.randint(200, 999)}-{rng.randint(1000, 9999)}",
    "digits": lambda _, rng: str(rng.randint(1000, 99999)),
}
