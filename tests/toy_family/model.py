"""The toy's model, as the engine uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sonant.config import EngineConfig
from sonant.kernels import ops
from sonant.models.base import FramePart, FrameStep, PackedSize, PrefillItem, PrefillShape
from sonant.models.memory import Memory, RowValues
from sonant.models.prompt import Ints, Prompt
from sonant.models.spec import Field, KVGroup, ModelSpec
from sonant.models.status import Status
from sonant.models.weight_blocks import ModelWeights, stack_blocks
from sonant.types import Samples
from sonant.voice import Voice
from toy_family.modules import ToyModules
from toy_family.prompter import FAMILY, Layout, ToyPrompter
from toy_family.sizes import CHANNELS, CLIP_HOP, DELAY, HISTORY, LOOKAHEAD, SAMPLES_PER_FRAME

_HEAD = 5  # row, row that becomes ready (or the scratch row), start, end, length
_COUNTED = ("position", "step", "frame", "status")


@dataclass
class ToyStep(FrameStep):
    own: RowValues | None = None
    hidden: Tensor | None = None
    drawn: Tensor | None = None
    stops: Tensor | None = None


class ToyModel:
    prompter_type: type[ToyPrompter] = ToyPrompter

    def __init__(self, config: EngineConfig, device: torch.device, **kind: int) -> None:
        self.modules, self.device = ToyModules().to(device), device
        self.prompter = self.prompter_type(config, **kind)
        self.sizes = config.frame_sizes(self.prompter.spec.frame_s, LOOKAHEAD)
        shapes = {"base": self.modules.base.shape, "residual": self.modules.residual.shape}
        self.spec = ModelSpec(
            **vars(self.prompter.spec),
            kv=tuple(KVGroup(n, s.layers, s.kv_heads, s.head_dim, torch.float32) for n, s in shapes.items()),
            state=(
                *(Field(name, (), torch.int32) for name in (*_COUNTED, "codec_frame")),
                Field("input", (self.modules.base.shape.hidden,), torch.float32),
                Field("draws", (DELAY + 1, CHANNELS), torch.float32),
                Field("frames", (self.sizes.ring + HISTORY + 2, CHANNELS), torch.float32),
            ),
            frame_weight_bytes=sum(p.numel() * p.element_size() for p in self.modules.parameters()),
            codec_lookahead=LOOKAHEAD,
        )
        self.frame_parts = (
            FramePart("stacks", self._stacks, lambda rows, positions: positions * self.spec.kv_token_bytes),
            FramePart("draw", self._draw, lambda rows, positions: 0),
            FramePart("advance", self._advance, lambda rows, positions: 0),
        )

    def weights(self) -> ModelWeights:
        m = self.modules
        return ModelWeights((m,), (*stack_blocks(m.base, "base", 1), *stack_blocks(m.residual, "residual", 1)))

    # Off the step thread

    def opening(self, prompt: Prompt, frames: int) -> Samples:
        return np.zeros(0, np.float32)

    def encode_voice(self, samples: Samples, text: str | None, name: str) -> Voice:
        frames = samples[: len(samples) // CLIP_HOP * CLIP_HOP].reshape(-1, CLIP_HOP)
        return Voice({"latents": np.stack([frames.mean(1), frames.std(1), frames.max(1)], 1)}, text, name, FAMILY)

    # On the step thread

    def bind(self, memory: Memory) -> None:
        self.memory = memory
        for name in (*_COUNTED, "codec_frame"):
            memory.rows[name].zero_()
        memory.rows["status"].fill_(Status.STOPPED)

    def packed_size(self, item: PrefillItem) -> PackedSize:
        return PackedSize(item.end - item.start)

    def pack(self, items: Sequence[PrefillItem], shape: PrefillShape) -> Ints:
        lines = np.zeros((shape.prompts, _HEAD + (shape.positions + 1) * (1 + CHANNELS)), np.int32)
        lines[:, :_HEAD] = (self.memory.scratch_row, self.memory.scratch_row, 0, 0, 1)
        for line, item in zip(lines, items, strict=False):
            layout: Layout = item.prompt.payload
            row = item.row if item.last else self.memory.scratch_row
            line[:_HEAD] = item.row, row, item.start, item.end, item.prompt.length
            entries = line[_HEAD:].reshape(-1, 1 + CHANNELS)
            taken = [*range(item.start, item.end), item.prompt.length - 1]
            places = [*range(item.end - item.start), shape.positions]
            entries[places, 0] = layout.ids[taken]
            entries[places, 1:] = layout.latents[taken].view(np.int32)
        return lines

    @torch.inference_mode()
    def prefill(self, packed: Tensor, shape: PrefillShape) -> None:
        m, memory = self.modules, self.memory
        head, entries = packed[:, :_HEAD].long(), packed[:, _HEAD:].unflatten(1, (-1, 1 + CHANNELS))
        rows, ready, start, end, length = head.unbind(1)
        ids = entries[..., :1]
        x = torch.where(ids >= 0, m.text(ids[..., 0].clamp(min=0)), m.latent_in(entries[..., 1:].view(torch.float32)))
        at = start[:, None] + torch.arange(shape.positions, device=self.device)
        real = at < end[:, None]
        at = at.where(real, 0)
        hidden = x[:, :-1].contiguous()
        for group, stack in (("base", m.base), ("residual", m.residual)):
            context = memory.prefill_context(group, memory.tables[rows], at, real, shape.span_blocks)
            hidden = stack(hidden, at, context)
        memory.rows["input"][ready] = x[:, -1]
        live = torch.where(ready == memory.scratch_row, int(Status.STOPPED), int(Status.RUNNING))
        for name, value in (("position", length - 1), ("step", 0 * ready), ("frame", 0 * ready), ("status", live)):
            memory.rows[name][ready] = value.int()
        memory.rows["codec_frame"].index_fill_(0, ready, 0)

    def has_preroll(self, prompt: Prompt) -> bool:
        return False

    def preroll(self, item: PrefillItem, start: int, frames: int) -> int:
        return -1

    def begin_frame(self, rows: Tensor, span_blocks: int, variant: int) -> ToyStep:
        return ToyStep(rows, span_blocks, variant)

    def _stacks(self, step: ToyStep) -> None:
        step.own = own = self.memory.take(step.rows)
        position, hidden = own["position"][:, None], self.memory.rows["input"][step.rows][:, None]
        for group, stack in (("base", self.modules.base), ("residual", self.modules.residual)):
            context = self.memory.decode_context(group, own.tables, position, step.span_blocks)
            hidden = stack(hidden, position, context)
        step.hidden = hidden[:, 0]

    def _draw(self, step: ToyStep) -> None:
        assert step.own is not None and step.hidden is not None
        own: Any = step.own
        seed = torch.stack([own["seed_low"], own["seed_high"]], 1)
        noise = ops.uniforms(seed, own["step"], CHANNELS + 1)
        step.stops = noise[:, -1] < own["stop_chance"]
        latent = self.modules.latent_out(step.hidden) + own["temperature"][:, None] * (noise[:, :-1] - 0.5)
        for _ in range(step.variant):
            latent = torch.tanh(1.5 * latent)
        step.drawn = latent

    def _advance(self, step: ToyStep) -> None:
        assert step.own is not None and step.drawn is not None and step.stops is not None
        own, r, rows = step.own, self.memory.rows, step.rows
        at, frame = own["step"], own["frame"]
        draws = r["draws"]
        r["draws"][rows, at % draws.shape[1]] = step.drawn
        # Channel k of a frame was drawn k steps after its first channel; the newest draw completes a frame.
        channel = torch.arange(CHANNELS, device=self.device)
        complete = draws[rows[:, None], (at[:, None] - DELAY + channel) % draws.shape[1], channel]
        primed = at >= DELAY
        live = own["status"] == Status.RUNNING
        status = torch.where(step.stops & (frame >= 1), int(Status.LAST), int(Status.RUNNING))
        status = torch.where(frame >= own["frame_limit"], int(Status.CAPPED), status)
        status = torch.where(primed, status, int(Status.PRIMING)).int()
        told = torch.where(live, status, own["status"])
        makes_frame = live & ((status == Status.RUNNING) | (status == Status.LAST))
        goes_on = live & ((status == Status.RUNNING) | (status == Status.PRIMING))
        frames = r["frames"]
        place = frame % frames.shape[1]
        r["frames"][rows, place] = torch.where(makes_frame[:, None], complete, frames[rows, place])
        step.record = torch.cat([told[:, None], complete.contiguous().view(torch.int32)], 1)
        r["input"][rows] = self.modules.latent_in(step.drawn)
        kept = torch.where(goes_on, int(Status.RUNNING), told).int()
        moved = (own["position"] + goes_on.int(), at + goes_on.int(), frame + makes_frame.int(), kept)
        self.memory.put(rows, dict(zip(_COUNTED, moved, strict=True)))

    @torch.inference_mode()
    def codec(self, rows: Tensor, frames: int) -> Tensor:
        r = self.memory.rows
        first, ring = r["codec_frame"][rows], r["frames"]
        window = torch.arange(-HISTORY, LOOKAHEAD + 1, device=self.device)
        index = first[:, None, None] + torch.arange(frames, device=self.device)[:, None] + window
        there = (index >= 0) & (index < r["frame"][rows][:, None, None])
        taken = ring[rows[:, None, None], index % ring.shape[1]]
        sound = self.modules.sound(torch.where(there[..., None], taken, 0.0))
        r["codec_frame"][rows] = first + frames
        return sound

    def codec_floor_bytes(self, rows: int, frames: int) -> int:
        return 4 * (self.modules.wave.numel() + rows * frames * SAMPLES_PER_FRAME)
