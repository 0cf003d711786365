"""The lists in models/published_names: which tensors a release holds, and their shapes."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

LISTS = Path(__file__).parent / "models" / "published_names"


def published(name: str) -> dict[str, tuple[int, ...]]:
    """A list of published tensors; `{0..27}` in a name stands for each of those numbers."""
    shapes = {}
    for line in (LISTS / f"{name}.txt").read_text().splitlines():
        pattern, *shape = line.split()
        ranges = [range(int(a), int(b) + 1) for a, b in re.findall(r"\{(\d+)\.\.(\d+)\}", pattern)]
        template = re.sub(r"\{\d+\.\.\d+\}", "{}", pattern)
        for indices in product(*ranges):
            shapes[template.format(*indices)] = tuple(map(int, shape))
    return shapes
