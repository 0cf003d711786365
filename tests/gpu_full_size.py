"""On a GPU, at full size: does the engine load, stream, and compute what the CPU computes? Prints a report.

Not a test that pytest collects: it needs a large GPU and about 20 GB of memory, and takes two minutes.

    python tests/gpu_full_size.py --folder /tmp/full [--tokenizer-from DIR] [--out report.json]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

import sonant
from parity.forcing import forced, relative
from sonant import EngineConfig
from sonant.bench.engine import offline
from sonant.bench.engine.listener import TEXT
from sonant.bench.engine.offline_table import table
from sonant.models.qwen3_tts.model import Qwen3TTS
from sonant.models.qwen3_tts.synthetic.writer import write_checkpoint
from sonant.types import SpeechRequest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--tokenizer-from", type=Path)
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--frames", type=int, default=125)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    report: dict[str, object] = {}
    if not (args.folder / "config.json").exists():
        start = time.perf_counter()
        write_checkpoint(
            args.folder, kind="custom_voice", size="1.7b", device="cuda", tokenizer_from=args.tokenizer_from
        )
        print(f"wrote the checkpoint in {time.perf_counter() - start:.1f} s", flush=True)
    start = time.perf_counter()
    rows = max(int(n) for n in args.streams.split(","))
    engine = sonant.load(args.folder, config=EngineConfig(max_rows=rows, warm_rows=rows))
    torch.cuda.synchronize()
    report["load_s"] = time.perf_counter() - start
    report["weights_gb"] = torch.cuda.memory_allocated() / 1e9
    print(f"loaded in {report['load_s']:.1f} s", flush=True)
    result = offline.run(engine, [int(n) for n in args.streams.split(",")], args.frames)
    print(table(result), flush=True)
    report["bench"] = result.to_json()
    spoken = engine.speak(TEXT, seed=1, max_frames=40)
    assert isinstance(engine.model, Qwen3TTS)
    codes = torch.from_numpy(spoken.frames).long()
    on_gpu = [t.float().cpu() for t in forced(engine.model, SpeechRequest(text=TEXT), codes)[1:]]
    alone = engine.speak(TEXT, seed=7, max_frames=30).frames
    report["same_codes_twice"] = bool((engine.speak(TEXT, seed=7, max_frames=30).frames == alone).all())
    engine.close()
    start = time.perf_counter()
    on_cpu = sonant.load(args.folder, device="cpu")
    assert isinstance(on_cpu.model, Qwen3TTS)
    report["cpu_load_s"] = time.perf_counter() - start
    truth = [t.float() for t in forced(on_cpu.model, SpeechRequest(text=TEXT), codes)[1:]]
    report["talker_logits_relative_error"] = relative(on_gpu[0], truth[0])
    report["predictor_logits_relative_error"] = relative(on_gpu[1], truth[1])
    report["logits_std"] = float(truth[0].std())
    report["talker_max_abs_error"] = float((on_gpu[0] - truth[0]).abs().max())
    print(json.dumps({k: v for k, v in report.items() if k != "bench"}, indent=1))
    if args.out:
        args.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
