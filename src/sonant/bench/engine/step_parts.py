"""A frame step in its parts, each of which can be run, captured and timed alone.

The parts are the model's own modules, called as its frame step calls them, on the rows' real state. What they read of
each other is computed once beforehand. None of them moves a row on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sonant.engine.kv_cache import token_bytes
from sonant.errors import ConfigError
from sonant.kernels import ops
from sonant.kernels.reference import LogitMask, Lookup
from sonant.models.base import SpeechModel
from sonant.models.qwen3_tts.model import Qwen3TTS
from sonant.models.qwen3_tts.predictor import Draw
from sonant.models.qwen3_tts.row_state import draw_values

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Part:
    name: str
    run: Callable[[Tensor], Tensor]  # rows [B] → what it makes
    bytes: int  # that it must move at least, weights and cache
    repeats: int = 1  # times to run it in one capture, where one run is too short to be timed


@dataclass(frozen=True)
class _Given(Draw):
    """Draws nothing: the predictor without its sampling."""

    code: Tensor

    def pick(
        self, logits: Tensor, uniform: Tensor, mask: LogitMask | None = None, lookup: Lookup | None = None
    ) -> Tensor:
        if lookup is not None:
            lookup.fetch(self.code)
        return self.code


class FrameParts:
    """Of Qwen3-TTS: rows [B] that are ready to draw, padding included, at `positions` positions together."""

    def __init__(self, model: SpeechModel, rows: Tensor, span_blocks: int, positions: int) -> None:
        if not isinstance(model, Qwen3TTS):
            raise ConfigError(f"the parts of a {type(model).__name__}'s step are not known; measure its streams only")
        self.model, self.span_blocks, self.positions = model, span_blocks, positions
        self.talker = model.modules.talker
        r = model.rows
        self.hidden, self.logits = self._talker(rows)
        first = self._draw_first(rows)
        self.first = first.masked_fill(first == model.config.talker.codec_eos_token_id, 0)
        self.uniforms = ops.uniforms(r["seed"][rows], r["frame"][rows], model.spec.codebooks)[:, 1:]
        self.code = torch.zeros_like(rows)

    def parts(self) -> list[Part]:
        """Talker, the first code's sampling, and the predictor with and without its own."""
        batch, vocab = self.logits.shape
        predictor = self.talker.code_predictor
        passes = predictor.groups - 1
        cache = self.positions * token_bytes(self.model.spec)
        drawn = batch * sum(len(weight) * weight.element_size() for weight in predictor.lm_head.parameters())
        weights = passes * size_of(predictor.model.layers) + size_of(
            predictor.lm_head, predictor.small_to_mtp_projection
        )
        talker = size_of(self.talker.model.layers, self.talker.codec_head) + cache
        return [
            Part("talker", lambda rows: self._talker(rows)[1], talker),
            Part("first code", self._draw_first, batch * vocab * (self.logits.element_size() + 1), repeats=16),
            Part("predictor", self._predict_given, weights),
            Part("predictor, drawn", self._predict, weights + drawn),
        ]

    def _talker(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        r = self.model.rows
        position = r["position"][rows][:, None]
        context = self.model._context(rows, position, None, self.span_blocks)
        hidden = self.talker.model(r["input"][rows][:, None], position, context)[:, 0]
        return hidden, ops.linear(hidden, self.talker.codec_head.weight)

    def _draw_first(self, rows: Tensor) -> Tensor:
        model, r = self.model, self.model.rows
        frame = r["frame"][rows]
        uniforms = ops.uniforms(r["seed"][rows], frame, model.spec.codebooks)
        stop_id = model.config.talker.codec_eos_token_id
        mask = LogitMask(r["seen"][rows], r["repetition_penalty"][rows], model.banned, stop_id, frame < 0)
        return Draw(**draw_values(r, rows)).pick(self.logits, uniforms[:, 0], mask)

    def _predict(self, rows: Tensor) -> Tensor:
        return self._generate(rows, Draw(**draw_values(self.model.rows, rows, "subtalker_")))

    def _predict_given(self, rows: Tensor) -> Tensor:
        values = draw_values(self.model.rows, rows, "subtalker_")
        return self._generate(rows, _Given(**values, code=self.code))

    def _generate(self, rows: Tensor, draw: Draw) -> Tensor:
        first = self.talker.model.codec_embedding(self.first)
        return self.talker.code_predictor.generate(self.hidden, first, self.uniforms, draw)


def codec_bytes(model: SpeechModel, rows: int, frames: int) -> int:
    """What a chunk of `frames` frames must move at least: weights, the sound, and of each row the tails in and out, the
    ring in and its new positions out."""
    if not isinstance(model, Qwen3TTS):
        raise ConfigError(f"the codec of a {type(model).__name__} is not known; measure its streams only")
    decoder = model.modules.decoder
    tails, ring = model.rows["codec_tails"], model.rows["codec_ring"][:, :, 0]
    slots = ring.shape[2]
    state = 2 * tails.shape[1] + ring.numel() // slots * (slots + frames)
    sound = frames * model.spec.samples_per_frame * _FLOAT_BYTES
    weights = size_of(decoder) - size_of(decoder.quantizer)
    return weights + rows * (state * tails.element_size() + sound)


def size_of(*modules: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for module in modules for p in module.parameters())
