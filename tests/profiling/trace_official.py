"""Traces the official Qwen3-TTS package while it speaks, for `sonant profile read`. Not a test.

    python tests/profiling/trace_official.py --qwen DIR --out official [--size 1.7b] [--frames 24] [--batch 1]

--qwen is the unpacked qwen-tts 0.1.1 wheel; tests/parity/README.md tells how to get it and what it needs. Weights are
random: the work is the same. Takes under two minutes on a GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent / "src"), str(TESTS), str(TESTS / "parity")]

from profiling.recording import StepRanges, record  # noqa: E402
from sonant.models.qwen3_tts.synthetic.writer import write_checkpoint  # noqa: E402

TEXT = "The quick brown fox jumps over the lazy dog while seven wise owls watch from the old oak tree."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--qwen", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", choices=("tiny", "0.6b", "1.7b"), default="1.7b")
    parser.add_argument("--frames", type=int, default=24)
    parser.add_argument("--batch", type=int, default=1)
    args = parser.parse_args()
    sys.path.insert(0, str(args.qwen))
    from official import stubs

    stubs.install()
    from qwen_tts import Qwen3TTSModel

    cuda = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), kind="custom_voice", size=args.size, device=device, eos_gain=0.0)
        tts = Qwen3TTSModel.from_pretrained(folder, dtype=dtype, device_map=device, attn_implementation="sdpa")

    def generate(frames: int) -> None:
        texts, voices, languages = [TEXT] * args.batch, ["Ryan"] * args.batch, ["English"] * args.batch
        tts.generate_custom_voice(texts, speaker=voices, language=languages, max_new_tokens=frames)

    ranges, codec = StepRanges(tts.model.talker.model), tts.model.speech_tokenizer
    decode = codec.decode

    def after_the_last_step(*given: Any, **named: Any) -> Any:
        ranges.end()
        return decode(*given, **named)

    codec.decode = after_the_last_step
    record(generate, ranges, args.out, args.frames)


if __name__ == "__main__":
    main()
