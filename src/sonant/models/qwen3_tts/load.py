"""Puts a Qwen3-TTS folder together: what the registry calls."""

from __future__ import annotations

from pathlib import Path

import torch

from sonant.config import EngineConfig
from sonant.models.qwen3_tts.checkpoint import load_modules
from sonant.models.qwen3_tts.model import Qwen3TTS
from sonant.models.qwen3_tts.prompter import load_prompter
from sonant.models.weights import HostMemory


def load(
    folder: Path,
    options: EngineConfig,
    device: torch.device,
    dtype: torch.dtype,
    codec_dtype: torch.dtype,
    host: HostMemory | None = None,
) -> Qwen3TTS:
    prompter = load_prompter(folder, options)
    modules = load_modules(folder, prompter.config, device, dtype, codec_dtype, host, options.quantize)
    return Qwen3TTS(prompter, modules, options.frame_sizes(prompter.spec.frame_s))
