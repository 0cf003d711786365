"""Would the built-in voice sound the same if the codec's convolutions had eight bits? Makes clips on a CPU, for judges.

    python tests/codec_rounding.py CODES.tar --out OUT [--ways exact,e4m3-wide,e4m3,int8-wide,int8,int8-drawn]

Not a test that pytest collects. The codes in a tar of tests/gpu_fp8_voice.py are vocoded again in float32, with inputs
and weights of some convolutions rounded; each way gives a tar for tests/judge_voice.py, with `exact` first. Ways:
- e4m3: weights have a scale for each output channel, inputs one for all.
- int8: inputs have a scale for each channel, which is multiplied into the weight before this gets one for each output
  channel.
- -wide: only the convolutions of seven taps in residual units; without it all but the last one.
- int8-drawn: what `--quantize fp8` does to a codec of the published size, with scales from drawn codes: convolutions of
  seven taps in the three widest of four blocks, computed as in kernels/reference/int8_unit.py.
The other ways take the scales of inputs from each sentence itself; a kernel would have to know them beforehand.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_fp8_voice import INDEX, flac, write
from sonant import EngineConfig
from sonant.bundled import bundled_voice
from sonant.kernels import ops, reference
from sonant.kernels.reference import Snake, Unit, conv, quantize_rows
from sonant.models.qwen3_tts import codec_int8
from sonant.models.qwen3_tts.codec import CodecDecoder, ResidualUnit
from sonant.models.qwen3_tts.model import Qwen3TTS
from sonant.models.registry import load_model

WAYS = ("exact", "e4m3-wide", "e4m3", "int8-wide", "int8", "int8-drawn")
LARGEST = 127.0  # of int8, without -128, which has no positive counterpart
Sounds = list[npt.NDArray[np.float32]]


def in_e4m3(x: Tensor) -> Tensor:
    """Round x [N, …] with one scale for each of the N."""
    values, scale = quantize_rows(x.flatten(1))
    return (values.float() * scale).view(x.shape)


def in_int8(x: Tensor) -> Tensor:
    scale = x.flatten(1).abs().amax(1).clamp(min=1e-9).view(-1, *(1,) * (x.dim() - 1)) / LARGEST
    return (x / scale).round() * scale


@dataclass
class Rounded:
    """Takes the place of `convolve`."""

    way: str

    def __call__(self, x: Tensor, weight: Tensor, **options: int) -> Tensor:
        columns, inputs, taps = weight.shape
        if columns == 1 or (self.way.endswith("-wide") and (taps < 7 or columns != inputs)):
            return _exact(x, weight, **options)
        if self.way.startswith("e4m3"):
            return _exact(in_e4m3(x[None])[0], in_e4m3(weight), **options)
        channels = x.abs().amax((0, 1)).clamp(min=1e-9) / LARGEST
        return _exact((x / channels).round(), in_int8(weight * channels[:, None]), **options)


_exact = conv.convolve


def in_eight_bits(
    x: Tensor, active: Tensor, unit: Unit, past: Tensor | None, following: Snake, *, keep: bool = True
) -> tuple[Tensor, Tensor]:
    """Takes the place of `residual_unit`."""
    computed = reference.residual_unit if unit.int8 is None else reference.int8_unit
    return computed(x, active, unit, past, following, keep=keep)


@contextmanager
def by(way: str, decoder: CodecDecoder) -> Iterator[None]:
    if way == "int8-drawn":
        widths = [decoder.config.decoder_dim >> n for n in (1, 2, 3)]
        with mock.patch.object(codec_int8, "LAYOUTS", widths), mock.patch.object(ops, "residual_unit", in_eight_bits):
            codec_int8.quantize_units(decoder)
            yield
        for unit in decoder.modules():
            if isinstance(unit, ResidualUnit):
                unit.int8 = None
        return
    with mock.patch.object(conv, "convolve", _exact if way == "exact" else Rounded(way)):
        yield


def vocode(model: Qwen3TTS, index: list[dict[str, Any]], way: str) -> Sounds:
    first = torch.zeros(1, dtype=torch.long)
    with by(way, model.modules.decoder), torch.inference_mode():
        return [model.modules.decoder(torch.tensor(said["codes"])[None], first).flatten().numpy() for said in index]


def noise_db(sounds: Sounds, exact: Sounds) -> str:
    ratios = [10 * np.log10((e**2).sum() / ((s - e) ** 2).sum()) for s, e in zip(sounds, exact, strict=True)]
    return f"signal to noise {np.mean(ratios):.1f} dB, {np.min(ratios):.1f} at worst"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("codes", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ways", default=",".join(WAYS))
    args = parser.parse_args()
    with tarfile.open(args.codes) as tar:
        held = tar.extractfile(INDEX)
        assert held is not None, f"{args.codes} has no {INDEX}"
        index = json.load(held)
    folder = bundled_voice()
    assert folder is not None, "this copy of Sonant came without its voice"
    model = load_model(folder, EngineConfig(max_rows=1), torch.device("cpu"), torch.float32, torch.float32)
    assert isinstance(model, Qwen3TTS)
    args.out.mkdir(parents=True, exist_ok=True)
    exact = vocode(model, index, "exact")
    for way in args.ways.split(","):
        sounds = exact if way == "exact" else vocode(model, index, way)
        write(args.out / f"{way}.tar", index, (flac(sound, model.spec.sample_rate) for sound in sounds))
        print(f"{way}: {'' if way == 'exact' else noise_db(sounds, exact)}", flush=True)


if __name__ == "__main__":
    main()
