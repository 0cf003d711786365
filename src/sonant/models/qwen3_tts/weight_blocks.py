"""The weights of Qwen3-TTS that can leave a GPU that is too small for it, in the order of use.

Text is embedded in prefill only, and its table is by far the largest. The predictor is read fifteen times for a frame,
so it leaves last. A checkpoint that clones also decodes reference clips while steps run (`Qwen3TTS.opening`): its codec
stays, since a lane's slots serve one pass at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from sonant.models.qwen3_tts.codec import CodecDecoder, UpsampleBlock
from sonant.models.qwen3_tts.codec_encoder import CodecEncoder
from sonant.models.qwen3_tts.speaker import SpeakerEncoder
from sonant.models.qwen3_tts.talker import Talker
from sonant.models.weight_blocks import (
    LookupTable,
    ModelWeights,
    WeightBlock,
    encoder_lane,
    stack_blocks,
)

if TYPE_CHECKING:
    from sonant.models.qwen3_tts.checkpoint import Modules

_CODEC_READS = 1.0  # in a step, roughly: with several listeners a chunk is nearly always due


def model_weights(modules: Modules) -> ModelWeights:
    present = [m for m in (modules.talker, modules.decoder, modules.speaker, modules.encoder) if m is not None]
    blocks: list[WeightBlock] = []
    if modules.encoder is None:
        blocks += codec_blocks(modules.decoder)
    else:
        blocks += encoder_blocks(modules.encoder)
    if modules.speaker is not None:
        blocks += speaker_blocks(modules.speaker)
    blocks += talker_blocks(modules.talker)
    return ModelWeights(tuple(present), tuple(blocks), (text_table(modules.talker),))


def text_table(talker: Talker) -> LookupTable:
    return LookupTable("text embedding", talker.model.text_embedding)


def talker_blocks(talker: Talker) -> list[WeightBlock]:
    predictor = talker.code_predictor
    return [
        *stack_blocks(talker.model, "talker", 1),
        *stack_blocks(predictor.model, "predictor", predictor.groups - 1),
    ]


def encoder_blocks(encoder: CodecEncoder) -> list[WeightBlock]:
    return encoder_lane([encoder.encoder, *encoder.encoder_transformer.layers], "voice encoder")


def speaker_blocks(speaker: SpeakerEncoder) -> list[WeightBlock]:
    """A lane of its own: a clip without a transcript goes through this one only."""
    return encoder_lane([*speaker.blocks, speaker.mfa, speaker.asp], "speaker encoder")


def codec_blocks(decoder: CodecDecoder) -> list[WeightBlock]:
    """Its transformer, then its upsampling. A block's first activation stays, since the block before it reads that."""
    blocks = stack_blocks(decoder.pre_transformer, "codec", _CODEC_READS)
    for stage in decoder.upsample.children():
        blocks += [_block(len(blocks), part, (part,)) for part in stage.children()]
    for part in decoder.decoder.children():
        if isinstance(part, UpsampleBlock):
            blocks.append(_block(len(blocks), part, tuple(part.block[1:])))
    return blocks


def _block(n: int, call: nn.Module, holds: tuple[nn.Module, ...]) -> WeightBlock:
    return WeightBlock(f"codec {n}", "codec", call, holds, _CODEC_READS)
