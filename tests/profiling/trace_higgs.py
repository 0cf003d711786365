"""Traces transformers' Higgs Audio V2 while it generates, for `sonant profile read`. Not a test.

    python tests/profiling/trace_higgs.py --out higgs [--frames 40] [--batch 1]

Needs transformers 5.17 and 12 GB of GPU memory. Weights are random and of full size (the 3B base with its audio
layers): the work is the same, though a random end may come early. Traces the language model only; its codec runs once,
at the end of an utterance. Takes under two minutes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from transformers import HiggsAudioV2Config, HiggsAudioV2ForConditionalGeneration

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from profiling.recording import StepRanges, record

CODEBOOK = 1026  # 1024 codes, a begin and an end, which the class's default lacks
PROMPT_TOKENS = 80
TINY = {"hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 16}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tiny", action="store_true", help="to try the script itself")
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    config = HiggsAudioV2Config(codebook_size=CODEBOOK, **(TINY if args.tiny else {}))
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = HiggsAudioV2ForConditionalGeneration(config).eval()
    torch.set_default_dtype(torch.float32)
    prompt = torch.randint(0, 128_000, (args.batch, PROMPT_TOKENS), device=device)
    prompt[:, -1] = config.audio_bos_token_id

    @torch.inference_mode()
    def generate(frames: int) -> None:
        mask = torch.ones_like(prompt)
        model.generate(input_ids=prompt, attention_mask=mask, max_new_tokens=frames, do_sample=True)

    record(generate, StepRanges(model.model, "input_ids"), args.out, args.frames)


if __name__ == "__main__":
    main()
