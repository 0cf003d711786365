"""One decode step of Higgs Audio V2: from the last row of codes to the next, in the parts that a benchmark times.

Codebooks are delayed: row n holds code k of frame n - 1 - k. The first rows are therefore BOS in the codebooks whose
frames have not begun, and seven of them complete no frame. When any codebook draws EOS the stream begins to end: in the
rows that follow EOS is forced in the first codebook, then in the first two, and so on, and a row that is EOS throughout
is the end. Both are transformers' rules.

Invariants: a row's `position` is the number of its tokens in the KV cache, `drawn` the number of its last row of codes,
which the next step takes in. A row that has stopped is frozen: steps may still run over it (the host learns of a stop
one step later) and change nothing that is read again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sonant.kernels import ops
from sonant.kernels.reference import Ras
from sonant.models.base import FramePart, FrameStep, Status
from sonant.models.higgs_audio_v2.config import CODEBOOKS, HiggsConfig
from sonant.models.higgs_audio_v2.knobs import MOST_RAS_ROWS
from sonant.models.higgs_audio_v2.language_model import LanguageModel
from sonant.models.higgs_audio_v2.row_state import COUNTED, place, sampling_params
from sonant.models.memory import Memory, RowValues
from sonant.models.weights import weight_bytes

KV = "language model"
DELAY = CODEBOOKS - 1  # rows after the one of all BOS that complete no frame
_SHORT = 16  # runs of a part that takes microseconds


@dataclass
class RowStep(FrameStep):
    """Each part's results are the next ones' inputs."""

    own: RowValues | None = None
    recent: Tensor | None = None  # [B, MOST_RAS_ROWS, codebooks], the latest last
    logits: Tensor | None = None
    codes: Tensor | None = None  # [B, codebooks], the row that was drawn


class FrameDecoder:
    def __init__(self, config: HiggsConfig, model: LanguageModel, memory: Memory) -> None:
        self.config, self.model, self.memory = config, model, memory
        device = memory.lines.device
        # on the device, since a plain number in a step is a kernel that fills a tensor with it
        self.statuses = torch.arange(len(Status), dtype=torch.int32, device=device).unbind()
        self.codebook = torch.arange(CODEBOOKS, dtype=torch.int32, device=device)
        self.lookback = torch.arange(1 - MOST_RAS_ROWS, 1, dtype=torch.int32, device=device)
        self.bos = torch.tensor(config.stream_bos, device=device)
        self.eos = torch.tensor(config.stream_eos, device=device)

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
        """What the model thinks of each code of the next row."""
        step.own = own = self.memory.take(step.rows)
        ring = self.memory.rows["delayed"]
        step.recent = ring[step.rows[:, None], place(own["drawn"][:, None] + self.lookback, ring)]
        position = own["position"][:, None]
        context = self.memory.decode_context(KV, own.tables, position, step.span_blocks)
        step.logits = self.model(step.recent[:, -1], position, context)

    def _draw(self, step: RowStep) -> None:
        assert step.own is not None and step.recent is not None and step.logits is not None
        own = step.own
        uniforms = ops.uniforms(own["seed"], own["drawn"], 2 * CODEBOOKS)
        ras = Ras(step.recent, own["ras_win_len"], own["ras_win_max_num_repeat"], self.config.stream_bos)
        codes = ops.ras_sample(step.logits, uniforms, sampling_params(own.numbers), ras)
        codes = torch.where(self.codebook > own["drawn"][:, None], self.bos, codes)
        step.codes = torch.where(self.codebook < own["ending"][:, None], self.eos, codes).int()

    def _advance(self, step: RowStep) -> None:
        """Record the frame that the row completes, and keep the row for the step to come."""
        assert step.own is not None and step.recent is not None and step.codes is not None
        own, rows, codes, ring = step.own, step.rows, step.codes, self.memory.rows["delayed"]
        drawn, ending = own["drawn"], own["ending"]
        running, stopped, capped, _, priming = self.statuses
        is_eos = codes == self.eos
        ended = torch.where(is_eos.all(1), stopped, torch.where(drawn - DELAY >= own["frame_limit"], capped, running))
        status = torch.where(own["status"] == Status.RUNNING, ended, own["status"])
        told = torch.where((status == Status.RUNNING) & (drawn < DELAY), priming, status)
        before = step.recent[:, 1 - CODEBOOKS :].diagonal(dim1=1, dim2=2)  # code k of the frame, all but the last one
        frame = torch.cat([before, codes[:, -1:]], 1).clamp(max=self.config.codes - 1)
        step.record = torch.cat([told[:, None], frame], 1)
        ring[rows, place(drawn + 1, ring)] = codes
        going = (status == Status.RUNNING).int()
        ends = ((ending > 0) | is_eos.any(1)).int()
        moved = (own["position"] + going, drawn + going, ending + going * ends, status)
        self.memory.put(rows, dict(zip(COUNTED, moved, strict=True)))
