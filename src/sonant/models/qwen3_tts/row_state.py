"""The per-row state of Qwen3-TTS: what the host sets once, and what the steps keep on the device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sonant.config import FrameSizes
from sonant.models.memory import Memory
from sonant.models.qwen3_tts.checkpoint import Modules
from sonant.models.qwen3_tts.config import Qwen3TTSConfig
from sonant.models.qwen3_tts.layout import TRAILING_TOKENS
from sonant.models.spec import Field
from sonant.models.status import Status

COUNTED = ("position", "frame", "status")
"""The counters that every frame step writes, side by side in a row's line."""


def state_fields(config: Qwen3TTSConfig, modules: Modules, sizes: FrameSizes) -> tuple[Field, ...]:
    talker, dtype = config.talker, modules.talker.codec_head.weight.dtype
    decoder, codec_dtype = modules.decoder, modules.decoder.pre_conv.conv.weight.dtype
    return (
        *(Field(name, (), torch.int32) for name in (*COUNTED, "codec_position", "codec_frame")),
        Field("input", (talker.hidden_size,), dtype),
        Field("trailing", (TRAILING_TOKENS, talker.hidden_size), dtype),
        Field("seen", (talker.vocab_size,), torch.bool),
        Field("codes", (sizes.ring, talker.num_code_groups), torch.int32),
        Field("codec_tails", (decoder.tails_size,), codec_dtype),
        Field("codec_ring", decoder.ring_shape(sizes.chunks[-1]), codec_dtype, row_dim=2),
    )


def draw_values(fields: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """The rows' sampling parameters, as `Draw` takes them."""
    return {name: fields[prefix + name] for name in ("greedy", "temperature", "top_k", "top_p")}


def settle(memory: Memory) -> None:
    """Set what must not be arbitrary before a row's first request. The scratch row never gets one."""
    rows = memory.rows
    for name in ("position", "frame", "codec_position", "codec_frame"):
        rows[name].zero_()
    rows["status"].fill_(Status.STOPPED)  # frozen until a prefill readies the row
    for name in ("temperature", "subtalker_temperature"):
        rows[name].fill_(1)


def start_rows(memory: Memory, rows: Tensor, lengths: Tensor, inputs: Tensor) -> None:
    """Ready rows [B] to decode from their prompts' last positions; the scratch row may be among them."""
    r = memory.rows
    r["input"][rows] = inputs
    r["position"][rows] = lengths.int() - 1
    r["status"][rows] = torch.where(rows == memory.scratch_row, int(Status.STOPPED), int(Status.RUNNING)).int()
    r["seen"].index_fill_(0, rows, False)
    for name in ("frame", "codec_position", "codec_frame"):
        r[name].index_fill_(0, rows, 0)
    r["codec_tails"].index_fill_(0, rows, 0)
    r["codec_ring"].index_fill_(2, rows, 0)
