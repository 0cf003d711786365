"""The talker: the language model over time that draws each frame's first code.

Parameter names below `talker.` are the published ones, so that a checkpoint fills this module as it is. The published
model has interleaved mRoPE, but its three position axes are always equal, so ordinary RoPE is the same function
(tests/models/test_rope.py checks that).
"""

from __future__ import annotations

from itertools import accumulate
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonant.layers.embedding import Embedding
from sonant.layers.transformer import DecoderStack
from sonant.models.qwen3_tts.config import DecoderStackConfig, TalkerConfig
from sonant.models.qwen3_tts.predictor import CodePredictor
from sonant.models.qwen3_tts.stack import stack_shape


class TalkerStack(DecoderStack):
    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(stack_shape(config))
        self.codec_embedding = Embedding(config.vocab_size, config.hidden_size)
        self.text_embedding = Embedding(config.text_vocab_size, config.text_hidden_size)


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
        self.register_buffer("frame_table", None, persistent=False)
        self.register_buffer("frame_offsets", None, persistent=False)

    def embed_text(self, ids: Tensor) -> Tensor:
        return self.text_projection(self.model.text_embedding(ids))

    def prepare(self, positions: int) -> None:
        """Derive from the loaded weights what decoding reads. Call once after loading."""
        self.model.prepare(positions)
        self.code_predictor.prepare()
        tables = self.frame_embeddings()
        with torch.no_grad():
            self.frame_table = torch.cat([t.weight for t in tables])
        starts = [0, *accumulate(t.num_embeddings for t in tables)]
        self.frame_offsets = torch.tensor(starts[:-1], device=self.frame_table.device)
        for table, start in zip(tables, starts, strict=False):  # views, so that memory holds one copy
            table.weight.data = self.frame_table[start : start + table.num_embeddings]

    def frame_embeddings(self) -> list[Embedding]:
        """The tables that a frame's codes are looked up in, in order."""
        rest = self.code_predictor.model.codec_embedding
        return [self.model.codec_embedding, *(cast(Embedding, e) for e in rest)]

    def frame_tables(self) -> tuple[Tensor, Tensor]:
        """All those tables in one, and where each begins; only after `prepare`."""
        assert self.frame_table is not None and self.frame_offsets is not None
        return self.frame_table, self.frame_offsets

    def embed_position(self, text: Tensor, codes: Tensor) -> Tensor:
        """The input at a prompt position: its text id's vector plus those of its codec ids; -1 stands for none.

        text [...]; codes [..., groups]: a lone special id stands in column 0.
        """
        x = self.embed_text(text.clamp(min=0)).masked_fill((text < 0)[..., None], 0)
        if self.frame_table is None or self.frame_offsets is None:
            for group, embedding in enumerate(self.frame_embeddings()):
                ids = codes[..., group]
                x = x + embedding(ids.clamp(min=0)).masked_fill((ids < 0)[..., None], 0)
            return x
        vectors = F.embedding(codes.clamp(min=0) + self.frame_offsets, self.frame_table)
        return x + vectors.masked_fill((codes < 0)[..., None], 0).sum(-2)
