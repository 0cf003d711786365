"""On a GPU, Higgs Audio V2 at full size with random weights: our engine and transformers' `generate`, in one run.

    python tests/gpu_higgs.py --folder /tmp/higgs [--streams 1,16,64,256] [--peer 1,16] [--out report.json]

Not a test that pytest collects: it needs a large GPU, transformers 5.17 for the peer, and some minutes. Every request
has 250 frames, ten seconds of sound. The peer's figures are of its language model alone, for all rows of a batch at
once; it decodes sound after the last frame, so its first sound comes at the very end.
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
from sonant.models.higgs_audio_v2.model import HiggsAudioV2
from sonant.models.higgs_audio_v2.synthetic import write_checkpoint
from sonant.types import SpeechRequest

FRAME_S = 0.04
PEER_FRAMES = 60  # enough: its steps take nearly as long with 60 frames as with 250


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--streams", default="1,16,64,256")
    parser.add_argument("--steps", default="1,64,256", help="breakdowns by part")
    parser.add_argument("--peer", default="1,16")
    parser.add_argument("--frames", type=int, default=250)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not (args.folder / "config.json").exists():
        began_s = time.perf_counter()
        write_checkpoint(args.folder, kind="base", size="3b", device=torch.device("cuda"))
        print(f"wrote the checkpoint in {time.perf_counter() - began_s:.1f} s", flush=True)
    report: dict[str, Any] = {}
    streams = [int(n) for n in args.streams.split(",")]
    began_s = time.perf_counter()
    engine = sonant.load(args.folder, config=EngineConfig(max_rows=max(streams), warm_rows=max(streams)))
    print(f"loaded in {time.perf_counter() - began_s:.1f} s", flush=True)
    with engine:
        result = offline.run(engine, streams, args.frames)
        result.saturated = offline.saturate(engine, args.frames)
    if args.steps:
        for count in (int(n) for n in args.steps.split(",")):
            result.breakdowns.append(break_down(engine, count, args.frames, 1e9 * result.copy_gb_per_s))
    print(table(result), flush=True)
    report["ours"] = result.to_json()
    assert isinstance(engine.model, HiggsAudioV2)
    prompt = torch.from_numpy(engine.model.prompter.builder.layout(SpeechRequest(text=TEXT)).text[:-1]).long()
    del engine
    torch.cuda.empty_cache()
    report["transformers"] = [peer(args.folder, prompt, int(n)) for n in args.peer.split(",")] if args.peer else []
    for row in report["transformers"]:
        print("transformers:", row, flush=True)
    if args.out:
        args.out.write_text(json.dumps(report, indent=1))


@torch.inference_mode()
def peer(folder: Path, prompt: torch.Tensor, batch: int) -> dict[str, float]:
    from transformers import HiggsAudioV2ForConditionalGeneration

    model = HiggsAudioV2ForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16).cuda().eval()
    ids = prompt[None].repeat(batch, 1).cuda()

    def seconds(rows: int) -> float:
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=rows, do_sample=True)
        torch.cuda.synchronize()
        return time.perf_counter() - began_s

    seconds(10)
    first_s, all_s = seconds(1), seconds(PEER_FRAMES)
    frame_s = (all_s - first_s) / (PEER_FRAMES - 1)
    x_real_time = batch * FRAME_S / frame_s
    return {"streams": batch, "frame_ms": 1e3 * frame_s, "first_row_ms": 1e3 * first_s, "x_real_time": x_real_time}


if __name__ == "__main__":
    main()
