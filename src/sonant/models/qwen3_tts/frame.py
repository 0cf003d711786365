"""A decode step of Qwen3-TTS, from one frame's input to the next one's, in the parts that a benchmark times.

Invariants: a row's `position` is the number of its tokens in the KV cache, its `input` the vector that the next
frame consumes there, its `frame` the number of frames decoded. A row that has stopped is frozen: steps may still
run over it (the host learns of a stop one step later) and change nothing that is read again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sonant.kernels import ops
from sonant.kernels.reference import FrameCounters, FrameMemory, FrameTables, LogitMask
from sonant.models.base import FramePart, FrameStep, InnerPart
from sonant.models.memory import Memory, RowValues
from sonant.models.qwen3_tts.config import Qwen3TTSConfig
from sonant.models.qwen3_tts.predictor import Draw, NoDraw
from sonant.models.qwen3_tts.row_state import COUNTED, draw_values
from sonant.models.qwen3_tts.talker import Talker
from sonant.models.status import Status
from sonant.models.weights import weight_bytes

KV = "talker"
_MIN_FRAMES = 2  # the official generation forbids the stop code in its first two draws
_SPECIAL_CODES = 1024  # the top of the first codebook's vocabulary: never drawn, except for the stop code
_SHORT = 16  # times that a benchmark repeats a part that takes microseconds


@dataclass
class TalkerStep(FrameStep):
    """Each part's results are the next ones' inputs."""

    own: RowValues | None = None
    hidden: Tensor | None = None
    logits: Tensor | None = None
    uniforms: Tensor | None = None
    first: Tensor | None = None
    status: Tensor | None = None
    rest: Tensor | None = None


class FrameDecoder:
    def __init__(self, config: Qwen3TTSConfig, talker: Talker, memory: Memory) -> None:
        self.talker, self.memory, self.groups = talker, memory, config.talker.num_code_groups
        device = memory.lines.device
        self.stop_id = config.talker.codec_eos_token_id
        banned = torch.arange(config.talker.vocab_size) >= config.talker.vocab_size - _SPECIAL_CODES
        banned[self.stop_id] = False
        self.banned = banned.to(device)
        # On the device, since a plain number in a step launches a kernel that fills a tensor with it.
        self.statuses = torch.arange(len(Status), dtype=torch.int32, device=device).unbind()
        self.true = torch.tensor(True, device=device)
        self.no_code = torch.tensor(0, device=device)
        self.pad_text = talker.embed_text(torch.tensor([config.tts_pad_token_id], device=device))[0]

    def parts(self) -> tuple[FramePart, ...]:
        predictor, head = self.talker.code_predictor, self.talker.codec_head
        talker_bytes = weight_bytes(self.talker.model.layers, head)
        predictor_bytes = (self.groups - 1) * weight_bytes(predictor.model.layers) + weight_bytes(
            predictor.lm_head, predictor.small_to_mtp_projection
        )
        logits_bytes = sum(len(w) * w.element_size() for w in predictor.lm_head.parameters())
        kv = self.memory.kv[KV]
        token_bytes = kv.element_size() * kv[:, :, 0, 0].numel()
        first_bytes = len(head.weight) * (head.weight.element_size() + 1)
        sampling = InnerPart("its sampling", self._predict_without_draws, lambda rows: rows * logits_bytes)
        return (
            FramePart("talker", self._talk, lambda rows, positions: talker_bytes + positions * token_bytes),
            FramePart("first code", self._draw_first, lambda rows, _: rows * first_bytes, repeats=_SHORT),
            FramePart(
                "predictor", self._predict, lambda rows, _: predictor_bytes + rows * logits_bytes, inner=sampling
            ),
            FramePart("next input", self._advance, lambda rows, _: 0, repeats=_SHORT),
        )

    def _talk(self, step: TalkerStep) -> None:
        """Compute the talker's hidden state at the next position, and its logits for the first code."""
        step.own = own = self.memory.take(step.rows)
        position = own["position"][:, None]
        context = self.memory.decode_context(KV, own.tables, position, step.span_blocks)
        step.hidden = self.talker.model(self.memory.rows["input"][step.rows][:, None], position, context)[:, 0]
        step.logits = ops.linear(step.hidden, self.talker.codec_head.weight)

    def _draw_first(self, step: TalkerStep) -> None:
        assert step.own is not None and step.logits is not None
        own, seen = step.own, self.memory.rows["seen"]
        frame = own["frame"]
        step.uniforms = ops.uniforms(own["seed"], frame, self.groups)
        mask = LogitMask(seen, own["repetition_penalty"], self.banned, self.stop_id, frame < _MIN_FRAMES, step.rows)
        first = Draw(**draw_values(own.numbers)).pick(step.logits, step.uniforms[:, 0], mask)
        stops = first == self.stop_id
        running, stopped, capped = (self.statuses[s] for s in (Status.RUNNING, Status.STOPPED, Status.CAPPED))
        ended = torch.where(stops, stopped, torch.where(frame >= own["frame_limit"], capped, running))
        step.status = torch.where(own["status"] == Status.RUNNING, ended, own["status"])
        seen[step.rows, first] = self.true
        step.first = torch.where(stops, self.no_code, first)  # masked_fill would copy it first

    def _predict(self, step: TalkerStep) -> None:
        assert step.own is not None
        self._generate(step, Draw(**draw_values(step.own.numbers, prefix="subtalker_")))

    def _predict_without_draws(self, step: TalkerStep) -> None:
        assert step.first is not None
        self._generate(step, NoDraw(torch.zeros_like(step.first)))

    def _generate(self, step: TalkerStep, draw: Draw | NoDraw) -> None:
        assert step.hidden is not None and step.first is not None and step.uniforms is not None
        first = self.talker.model.codec_embedding(step.first)
        step.rest = self.talker.code_predictor.generate(step.hidden, first, step.uniforms[:, 1:], draw)

    def _advance(self, step: TalkerStep) -> None:
        """Record the frame and make the next input, in the same step that drew it."""
        assert step.own is not None and step.first is not None and step.rest is not None and step.status is not None
        r, own = self.memory.rows, step.own
        counters = FrameCounters(own["position"], own["frame"], own["trailing_length"])
        memory = FrameMemory(r["codes"], r["input"], self.memory.columns(COUNTED), r["trailing"])
        tables = FrameTables(*self.talker.frame_tables(), self.pad_text)
        step.record = ops.frame_step(
            step.first, step.rest, step.status, counters, step.rows, memory, tables, int(Status.RUNNING)
        )
