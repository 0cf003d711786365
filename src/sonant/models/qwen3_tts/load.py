"""Loads a Qwen3-TTS folder as a model, for the registry."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from sonant.config import EngineConfig
from sonant.errors import CheckpointError
from sonant.kernels.gpu import gpu_of
from sonant.layers.transformer import bound_values, fold_gains
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
    prompter = load_prompter(folder, options, read_now=False)
    read_vocabulary = prompter.builder.tokenizer.read
    speaks = device.type != "meta"  # a model on the meta device is only checked or planned with
    reading = threading.Thread(target=_quietly, args=(read_vocabulary,), name="sonant-vocabulary")
    if speaks:  # Reading the vocabulary takes about as long as the weights, which are only copied.
        reading.start()
    try:
        modules = load_modules(folder, prompter.config, device, dtype, codec_dtype, host, options.quantize)
    except CheckpointError:
        read_vocabulary()  # If there is something wrong with it too, that error comes first.
        raise
    if options.gpu_weights is None and dtype.itemsize == 2 and gpu_of(device) is not None:
        # `heads` is False for the talker: attention over its paged cache has many blocks for a row, each of which would
        # compute the norm's factor anew.
        fold_gains(modules.talker.model, heads=False)
        fold_gains(modules.talker.code_predictor.model, heads=True)
        bound_values(modules.talker.model)
        bound_values(modules.talker.code_predictor.model)
    if speaks:
        read_vocabulary()
    return Qwen3TTS(prompter, modules, options.frame_sizes(prompter.spec.frame_s))


def _quietly(read: Callable[[], object]) -> None:
    """Read it, and leave errors to the caller that reads it again."""
    with suppress(CheckpointError):
        read()
