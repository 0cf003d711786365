"""Maps stored names to the names of our parameters: renaming, concatenated tensors, and weight norm.

A stored name is renamed first. A parameter is then looked for under its own name, else as the parts of which it is
concatenated, else as the two halves of weight norm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from sonant.errors import CheckpointError

FUSED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
    }
)
_WEIGHT_NORM = (
    ("weight_g", "weight_v"),
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
)

Rename = Callable[[str], str]


def rename_by(rules: Sequence[tuple[str, str]]) -> Rename:
    """A function that applies each (pattern, replacement) in turn, wherever in a name the pattern is found."""
    compiled = [(re.compile(pattern), replacement) for pattern, replacement in rules]

    def rename(name: str) -> str:
        for pattern, replacement in compiled:
            name = pattern.sub(replacement, name)
        return name

    return rename


@dataclass(frozen=True)
class Naming:
    """A family's own rules.

    `joined` maps a part of our name to the parts in its place in the stored names, whose tensors are concatenated
    along their first dimension, in that order.
    """

    rename: Rename = str
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: FUSED)

    def renamed(self, stored: Iterable[str], label: str) -> dict[str, str]:
        """A mapping from our names to the stored ones."""
        found: dict[str, str] = {}
        for name in stored:
            ours = self.rename(name)
            if ours in found:
                raise CheckpointError(f"{label}: {found[ours]} and {name} are both {ours} to this model")
            found[ours] = name
        return found

    def parts(self, name: str, stored: Mapping[str, str]) -> list[tuple[str, ...]]:
        """The tensors that a parameter's rows come from, in order: each one, or weight norm's magnitude and direction.

        Names that `stored` (see `renamed`) lacks may be among them; the caller has to check.
        """
        if name in stored:
            return [(name,)]
        return [_halves(piece, stored) for piece in stored_names(name, self.joined)]


def _halves(name: str, stored: Mapping[str, str]) -> tuple[str, ...]:
    """Weight norm's magnitude and direction if they are stored in place of the weight `name`, else `name` alone."""
    head, _, rest = name.rpartition("weight")
    if name not in stored and not rest and (not head or head.endswith(".")):
        for magnitude, direction in _WEIGHT_NORM:
            if head + magnitude in stored or head + direction in stored:
                return head + magnitude, head + direction
    return (name,)


def stored_names(name: str, joined: Mapping[str, tuple[str, ...]] = FUSED) -> tuple[str, ...]:
    """The published tensors that make up our parameter `name`."""
    dotted = f".{name}."
    for ours, parts in joined.items():
        if f".{ours}." in dotted:
            return tuple(dotted.replace(f".{ours}.", f".{part}.", 1).strip(".") for part in parts)
    return (name,)
