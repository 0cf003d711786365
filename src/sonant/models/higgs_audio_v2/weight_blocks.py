"""The weights of Higgs Audio V2 that can leave a GPU that is too small for it, in the order of use.

The text's network in each layer and the text embedding are read in prefill only: nearly half of all weights. They are
a lane of their own, since decode steps go through the layers without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sonant.models.higgs_audio_v2.codec import AcousticDecoder, UpsampleBlock
from sonant.models.higgs_audio_v2.encoder_blocks import encoder_blocks
from sonant.models.higgs_audio_v2.language_model import DualLayer, LanguageModel
from sonant.models.weight_blocks import LookupTable, ModelWeights, WeightBlock

if TYPE_CHECKING:
    from sonant.models.higgs_audio_v2.model import Modules

_CODEC_READS = 1.0  # in a step, roughly: with several listeners a chunk is nearly always due


def model_weights(modules: Modules) -> ModelWeights:
    model, decoder = modules.language_model, modules.decoder
    codes = LookupTable("code embedding", model.model.embed_audio_tokens.embed_audio_tokens, reads=1)
    return ModelWeights(
        (model, decoder, modules.encoder),
        (*encoder_blocks(modules.encoder), *layer_blocks(model), *codec_blocks(decoder.acoustic_decoder)),
        (text_table(model), codes),
    )


def text_table(model: LanguageModel) -> LookupTable:
    return LookupTable("text embedding", model.model.embed_tokens)


def layer_blocks(model: LanguageModel) -> list[WeightBlock]:
    layers = [layer for layer in model.model.layers if isinstance(layer, DualLayer)]
    text = []
    for n, x in enumerate(layers):  # in halves, so that slots are small
        text.append(WeightBlock(f"text {n} widening", "text", x.widen, (x.mlp.gate_up_proj,)))
        text.append(WeightBlock(f"text {n} narrowing", "text", x.narrow, (x.mlp.down_proj,)))
    own = [WeightBlock(f"layers {n}", "layers", x, (x.self_attn, x.audio_mlp), 1) for n, x in enumerate(layers)]
    return [*text, *own]


def codec_blocks(decoder: AcousticDecoder) -> list[WeightBlock]:
    """A block's first activation stays, since the block before it reads that."""
    blocks = []
    for n, part in enumerate(decoder.block):
        assert isinstance(part, UpsampleBlock)
        holds = (part.conv_t1, part.res_unit1, part.res_unit2, part.res_unit3)
        blocks.append(WeightBlock(f"codec {n}", "codec", part, holds, _CODEC_READS))
    return blocks
