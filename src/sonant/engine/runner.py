"""Puts a plan on the device and reads a finished one back. Launching never waits for the device.

All work of a step goes to one stream in a fixed order: staged row writes, prefill, codec preroll, one frame for
each drawing row, then sound for the rows that are due, which may be of the frame just drawn.
"""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from sonant.config import EngineConfig
from sonant.engine.graph_warmup import Captures, Wanted
from sonant.engine.graphs import GraphedStep, GraphPool, buckets_up_to
from sonant.engine.kv_cache import allocate_kv
from sonant.engine.output import OutputRing, Slot, take_sound
from sonant.engine.prefill_graphs import PREFILL_SHAPES, GraphedPrefill
from sonant.engine.request import Phase, Request
from sonant.engine.rows import Rows
from sonant.engine.scheduler import Plan
from sonant.engine.telemetry import Telemetry
from sonant.models.base import RUNNING, STOPPED, Ints, Memory, PrefillItem, SpeechModel, reserve_pinned
from sonant.types import AudioChunk, FinishReason

logger = logging.getLogger(__name__)


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
        self.telemetry = Telemetry()
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
        reserve_pinned(device)
        self.kv = allocate_kv(spec, config, device)
        with torch.inference_mode():
            model.bind(Memory(self.rows.fields, self.kv, self.rows.tables))
        self.span_blocks = self.rows.tables.shape[1]
        scratch = self.rows.scratch
        self.prefill = GraphedPrefill(model, device)
        self.frame = GraphedStep("frame", self._run_frame, device, scratch)
        self.codec = {
            n: GraphedStep(f"codec {n}", partial(model.codec, frames=n), device, scratch) for n in config.chunk_frames
        }
        self.captures = self._captures()
        self._capture_first()

    def on_stream(self) -> AbstractContextManager[object]:
        """A stream of its own, so that work of other threads (encoding a voice) runs beside the steps."""
        return nullcontext() if self.device.type != "cuda" else torch.cuda.stream(torch.cuda.Stream(self.device))

    def _captures(self) -> Captures:
        if self.device.type != "cuda":
            return Captures((), None)
        return Captures(self._graphs(), GraphPool(self.device))

    def _graphs(self) -> list[Wanted]:
        largest = self.config.max_batch
        assert largest is not None
        shapes = [shape for shape in PREFILL_SHAPES if shape[0] == 1 or largest > 1]
        wanted = [Wanted(self.prefill, shape, min(shape[0], largest)) for shape in shapes]
        wanted += [Wanted(self.frame, size, size) for size in buckets_up_to(largest)]
        for frames, step in self.codec.items():
            most = min(largest, self.config.codec_frames // frames)
            wanted += [Wanted(step, size, size) for size in buckets_up_to(most)]
        return wanted

    @torch.inference_mode()
    def _capture_first(self) -> None:
        """What must be there before the engine answers."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the weights came on another stream
        self.captures.capture_up_to(self.config.warm_rows)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @torch.inference_mode()
    def capture_next(self) -> None:
        """One more graph, while no step is in flight. Without memory for it, steps stay with the graphs there are."""
        self.span_blocks = self.rows.tables.shape[1]  # a graph must do for every length
        try:
            self.captures.capture_next()
        except RuntimeError:
            left = len(self.captures.pending)
            logger.warning("%d graphs are not captured; large batches run in pieces", left, exc_info=True)
            self.captures.give_up()

    def replay_graphs(self, replay: bool) -> None:
        """False: every step runs as it is, so that its operators can be seen."""
        self.prefill.replays = self.frame.replays = replay
        for step in self.codec.values():
            step.replays = replay

    def _run_frame(self, rows: torch.Tensor) -> torch.Tensor:
        return self.model.frame(rows, self.span_blocks)

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Step:
        self.telemetry.begin()
        self.ring.hold_back()
        self.rows.apply()
        items = {r: PrefillItem(r.row, r.prompt, start, end) for r, start, end in plan.prefill}
        if left := self.prefill(list(items.values())):
            self.model.prefill(left)
        for request in plan.preroll:
            item = items.get(request) or PrefillItem(request.row, request.prompt, 0, request.prefill_length)
            request.preroll = self.model.preroll(item, request.preroll, self.config.chunk_frames[-1])
            if request.preroll < 0:
                request.phase = Phase.SPEAKING
        if plan.prefill or plan.preroll:
            self.telemetry.took("prefill")
        records = None
        if plan.draw:
            longest = max(r.prefill_length + r.launched for r in plan.draw)
            self.span_blocks = -(-longest // self.config.block_tokens)  # how far a step that runs as it is must look
            records = self.frame([r.row for r in plan.draw])
            self.telemetry.rows.add(len(plan.draw))
            self.telemetry.took("frame")
        sounds = [self.codec[frames]([r.row for r in group]) for frames, group in plan.voice.items()]
        voice = [(r, r.voiced - frames, frames) for frames, group in plan.voice.items() for r in group]
        users = plan.requests()
        for request in users:
            request.steps_in_flight += 1
        step = Step(plan, users, voice, self.ring.send(records, sounds))
        if voice:
            self.telemetry.took("codec")
        return step

    def collect(self, step: Step) -> list[tuple[Request, AudioChunk]]:
        """Wait for a step, book its stops, and give the sound it made, in order for each request."""
        self.telemetry.begin()
        self.ring.wait(step.slot)
        self.telemetry.took("wait")
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
