"""Logits of Higgs Audio V2 with every row given, from one pass over an utterance without cache, sampling or batch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sonant.kernels.reference import split_kinds
from sonant.layers.attention import FullContext
from sonant.models.higgs_audio_v2.language_model import DualLayer
from sonant.models.higgs_audio_v2.model import HiggsAudioV2
from sonant.types import SpeechRequest


@torch.inference_mode()
def forced_logits(model: HiggsAudioV2, request: SpeechRequest, rows: Tensor) -> Tensor:
    """Logits after each of rows [n, codebooks], the first of which ends the prompt → [n, codebooks, codebook_size]."""
    layout, stack, device = model.prompter.builder.layout(request), model.modules.language_model.model, model.device
    text = np.concatenate([layout.text, np.zeros(len(rows) - 1, np.int32)])
    codes = torch.cat([torch.from_numpy(layout.codes), rows[1:].int()]).to(device)[None]
    x = stack.embed_position(torch.from_numpy(text).to(device)[None], codes)
    cos, sin = stack.rotations(torch.arange(len(text), device=device)[None], x.dtype)
    split = split_kinds((codes[..., 0] >= 0).int())
    for layer in stack.layers:
        assert isinstance(layer, DualLayer)
        x = layer(x, cos, sin, FullContext(), split)
    hidden = stack.norm(x)[0, len(layout.text) - 1 :]
    return model.modules.language_model.audio_lm_head(hidden).unflatten(1, (codes.shape[2], -1)).float()
