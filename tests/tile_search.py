"""Tiles of a frame's products, searched for where they are used on a GPU: see gpu_predictor.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest import mock

import torch
from torch import Tensor

from sonant.kernels import tuning
from sonant.kernels.cuda import few_rows
from sonant.kernels.triton import small_m_gemm, small_m_tile
from sonant.kernels.tuning import LIBRARY, Tile

REPLAYS = 6
Shape = tuple[int, int, int, bool, bool]  # rows, depth, columns, gated, norm
Tiles = dict[Shape, Tile]


@dataclass(frozen=True)
class Product:
    """One of a part's, at some rows."""

    part: str
    name: str
    rows: int
    depth: int
    columns: int
    norm: bool = False
    gated: bool = False

    @property
    def shape(self) -> Shape:
        return self.rows, self.depth, self.columns, self.gated, self.norm

    @property
    def key(self) -> str:
        shape = small_m_tile.shape_key(self.depth, self.columns, self.gated, self.norm, 2)
        return tuning.key("small_m", shape, max(16, self.rows))

    def tiles(self) -> list[Tile]:
        """Few blocks where two fit on a processor; the next kernel starts late."""
        found = few_rows.candidates(self.rows, self.depth, self.columns, norm=self.norm, gated=self.gated)
        most = 264 if self.part == "predictor" and self.rows <= 64 else 792
        return [t for t in found if t.stages == 2 and self.blocks(t) <= most]

    def blocks(self, tile: Tile) -> int:
        return self.columns // tile.n * tile.splits * (-(-self.rows // tile.m) if tile.m else 1)

    def first(self) -> Tile | None:
        """About a block for each processor, with room for another."""

        def worse(tile: Tile) -> tuple[bool, int]:
            kernel = few_rows.kernel_for(tile, self.rows, norm=self.norm, gated=self.gated)
            return kernel.shared_bytes > 113 << 10, abs(self.blocks(tile) - 128)

        return min(self.tiles(), key=worse, default=None)


def products(rows: int) -> list[Product]:
    found = []
    for part, hidden, inner, vocab in (("predictor", 1024, 3072, 2048), ("talker", 2048, 6144, 0)):
        found += [
            Product(part, "qkv", rows, hidden, 4096, norm=True),
            Product(part, "o", rows, 2048, hidden),
            Product(part, "gate, up", rows, hidden, inner, norm=True, gated=True),
            Product(part, "down", rows, inner, hidden),
        ]
        if vocab:
            found.append(Product(part, "head", rows, hidden, vocab))
    return found


@contextmanager
def by_tiles(tiles: Tiles) -> Iterator[None]:
    known, beyond = small_m_gemm.tile_for, small_m_tile.tile_beyond

    def tile_beyond(x: Tensor, weight: Tensor, columns: int, gated: bool, norm: bool) -> Tile | None:
        shape = tuning.bucket(x.shape[0]), x.shape[1], columns, gated, norm
        return tiles.get(shape) or beyond(x, weight, columns, gated, norm)

    def tile_for(x: Tensor, weight: Tensor, columns: int, gated: bool, norm: bool) -> Tile:
        shape = max(16, tuning.bucket(x.shape[0])), x.shape[1], columns, gated, norm
        return tiles.get(shape) or known(x, weight, columns, gated, norm)

    with (
        mock.patch.object(small_m_gemm, "tile_for", tile_for),
        mock.patch.object(small_m_tile, "tile_beyond", tile_beyond),
    ):
        yield


class Parts:
    """What is run of some rows, by name: in a graph of its own whenever it is timed."""

    def __init__(self, runs: Mapping[str, Callable[[], object]]) -> None:
        self.runs = runs

    def ms(self, name: str) -> float:
        run, graph = self.runs[name], torch.cuda.CUDAGraph()
        run()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            run()
        times = []
        for _ in range(3):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()
            begin.record()
            for _ in range(REPLAYS):
                graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / REPLAYS)
        return min(times)


def told(tile: Tile | None) -> str:
    if tile is None:
        return "table"
    if tile.library:
        return "library"
    rows, late = f"{tile.m} by " if tile.m else "", " late" if tile.stages == 2 else ""
    return f"{rows}{tile.n}x{tile.k}/{tile.splits}{late}{'' if tile.fold == 1 else ' read'}"


class Search:
    """For the fastest tiles of a part, by the time of the whole part."""

    def __init__(self, parts: Parts, part: str, rows: int) -> None:
        self.parts, self.part = parts, part
        self.products = [p for p in products(rows) if p.part == part]
        self.tiles: Tiles = {p.shape: tile for p in self.products if (tile := p.first()) is not None}
        self.as_it_is_ms, self.ms = parts.ms(part), self._ms(self.tiles)
        print(f"{rows} rows, {part}: as it is {self.as_it_is_ms:.3f}, all CUDA {self.ms:.3f}: {self}", flush=True)

    def __str__(self) -> str:
        return ", ".join(f"{p.name} {told(self.tiles.get(p.shape))}" for p in self.products)

    def run(self) -> Tiles:
        """Nothing where none of it pays."""
        for product in self.products:
            line = [self._attempt(product.shape, tile) for tile in (*product.tiles(), None, LIBRARY)]
            if (chosen := self.tiles.get(product.shape)) is not None and chosen.cuda:
                line.append(self._attempt(product.shape, replace(chosen, stages=1)))
            print(f"   {product.name}: {', '.join(line)}", flush=True)
        print(f"   best {self.ms:.3f}: {self}", flush=True)
        return self.tiles if self.ms < self.as_it_is_ms else {}

    def _attempt(self, shape: Shape, tile: Tile | None) -> str:
        tried = {k: v for k, v in self.tiles.items() if k != shape} | ({shape: tile} if tile else {})
        ms = self._ms(tried)
        if ms < self.ms:
            self.ms, self.tiles = ms, tried
        return f"{told(tile)} {ms:.3f}"

    def _ms(self, tiles: Tiles) -> float:
        with by_tiles(tiles):
            return self.parts.ms(self.part)
