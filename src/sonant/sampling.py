"""How a caller controls a model's sampling: knobs that each family declares by name, and the values that were set."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sonant.errors import BadSampling

Value = bool | int | float
_SHOWN_CHARS = 60  # of a value that a client sent
_LARGEST = sys.float_info.max  # also for whole numbers, which Python would let grow past any float


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One value that a request may set. The default's type (bool, int or float) is the knob's."""

    name: str
    default: Value
    help: str
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[Value, ...] = ()  # if only some values are possible

    @property
    def kind(self) -> type[Value]:
        return type(self.default)

    @property
    def accepts(self) -> str:
        """What may be set, in words."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        if self.kind is bool:
            return "true or false"
        number = "a whole number" if self.kind is int else "a number"
        low, high = (f"{end:,}" if isinstance(end, int) else f"{end:g}" for end in (self.low, self.high))
        return number if math.isinf(self.high) else f"{number} from {low} to {high}"

    def checked(self, value: Any) -> Value:
        """Return the value in the knob's type; raise `BadSampling` if the knob does not accept it."""
        if self.kind is bool:
            fits = isinstance(value, bool)
        else:
            fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
            fits = fits and self.low <= value <= self.high and (self.kind is float or value == int(value))
        if not fits or (self.choices and value not in self.choices):
            raise BadSampling(f"{self.name} must be {self.accepts}, not {repr(value)[:_SHOWN_CHARS]}")
        return self.kind(value)


class Sampling(Mapping[str, Any]):
    """The values that were set, by the name of the knob. One that was not set, or to None, is the checkpoint's own."""

    def __init__(self, /, **values: Value | None) -> None:
        self._values = {name: value for name, value in values.items() if value is not None}

    @classmethod
    def greedy(cls) -> Sampling:
        """Always the likeliest code: repeatable, and rarely how speech should sound."""
        return cls(greedy=True)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return f"Sampling({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


def resolve(knobs: Sequence[Knob], sampling: Sampling) -> dict[str, Value]:
    """A checked value for every knob: the one that was set, else the default."""
    names = {knob.name for knob in knobs}
    if unknown := sorted(set(sampling) - names):
        raise BadSampling(f"this model has no {unknown[0]!r} to set; it has {', '.join(sorted(names)) or 'nothing'}")
    return {knob.name: knob.checked(sampling[knob.name]) if knob.name in sampling else knob.default for knob in knobs}
