"""What a rule found: how much of a step it costs, where it comes from, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Evidence:
    what: str
    count: float  # in a step
    us: float  # in a step
    source: str | None = None


@dataclass(frozen=True)
class Finding:
    rule: str
    title: str
    lost_us: float  # in a steady step, on average
    share: float  # of a steady step
    count: float  # in a steady step
    source: str | None
    fix: str
    evidence: tuple[Evidence, ...] = ()
    at_most: bool = False  # whether the time is an upper bound, not a measurement
    marks: Sequence[tuple[int, int]] = field(default=(), compare=False)  # where in the trace: starts and ends, ns

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "marks"}


def times(count: float) -> str:
    """A count as people write it: 6,819 × and not 6.82e+03 ×."""
    return f"{count:,.0f} ×" if count >= 1000 else f"{count:.4g} ×"
