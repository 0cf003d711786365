"""Averages two checkpoints of one codec whose encoder and codebooks are the same.

    python -m training.codec.blend runs/codec runs/decoder --share 0.8 --out runs/blend

A decoder that went on to learn from a voice's guesses says words better and sounds a little worse than the one it
started from; an average of the two keeps most of both.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from training import state
from training.codec.checkpoint import NAME

_SAME = ("averaged.encoder.", "codec.")


def blend(first: dict[str, Tensor], second: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    """Average them, with `share` of the second. Both are compact; the discriminators are the second's."""
    if first.keys() != second.keys():
        raise ValueError(f"not of one shape: {sorted(first.keys() ^ second.keys())[:3]}")
    if other := [n for n in first if n.startswith(_SAME) and not torch.equal(first[n], second[n])]:
        raise ValueError(f"their codes are not the same: {other[:3]}")
    return {
        n: first[n].float().lerp(t.float(), share).to(t.dtype) if n.startswith("averaged.") else t
        for n, t in second.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--share", type=float, required=True, help="of the second, from 0 to 1")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    (first, _), (second, meta) = (state.read(folder, NAME) for folder in (options.first, options.second))
    state.write(options.out, NAME, blend(first, second, options.share), meta)


if __name__ == "__main__":
    main()
