"""Which tile a kernel uses for a shape on this GPU: what was measured on it, or nothing.

Measured tiles come from the table we ship for the GPU, else from the user's own (`sonant bench kernels --tune` writes
both kinds). A table's key is kernel, shape, and the rows' power of two; a neighbour's entry stands in for one that is
missing, and the last one for all rows beyond it. Where nothing was measured each kernel has a rule of its own.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import torch

from sonant.kernels.gpu import gpu_of

_LOG = logging.getLogger(__name__)
FORMAT = 1


@dataclass(frozen=True)
class Tile:
    """Sizes of one program's work. `library`: none, a library's kernel was faster."""

    m: int = 0  # rows
    n: int = 0  # columns
    k: int = 0  # depth at a time
    warps: int = 4
    stages: int = 3
    splits: int = 1  # programs that share the depth
    group: int = 8  # tiles of rows that come before the next columns
    fold: int = 1  # slices of the depth that warps of one program share out
    wide: bool = False  # one and a half times n columns
    ahead: bool = False  # its weights are asked for before there is input
    library: bool = False

    @property
    def width(self) -> int:
        return self.n + self.n // 2 if self.wide else self.n


class Table(dict[str, Tile]):
    """By key; what was looked for is remembered, since every launch asks."""

    def __init__(self, tiles: Mapping[str, Tile]) -> None:
        super().__init__(tiles)
        self._found: dict[tuple[str, str, int], Tile | None] = {}

    def find(self, kernel: str, shape: str, rows: int) -> Tile | None:
        """Of these rows, else of twice as many, else of the next fewer: so a step of four between measured rows is
        bridged from both sides, and what fills the GPU serves all that is larger."""
        near = bucket(rows)
        asked = kernel, shape, near
        if asked not in self._found:
            near_ones = (near, 2 * near, *(near >> n for n in range(1, near.bit_length())))
            tiles = (self.get(key(kernel, shape, other)) for other in near_ones)
            self._found[asked] = next((tile for tile in tiles if tile is not None), None)
        return self._found[asked]


LIBRARY = Tile(library=True)


def bucket(rows: int) -> int:
    return 1 << (rows - 1).bit_length()


def key(kernel: str, shape: str, rows: int) -> str:
    return f"{kernel} {shape} {bucket(rows)}"


def find(kernel: str, shape: str, rows: int, device: torch.device) -> Tile | None:
    """None: nobody measured this, nor a neighbour."""
    gpu = gpu_of(device)
    return None if gpu is None else table(gpu.name).find(kernel, shape, rows)


@cache
def table(gpu: str) -> Table:
    """All that is known of a GPU. Where both tables have a key, ours counts."""
    known, ours = read(user_path(gpu)), shipped(gpu)
    if ours.is_file():
        known |= decode(json.loads(ours.read_text(encoding="utf-8")))
    return Table(known)


def shipped(gpu: str) -> Traversable:
    return resources.files("sonant.kernels").joinpath("tables", f"{file_name(gpu)}.json")


def file_name(gpu: str) -> str:
    """ "NVIDIA H200" → "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def user_path(gpu: str) -> Path:
    # the one place below the command line that asks the environment: kernels are found before any config is
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "sonant" / "tuning" / f"{file_name(gpu)}.json"


def write(path: Path, gpu: str, tiles: Mapping[str, Tile], facts: Mapping[str, Any] | None = None) -> None:
    """Whole or not at all: a reader finds the old file or the new one, and of two writers the later wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"format": FORMAT, "gpu": gpu, **(facts or {}), "tiles": {k: encode(tiles[k]) for k in sorted(tiles)}}
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
        json.dump(data, file, indent=1)
    Path(file.name).replace(path)


def encode(tile: Tile) -> dict[str, Any]:
    """Only what differs from the defaults."""
    plain = asdict(Tile())
    return {name: value for name, value in asdict(tile).items() if value != plain[name]}


def decode(data: Any) -> dict[str, Tile]:
    if data["format"] != FORMAT:
        raise ValueError(f"its format is {data['format']}, not {FORMAT}")
    known = {f.name: type(f.default) for f in fields(Tile)}
    tiles = {}
    for name, entry in data["tiles"].items():
        if any(type(value) is not known.get(field) for field, value in entry.items()):
            raise ValueError(f"{name!r} has {entry}, which is no tile")
        tiles[name] = Tile(**entry)
    return tiles


def read(path: Path) -> dict[str, Tile]:
    """Empty where there is no such file, or none that can be used."""
    try:
        return decode(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _LOG.warning("the table of tuned kernels at %s is ignored: %s", path, error)
        return {}
