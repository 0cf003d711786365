"""On a GPU, at full size: does it load, stream, and compute what the CPU computes? Prints a report.

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
from sonant import EngineConfig
from sonant.bench import offline
from sonant.bench.listener import TEXT
from sonant.bench.offline_table import table
from sonant.layers.attention import FullContext
from sonant.models.qwen3_tts.model import Qwen3TTS
from sonant.models.qwen3_tts.synthetic import write_checkpoint
from sonant.types import SpeechRequest


@torch.inference_mode()
def forced_logits(model: Qwen3TTS, prompt_text: str, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Talker logits at every frame of `codes` [T, groups] and predictor logits of each, all codes given."""
    talker, device = model.modules.talker, model.device
    layout = model.builder.layout(SpeechRequest(text=prompt_text))
    text, ids = torch.from_numpy(layout.text).to(device), torch.from_numpy(layout.codes).to(device)
    prompt = talker.embed_position(text, ids, layout.has_frames)
    frames = talker.embed_frame(codes.to(device)) + model.pad_text
    x = torch.cat([prompt, frames])[None]
    hidden = talker.model(x, torch.arange(x.shape[1], device=device)[None], FullContext())[0, len(prompt) - 1 :]
    first = talker.model.codec_embedding(codes[:, 0].to(device))
    rest = talker.code_predictor.forced_logits(hidden[:-1], first, codes[:, 1:].to(device))
    return talker.codec_head(hidden).float().cpu(), rest.float().cpu()


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


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
    codes = torch.from_numpy(spoken.codes).long()
    on_gpu = forced_logits(engine.model, TEXT, codes)
    alone = engine.speak(TEXT, seed=7, max_frames=30).codes
    report["same_codes_twice"] = bool((engine.speak(TEXT, seed=7, max_frames=30).codes == alone).all())
    engine.close()
    start = time.perf_counter()
    on_cpu = sonant.load(args.folder, device="cpu")
    assert isinstance(on_cpu.model, Qwen3TTS)
    report["cpu_load_s"] = time.perf_counter() - start
    truth = forced_logits(on_cpu.model, TEXT, codes)
    report["talker_logits_relative_error"] = relative(on_gpu[0], truth[0])
    report["predictor_logits_relative_error"] = relative(on_gpu[1], truth[1])
    report["logits_std"] = float(truth[0].std())
    report["talker_max_abs_error"] = float((on_gpu[0] - truth[0]).abs().max())
    print(json.dumps({k: v for k, v in report.items() if k != "bench"}, indent=1))
    if args.out:
        args.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
