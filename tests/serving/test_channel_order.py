"""When a message leaves, on which thread, and in which order: a first sound at once, a crowd's requests together."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import msgspec
import pytest

from serving.conftest import wait_for
from serving.hand_made_front_end import FrontEnd, framed
from sonant import EngineConfig
from sonant.engine.request import Request
from sonant.engine.stream import SpeechStream
from sonant.errors import EngineClosed
from sonant.models.prompt import Prompt
from sonant.serving.channel import connection, remote_steps
from sonant.serving.channel import messages as m
from sonant.serving.channel.engine_port import EnginePort
from sonant.serving.channel.remote_engine import RemoteEngine
from sonant.serving.channel.remote_steps import RemoteSteps
from sonant.types import SpeechRequest
from toy_family.prompter import ToyPrompter


def test_what_was_made_leaves_before_what_comes_is_taken_in(port: EnginePort, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two messages that came together, the second is handled only after a sound made meanwhile has left."""
    wait_for(lambda: not port.peers)
    front_end = FrontEnd(port)
    front_end.greet()
    (peer,) = port.peers

    def report(_: EnginePort) -> bytes:
        peer.leave(m.Sound(5, b"\0\0", 1, None, 0.0))
        port._flush_soon(False)
        return b"{}"

    monkeypatch.setattr(port.reporter, "json", report)
    front_end.socket.sendall(b"".join(framed(["AskReport", n]) for n in (1, 2)))
    told = [front_end.read() for _ in range(4)]
    assert [type(message) for message in told] == [m.Report, m.StepDone, m.Report, m.StepDone]
    front_end.socket.close()


def test_a_first_sound_leaves_from_the_step_thread_while_the_channels_is_busy(port: EnginePort) -> None:
    wait_for(lambda: not port.peers)
    front_end = FrontEnd(port)
    front_end.greet()
    (peer,) = port.peers
    busy, free = threading.Event(), threading.Event()
    port.loop.call_soon_threadsafe(lambda: (busy.set(), free.wait(10)))
    assert busy.wait(10)
    peer.leave(m.Sound(5, b"\0\0", 1, None, 0.0))
    port._flush_soon(True)
    assert not peer.unsent and front_end.read().sounds[0].id == 5
    peer.leave(m.Sound(6, b"\0\0", 1, None, 0.0))
    peer.leave(m.End(6, "stop"))  # an end, which must go through the channel's thread
    began_s = time.monotonic()
    port._flush_soon(True)
    assert time.monotonic() - began_s < 5, "it waits for ever"
    assert len(peer.unsent) == 2
    free.set()
    told = front_end.read()
    assert [sound.id for sound in told.sounds] == [end.id for end in told.ends] == [6]
    front_end.socket.close()


def test_an_end_is_on_its_way_before_the_next_step_unless_that_takes_long(port: EnginePort) -> None:
    wait_for(lambda: not port.peers)
    front_end = FrontEnd(port)
    front_end.greet()
    (peer,) = port.peers
    for _ in range(20):  # a busy machine may be late now and then
        peer.leave(m.End(5, "stop"))
        port._flush_soon(True)
        left = len(peer.unsent)
        assert isinstance(front_end.read(), m.StepDone)
        if left == 0:
            break
    assert left == 0, "the step thread did not wait"
    front_end.socket.close()


def test_what_two_threads_send_arrives_whole_and_in_order_at_a_slow_reader(port: EnginePort) -> None:
    """It is more than the socket takes, so that one thread must finish what the other began to send."""
    wait_for(lambda: not port.peers)
    front_end = FrontEnd(port)
    front_end.greet()
    (peer,) = port.peers
    steps, asked = 400, 200

    def deliver() -> None:
        for n in range(steps):
            peer.leave(m.Sound(n, bytes([n % 256]) * 4001, 1, None, 0.0))
            port._flush_soon(True)

    step_thread = threading.Thread(target=deliver)
    step_thread.start()
    for n in range(asked):
        front_end.send(m.Admit(n, "somebody", "look_upload", 1))
    ids, answered = list[int](), list[int]()
    while len(ids) < steps or len(answered) < asked:
        told = front_end.read()
        if isinstance(told, m.StepDone):
            assert all(bytes(sound.samples) == bytes([sound.id % 256]) * 4001 for sound in told.sounds)
            ids += [sound.id for sound in told.sounds]
        else:
            answered.append(told.id)
    step_thread.join()
    assert ids == [*range(steps)] and answered == [*range(asked)]
    front_end.socket.close()


def test_a_front_end_that_goes_while_it_is_told_harms_nobody(port: EnginePort) -> None:
    """It hangs up while the step thread writes to it."""
    for _ in range(5):
        wait_for(lambda: not port.peers)
        front_end = FrontEnd(port)
        front_end.greet()
        (peer,) = port.peers
        gone = threading.Timer(0.01, front_end.socket.close)
        gone.start()
        while peer in port.peers:
            peer.leave(m.Sound(1, b"\0" * 4000, 1, None, 0.0))
            port._flush_soon(True)
        gone.join()
        assert peer.connection._beside is None


class Wire(asyncio.Transport):
    """A transport that records what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0


def test_messages_of_one_turn_leave_together_and_many_do_not_wait_for_the_last() -> None:
    async def run() -> None:
        wire, end = Wire(), connection.Connection(m.FromEngine, lambda _: None, lambda _: None)
        end.connection_made(wire)
        for n in range(2):
            end.send(m.AskReport(n))
        assert wire.written == []
        await asyncio.sleep(0)
        assert len(wire.written) == 1 and wire.written[0].count(b"AskReport") == 2
        for n in range(8):
            end.send(m.EncodeVoice(n, b"\0" * 4096, None, "x"))
        assert len(wire.written) == 3
        end.send_now(m.AskReport(9))
        assert len(wire.written) == 4
        await asyncio.sleep(0)
        assert len(wire.written) == 4, "what has left leaves again"

    asyncio.run(run())


def test_a_lone_clients_messages_leave_at_once_and_a_crowds_together() -> None:
    async def run() -> None:
        wire, end = Wire(), connection.Connection(m.FromEngine, lambda message: steps.take(message), lambda _: None)
        end.connection_made(wire)
        prompter = ToyPrompter(EngineConfig())
        steps = RemoteSteps(end, prompter.spec, "int16")

        def ask(place: int) -> asyncio.Future[Any]:
            asked = steps.send_ask(m.Admit(place, "somebody", "speech", 1))
            with steps.in_place(place):
                speech = SpeechRequest(text="hello")
                steps.post(Request(speech, prompter.prompt(speech), Unheard(), 0.0))
            return asked

        lone = ask(1001)
        assert [b"Admit" in each for each in wire.written] == [True, False], "it waits for the prompt"
        assert b"Speak" in wire.written[1]
        steps.tell(m.Arrived(1001))
        more = [ask(1002 + n) for n in range(2)]
        assert len(wire.written) == 2
        await asyncio.sleep(0)
        assert len(wire.written) == 3
        sent = [wire.written[2].index(name) for name in (b"Arrived", b"Admit", b"Speak")]
        assert sent == sorted(sent) and wire.written[2].count(b"Speak") == 2
        for place, asked in zip((1001, 1002, 1003), [lone, *more], strict=True):
            steps.take(m.Done(place))
            await steps.answer_to(m.Admit(place, "somebody", "speech", 1), asked, m.Done)
        ask(1004)
        assert len(wire.written) == 5, "nobody else asks any more"

    asyncio.run(run())


def test_a_request_that_another_thread_lays_out_while_the_engine_is_lost_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = remote_steps.to_wire

    async def run() -> None:
        end, config = connection.Connection(m.FromEngine, lambda _: None, lambda _: None), EngineConfig()
        end.connection_made(Wire())
        welcome = m.Welcome(msgspec.json.encode(config), 4096, "none", 0, "int16")
        engine, loop = RemoteEngine(ToyPrompter(config), end, welcome), asyncio.get_running_loop()

        def lose_meanwhile(prompt: Prompt) -> m.WirePrompt:
            told = threading.Event()
            loop.call_soon_threadsafe(lambda: (engine.lost(EngineClosed("it is gone")), told.set()))
            assert told.wait(10)
            return real(prompt)

        monkeypatch.setattr(remote_steps, "to_wire", lose_meanwhile)
        with pytest.raises(EngineClosed, match="it is gone"):
            await asyncio.to_thread(engine.submit, SpeechRequest(text="hello"))

    asyncio.run(run())


class Unheard:
    def push(self, chunk: object) -> None: ...
    def finish(self, reason: object) -> None: ...
    def fail(self, error: Exception) -> None: ...


def test_a_stream_that_is_dropped_while_a_message_is_written_is_aborted_after_it() -> None:
    """The garbage collector may drop it there, and the channel's lock cannot be taken twice."""

    class Dropping(Wire):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            super().write(data)
            dropped.clear()

    async def run() -> None:
        end = connection.Connection(m.FromEngine, lambda _: None, lambda _: None)
        end.connection_made(wire)
        config = EngineConfig()
        welcome = m.Welcome(msgspec.json.encode(config), 4096, "none", 0, "int16")
        engine = RemoteEngine(ToyPrompter(config), end, welcome)
        dropped.append(engine.submit(SpeechRequest(text="hello")))
        end.send_now(m.AskReport(1))
        for _ in range(3):
            await asyncio.sleep(0)

    wire, dropped = Dropping(), list[SpeechStream]()
    running = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    running.start()
    running.join(10)
    assert not running.is_alive(), "it waits for itself"
    assert [b"Abort" in each for each in wire.written] == [False, False, True]
