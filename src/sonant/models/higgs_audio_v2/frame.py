"""One decode step of Higgs Audio V2: from the last row of codes to the next, in the parts that a benchmark times.

Codebooks are delayed: row n holds code k of frame n - 1 - k, so that the first seven rows complete no frame. How a
stream begins and ends is transformers' rule (`kernels/reference/delay.py`).

Invariants: a row's `position` is the number of its tokens in the KV cache, `drawn` the number of its last row of codes,
which is the next step's input. A row that has stopped is frozen: steps may still run over it (the host learns of a stop
one step later) and change nothing that is read again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sonant.kernels import ops
from sonant.kernels.reference import DelayPattern, Ras, RowCounters, Statuses
from sonant.models.base import FramePart, FrameStep
from sonant.models.higgs_audio_v2.config import CODEBOOKS, HiggsConfig
from sonant.models.higgs_audio_v2.knobs import MOST_RAS_ROWS
from sonant.models.higgs_audio_v2.language_model import LanguageModel
from sonant.models.higgs_audio_v2.row_state import BEFORE, COUNTED, sampling_params
from sonant.models.memory import Memory, RowValues
from sonant.models.status import Status
from sonant.models.weights import weight_bytes

KV = "language model"
_SHORT = 16  # times that a benchmark repeats a part that takes microseconds


@dataclass
class RowStep(FrameStep):
    """Each part's results are the next ones' inputs."""

    own: RowValues | None = None
    recent: Tensor | None = None  # [B, MOST_RAS_ROWS, codebooks], the latest last
    logits: Tensor | None = None
    codes: Tensor | None = None  # [B, codebooks] as drawn, with no BOS or EOS forced yet


class FrameDecoder:
    def __init__(self, config: HiggsConfig, model: LanguageModel, memory: Memory) -> None:
        self.config, self.model, self.memory = config, model, memory
        device = memory.lines.device
        self.lookback = BEFORE + torch.arange(1 - MOST_RAS_ROWS, 1, device=device)  # last rows' places, less `drawn`
        statuses = Statuses(*map(int, (Status.RUNNING, Status.STOPPED, Status.CAPPED, Status.PRIMING)))
        self.pattern = DelayPattern(config.stream_bos, config.stream_eos, BEFORE, statuses)

    def parts(self) -> tuple[FramePart, ...]:
        weights = weight_bytes(*self.model.step_modules())
        kv, head = self.memory.kv[KV], self.model.audio_lm_head.weight
        token_bytes = kv.element_size() * kv[:, :, 0, 0].numel()
        logits_bytes = len(head) * head.element_size()
        return (
            FramePart("language model", self._run, lambda rows, positions: weights + positions * token_bytes),
            FramePart("codes", self._draw, lambda rows, _: rows * logits_bytes, repeats=_SHORT),
            FramePart("next row", self._advance, lambda rows, _: 0, repeats=_SHORT),
        )

    def _run(self, step: RowStep) -> None:
        """Compute the logits of every code of the next row."""
        step.own = own = self.memory.take(step.rows)
        ring = self.memory.rows["delayed"]
        step.recent = ring[step.rows[:, None], (own["drawn"][:, None] + self.lookback) % ring.shape[1]]
        position = own["position"][:, None]
        context = self.memory.decode_context(KV, own.tables, position, step.span_blocks)
        step.logits = self.model(step.recent[:, -1], position, context)

    def _draw(self, step: RowStep) -> None:
        assert step.own is not None and step.recent is not None and step.logits is not None
        own = step.own
        uniforms = ops.uniforms(own["seed"], own["drawn"], 2 * CODEBOOKS)
        ras = Ras(step.recent, own["ras_win_len"], own["ras_win_max_num_repeat"], self.config.stream_bos)
        step.codes = ops.ras_sample(step.logits, uniforms, sampling_params(own.numbers), ras)

    def _advance(self, step: RowStep) -> None:
        """Record the frame that the row completes, and keep the row for the next step."""
        assert step.own is not None and step.codes is not None
        own = RowCounters(*(step.own[name] for name in (*COUNTED, "frame_limit")))
        ring, counters = self.memory.rows["delayed"], self.memory.columns(COUNTED)
        step.record = ops.delay_step(step.codes, own, step.rows, ring, counters, self.pattern)
