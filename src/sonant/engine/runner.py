"""Puts a plan on the device and reads a finished one back. Launching never waits for the device.

All work of a step goes to one stream in a fixed order: staged row writes, prefill, codec preroll, one decode step for
each decoding row, then sound for the rows that are due, the frame just decoded included. If the codec has its own
stream (codec_stream.py), preroll and sound follow the same work, but only a step that keeps its order waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

import torch

from sonant.config import EngineConfig, FrameSizes
from sonant.device_copy import reserve_pinned
from sonant.engine.codec_stream import CodecStream
from sonant.engine.compile_ahead import CompileAhead, NothingAhead
from sonant.engine.graphs import GraphedStep, GraphPool, PrefillGraphs
from sonant.engine.kv_cache import allocate_kv
from sonant.engine.ledger import Column, Ledger, Places
from sonant.engine.output import OutputRing, Slot, SoundShape
from sonant.engine.request import Request
from sonant.engine.residents import Residents
from sonant.engine.rows import Rows
from sonant.engine.scheduler import Plan
from sonant.engine.start_times import StartTimes
from sonant.engine.step_graphs import StepGraphs
from sonant.engine.telemetry import Mean, Telemetry
from sonant.engine.weight_lane import WeightClock
from sonant.engine.weight_paging import WeightPaging
from sonant.kernels import ops
from sonant.models.base import PrefillItem, SpeechModel, decode_frame
from sonant.models.status import Status
from sonant.types import AudioChunk, SoundFormat

P = ParamSpec("P")
R = TypeVar("R")

_FEW_ROWS = 4  # a step of so few is short enough for the host to wait for a first sound without sleeping


@dataclass(frozen=True)
class Step:
    """A launched plan, with the state of its requests that collecting it needs, as it was then."""

    decoding: Places
    users: Places
    codec: list[tuple[int, Places, Column]]  # frames of a chunk, for whom, and each one's first
    slot: Slot
    prompt_positions: int
    launched_s: float  # when its launch began


class Runner:
    def __init__(
        self,
        model: SpeechModel,
        config: EngineConfig,
        sizes: FrameSizes,
        device: torch.device,
        sound: SoundFormat = "float32",
        start: StartTimes | None = None,
        kernels: CompileAhead | None = None,
        paging: WeightPaging | None = None,
        residents: Residents | None = None,
    ) -> None:
        """`start` is told how long each phase took; `kernels` compiles them, and is waited for where they are needed.
        With `paging` every pass through the model brings weights along; `residents` holds a cache that may sleep."""
        start = start or StartTimes()
        self.model, self.config, self.sizes, self.device, self.sound = model, config, sizes, device, sound
        self.marks = int(sound == "int16")  # behind a row's samples: whether they are finite
        self.telemetry = Telemetry()
        spec = model.spec
        assert config.max_rows is not None and config.max_batch is not None and config.steps_ahead is not None
        self.table_blocks = -(-config.max_positions // config.block_tokens)
        self.rows = Rows(spec, config.max_rows, self.table_blocks, device)
        samples = sizes.codec_batch * spec.samples_per_frame + self.marks * sizes.codec_batch
        shape = SoundShape(samples, torch.int16 if sound == "int16" else torch.float32)
        self.ring = OutputRing(config.steps_ahead + 1, config.max_batch, spec.frame, shape, device)
        own = config.codec_stream == "own" and paging is None  # the slots for paged weights serve one pass at a time
        self.codec_stream = CodecStream(device, own)
        self.rows.before_copy = self.codec_stream.wait_for
        reserve_pinned(device)
        self.kv = allocate_kv(spec, config, device, residents)
        with torch.inference_mode():
            model.bind(self.rows.memory(self.kv, config.block_tokens))
        self.span_blocks = self.table_blocks
        scratch, self.paging = self.rows.scratch, paging
        self._clock = None if paging is None else paging.steps.clock.values
        run_frame, run_codec = self._paged(self._run_frame), self._paged(self._run_codec)
        run_prefill, self._preroll = self._paged(model.prefill), self._paged(model.preroll)
        self.prefill = PrefillGraphs(model, run_prefill, config.block_tokens, self.table_blocks, device)
        self.frame = {
            v: GraphedStep(f"frame {v}" if v else "frame", partial(run_frame, variant=v), device, scratch)
            for v in spec.variants
        }
        apart = None if self.codec_stream.stream is None else GraphPool(device)
        self.codec = {
            n: GraphedStep(f"codec {n}", partial(run_codec, frames=n), device, scratch, apart) for n in sizes.chunks
        }
        pool = GraphPool(device, paging is not None, self.codec_stream.priority) if device.type == "cuda" else None
        self.graphs = StepGraphs(self.prefill, self.frame, self.codec, spec, config, sizes, pool)
        self._began_s = self._collected_s = 0.0  # when the last step was begun, and the last was collected
        start.took("memory")
        self.graphs.capture_first(start, kernels or NothingAhead())

    @property
    def blocks(self) -> int:
        """Of the KV cache, with the scratch block."""
        return next(iter(self.kv.values())).shape[2]

    def on_stream(self) -> AbstractContextManager[object]:
        """Steps on a stream of their own, so that other threads' work (encoding a voice) runs beside them."""
        if self.device.type != "cuda":
            return nullcontext()
        return torch.cuda.stream(torch.cuda.Stream(self.device, priority=self.codec_stream.priority))

    def _paged(self, run: Callable[P, R]) -> Callable[P, R]:
        """`run` with what brings its weights, if any come and go."""
        return run if self.paging is None else self.paging.step(run)

    def capture_next(self) -> None:
        """Capture one more graph, while no step is in flight."""
        self.span_blocks = self.table_blocks  # a graph must do for every length
        self.graphs.capture_next()

    def _run_frame(self, rows: torch.Tensor, variant: int) -> torch.Tensor:
        return decode_frame(self.model, rows, self.span_blocks, variant)

    def _run_codec(self, rows: torch.Tensor, frames: int) -> torch.Tensor:
        sound = self.model.codec(rows, frames)
        return ops.pcm16(sound) if self.sound == "int16" else sound

    @torch.inference_mode()
    def begin(self, plan: Plan) -> None:
        """Launch staged writes and prefill. The rest of the step need not be planned yet."""
        plan.begun, self._began_s = True, time.monotonic()
        self.ring.hold_back(records_only=self.codec_stream.stream is not None)
        self.rows.apply()
        if plan.prefill:
            self.prefill([PrefillItem(r.row, r.prompt, start, end) for r, start, end in plan.prefill])
            self.telemetry.took("prefill", goes_on=bool(plan.preroll))

    @torch.inference_mode()
    def launch(self, plan: Plan, ledger: Ledger) -> Step:
        self.telemetry.begin()
        if not plan.begun:
            self.begin(plan)
        self.codec_stream.begin_step()
        if plan.preroll:
            self._launch_preroll(plan)
        decoding = plan.decoding
        records = []
        if len(decoding):
            longest = int((ledger.prefill_length[decoding] + ledger.launched[decoding]).max())
            self.span_blocks = -(-longest // self.config.block_tokens)  # how far an eager step must look
            records = [self.frame[variant](ledger.row[group]) for variant, group in plan.decode.items()]
            self.telemetry.rows.add(len(decoding))
            self._learn(self.telemetry.decode_s, self.telemetry.took("frame"))
        sounds = self._launch_codec(plan, ledger) if plan.codec else []
        codec = [(frames, group, ledger.vocoded[group] - frames) for frames, group in plan.codec.items()]
        users = plan.users()
        ledger.steps_in_flight[users] += 1
        in_haste = bool(plan.prefill) and len(decoding) <= _FEW_ROWS
        slot = self.ring.send(records, sounds, self._clock, in_haste, self.codec_stream.made)
        if self.codec_stream.keeps_order(len(users), plan.first_sound):
            self.codec_stream.wait()
        step = Step(decoding, users, codec, slot, plan.prompt_positions, self._began_s)
        if codec:
            frames = sum(frames * len(group) for frames, group in plan.codec.items())
            self._learn(self.telemetry.vocode_s, self.telemetry.took("codec") / frames)
        return step

    def _learn(self, mean: Mean, took_s: float) -> None:
        """For the scheduler: how long work takes. On a GPU only its launch was timed, which tells nothing."""
        if self.device.type == "cpu":
            mean.add(took_s)

    def _launch_preroll(self, plan: Plan) -> None:
        with self.codec_stream.behind_the_step(r.row for r in plan.preroll):
            for request in plan.preroll:
                item = PrefillItem(request.row, request.prompt, 0, request.prefill_length)
                request.preroll_up_to(self._preroll(item, request.preroll, plan.preroll_frames))
        self.telemetry.took("prefill")

    def _launch_codec(self, plan: Plan, ledger: Ledger) -> list[torch.Tensor]:
        groups = {frames: ledger.row[group] for frames, group in plan.codec.items()}
        with self.codec_stream.behind_the_step(row for rows in groups.values() for row in rows.tolist()):
            if self.codec_stream.stream is not None:
                self.ring.hold_back()
            return [self.codec[frames](rows) for frames, rows in groups.items()]

    def collect(self, step: Step, ledger: Ledger) -> list[tuple[Request, AudioChunk | None]]:
        """Wait for a step, book its stops, and return the sound it made, in order for each request.

        None stands for samples that are NaN or infinite. Those without a mark are checked when they are encoded.
        """
        self.telemetry.begin()
        self.ring.wait(step.slot)
        self.telemetry.took("wait")
        began_s, self._collected_s = max(step.launched_s, self._collected_s), time.monotonic()
        self.telemetry.came_back(step.prompt_positions, self.config.prefill_tokens, self._collected_s - began_s)
        if self._clock is not None:
            self.telemetry.paged = WeightClock.totals(step.slot.clock.tolist())
        self._book(step, ledger)
        chunks = self._chunks(step, ledger)
        ledger.steps_in_flight[step.users] -= 1
        return chunks

    def _book(self, step: Step, ledger: Ledger) -> None:
        now_s, (statuses, frames) = time.monotonic(), step.slot.decoded(len(step.decoding))
        booked = ledger.book(step.decoding, statuses, now_s)
        for request in ledger.all_at(step.decoding[booked.first]):
            self.telemetry.first_step_s.add(now_s - request.queued_s)
            self.telemetry.start_s.add(now_s - request.admitted_s)
        for n in booked.frames[ledger.keeps_frames[step.decoding[booked.frames]]]:
            ledger.at(step.decoding[n]).keep(frames[n])
        for n in booked.ends:
            ledger.at(step.decoding[n]).end(Status(statuses[n]), now_s)

    def _chunks(self, step: Step, ledger: Ledger) -> list[tuple[Request, AudioChunk | None]]:
        spec, offset = self.model.spec, 0
        chunks: list[tuple[Request, AudioChunk | None]] = []
        for frames, group, firsts in step.codec:
            samples = frames * spec.samples_per_frame
            for request, first in zip(ledger.all_at(group), firsts.tolist(), strict=True):
                if count := request.audible(first, frames):
                    taken = step.slot.take_sound(offset, count * spec.samples_per_frame)
                    chunk = AudioChunk(taken, spec.sample_rate, first * spec.frame_s, request.emit(count))
                    sounds = not self.marks or step.slot.is_marked(offset + samples)
                    chunks.append((request, chunk if sounds else None))
                offset += samples + self.marks
        return chunks
