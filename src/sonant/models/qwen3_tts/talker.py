"""The talker: the language model over time that draws each frame's first code.

Parameter names below `talker.` are the published ones, so that a checkpoint fills this module as it is.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from sonant.layers.transformer import DecoderStack
from sonant.models.qwen3_tts.config import DecoderStackConfig, TalkerConfig
from sonant.models.qwen3_tts.predictor import CodePredictor, stack_shape


class TalkerStack(DecoderStack):
    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(stack_shape(config))
        self.codec_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.text_embedding = nn.Embedding(config.text_vocab_size, config.text_hidden_size)


class TextProjection(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(inputs, inputs)
        self.linear_fc2 = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(F.silu(self.linear_fc1(x)))


class Talker(nn.Module):
    def __init__(self, config: TalkerConfig, predictor: DecoderStackConfig) -> None:
        super().__init__()
        self.model = TalkerStack(config)
        self.text_projection = TextProjection(config.text_hidden_size, config.hidden_size)
        self.codec_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.code_predictor = CodePredictor(predictor, config.num_code_groups, config.hidden_size)

    def embed_text(self, ids: Tensor) -> Tensor:
        return self.text_projection(self.model.text_embedding(ids))

    def embed_frame(self, codes: Tensor) -> Tensor:
        """One vector for all codes of a frame: codes [..., groups] → [..., hidden]."""
        total = self.model.codec_embedding(codes[..., 0])
        for group, embedding in enumerate(self.code_predictor.model.codec_embedding, start=1):
            total = total + embedding(codes[..., group])
        return total

    def embed_position(self, text: Tensor, codes: Tensor, with_groups: bool) -> Tensor:
        """A prompt position is its text id plus its codec ids; -1 stands for none.

        text [...]; codes [..., groups]: a lone special id stands in column 0. `with_groups`: some position
        here holds a whole frame.
        """
        lead = codes[..., 0]
        x = self.embed_text(text.clamp(min=0)).masked_fill((text < 0)[..., None], 0)
        x = x + self.model.codec_embedding(lead.clamp(min=0)).masked_fill((lead < 0)[..., None], 0)
        if with_groups:
            for group, embedding in enumerate(self.code_predictor.model.codec_embedding, start=1):
                ids = codes[..., group]
                x = x + embedding(ids.clamp(min=0)).masked_fill((ids < 0)[..., None], 0)
        return x
