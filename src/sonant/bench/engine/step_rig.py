"""Steps the rows of an engine by hand, so that a measurement can repeat one step, always with the same work.

The engine must be closed: then its step thread is gone, and its rows, cache and graphs can be used here. Every row is
prefilled and decoded to its last frame. There the device freezes it, so that each further step does a step's work and
changes nothing.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import numpy as np
import torch

from sonant.bench.engine.listener import TEXT
from sonant.engine.engine import Engine
from sonant.engine.request import Request, State
from sonant.engine.runner import Runner, Step
from sonant.engine.scheduler import Plan
from sonant.errors import ConfigError
from sonant.types import AudioChunk, FinishReason, SpeechRequest


class _Nowhere:
    """A sink that drops everything."""

    def push(self, chunk: AudioChunk) -> None: ...
    def finish(self, reason: FinishReason) -> None: ...
    def fail(self, error: Exception) -> None: ...


class StepRig:
    """`with StepRig(engine, rows, frames) as rig:` leaves every row free again."""

    def __init__(self, engine: Engine, rows: int, frames: int) -> None:
        loop = engine.loop
        if loop.alive:
            raise ConfigError("a step is measured by hand on a closed engine only; close it first")
        if rows > loop.scheduler.rows.scratch:
            raise ConfigError(f"{rows} rows were asked for, and the engine has {loop.scheduler.rows.scratch}")
        self.engine, self.runner, self.scheduler = engine, loop.runner, loop.scheduler
        self.requests = [self._request(seed, frames) for seed in range(rows)]
        self._in_flight: list[Step] = []
        self._left = ExitStack()

    def __enter__(self) -> Self:
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize(self.engine.device)
        self._left.callback(self._release)
        self._left.enter_context(self.runner.on_stream())
        try:
            self._settle()
        except BaseException:
            self._left.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.drain()
        self._left.close()

    @property
    def rows(self) -> list[int]:
        return [r.row for r in self.requests]

    @property
    def positions(self) -> int:
        """How many positions all rows together hold in the cache."""
        index = torch.tensor(self.rows, device=self.engine.device)
        return int(self.runner.rows.fields["position"][index].sum())

    def decode(self) -> None:
        """Run a step that decodes one frame for every row, and makes no sound."""
        variants: dict[int, list[int]] = {}
        for request in self.requests:
            request.launched += request.has_steps_left
            variants.setdefault(request.variant, []).append(request.place)
        self._run(Plan(decode={variant: np.array(places) for variant, places in variants.items()}))

    def vocode(self, frames: int) -> None:
        """Make the sound of `frames` frames for every row, in as many steps as the engine would take."""
        for group in self.groups(frames):
            for request in group:
                request.vocoded += frames
            self._run(Plan(codec={frames: np.array([request.place for request in group])}))

    def groups(self, frames: int) -> list[list[Request]]:
        """Groups of rows that go through the codec together with `frames` frames of each row."""
        size = max(1, self.engine.sizes.codec_batch // frames)
        return [self.requests[i : i + size] for i in range(0, len(self.requests), size)]

    def drain(self) -> None:
        """Collect every step in flight."""
        while self._in_flight:
            self.runner.collect(self._in_flight.pop(0), self.scheduler.ledger)

    def _request(self, seed: int, frames: int) -> Request:
        speech = SpeechRequest(text=TEXT, seed=seed, max_frames=frames, live=False)
        model = self.engine.model
        return Request(speech, model.prompter.prompt(speech), _Nowhere(), time.monotonic(), model.spec.delay_steps)

    def _run(self, plan: Plan) -> None:
        """Launch a step. As many stay in flight as the engine runs ahead of the host; earlier ones are collected."""
        self._in_flight.append(self.runner.launch(plan, self.scheduler.ledger))
        while len(self._in_flight) > (self.engine.config.steps_ahead or 0):
            self.runner.collect(self._in_flight.pop(0), self.scheduler.ledger)

    def _settle(self) -> None:
        self.scheduler.waiting.extend(self.requests)
        while any(r.state in (State.WAITING, State.PREFILL) for r in self.requests):
            plan = self.scheduler.plan(time.monotonic())
            if not plan:
                raise ConfigError(f"the KV cache has no room for {len(self.requests)} such requests; raise kv_tokens")
            self._run(plan)
        while any(r.total is None for r in self.requests):
            self.decode()
        self.drain()

    def _release(self) -> None:
        """Free all rows. After a failure too, steps in flight can be collected, since they have been launched."""
        self.drain()
        for request in self.requests:
            if request.state is not State.WAITING or request in self.scheduler.waiting:
                self.scheduler.release(request)


def step_bucket(runner: Runner, rows: int) -> int:
    """How many rows a frame step computes for `rows`: the next captured size, or exactly `rows` if there is none."""
    captured = next(iter(runner.frame.values())).captured
    return next((size for size in captured if size >= rows), rows)
