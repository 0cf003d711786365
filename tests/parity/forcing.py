"""Logits with every code given, from one pass over a whole utterance without cache, sampling or batch."""

from __future__ import annotations

import torch
from torch import Tensor

from sonant.layers.attention import FullContext
from sonant.models.qwen3_tts.model import Qwen3TTS
from sonant.types import SpeechRequest


@torch.inference_mode()
def forced(model: Qwen3TTS, request: SpeechRequest, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [frames, groups] → prompt vectors, talker logits at each frame and after the last, predictor logits
    [frames, groups - 1, vocab]."""
    talker, layout, device = model.modules.talker, model.prompter.builder.layout(request), model.device
    text, ids, codes = torch.from_numpy(layout.text).to(device), torch.from_numpy(layout.codes), codes.to(device)
    prompt = talker.embed_position(text, ids.to(device))
    if layout.speaker is not None:
        prompt[layout.speaker_at] += torch.from_numpy(layout.speaker).to(prompt)
    padding = [model.config.tts_pad_token_id] * (len(codes) - len(layout.trailing))
    beside = torch.tensor([*layout.trailing, *padding][: len(codes)], device=device)
    frames = talker.embed_position(beside, codes)
    x = torch.cat([prompt, frames])[None]
    hidden = talker.model(x, torch.arange(x.shape[1], device=device)[None], FullContext())[0, len(prompt) - 1 :]
    first = talker.model.codec_embedding(codes[:, 0])
    rest = talker.code_predictor.forced_logits(hidden[:-1], first, codes[:, 1:])
    return prompt, talker.codec_head(hidden), rest


def relative(ours: Tensor, theirs: Tensor) -> float:
    """‖ours - theirs‖ / ‖theirs‖."""
    return float((ours - theirs).norm() / theirs.norm())
