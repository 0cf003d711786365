"""On a GPU, VoxCPM2 at full size with random weights: our engine, and with --official the official package.

    python tests/gpu_voxcpm2.py --folder /tmp/voxcpm2 [--streams 1,32,64] [--official] [--out report.json]

Not a test that pytest collects: it needs a large GPU and some minutes. Every request has 62 patches (9.92 s of sound),
ten flow steps and CFG 2. The official package speaks one request at a time.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import sonant
from sonant import EngineConfig
from sonant.bench.engine import offline
from sonant.bench.engine.breakdown import break_down
from sonant.bench.engine.listener import TEXT
from sonant.bench.engine.offline_table import table
from sonant.models.voxcpm2.synthetic import write_checkpoint

PATCH_S = 0.16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--streams", default="1,32,64")
    parser.add_argument("--steps", default="1,64", help="breakdowns by part")
    parser.add_argument("--frames", type=int, default=62)
    parser.add_argument("--official", action="store_true", help="needs the package voxcpm")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not (args.folder / "config.json").exists():
        write_checkpoint(args.folder, kind="base", size="2b", device=torch.device("cuda"))
    streams = [int(n) for n in args.streams.split(",")]
    began_s = time.perf_counter()
    engine = sonant.load(args.folder, config=EngineConfig(max_rows=max(streams), warm_rows=max(streams)))
    print(f"loaded in {time.perf_counter() - began_s:.1f} s", flush=True)
    with engine:
        result = offline.run(engine, streams, args.frames)
        result.saturated = offline.saturate(engine, args.frames)
    for count in (int(n) for n in args.steps.split(",") if n):
        result.breakdowns.append(break_down(engine, count, args.frames, 1e9 * result.copy_gb_per_s))
    print(table(result), flush=True)
    report: dict[str, Any] = {"ours": result.to_json()}
    del engine
    torch.cuda.empty_cache()
    if args.official:
        report["official"] = official(args.folder, args.frames)
        print("official:", report["official"], flush=True)
    if args.out:
        args.out.write_text(json.dumps(report, indent=1))


@torch.inference_mode()
def official(folder: Path, patches: int) -> dict[str, float]:
    from voxcpm.model.voxcpm2 import VoxCPM2Model

    model = VoxCPM2Model.from_local(str(folder), optimize=True, device="cuda")

    def chunks(count: int) -> list[float]:
        began_s = time.perf_counter()
        options = {"target_text": TEXT, "min_len": count, "max_len": count, "inference_timesteps": 10, "cfg_value": 2.0}
        return [time.perf_counter() - began_s for _ in model.generate_streaming(**options)]

    chunks(8)
    times = chunks(patches)
    step_s = (times[-1] - times[0]) / (len(times) - 1)
    return {"step_ms": 1e3 * step_s, "first_sound_ms": 1e3 * times[0], "rtf": times[-1] / (PATCH_S * len(times))}


if __name__ == "__main__":
    main()
