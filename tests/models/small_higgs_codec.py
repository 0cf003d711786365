"""A codec like Higgs Audio V2's with few channels and random weights, in both of its published forms."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from sonant.models.higgs_audio_v2.codec import CodecDecoder
from sonant.models.higgs_audio_v2.codec_config import CodecConfig
from sonant.models.higgs_audio_v2.codec_encoder import CodecEncoder

RATIOS = [8, 5, 4, 2, 3]
CONFIG: dict[str, Any] = {
    "model_type": "higgs_audio_v2_tokenizer",
    "sample_rate": 24000,
    "target_bandwidths": [0.5, 1, 1.5, 2],
    "codebook_size": 1024,
    "codebook_dim": 4,
    "acoustic_model_config": {
        "model_type": "dac",
        "encoder_hidden_size": 2,
        "decoder_hidden_size": 64,
        "hidden_size": 6,
        "downsampling_ratios": RATIOS,
        "upsampling_ratios": RATIOS,
    },
    "semantic_model_config": {
        "model_type": "hubert",
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "conv_dim": [6] * 7,
        "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 2,
    },
}
_ENDS = {"conv1": 0, "snake1": 6, "conv2": 7}
_UNIT = ("snake1", "conv1", "snake2", "conv2")
_ENCODER_BLOCK = ("res_unit1", "res_unit2", "res_unit3", "snake1", "conv1")
_DECODER_BLOCK = ("snake1", "conv_t1", "res_unit1", "res_unit2", "res_unit3")


def random_weights(seed: int = 0) -> dict[str, Tensor]:
    """Weights by transformers' names, including those that inference does not use; α is of either sign."""
    generator = torch.Generator().manual_seed(seed)
    config = config_of(CONFIG)
    weights: dict[str, Tensor] = {}
    for module in (CodecDecoder(config), CodecEncoder(config)):
        for name, value in module.state_dict().items():
            weights.setdefault(name, random_weight(name, value.shape, generator))
    for level in range(8):
        book = f"quantizer.quantizers.{level}.codebook."
        weights[f"{book}embed_avg"] = 5 * weights[f"{book}embed"]
        weights[f"{book}cluster_size"], weights[f"{book}inited"] = torch.ones(1024), torch.ones(1)
    weights |= {"fc1.weight": torch.ones(12, 18), "fc1.bias": torch.ones(12)}
    return weights | {"decoder_semantic.conv1.weight": torch.ones(12, 12, 3)}


def random_weight(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """A weight of such a size that values, and errors, stay about the same from layer to layer."""
    values = torch.randn(shape, generator=generator)
    if name.endswith("alpha"):
        return values.sign() * (values.abs() + 0.3)
    if "norm" in name or name.endswith("original0"):
        return 1 + values / 10 if name.endswith(("weight", "original0")) else values / 10
    fan_in = 2 * shape[0] if "conv_t1" in name else max(1, values[0].numel())
    return values * (0.3 if "res_unit" in name else 0.7) / fan_in**0.5


def config_of(raw: dict[str, Any]) -> CodecConfig:
    return CodecConfig._from_second_form(raw, "config.json")


def write_native(folder: Path, weights: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors")
    return folder


def write_boson(folder: Path, weights: dict[str, Tensor]) -> Path:
    """Write a folder as Boson publishes it: weight norm not folded, but magnitudes and directions of any length."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    stored = {"semantic_model.masked_spec_embed": torch.ones(12)}
    for name, value in weights.items():
        theirs = boson_name(name)
        if theirs.startswith(("encoder.", "decoder_2.")) and theirs.endswith(".weight"):
            stored[f"{theirs}_g"] = value.flatten(1).norm(dim=1).view(-1, 1, 1)
            stored[f"{theirs}_v"] = 3 * value
        else:
            stored[theirs] = value
    torch.save(stored, folder / "model.pth")
    return folder


def boson_name(name: str) -> str:
    side, *path = name.split(".")
    if side in ("acoustic_encoder", "acoustic_decoder"):
        theirs, block = ("encoder.block", _ENCODER_BLOCK) if side[9] == "e" else ("decoder_2.model", _DECODER_BLOCK)
        if path[0] != "block":
            return f"{theirs}.{_ENDS[path[0]]}.{path[1]}"
        layer = f"{theirs}.{int(path[1]) + 1}.block.{block.index(path[2])}"
        return f"{layer}.block.{_UNIT.index(path[3])}.{path[4]}" if len(path) == 5 else f"{layer}.{path[3]}"
    for ours, theirs in (
        (r"^quantizer\.quantizers\.", "quantizer.vq.layers."), (r"\.codebook\.", "._codebook."),
        (r"^fc\.", "fc_prior."), (r"^fc1\.", "fc_post1."), (r"^fc2\.", "fc_post2."),
        (r"^((?:en|de)coder_semantic\..*conv1?)\.(weight|bias)$", r"\1.conv.\2"),
    ):  # fmt: skip
        name = re.sub(ours, theirs, name)
    return name
