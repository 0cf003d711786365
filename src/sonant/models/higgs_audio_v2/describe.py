"""Tells what a Higgs Audio V2 folder holds and whether it would load, without reading a weight."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sonant.config import EngineConfig
from sonant.models.description import Description, Footprint
from sonant.models.higgs_audio_v2.config import HiggsConfig
from sonant.models.higgs_audio_v2.prompt import FAMILY, PromptBuilder
from sonant.models.higgs_audio_v2.spoken_text import MOST_SPEAKERS

if TYPE_CHECKING:
    import torch

_SAMPLE_RATE = 24_000
_FRAME_RATE = 25.0


def describe(folder: Path) -> Description:
    config = HiggsConfig.read(folder)
    return Description(
        family=FAMILY,
        kind="base",
        size=f"{config.llama.num_hidden_layers} layers of {config.llama.hidden_size}",
        voices=(),
        languages=PromptBuilder.languages,
        clones=True,
        designs=True,
        sample_rate=_SAMPLE_RATE,
        frame_rate=_FRAME_RATE,
        most_speakers=MOST_SPEAKERS,
    )


def check(folder: Path, options: EngineConfig, dtype: torch.dtype, codec_dtype: torch.dtype) -> Footprint:
    """Load onto the meta device: every check of a real load is made, and no weight is read."""
    import torch  # imported here, since `describe` does not need it

    from sonant.models.higgs_audio_v2.load import load

    model = load(folder, options, torch.device("meta"), dtype, codec_dtype)
    parts = model.modules
    tensors = [t for m in (parts.language_model, parts.decoder, parts.encoder) for t in m.state_dict().values()]
    return Footprint(weight_bytes=sum(t.numel() * t.element_size() for t in tensors), spec=model.spec)
