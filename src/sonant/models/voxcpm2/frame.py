"""A decode step of VoxCPM2, from one patch's embedding to the next one's, in the parts that a benchmark times.

Invariants: a row's `position` is the number of its tokens in both KV caches, its `input` the vector that the next step
consumes there, `before` the patch that this vector embeds, its `frame` the number of patches made. The patch with which
the model ends is speech too. A row that has ended is frozen: steps may still run over it (the host learns of a stop a
step later) and change nothing that is read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sonant.kernels import ops
from sonant.kernels.reference import PatchCounters, PatchMemory, PatchStatuses
from sonant.models.base import FramePart, FrameStep
from sonant.models.memory import Memory, RowValues
from sonant.models.status import Status
from sonant.models.voxcpm2.config import VoxCPM2Config
from sonant.models.voxcpm2.flow import Schedule, evaluations, flow
from sonant.models.voxcpm2.knobs import USUAL_STEPS
from sonant.models.voxcpm2.modules import VoxCPM2Modules
from sonant.models.voxcpm2.row_state import COUNTED
from sonant.models.weights import weight_bytes

BASE, RESIDUAL = "base", "residual"  # groups of the KV cache
_STATUSES = PatchStatuses(int(Status.RUNNING), int(Status.CAPPED), int(Status.LAST))


@dataclass
class PatchStep(FrameStep):
    """Each part's results are the next ones' inputs."""

    own: RowValues | None = None
    state: Tensor | None = None  # of the base model, quantised unless the input is text
    residual: Tensor | None = None
    patch: Tensor | None = None
    embedded: Tensor | None = None  # the patch as the next input


class FrameDecoder:
    def __init__(
        self, config: VoxCPM2Config, modules: VoxCPM2Modules, schedules: Mapping[int, Schedule], memory: Memory
    ) -> None:
        self.config, self.modules, self.schedules, self.memory = config, modules, schedules, memory

    def parts(self) -> tuple[FramePart, ...]:
        m = self.modules
        language = weight_bytes(m.base_lm.layers, m.residual_lm.layers, m.fsq_layer, m.fusion_concat_proj)
        cached = sum(kv.element_size() * kv[:, :, 0, 0].numel() for kv in self.memory.kv.values())
        estimator = evaluations(USUAL_STEPS) * weight_bytes(m.feat_decoder.estimator.decoder)
        encoder = weight_bytes(m.feat_encoder, m.enc_to_lm_proj)
        stop = weight_bytes(m.stop_proj, m.stop_head)
        return (
            FramePart("language models", self._think, lambda rows, positions: language + positions * cached),
            FramePart("flow", self._draw, lambda rows, _: estimator),
            FramePart("local encoder", self._embed, lambda rows, _: encoder),
            FramePart("next input", self._advance, lambda rows, _: stop),
        )

    def _think(self, step: PatchStep) -> None:
        m, r = self.modules, self.memory.rows
        step.own = own = self.memory.take(step.rows)
        position, given = own["position"][:, None], r["input"][step.rows]
        text = (own["text_input"] > 0)[:, None]
        spoken = given.masked_fill(text, 0)  # copied before the model runs, which may write over its input
        context = self.memory.decode_context(BASE, own.tables, position, step.span_blocks)
        state = m.base_lm(given[:, None], position, context)[:, 0]
        step.state = torch.where(text, state, m.fsq_layer(state))
        inner = m.residual_input(step.state, spoken)
        context = self.memory.decode_context(RESIDUAL, own.tables, position, step.span_blocks)
        step.residual = m.residual_lm(inner[:, None], position, context)[:, 0]

    def _draw(self, step: PatchStep) -> None:
        assert step.own is not None and step.state is not None and step.residual is not None
        m, own, c = self.modules, step.own, self.config
        noise = ops.normals(own["seed"], own["frame"], own["temperature"], c.patch_size * c.feat_dim)
        noise = noise.unflatten(1, (c.patch_size, c.feat_dim))
        prefix = m.flow_prefix(step.state, step.residual)
        before = self.memory.rows["before"][step.rows]
        plan = self.schedules[step.variant]
        step.patch = flow(m.feat_decoder.estimator, plan, noise, prefix, before, own["cfg_value"])

    def _embed(self, step: PatchStep) -> None:
        assert step.patch is not None
        step.embedded = self.modules.embed_patches(step.patch)

    def _advance(self, step: PatchStep) -> None:
        """Record the patch and make the next input, in the same step that drew it."""
        assert step.own is not None and step.state is not None and step.patch is not None
        assert step.embedded is not None
        r, own = self.memory.rows, step.own
        counters = PatchCounters(*(own[name] for name in ("position", "frame", "min_len", "frame_limit", "status")))
        kept = PatchMemory(r["patches"], r["before"], r["input"], self.memory.columns(COUNTED))
        stop = self.modules.stop_logits(step.state)
        step.record = ops.patch_step(step.patch, step.embedded, stop, counters, step.rows, kept, _STATUSES)
