"""On a GPU, Qwen3-TTS 1.7B with random weights: ms of each part of a frame at some rows, with and without each change.

    python tests/gpu_predictor.py --folder /tmp/qwen17 [--rows 1,16,64] [--frames 30]

Not a test that pytest collects. The checkpoint is written if there is none. First the predictor's logits in each way
are held against those of plain torch in float32; what is wrong is said with WRONG. Then every way's parts are timed in
CUDA graphs, with the floor of their bytes.
"""

from __future__ import annotations

import argparse
import faulthandler
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import sonant
from sonant import EngineConfig
from sonant.bench.engine import breakdown
from sonant.bench.engine.step_rig import StepRig
from sonant.engine.engine import Engine
from sonant.kernels import ops, reference
from sonant.kernels.triton import small_m_tile
from sonant.models.qwen3_tts.synthetic import write_checkpoint

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # the CPU is only to try the script, on a tiny model
BYTES_PER_S = 4.4e12
Patch = Any


def ways() -> dict[str, list[Patch]]:
    patch = mock.patch.object
    return {"as it is": [], "some rows: by rule": [patch(small_m_tile, "find", lambda *given: None)]}


ONE_ROW_ONLY, MORE_ROWS_ONLY = "1 row", "some rows"


@contextmanager
def patched(patches: list[Patch]) -> Iterator[None]:
    with ExitStack() as left:
        for patch in patches:
            left.enter_context(patch)
        yield


class Probe:
    """Given codes in place of drawn ones, and what the predictor thought of each."""

    def __init__(self, code: Tensor) -> None:
        self.code, self.logits = code, list[Tensor]()

    def pick(self, logits: Tensor, uniform: Tensor, mask: Any = None, lookup: Any = None) -> Tensor:
        self.logits.append(logits.float().clone())
        if lookup is not None:
            lookup.fetch(self.code)
        return self.code


def logits_of(predictor: Any, rows: int, dtype: torch.dtype) -> Tensor:
    width = predictor.model.codec_embedding[0].weight.shape[1]
    draw = torch.Generator().manual_seed(1)
    hidden, first = (torch.randn(rows, width, generator=draw).to(DEVICE, torch.bfloat16).to(dtype) for _ in range(2))
    probe = Probe(torch.arange(7, 7 + rows, device=DEVICE))
    predictor.generate(hidden, first, torch.zeros(rows, predictor.groups - 1, device=DEVICE), probe)
    return torch.stack(probe.logits)


def check(engine: Engine, rows: list[int]) -> None:
    predictor = engine.model.modules.talker.code_predictor
    exact = deepcopy(predictor).float()
    exact.prepare()
    plain = [mock.patch.object(ops, "pick", lambda op, on: getattr(reference, op))]
    for count in rows:
        with patched(plain):
            expected = logits_of(exact, count, torch.float32)
        for name, patches in ways().items():
            if name.startswith(ONE_ROW_ONLY if count > 1 else MORE_ROWS_ONLY):
                continue
            with patched(patches):
                got = logits_of(predictor, count, predictor.model.norm.weight.dtype)
            error = float((got - expected).norm() / expected.norm())
            wrong = "" if error < 0.04 else " WRONG"
            print(f"{count} rows, {name}: logits {error:.4f} from float32{wrong}", flush=True)


def measure(engine: Engine, rows: list[int], frames: int) -> None:
    for count in rows:
        with StepRig(engine, count, frames) as rig:
            for name, patches in ways().items():
                if name.startswith(ONE_ROW_ONLY if count > 1 else MORE_ROWS_ONLY):
                    continue
                with patched(patches), torch.inference_mode():
                    found = breakdown._frame_parts(rig)
                told = ", ".join(f"{part} {ms:.3f} ({1e3 * moved / BYTES_PER_S:.2f})" for part, ms, moved in found)
                print(f"{count:3} rows, {name:24} {sum(ms for _, ms, _ in found):.3f} ms: {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", default="1,16,64")
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--size", default="1.7b")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds after which it gives up")
    args = parser.parse_args()
    faulthandler.dump_traceback_later(args.limit, exit=True)  # blocks that wait for each other may do so for ever
    began_s = time.perf_counter()

    def step(name: str, run: Callable[[], None]) -> None:
        run()
        print(f"-- {name}: {time.perf_counter() - began_s:.1f} s since the start", flush=True)

    if not (args.folder / "config.json").exists():
        step("written", lambda: write_checkpoint(args.folder, kind="custom_voice", size=args.size, device=DEVICE))
    rows = [int(n) for n in args.rows.split(",")]
    config = EngineConfig(max_rows=max(rows), max_batch=max(rows), warm_rows=1, kv_tokens=32_768)
    engine = sonant.load(args.folder, device=DEVICE, config=config)
    engine.close()
    step("loaded", lambda: None)
    with torch.inference_mode():
        step("checked", lambda: check(engine, rows))
    step("measured", lambda: measure(engine, rows, args.frames))


if __name__ == "__main__":
    main()
