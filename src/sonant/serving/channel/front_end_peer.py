"""One front end at the engine's end of the channel: what it asked for, what it holds, what waits to be sent to it."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from sonant.engine.request import Request
from sonant.errors import BadRequest, Overloaded, SonantError
from sonant.serving.channel import messages as m
from sonant.serving.channel.connection import BadChannel, Connection
from sonant.serving.channel.errors_on_wire import name_of, text_of
from sonant.serving.channel.wire_prompt import from_wire, pack_array
from sonant.serving.limits.admission import Ticket
from sonant.serving.refused import Refused
from sonant.types import AudioChunk, FinishReason, SpeechRequest
from sonant.voice import Voice

if TYPE_CHECKING:
    from sonant.serving.channel.engine_port import EnginePort


class PeerSink:
    """A request's sink. It is called on the step thread, so it only queues what is to be sent."""

    __slots__ = ("id", "peer", "wants_frames")

    def __init__(self, peer: FrontEndPeer, id: int, wants_frames: bool) -> None:
        self.peer, self.id, self.wants_frames = peer, id, wants_frames

    def push(self, chunk: AudioChunk) -> None:
        codes = chunk.frames.tobytes() if self.wants_frames else None
        samples: Any = chunk.samples.data  # these are a copy that nobody else has, so they need no other
        self.peer.leave(m.Sound(self.id, samples, len(chunk.frames), codes, chunk.start_s))

    def finish(self, reason: FinishReason) -> None:
        self.peer.leave(m.End(self.id, str(reason)))

    def fail(self, error: Exception) -> None:
        self.peer.leave(_failed(self.id, error))


class FrontEndPeer:
    def __init__(self, port: EnginePort) -> None:
        self.port = port
        self.connection = Connection(m.FromFrontEnd, self._take, self._lost, sends_from_elsewhere=True)
        self.greeted = False
        self.requests: dict[int, Request] = {}
        self.places: dict[int, tuple[ExitStack, Ticket | None]] = {}
        self.unsent: deque[m.Sound | m.End] = deque()  # the step thread appends; `_flushing` guards removal
        self._flushing = threading.Lock()
        self._handlers: dict[type, Callable[[Any], None]] = {
            m.Hello: self._hello,
            m.Admit: self._admit,
            m.Arrived: self._arrived,
            m.Leave: self._leave,
            m.Speak: self._speak,
            m.Heard: self._heard,
            m.Abort: self._abort,
            m.EncodeVoice: self._encode_voice,
            m.AskReport: self._report,
            m.AskProfile: self._profile,
        }

    def leave(self, item: m.Sound | m.End) -> None:
        self.unsent.append(item)
        self.port.mark()

    def flush(self) -> None:
        """Send all that waits in one message."""
        with self._flushing:
            items = [self.unsent.popleft() for _ in range(len(self.unsent))]
            if not items:
                return
            ends = [item for item in items if isinstance(item, m.End)]
            for end in ends:
                self.requests.pop(end.id, None)
            self.connection.send_now(m.StepDone([item for item in items if isinstance(item, m.Sound)], ends))

    def hand_over(self) -> bool:
        """As `flush`, but on the step thread, once a step's sound is all queued; False: `flush` must do it.

        Only the channel's thread forgets requests that end, so this does not send ends.
        """
        if not self._flushing.acquire(blocking=False):
            return False
        try:
            sounds = [item for item in self.unsent if isinstance(item, m.Sound)]
            if len(sounds) < len(self.unsent):
                return False
            sent = not sounds or self.connection.send_from_elsewhere(m.StepDone(sounds, []))
            if sent:
                self.unsent.clear()
            return sent
        finally:
            self._flushing.release()

    # Messages

    def _take(self, message: m.Message) -> None:
        if not self.greeted and not isinstance(message, m.Hello):
            raise BadChannel(f"the first message must be a greeting, not {type(message).__name__}")
        self.port.before_message()
        self._handlers[type(message)](message)

    def _hello(self, hello: m.Hello) -> None:
        if hello.protocol != m.PROTOCOL or self.greeted:
            raise BadChannel(f"this end speaks version {m.PROTOCOL}, once greeted; restart the front end")
        self.greeted = True
        engine, port = self.port.engine, self.port
        facts = (port.config_json(), engine.most_positions, str(engine.device), port.restarts)
        self.connection.send(m.Welcome(*facts, sound=engine.sound))

    def _admit(self, ask: m.Admit) -> None:
        admission, engine = self.port.admission, self.port.engine
        if ask.id in self.places:
            raise BadChannel(f"place {ask.id} is taken")
        place, room = ExitStack(), engine.config.max_waiting
        try:
            stats = engine.loop.stats(coming=admission.on_the_way)
            ticket = admission.enter(place, ask.client, ask.kind, ask.requests, stats, room)
        except SonantError as e:
            place.close()
            return self._fail(ask.id, e)
        self.places[ask.id] = place, ticket
        return self.connection.send(m.Done(ask.id))

    def _arrived(self, arrived: m.Arrived) -> None:
        _, ticket = self.places.get(arrived.id, (None, None))
        if ticket is not None:
            ticket.arrived()

    def _leave(self, leave: m.Leave) -> None:
        place, _ = self.places.pop(leave.id, (None, None))
        if place is not None:
            place.close()

    def _speak(self, ask: m.Speak) -> None:
        if ask.id in self.requests:
            raise BadChannel(f"request {ask.id} is being spoken")
        if ask.place is not None and ask.place not in self.places:  # the answer to its `Admit` tells why
            return self.connection.send(m.StepDone([], [m.End(ask.id, str(FinishReason.ABORT))]))
        engine = self.port.engine
        try:
            prompt = from_wire(ask.prompt, engine.prompter.layout)
            engine.prompter.check(prompt)
            speech = SpeechRequest(
                text="",
                live=ask.live,
                priority=ask.priority,
                first_audio_within_s=ask.first_audio_within_s,
                playback_speed=ask.playback_speed,
            )
            sink = PeerSink(self, ask.id, ask.wants_frames)
            delay_steps, keeps_frames = engine.spec.delay_steps, ask.wants_frames
            request = Request(speech, prompt, sink, ask.arrival_s, delay_steps, keeps_frames=keeps_frames)
            if request.positions > engine.most_positions:
                raise BadRequest(f"{request.positions} positions are over the {engine.most_positions} of one request")
            request.continue_stream(ask.first_audio_s, ask.heard_s)
            engine.loop.check_room()
            self.requests[ask.id] = request
            engine.loop.post(request)
        except SonantError as e:
            self.requests.pop(ask.id, None)
            self.connection.send(m.StepDone([], [_failed(ask.id, e)]))

    def _heard(self, heard: m.Heard) -> None:
        if heard.id in self.requests:
            self.requests[heard.id].hear(heard.heard_s)
            self.port.engine.loop.heard(self.requests[heard.id])

    def _abort(self, abort: m.Abort) -> None:
        """Requests that are not known here have ended meanwhile."""
        self.port.engine.loop.abort([self.requests[id] for id in abort.ids if id in self.requests])

    def _encode_voice(self, ask: m.EncodeVoice) -> None:
        if len(ask.samples) % 4:
            return self._fail(ask.id, BadRequest("a clip must be whole samples of 32 bits"))
        samples = np.frombuffer(ask.samples, np.float32).copy()  # torch wants writable memory
        made = self.port.encode_voice(samples, ask.text, ask.name)
        if made is None:
            return self._fail(ask.id, Overloaded("too many reference clips wait to be encoded; try again later"))
        return self._answer(ask.id, made, lambda voice: _encoded(ask.id, voice))

    def _report(self, ask: m.AskReport) -> None:
        self.connection.send(m.Report(ask.id, self.port.reporter.json(self.port)))

    def _profile(self, ask: m.AskProfile) -> None:
        made = self.port.record(ask.steps, ask.timeout_s, ask.stacks, ask.graphs)
        self._answer(ask.id, made, lambda told: m.Profiled(ask.id, told[0], str(told[1])))

    def _answer(self, id: int, made: Future[Any], message: Callable[[Any], m.Message]) -> None:
        def answer(done: asyncio.Future[Any]) -> None:
            error = None if done.cancelled() else done.exception()
            if done.cancelled() or error is not None:
                self._fail(id, error if isinstance(error, Exception) else Overloaded("it was given up; try again"))
            else:
                self.connection.send(message(done.result()))

        asyncio.wrap_future(made, loop=self.port.loop).add_done_callback(answer)

    def _fail(self, id: int, error: Exception) -> None:
        refused = error if isinstance(error, Refused) else None
        status, code = (refused.status, refused.code) if refused is not None else (0, "")
        retry_s = getattr(error, "retry_s", 0.0)
        self.connection.send(m.Failed(id, name_of(error), text_of(error), status, code, retry_s))

    def _lost(self, error: Exception | None) -> None:
        """Free whatever the front end held, since nothing can reach it any more."""
        self.port.engine.loop.abort(list(self.requests.values()))
        self.requests.clear()
        with self._flushing:
            self.unsent.clear()
        for place, _ in self.places.values():
            place.close()
        self.places.clear()
        self.port.gone(self, error)


def _failed(id: int, error: Exception) -> m.End:
    return m.End(id, None, name_of(error), text_of(error), getattr(error, "retry_s", 0.0))


def _encoded(id: int, voice: Voice) -> m.VoiceEncoded:
    return m.VoiceEncoded(id, {name: pack_array(tensor) for name, tensor in voice.tensors.items()}, voice.family)
