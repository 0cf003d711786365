"""The step thread: the one place where requests, rows and the device meet.

Other threads only leave requests and aborts here. With `steps_ahead` 1 a step is launched before the last one's
result is read, so the device never waits for the host. A row and its blocks are freed only when no launched step
uses them any more. Graphs that the engine did not wait for at its start are captured here, one at a time between steps.
A sink that raises ends its own request and no other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar
from weakref import WeakSet

from sonant.audio.pcm import NO_SOUND
from sonant.config import EngineConfig
from sonant.engine.blocks import BlockPool
from sonant.engine.request import Request
from sonant.engine.runner import Runner, Step
from sonant.engine.scheduler import Plan, Scheduler
from sonant.engine.sleeper import Sleeper
from sonant.engine.step_queue import OpenText
from sonant.engine.telemetry import EngineStats
from sonant.errors import EngineClosed, EngineError, Overloaded, TooLate
from sonant.types import FinishReason

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_EVERY_S = 0.05  # for requests that have waited past their `first_audio_within_s`


class Observer(Protocol):
    """Sees steps go by, on the step thread. What it raises is the engine's failure."""

    def between_steps(self) -> None: ...
    def around_launch(self, plan: Plan) -> AbstractContextManager[None]: ...


class StepLoop:
    def __init__(self, runner: Runner, config: EngineConfig, sleeper: Sleeper | None = None) -> None:
        self.runner, self.config, self.sleeper = runner, config, sleeper
        self.pool = BlockPool(runner.blocks, config.block_tokens)
        model, telemetry = runner.model, runner.telemetry
        self.scheduler = Scheduler(
            config, model.spec, runner.sizes, runner.rows, self.pool, telemetry, model.has_preroll
        )
        self.steps = 0
        self.failure: Exception | None = None
        self._inbox: list[Request] = []
        self._aborts: list[Request] = []
        self._heard: list[Request] = []
        self._dropped: deque[Callable[[], None]] = deque()
        self._open: WeakSet[OpenText] = WeakSet()
        self._wake = threading.Condition()
        self._expected = 0  # requests that are still being laid out, see `expect`
        self._stop = self._in_haste = self._ended = False
        self._observer: Observer | None = None
        # Called when all sinks have been given what there is. True: it holds somebody's first sound, and is urgent.
        self.after_delivery: Callable[[bool], None] = _nothing
        self._looked_s = 0.0
        if sleeper is not None:
            sleeper.before_sleep = self.pool.forget
        self._thread = threading.Thread(target=self._run, name="sonant-step", daemon=True)
        self._thread.start()

    # Called by any thread

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def post(self, request: Request) -> None:
        with self._wake:
            self._check_running()
            request.enqueue()
            self._inbox.append(request)
            self._wake.notify()

    def expect(self) -> None:
        """A text is about to post a request, though it has none in flight: a draining engine waits for it."""
        with self._wake:
            self._check_running()
            self._expected += 1

    def stop_expecting(self) -> None:
        """The expected request was posted, or never will be."""
        with self._wake:
            self._expected -= 1
            self._wake.notify()

    def abort(self, requests: Iterable[Request]) -> None:
        with self._wake:
            self._aborts.extend(requests)
            self._wake.notify()

    def drop(self, abort: Callable[[], None]) -> None:
        self._dropped.append(abort)  # nobody need be woken: while there is a request, the step thread looks

    def heard(self, request: Request) -> None:
        with self._wake:
            self._heard.append(request)  # The step thread is not woken for it.

    def watch(self, text: OpenText) -> None:
        """Tell this text when the engine ends."""
        with self._wake:
            self._check_running()
            self._open.add(text)

    def observe(self, observer: Observer | None) -> None:
        with self._wake:
            self._observer = observer
            self._wake.notify()

    def wake(self) -> None:
        with self._wake:
            self._wake.notify()

    def check_room(self) -> None:
        """Raise if the queue is full. Requests that will find a row free do not count, though no step has seen them."""
        waiting = self.waiting() - len(self.runner.rows.free)
        if waiting >= self.config.max_waiting:
            raise Overloaded(f"{waiting} requests are waiting already; try again later")

    def waiting(self) -> int:
        return len(self._inbox) + self.scheduler.sharing.queued + self._expected

    def stats(self, coming: int | None = None) -> EngineStats:
        """`coming`: only what is needed to decide on one more request, with so many others on their way."""
        return self.scheduler.sharing.stats(self.steps, waiting=self.waiting(), unseen=len(self._inbox), coming=coming)

    def join(self) -> None:
        self._thread.join()

    def close(self, drain_s: float) -> None:
        with self._wake:
            self._stop = True
            self._wake.notify()
        self._thread.join(min(drain_s, threading.TIMEOUT_MAX))
        self._in_haste = True
        while self._thread.is_alive():  # a long text may still post its next part
            self.abort([*self._inbox, *self.scheduler.requests])
            self._thread.join(0.05)

    def _check_running(self) -> None:
        if self._ended or not self._thread.is_alive():
            raise EngineClosed("the engine is not running; load it again") from self.failure

    # The step thread

    def _run(self) -> None:
        try:
            with self.runner.on_stream():
                self._loop()
        except Exception as e:
            logger.exception("the step thread failed")
            self.failure = EngineError(f"the engine failed while speaking: {type(e).__name__}: {e}")
            self.failure.__cause__ = e
        self._end_all()
        if self.sleeper is not None:
            self.sleeper.close()

    def _loop(self) -> None:
        in_flight: list[Step] = []
        assert self.config.steps_ahead is not None
        telemetry = self.runner.telemetry
        while True:
            telemetry.begin()
            observer = self._observer
            if observer is not None:
                observer.between_steps()
            self._take_messages()
            now_s = time.monotonic()
            if now_s - self._looked_s >= _LOOK_EVERY_S:
                self._refuse_late(now_s)
            if self.sleeper is not None and not self.sleeper.may_step(bool(in_flight or self.scheduler.requests)):
                if self._wait_for_messages(observer):
                    continue
                return
            plan = self.scheduler.plan(now_s, self._begin if observer is None else None)
            if plan:
                telemetry.took("plan")
                with nullcontext() if observer is None else observer.around_launch(plan):
                    in_flight.append(self.runner.launch(plan, self.scheduler.ledger))
                self.steps += 1
                for request, _, end in plan.prefill:
                    assert request.allocation is not None
                    self.pool.publish(request.allocation, end)
            capturing = self._may_capture()
            while len(in_flight) > (self.config.steps_ahead if plan and not capturing else 0):
                self._collect(in_flight.pop(0))
            if capturing:
                self.runner.capture_next()
            elif not plan and not self._wait_for_messages(observer):
                return

    def _begin(self, plan: Plan) -> None:
        self.runner.telemetry.took("plan", goes_on=True)
        self.runner.begin(plan)

    def _may_capture(self) -> bool:
        """Whether a graph is still to be captured, and every listener has sound buffered for as long as that takes."""
        warmup, now_s = self.runner.graphs.warmup, time.monotonic()
        if not warmup.pending or warmup.held or self._stop or self._inbox or self._expected:
            return False
        live = [r for r in self.scheduler.requests if r.live and not r.abort_requested]
        return all(self.scheduler.slack_s(r, now_s) > warmup.expected_s for r in live)

    def _take_messages(self) -> None:
        while self._dropped:
            self._dropped.popleft()()
        with self._wake:
            inbox, self._inbox = self._inbox, []
            aborts, self._aborts = self._aborts, []
            heard, self._heard = self._heard, []
        for request in heard:
            request.show_heard()
        self.scheduler.waiting.extend(inbox)
        for request in aborts:
            if request.abort():
                self._tell(request, request.sink.finish, FinishReason.ABORT)
                self._retire(request)
        if aborts:
            self.after_delivery(False)

    def _refuse_late(self, now_s: float) -> None:
        """Refuse requests that got no row within their `first_audio_within_s`, and say when to come back."""
        self._looked_s = now_s
        waiting = [(r, r.speech.first_audio_within_s) for r in self.scheduler.waiting]
        late = [(r, within_s) for r, within_s in waiting if within_s is not None and now_s - r.arrival_s >= within_s]
        first_sound_s = self.stats().first_sound_s() if late else 0.0
        for request, within_s in late:
            if request.abort():
                retry_s = max(1.0, first_sound_s - within_s)
                message = f"no row was free within {within_s:g} s; the engine is full, try again later"
                self._fail(request, TooLate(message, retry_s))
                self._retire(request)
        if late:
            self.after_delivery(False)  # no step may follow: an engine that sleeps makes none

    def _wait_for_messages(self, observer: Observer | None) -> bool:
        """Sleep until there is something to do or the observer has changed. False: the loop is to end."""
        with self._wake:
            if self._inbox or self._aborts or self.scheduler.requests or self._observer is not observer:
                return True
            if self._stop and (self._in_haste or not (self._expected or any(text.held_back for text in self._open))):
                self._ended = True  # Nothing can be posted from here on: nobody would look at it.
                return False
            looks = self._stop or self.sleeper is not None  # at seats, or whether those held back are still there
            self._wake.wait(_LOOK_EVERY_S if looks else None)
            return True

    def _collect(self, step: Step) -> None:
        chunks, now_s = self.runner.collect(step, self.scheduler.ledger), time.monotonic()
        is_first = any(chunk is not None and chunk.start_s == 0 for _, chunk in chunks)
        for request, chunk in chunks:
            if chunk is None:
                self._drop(request, EngineError(NO_SOUND))
            elif request.on_trial:
                request.hold(chunk)
            elif not request.abort_requested:
                self._count_ahead(request, len(chunk.frames), now_s)
                self._tell(request, request.sink.push, chunk)
        for request in self.scheduler.ledger.over(step.users):
            if request.abort_requested:
                self._retire(request)
            elif request.complete and request.steps_in_flight == 0:
                self._complete(request)
        self.after_delivery(is_first)
        self.runner.telemetry.took("deliver")

    def _complete(self, request: Request) -> None:
        """All sound of a request has been made: finish it, or make it again if it went wrong."""
        self.scheduler.release(request)
        if request.step_s is not None:
            self.runner.telemetry.time_per_step_s.add(request.step_s)
        if request.went_wrong:
            request.retry()
            self.scheduler.waiting.append(request)
            return
        if all(self._tell(request, request.sink.push, chunk) for chunk in request.release_held()):
            self._tell(request, request.sink.finish, request.reason)

    def _tell(self, request: Request, message: Callable[[T], None], value: T) -> bool:
        """Call a method of a request's sink. If it raises (False) its listener is taken to be gone, and it ends."""
        try:
            message(value)
            return True
        except Exception as e:
            logger.warning("a listener could not be given their sound and was dropped", exc_info=True)
            error = EngineError(f"the sound could not be handed over: {type(e).__name__}: {e}")
            error.__cause__ = e
            self._drop(request, error)
            return False

    def _drop(self, request: Request, error: Exception) -> None:
        """End one request with an error, once."""
        if not request.abort_requested:
            request.abort()
            self._fail(request, error)

    def _fail(self, request: Request, error: Exception) -> None:
        try:
            request.sink.fail(error)
        except Exception:
            logger.warning("a listener could not be told of an error", exc_info=True)

    def _count_ahead(self, request: Request, new_frames: int, now_s: float) -> None:
        before_s = request.heard_s + (request.emitted - new_frames) * self.scheduler.spec.frame_s
        if request.live and request.first_audio_s is not None and before_s > 0:
            ahead_s = before_s - (now_s - request.first_audio_s) * request.playback_speed
            self.runner.telemetry.frames_ahead.add(max(0.0, ahead_s / self.scheduler.spec.frame_s))

    def _retire(self, request: Request) -> None:
        """Free an aborted request now, or when the last step that uses its row has been collected."""
        if request.steps_in_flight == 0:
            self.scheduler.release(request)
        else:
            request.leave()

    def _end_all(self) -> None:
        """The engine has ended: tell every request, and every open text, even one that has no request now."""
        with self._wake:
            self._ended = True
            requests = [*self._inbox, *self.scheduler.requests]
            texts = list(self._open)
        if self.failure is not None:
            for request in requests:
                if not request.abort_requested:
                    self._fail(request, self.failure)
        for text in texts:
            text.engine_ended(self.failure)
        self.after_delivery(False)


def _nothing(_: bool) -> None:
    """What `after_delivery` does where nobody set it."""
