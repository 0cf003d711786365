"""On a GPU: each product of a layer at 64 and 256 rows, in each possible way, in a chain of such products.

    python tests/gpu_products.py [--parts products,tiles] [--rows 64,256]

Not a test that pytest collects: it needs a Hopper GPU. Weights are never in the cache. Parts:
- products: microseconds including what follows, SwiGLU or a sum: the library's product in several layouts, and Triton's
  in several tiles with that inside.
- tiles: products with eight bits on both sides, with all that is around them: the library's, and Triton's in its rule's
  tile and in the best of some others, as tuning would choose it.
Kernels are compiled on all cores before the GPU is used.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

import gpu_fp8
from sonant.bench.kernels.tune_cases import ProductCase
from sonant.kernels import tuning
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.recorded_launches import AnyForm, LaunchRecorder, launches_recorded
from sonant.kernels.reference import Unscaled
from sonant.kernels.triton import tiled_tile
from sonant.kernels.triton.norm import rms_norm
from sonant.kernels.triton.swiglu import swiglu
from sonant.kernels.triton.tiled_gemm import tiled_gemm
from sonant.kernels.tuning import LIBRARY, Tile
from sonant.text_table import grid

H200 = Gpu("NVIDIA H200", (9, 0))
SHAPES = {  # place: depth, columns of the weight, what comes after
    "predictor qkv": (1024, 4096, ""),
    "predictor o": (2048, 1024, "add"),
    "predictor gate, up": (1024, 6144, "gated"),
    "predictor down": (3072, 1024, "add"),
    "predictor head": (1024, 2048, ""),
    "talker qkv": (2048, 4096, ""),
    "talker o": (2048, 2048, "add"),
    "talker gate, up": (2048, 12288, "gated"),
    "talker down": (6144, 2048, "add"),
}
TILES = (
    *(Tile(64, 64, 64, 4, 4), Tile(64, 64, 128, 4, 3), Tile(64, 128, 64, 4, 4), Tile(128, 64, 64, 4, 4)),
    *(Tile(128, 128, 64, 8, 3), Tile(64, 64, 64, 4, 4, splits=4), Tile(64, 128, 64, 4, 4, splits=2)),
)
EPS = 1e-6
ERROR = 1e-2
ROTATED_BYTES = 96 << 20
Way = Callable[[Tensor, Tensor], Tensor]  # a weight and its transpose → the result


class Product:
    """One product's arguments, and the ways to compute it."""

    def __init__(self, where: str, rows: int, device: torch.device) -> None:
        self.depth, self.columns, self.after = SHAPES[where]
        self.x = torch.randn(rows, self.depth, device=device).bfloat16()
        self.weight = (self.depth**-0.5 * torch.randn(self.columns, self.depth, device=device)).bfloat16()
        self.residual = torch.randn(rows, self.columns, device=device).bfloat16()

    def end(self, product: Tensor) -> Tensor:
        if self.after == "gated":
            return swiglu(product, Unscaled(self.x, EPS))
        return product if self.after != "add" else self.residual.add(product)

    def library(self, weight: Tensor, turned: Tensor) -> Tensor:
        """As the engine calls it."""
        if self.after == "add":
            return self.residual.addmm_(self.x, weight.T)
        return self.end(self.x @ weight.T)

    def library_turned(self, weight: Tensor, turned: Tensor) -> Tensor:
        """With the weight stored [depth, columns]."""
        return self.residual.addmm_(self.x, turned) if self.after == "add" else self.end(self.x @ turned)

    def library_apart(self, weight: Tensor, turned: Tensor) -> Tensor:
        """With the sum in an op of its own."""
        return self.end(self.x @ weight.T)

    def triton(self, weight: Tensor, turned: Tensor, tile: Tile) -> Tensor:
        gated = self.after == "gated"
        out = self.x.new_empty(len(self.x), self.columns // (2 if gated else 1))
        residual = self.residual if self.after == "add" else None
        given = rms_norm(self.x, torch.ones_like(self.x[0]), EPS) if gated else self.x
        tiled_gemm(given, weight, out, tile, residual=residual, gated=gated)
        return out

    def tiles(self) -> Iterator[Tile]:
        for tile in TILES:
            if self.depth % (tile.k * tile.splits) == 0 and tile.m < 2 * len(self.x):
                yield tile

    def ways(self) -> dict[str, Way]:
        found: dict[str, Way] = {
            "library": self.library,
            "turned": self.library_turned,
        }
        if self.after == "add":
            found["sum apart"] = self.library_apart
        return found


def compile_all(rows: list[int], parts: set[str]) -> None:
    """Compile what the wrappers would launch, which is found on tensors without memory, without using the GPU."""
    forms: list[AnyForm] = []
    meta = torch.device("meta")
    with torch.inference_mode(), planning_for(H200), launches_recorded(LaunchRecorder(H200, forms.append)):
        for where in SHAPES if "products" in parts else ():
            for count in rows:
                product = Product(where, count, meta)
                product.library(product.weight, product.weight.T)
                for tile in product.tiles():
                    product.triton(product.weight, product.weight, tile)
        for where in gpu_fp8.SHAPES if "tiles" in parts else ():
            for count in rows:
                case = gpu_fp8.product(where, count, "fp8")
                for chosen in (LIBRARY, *tiles_of(case)):
                    case.run(case.make(meta), chosen)
    began_s = time.perf_counter()
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("fork")) as pool:
        list(pool.map(compile_one, forms))
    print(f"compiled {len(forms)} kernels in {time.perf_counter() - began_s:.1f} s", flush=True)


def tiles_of(case: ProductCase) -> list[Tile]:
    """Tiles to try; the rule's comes first."""
    first, *others = tiled_tile.candidates(case.rows, case.depth, case.columns, case.gated)
    return [first, *(tile for tile in others if tile.k == 128 and tile.stages in (3, 4) and tile != first)]


def time_tiles(device: torch.device, rows: list[int]) -> None:
    lines: list[tuple[str, ...]] = [("us, in a chain", "library", "rule", "best", "")]
    for where in gpu_fp8.SHAPES:
        for count in rows:
            case = gpu_fp8.product(where, count, "fp8")
            tried: dict[Tile, float] = {}
            for tile in tiles_of(case):
                with suppress(Exception):
                    tried[tile] = gpu_fp8.call_us(case, device, tile)
            best = min(tried, key=lambda tile: tried[tile])
            library = gpu_fp8.call_us(case, device, LIBRARY)
            key = tuning.key("scaled", tiled_tile.shape_key(case.depth, case.columns, case.gated), case.rows)
            figures = (library, tried[next(iter(tried))], tried[best])
            lines.append((key, *(f"{us:.2f}" for us in figures), str(tuning.encode(best))))
    print(grid(lines), flush=True)


def compile_one(form: AnyForm) -> str:
    try:
        return form.compile(H200)
    except Exception as error:  # a tile may be too large: this is printed, and it fails again when it is measured
        print(f"not compiled: {type(error).__name__}", flush=True)
        return ""


def chain_us(run: Way, weight: Tensor) -> float:
    """Microseconds of one call among many in a graph, with weights that are in no cache."""
    copies = [weight.clone() for _ in range(min(64, 1 + ROTATED_BYTES // (2 * weight.numel())))]
    turned = [copy.T.contiguous() for copy in copies]
    count = max(32, len(copies))

    def many() -> None:
        for n in range(count):
            run(copies[n % len(copies)], turned[n % len(copies)])

    return gpu_fp8.best_us(many, count, replays=4)


def time_products(device: torch.device, rows: list[int]) -> None:
    names = ("library", "turned", "sum apart")
    lines: list[tuple[str, ...]] = [("us, in a chain", "rows", "bytes", *names, "cublasLt", "Triton", "its tile")]
    for where in SHAPES:
        for count in rows:
            product = Product(where, count, device)
            us = {name: chain_us(way, product.weight) for name, way in product.ways().items()}
            torch.backends.cuda.preferred_blas_library("cublaslt")
            lt = chain_us(product.library, product.weight)
            torch.backends.cuda.preferred_blas_library("default")
            tried: dict[Tile, float] = {}
            for tile in product.tiles():
                with suppress(Exception):
                    tried[tile] = chain_us(partial(product.triton, tile=tile), product.weight)
            best = min(tried, key=lambda tile: tried[tile]) if tried else Tile()
            told = f"{best.m}x{best.n}x{best.k} {best.warps}w {best.stages}s /{best.splits}"
            floor = 2 * product.weight.numel() / 4.3e6
            figures = (f"{us[n]:.2f}" if n in us else "" for n in names)
            lines.append((where, str(count), f"{floor:.1f}", *figures, f"{lt:.2f}", f"{tried.get(best, 0):.2f}", told))
    print(grid(lines), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="products,tiles")
    parser.add_argument("--rows", default="64,256")
    args = parser.parse_args()
    parts, rows, device = set(args.parts.split(",")), [int(n) for n in args.rows.split(",")], torch.device("cuda")
    compile_all(rows, parts)
    torch.manual_seed(0)
    with torch.inference_mode():
        if "products" in parts:
            time_products(device, rows)
        if "tiles" in parts:
            time_tiles(device, rows)


if __name__ == "__main__":
    main()
