"""Budgets: what a step may cost, as one line for a test or CI, such as `fills=0,syncs=0,kernels<=1300`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sonant.errors import ConfigError
from sonant.profiling.metrics import MEANING

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "=": operator.eq, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_LIMIT = re.compile(r"\s*([a-z_]+)\s*(<=|>=|==|=|<|>)\s*(\d+(?:\.\d+)?)\s*")


@dataclass(frozen=True)
class Limit:
    metric: str
    sign: str
    value: float

    def broken(self, metrics: Mapping[str, float]) -> str | None:
        """How the limit is broken, in words; None if it holds."""
        found = metrics[self.metric]
        if _COMPARE[self.sign](found, self.value):
            return None
        return f"{self.metric} is {found:g} a step, not {self.sign} {self.value:g} ({MEANING[self.metric]})"


def parse_budget(text: str) -> list[Limit]:
    limits = []
    for limit in text.split(","):
        found = _LIMIT.fullmatch(limit)
        if found is None:
            raise ConfigError(f"{limit.strip()!r} is no limit; write them as in fills=0,syncs=0,kernels<=1300")
        if found[1] not in MEANING:
            raise ConfigError(f"nothing called {found[1]!r} is measured; there are {', '.join(MEANING)}")
        limits.append(Limit(found[1], found[2], float(found[3])))
    return limits


def broken_limits(budget: str, metrics: Mapping[str, float]) -> list[str]:
    return [told for limit in parse_budget(budget) if (told := limit.broken(metrics)) is not None]
