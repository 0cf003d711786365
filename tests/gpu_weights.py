"""On a GPU: a model's weights, read ahead by threads into pinned memory, and copied from a mapping as before.

    python tests/gpu_weights.py MODEL [--rounds 3]

Both ways in turns, in one process, with the files in memory; every parameter and buffer must be equal to the bit.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from unittest import mock

import torch

from sonant.config import EngineConfig
from sonant.models.registry import load_model
from sonant.models.weight_blocks import held_tensors
from sonant.models.weights import load


def loaded(folder: Path, mapped: bool) -> tuple[float, list[torch.Tensor]]:
    """Seconds, and all tensors. Python's part of it, the vocabulary included, is the same in both."""
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    with mock.patch.object(load, "READ_AHEAD", not mapped):
        model = load_model(folder, EngineConfig(), torch.device("cuda", 0), torch.bfloat16, torch.bfloat16)
    torch.cuda.synchronize()
    took_s = time.perf_counter() - began_s
    return took_s, [held.value for held in held_tensors(model.weights().modules)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    loaded(args.folder, mapped=True)  # kernels, files, imports
    for _ in range(args.rounds):
        mapped_s, before = loaded(args.folder, mapped=True)
        staged_s, now = loaded(args.folder, mapped=False)
        total = sum(t.numel() * t.element_size() for t in now)
        same = len(before) == len(now) and all(torch.equal(a, b) for a, b in zip(before, now, strict=True))
        print(f"{total / 1e9:.2f} GB: mapped {mapped_s:.2f} s, read ahead {staged_s:.2f} s, equal: {same}", flush=True)
        del before, now


if __name__ == "__main__":
    main()
