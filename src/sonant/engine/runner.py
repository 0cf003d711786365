"""Puts a plan on the device and reads a finished one back. Launching never waits for the device.

All work of a step goes to one stream in a fixed order: staged row writes, prefill, codec preroll, one frame for
each drawing row, then sound for the rows that are due, which may be of the frame just drawn.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from sonant.config import EngineConfig
from sonant.engine.kv_cache import allocate_kv
from sonant.engine.output import OutputRing, Slot, take_sound
from sonant.engine.request import Phase, Request
from sonant.engine.rows import Rows
from sonant.engine.scheduler import Plan
from sonant.models.base import RUNNING, STOPPED, Ints, Memory, PrefillItem, SpeechModel, to_device
from sonant.types import AudioChunk, FinishReason


@dataclass(frozen=True)
class Step:
    """A launched plan, with what its outcome needs of the requests as they were then."""

    plan: Plan
    users: list[Request]
    voice: list[tuple[Request, int, int]]  # request, its first frame in this chunk, frames
    slot: Slot


class Runner:
    def __init__(self, model: SpeechModel, config: EngineConfig, device: torch.device) -> None:
        self.model, self.config, self.device = model, config, device
        spec = model.spec
        assert config.max_rows is not None and config.max_batch is not None and config.steps_ahead is not None
        self.rows = Rows(spec, config.max_rows, -(-config.max_positions // config.block_tokens), device)
        self.ring = OutputRing(
            config.steps_ahead + 1,
            config.max_batch,
            1 + spec.codebooks,
            config.codec_frames,
            spec.samples_per_frame,
            device,
        )
        self.kv = allocate_kv(spec, config, device)
        with torch.inference_mode():
            model.bind(Memory(self.rows.fields, self.kv, self.rows.tables))

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Step:
        self.rows.apply()
        items = {r: PrefillItem(r.row, r.prompt, start, end) for r, start, end in plan.prefill}
        if items:
            self.model.prefill(list(items.values()))
        for request in plan.preroll:
            item = items.get(request) or PrefillItem(request.row, request.prompt, 0, request.prefill_length)
            request.preroll = self.model.preroll(item, request.preroll, self.config.chunk_frames[-1])
            if request.preroll < 0:
                request.phase = Phase.SPEAKING
        records = None
        if plan.draw:
            longest = max(r.prefill_length + r.launched for r in plan.draw)
            records = self.model.frame(self._index(plan.draw), -(-longest // self.config.block_tokens))
        sounds = [self.model.codec(self._index(group), frames) for frames, group in plan.voice.items()]
        voice = [(r, r.voiced - frames, frames) for frames, group in plan.voice.items() for r in group]
        users = plan.requests()
        for request in users:
            request.steps_in_flight += 1
        return Step(plan, users, voice, self.ring.send(records, sounds))

    def collect(self, step: Step) -> list[tuple[Request, AudioChunk]]:
        """Wait for a step, book its stops, and give the sound it made, in order for each request."""
        self.ring.wait(step.slot)
        records = step.slot.records.numpy()
        for n, request in enumerate(step.plan.draw):
            self._book(request, int(records[n, 0]), records[n, 1:])
        spec = self.model.spec
        chunks: list[tuple[Request, AudioChunk]] = []
        offset = 0
        for request, first, frames in step.voice:
            valid = frames if request.total is None else min(frames, request.total - first)
            if valid > 0 and request.phase is not Phase.LEAVING:
                samples = take_sound(step.slot, offset, valid * spec.samples_per_frame)
                codes, request.codes = request.codes[:valid], request.codes[valid:]
                request.emitted += valid
                chunk = AudioChunk(samples, spec.sample_rate, first * spec.frame_s, np.stack(codes))
                if request.first_audio_s is None:
                    request.first_audio_s = time.monotonic()
                chunks.append((request, chunk))
            offset += frames * spec.samples_per_frame
        for request in step.users:
            request.steps_in_flight -= 1
        return chunks

    def _book(self, request: Request, status: int, codes: Ints) -> None:
        if request.total is not None:
            return  # a step that was launched before the stop was known
        if status == RUNNING:
            request.codes.append(codes.copy())
            request.collected += 1
            return
        request.total = request.collected
        request.reason = FinishReason.STOP if status == STOPPED else FinishReason.LENGTH
        if request.phase is Phase.SPEAKING:
            request.phase = Phase.DRAINING

    def _index(self, requests: list[Request]) -> torch.Tensor:
        return to_device(np.array([r.row for r in requests]), self.device)
