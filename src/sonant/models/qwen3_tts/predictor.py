"""The code predictor: from a frame's first code to its other fifteen, one codebook after another.

It is a small language model over codebooks, not time: each frame starts afresh from the talker's hidden state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from sonant.kernels import ops
from sonant.kernels.reference import FrameStack, LogitMask, Lookup, SamplingParams
from sonant.layers.attention import FullContext, ShortContext
from sonant.layers.embedding import Embedding
from sonant.layers.transformer import DecoderStack
from sonant.models.qwen3_tts.config import DecoderStackConfig
from sonant.models.qwen3_tts.stack import stack_shape


@dataclass(frozen=True)
class Draw(SamplingParams):
    """How each row draws its codes. Measurements and tests of a step without sampling replace it."""

    def pick(
        self, logits: Tensor, uniform: Tensor, mask: LogitMask | None = None, lookup: Lookup | None = None
    ) -> Tensor:
        return ops.sample(logits, uniform, self, mask, lookup)


@dataclass(frozen=True)
class NoDraw:
    """Replaces `Draw` where its time is not to be counted: every code is the one given."""

    code: Tensor

    def pick(
        self, logits: Tensor, uniform: Tensor, mask: LogitMask | None = None, lookup: Lookup | None = None
    ) -> Tensor:
        if lookup is not None:
            lookup.fetch(self.code)
        return self.code


class PredictorStack(DecoderStack):
    def __init__(self, config: DecoderStackConfig, groups: int, talker_hidden: int) -> None:
        super().__init__(stack_shape(config))
        self.codec_embedding = nn.ModuleList(Embedding(config.vocab_size, talker_hidden) for _ in range(groups - 1))


class CodePredictor(nn.Module):
    def __init__(self, config: DecoderStackConfig, groups: int, talker_hidden: int) -> None:
        super().__init__()
        self.groups = groups
        self.model = PredictorStack(config, groups, talker_hidden)
        self.lm_head = nn.ModuleList(
            nn.Linear(config.hidden_size, config.vocab_size, bias=False) for _ in range(groups - 1)
        )
        same_width = config.hidden_size == talker_hidden
        self.small_to_mtp_projection = nn.Identity() if same_width else nn.Linear(talker_hidden, config.hidden_size)
        self.register_buffer("inputs", None, persistent=False)

    def prepare(self) -> None:
        """Derive from the loaded weights what `generate` reads: rotations, and inputs already projected."""
        self.model.prepare(self.groups)
        with torch.no_grad():
            tables = [self.small_to_mtp_projection(e.weight) for e in self.model.codec_embedding]
        self.inputs = torch.stack(tables) if isinstance(self.small_to_mtp_projection, nn.Linear) else None

    def generate(self, hidden: Tensor, first: Tensor, uniforms: Tensor, draw: Draw | NoDraw) -> Tensor:
        """Codes 1… of one frame. hidden and first (code 0's embedding) [B, talker hidden] → [B, groups - 1]."""
        shape, batch = self.model.shape, len(hidden)
        cache = hidden.new_empty(shape.layers, 2, batch, self.groups, shape.kv_heads, shape.head_dim)
        opening = self.small_to_mtp_projection(torch.stack([hidden, first], 1))
        codes, given = [], hidden.new_empty(batch, opening.shape[-1])
        stack = self.model.as_frame_stack() if ops.has_whole_pass("frame_pass", hidden) else None
        for group in range(self.groups - 1):
            logits = self._logits(opening if group == 0 else given[:, None], cache, group, stack)
            lookup = Lookup(self._inputs(group), given) if group < self.groups - 2 else None
            codes.append(draw.pick(logits, uniforms[:, group], lookup=lookup))
        return torch.stack(codes, 1)

    def _logits(self, x: Tensor, cache: Tensor, group: int, stack: FrameStack | None) -> Tensor:
        """Logits of head `group`, from its new inputs x [B, T, hidden]: the opening pair or the last code."""
        head = cast(nn.Linear, self.lm_head[group]).weight
        positions = range(group + 2 - x.shape[1], group + 2)
        if stack is not None:
            return ops.frame_pass(stack, x, *self.model.rotations_at(positions, x.dtype), cache, positions.start, head)
        return ops.linear(self.model.forward_at(x, positions, ShortContext(cache, positions.start))[:, -1], head)

    def _inputs(self, group: int) -> Tensor:
        """The stack's input for each code of a group: [vocab, hidden]."""
        if self.inputs is not None:
            table: Tensor = self.inputs[group]
            return table
        return cast(Embedding, self.model.codec_embedding[group]).weight

    def forced_logits(self, hidden: Tensor, first: Tensor, codes: Tensor) -> Tensor:
        """Logits for codes 1… given the true ones before each: [B, groups - 1, vocab]. For training and tests.

        codes [B, groups - 1]; the last is never an input.
        """
        given = [emb(codes[:, i]) for i, emb in enumerate(self.model.codec_embedding) if i < self.groups - 2]
        x = self.small_to_mtp_projection(torch.stack([hidden, first, *given], 1))
        positions = torch.arange(self.groups, device=hidden.device).expand(len(hidden), -1)
        out = self.model(x, positions, FullContext())
        return torch.stack([head(out[:, i + 1]) for i, head in enumerate(self.lm_head)], 1)
