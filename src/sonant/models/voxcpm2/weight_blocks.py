"""The weights of VoxCPM2 that can leave a GPU that is too small for it, in the order of use.

The flow's estimator is read once for each step that moves, so it leaves last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sonant.models.voxcpm2.flow import evaluations
from sonant.models.voxcpm2.knobs import USUAL_STEPS
from sonant.models.voxcpm2.modules import VoxCPM2Modules
from sonant.models.voxcpm2.vae import UpsampleBlock, VAEDecoder
from sonant.models.voxcpm2.vae_encoder import DownsampleBlock, VAEEncoder
from sonant.models.weight_blocks import LookupTable, ModelWeights, WeightBlock, encoder_lane, stack_blocks

if TYPE_CHECKING:
    from sonant.models.voxcpm2.model import Modules

_CODEC_READS = 1.0  # in a step, roughly: with several listeners a chunk is nearly always due


def model_weights(modules: Modules) -> ModelWeights:
    blocks = (*encoder_blocks(modules.encoder), *stack_lanes(modules.model), *codec_blocks(modules.decoder))
    return ModelWeights((modules.model, modules.decoder, modules.encoder), blocks, (text_table(modules.model),))


def text_table(model: VoxCPM2Modules) -> LookupTable:
    return LookupTable("text embedding", model.base_lm.embed_tokens)


def stack_lanes(model: VoxCPM2Modules) -> list[WeightBlock]:
    return [
        *stack_blocks(model.base_lm, "base", 1),
        *stack_blocks(model.residual_lm, "residual", 1),
        *stack_blocks(model.feat_encoder.encoder, "local encoder", 1),
        *stack_blocks(model.feat_decoder.estimator.decoder, "estimator", evaluations(USUAL_STEPS)),
    ]


def codec_blocks(decoder: VAEDecoder) -> list[WeightBlock]:
    """A block's first activation stays, since the block before it reads that."""
    blocks = [part for part in decoder.model if isinstance(part, UpsampleBlock)]
    return [
        WeightBlock(f"codec {n}", "codec", part, tuple(part.block[1:]), _CODEC_READS) for n, part in enumerate(blocks)
    ]


def encoder_blocks(encoder: VAEEncoder) -> list[WeightBlock]:
    blocks = [part for part in encoder.block if isinstance(part, DownsampleBlock)]
    return encoder_lane(blocks, "voice encoder")
