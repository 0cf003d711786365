"""Which tile a kernel uses for a shape on this GPU, if that was measured.

Measured tiles come from the table that we ship for the GPU, else from the user's own (`sonant bench kernels --tune`
writes both kinds). A key in a table is kernel, shape, and the rows rounded up to a power of two. A neighbour's entry
stands in for a missing one, and the last entry for all larger numbers of rows. Where nothing was measured each kernel
has its own rule.
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
    """Sizes of one program's work. `library`: there is no tile, since a library's kernel was faster."""

    m: int = 0  # rows
    n: int = 0  # columns
    k: int = 0  # depth of one iteration
    warps: int = 4
    stages: int = 3
    splits: int = 1  # programs that share the depth
    group: int = 8  # tiles of rows that come before the next columns
    fold: int = 1  # slices of the depth, shared out among the warps of one program
    wide: bool = False  # one and a half times n columns
    ahead: bool = False  # weights are prefetched before there is input
    library: bool = False

    @property
    def width(self) -> int:
        return self.n + self.n // 2 if self.wide else self.n


class Table(dict[str, Tile]):
    """Tiles by key. Lookups are cached, since every launch needs one."""

    def __init__(self, tiles: Mapping[str, Tile]) -> None:
        super().__init__(tiles)
        self._found: dict[tuple[str, str, int], Tile | None] = {}

    def find(self, kernel: str, shape: str, rows: int) -> Tile | None:
        """The tile for this many rows, else for twice as many, else for the next fewer: so where measured rows lie a
        factor of four apart both sides are used, and a tile that fills the GPU serves all larger sizes."""
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
    """None: neither this nor a neighbour was measured."""
    gpu = gpu_of(device)
    return None if gpu is None else table(gpu.name).find(kernel, shape, rows)


@cache
def table(gpu: str) -> Table:
    """All measured tiles of a GPU. Where both tables have a key, ours counts."""
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
    # Kernels read the environment themselves, since they are chosen before any config.
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "sonant" / "tuning" / f"{file_name(gpu)}.json"


def write(path: Path, gpu: str, tiles: Mapping[str, Tile], facts: Mapping[str, Any] | None = None) -> None:
    """Written whole or not at all: a reader finds the old file or the new one, and of two writers the later wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"format": FORMAT, "gpu": gpu, **(facts or {}), "tiles": {k: encode(tiles[k]) for k in sorted(tiles)}}
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
        json.dump(data, file, indent=1)
    Path(file.name).replace(path)


def encode(tile: Tile) -> dict[str, Any]:
    """Only the fields that differ from their defaults."""
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
    """Empty if there is no such file, or it cannot be used."""
    try:
        return decode(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _LOG.warning("the table of tuned kernels at %s is ignored: %s", path, error)
        return {}
