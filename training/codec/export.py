"""Writes a trained codec as the published `speech_tokenizer` folder, which sonant and the official package open.

python -m training.codec.export --checkpoint runs/codec --out voice/speech_tokenizer
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from sonant.models.qwen3_tts.config import CodecConfig
from sonant.models.qwen3_tts.synthetic.presets import small_files
from sonant.models.qwen3_tts.synthetic.shapes import codec_shapes
from sonant.models.weights import FUSED
from training import settings
from training.codec import checkpoint
from training.codec.config import CodecTraining
from training.codec.model import Codec
from training.codec.trainer import Trainer

_TOGETHER = "speech_tokenizer/"


def published_tensors(codec: Codec) -> dict[str, Tensor]:
    """Encoder and decoder under their published names: fused projections taken apart, codebooks in both."""
    codec.share_codebooks()
    tensors: dict[str, Tensor] = {}
    for part, module in (("encoder", codec.encoder), ("decoder", codec.decoder)):
        for name, value in module.state_dict().items():
            tensors |= _unfused(f"{part}.{name}", value)
    return tensors


def _unfused(name: str, value: Tensor) -> dict[str, Tensor]:
    for fused, parts in FUSED.items():
        if f".{fused}." in name:  # the codec has as many key heads as query heads, so the parts are equal
            pieces = value.chunk(len(parts))
            return {name.replace(f".{fused}.", f".{p}."): v for p, v in zip(parts, pieces, strict=True)}
    return {name: value}


def export(codec: Codec, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Codebook sums stay in float32 whatever `dtype` is: they are divided before use."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(codec.config.shape.published(), indent=2), encoding="utf-8")
    for name, content in small_files().items():
        if name.startswith(_TOGETHER):
            (folder / name.removeprefix(_TOGETHER)).write_text(json.dumps(content, indent=2), encoding="utf-8")
    tensors = published_tensors(codec)
    expected = codec_shapes(CodecConfig.read(folder))
    if {n: tuple(t.shape) for n, t in tensors.items()} != expected:
        wrong = list(tensors.keys() ^ expected.keys()) or [n for n in expected if tensors[n].shape != expected[n]]
        raise ValueError(f"the export differs from the published layout at {wrong[:4]}")
    kept = {n: t if "codebook" in n else t.to(dtype) for n, t in tensors.items()}
    data = {n: t.detach().cpu().contiguous().clone() for n, t in kept.items()}
    save_file(data, folder / "model.safetensors", {"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=settings.CONFIGS / "codec.toml")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    options = parser.parse_args()
    trainer = Trainer(settings.read(options.config, CodecTraining), torch.device("cpu"))
    checkpoint.load(trainer, options.checkpoint)
    with trainer.averaged_weights() as codec:
        export(codec, options.out, getattr(torch, options.dtype))
    size = (options.out / "model.safetensors").stat().st_size
    print(f"{options.out}: {size / 1e6:.1f} MB after {trainer.step_number:,} steps")


if __name__ == "__main__":
    main()
