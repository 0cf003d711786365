"""Puts a trained talker and an exported codec together into the published folder layout, which `sonant.load` opens.

    python -m training.export --checkpoint runs/talker --codec runs/speech_tokenizer --out voice

Weights are stored in half precision. Codebooks are divided out first (entries instead of sums and counts), since
sums of thousands of frames lose too much in it. The codec's encoder serves cloning only, which this voice does not
do; it is left out unless asked for.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sonant.models.qwen3_tts.config import Qwen3TTSConfig
from sonant.models.qwen3_tts.synthetic.shapes import model_shapes
from sonant.models.weights import stored_names
from training import settings
from training.lexicon import SHIPPED as SHIPPED_LEXICON
from training.ship import put_in_place
from training.talker import checkpoint
from training.talker.config import TalkerTraining
from training.talker.folder import write_folder

_SUMS = {"embedding_sum", "embed_sum"}
_LEAST_USAGE = 1e-5  # as in the decoder itself
_NOTICE = """\
{name}

Licence: {license}. Weights of Sonant's own making, trained from nothing on synthetic speech; recipe in the project's
`training` folder. Teachers: Kokoro-82M (Apache-2.0) and hibari-tts (Apache-2.0). Sentences: templates of our own, and
examples and definitions from freely licensed dictionaries.
"""


def published_tensors(weights: Mapping[str, Tensor], config: Qwen3TTSConfig) -> dict[str, Tensor]:
    """The talker's weights under their published names, fused projections taken apart."""
    expected = model_shapes(config)
    tensors: dict[str, Tensor] = {}
    for name, value in weights.items():
        parts = stored_names(f"talker.{name}")
        sizes = [expected[part][0] for part in parts]
        tensors |= dict(zip(parts, value.split(sizes), strict=True))
    if {n: tuple(t.shape) for n, t in tensors.items()} != expected:
        wrong = [n for n in expected if n not in tensors or tensors[n].shape != expected[n]]
        raise ValueError(f"the export differs from the published layout at {wrong[:4]}")
    return tensors


def compact_codec(tensors: Mapping[str, Tensor], dtype: torch.dtype, *, encoder: bool) -> dict[str, Tensor]:
    kept: dict[str, Tensor] = {}
    for name, value in tensors.items():
        book, _, leaf = name.rpartition(".")
        if name.startswith("encoder.") and not encoder:
            continue
        if leaf in _SUMS:
            value = value.float() / tensors[f"{book}.cluster_usage"].float().clamp(min=_LEAST_USAGE)[:, None]
        elif leaf == "cluster_usage":
            value = torch.ones_like(value)
        kept[name] = value.to(dtype) if value.is_floating_point() else value
    return kept


def export(
    weights: Mapping[str, Tensor],
    config: TalkerTraining,
    codec: Path,
    out: Path,
    *,
    dtype: torch.dtype = torch.float16,
    codec_dtype: torch.dtype = torch.float16,
    encoder: bool = False,
    lexicon: Path = SHIPPED_LEXICON,
) -> None:
    """`weights` by their names in the talker; `codec` is an exported speech_tokenizer folder.

    What is at `out` is replaced when all of the new folder is written: codec and lexicon may lie in it.
    """
    part = out.with_name(f"{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    model = write_folder(part, config, codec, config.voice.shipped, dtype, lexicon)
    tensors = {n: t.detach().to("cpu", dtype).contiguous() for n, t in published_tensors(weights, model).items()}
    save_file(tensors, part / "model.safetensors", {"format": "pt"})
    parts = compact_codec(load_file(codec / "model.safetensors"), codec_dtype, encoder=encoder)
    save_file(parts, part / "speech_tokenizer" / "model.safetensors", {"format": "pt"})
    (part / "LICENSE.txt").write_text(
        _NOTICE.format(name=config.voice.name, license=config.voice.license), encoding="utf-8"
    )
    put_in_place(part, out)


def sizes(folder: Path) -> dict[str, int]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.stat().st_size for p in files}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=settings.CONFIGS / "talker.toml")
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of talker-*.safetensors")
    parser.add_argument("--codec", type=Path, required=True, help="an exported speech_tokenizer folder")
    parser.add_argument("--out", type=Path, required=True, help="is replaced")
    dtypes = ["float32", "bfloat16", "float16"]
    parser.add_argument("--dtype", choices=dtypes, default="float16")
    parser.add_argument("--codec-dtype", choices=dtypes, default="float16")
    parser.add_argument("--encoder", action="store_true", help="keep the codec's encoder")
    parser.add_argument("--lexicon", type=Path, default=SHIPPED_LEXICON, help="default: the one that ships")
    options = parser.parse_args()
    export(
        checkpoint.averaged(options.checkpoint),
        settings.read(options.config, TalkerTraining),
        options.codec,
        options.out,
        dtype=getattr(torch, options.dtype),
        codec_dtype=getattr(torch, options.codec_dtype),
        encoder=options.encoder,
        lexicon=options.lexicon,
    )
    for name, size in sizes(options.out).items():
        print(f"{size:12,}  {name}")
    print(f"{sum(sizes(options.out).values()) / 1e6:.1f} MB in all")


if __name__ == "__main__":
    main()
