"""Loss curves: a JSON line for every few steps, appended over all pieces, and a picture of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class Curves:
    def __init__(self, folder: Path, drawn: Sequence[str]) -> None:
        """`drawn` are the values that the picture shows, from top to bottom."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.drawn = folder / "curves.jsonl", drawn

    def add(self, values: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as f:
            f.write(json.dumps(values) + "\n")

    def draw(self) -> None:
        try:
            import matplotlib
        except ImportError:
            log.info("no matplotlib here, no picture of the curves")
            return
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        rows = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
        figure, axes = plt.subplots(len(self.drawn), 1, figsize=(8, 2 * len(self.drawn)), sharex=True)
        for name, axis in zip(self.drawn, axes, strict=True):
            points = [(r["step"], r[name]) for r in rows if name in r]
            axis.plot(*(zip(*points, strict=True) if points else ((), ())), linewidth=0.8)
            axis.set_ylabel(name)
        axes[-1].set_xlabel("step")
        figure.savefig(self.path.with_suffix(".png"), dpi=80, bbox_inches="tight")
        plt.close(figure)
