"""On a GPU: a frame of 64 or 256 rows, with norms apart or folded, and with weights of eight bits in each way.

    python tests/gpu_layer.py --folder /tmp/full [--parts frame,logits,fp8] [--rows 64,256]

Not a test that pytest collects: it needs a Hopper GPU and a checkpoint of full size, which it writes if there is none.
Parts:
- frame: talker and predictor, each in one graph as the engine captures it: with norms apart and folded; with products
  of 33 to 64 rows in our tiles where the table has one, nowhere, and everywhere; and the engine's own frame.
- logits: the worst error of any code's logits against float32, in each of these ways.
- fp8: frames with weights of eight bits: with both sides in eight bits, by Triton and by the library; and with weights
  widened for all rows that kernels for few rows take.
tests/gpu_products.py measures products alone.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor

import sonant
from parity.test_batch_sizes import exact_model, worst
from sonant import Engine, EngineConfig
from sonant.bench.engine import breakdown
from sonant.bench.engine.step_rig import StepRig
from sonant.config import Quantization
from sonant.kernels.triton import gemv, scaled_product, small_m_tile, tiled_tile
from sonant.kernels.tuning import LIBRARY, Tile
from sonant.layers.transformer import RMSNorm
from sonant.models.qwen3_tts.model import Qwen3TTS
from sonant.models.qwen3_tts.synthetic.writer import write_checkpoint
from sonant.text_table import grid

Patches = tuple[AbstractContextManager[object], ...]


@contextmanager
def patched(patches: Patches) -> Iterator[None]:
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


@contextmanager
def apart(norms: list[RMSNorm]) -> Iterator[None]:
    """Run norms in kernels of their own; their gains are ones, since they were folded into weights."""
    for norm in norms:
        norm.folded = False
    yield
    for norm in norms:
        norm.folded = True


def by_rule(x: Tensor, weight: Tensor, gated: bool) -> Tile | None:
    """Our rule's tile for every product of 33 to 64 rows, measured or not."""
    depth, columns = x.shape[-1], len(weight) // (2 if gated else 1)
    rows = x.numel() // depth
    return tiled_tile.rule(rows, depth, columns, gated, item_bytes=2) if 32 < rows <= 64 else None


def folding(norms: list[RMSNorm]) -> dict[str, Patches]:
    without = mock.patch.object(gemv, "known_tile", lambda x, weight, gated: None)
    rule = mock.patch.object(gemv, "known_tile", by_rule)
    return {"norms apart": (apart(norms),), "as it is": (), "no tiles of ours": (without,), "tiles by rule": (rule,)}


def quantizing() -> dict[str, Patches]:
    library = mock.patch.object(scaled_product, "tile_for", lambda *args: LIBRARY)
    # The second has its own name for it: with as many rows attention would hand eight bits on.
    widened = tuple(mock.patch.object(module, "WIDENED_ROWS", 64) for module in (small_m_tile, scaled_product))
    return {"both sides, Triton": (), "both sides, library": (library,), "widened to 64 rows": widened}


def loaded(folder: Path, rows: list[int], quantize: Quantization | None) -> tuple[Engine, list[RMSNorm]]:
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_checkpoint(folder, kind="custom_voice", size="1.7b", device="cuda", tokenizer_from=None)
    began_s = time.perf_counter()
    config = EngineConfig(max_rows=max(rows), warm_rows=max(rows), chunk_s=(1.28,), quantize=quantize)
    engine = sonant.load(folder, device="cuda", config=config)
    engine.close()
    print(f"{quantize or 'bf16'}: loaded in {time.perf_counter() - began_s:.1f} s", flush=True)
    assert isinstance(engine.model, Qwen3TTS)
    norms = [m for m in engine.model.modules.talker.modules() if isinstance(m, RMSNorm) and m.folded]
    return engine, norms


def time_frames(engine: Engine, rows: list[int], variants: Callable[[], dict[str, Patches]]) -> None:
    lines: list[tuple[str, ...]] = [("rows", "variant", "talker ms", "predictor ms", "its sampling", "engine's frame")]
    for count in rows:
        with StepRig(engine, count, 60) as rig, torch.inference_mode():
            whole = f"{breakdown._frame_ms(rig):.3f}"
            for name, patches in variants().items():
                with patched(patches):
                    parts = {part: ms for part, ms, _ in breakdown._frame_parts(rig)}
                told = (f"{parts[part]:.3f}" for part in ("talker", "predictor", "its sampling"))
                lines.append((str(count), name, *told, whole))
                whole = ""
    print(grid(lines), flush=True)


def check_logits(engine: Engine, truth: Qwen3TTS, rows: list[int], variants: dict[str, Patches]) -> None:
    for name, patches in variants.items():
        with patched(patches), pytest.MonkeyPatch.context() as monkeypatch:
            errors = worst(engine, truth, sorted(rows), monkeypatch)
        print(f"logits, {name}: { ({size: round(error, 4) for size, error in errors.items()}) }", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/sonant-1.7b"))
    parser.add_argument("--parts", default="frame,logits,fp8")
    parser.add_argument("--rows", default="64,256")
    args = parser.parse_args()
    parts, rows = set(args.parts.split(",")), [int(n) for n in args.rows.split(",")]
    if parts & {"frame", "logits"}:
        engine, norms = loaded(args.folder, rows, None)
        if "frame" in parts:
            time_frames(engine, rows, lambda: folding(norms))
        if "logits" in parts:
            check_logits(engine, exact_model(args.folder, "cuda"), rows, folding(norms))
        del engine, norms
        gc.collect()
        torch.cuda.empty_cache()
    if "fp8" in parts:
        engine, _ = loaded(args.folder, rows, "fp8")
        time_frames(engine, rows, quantizing)


if __name__ == "__main__":
    main()
