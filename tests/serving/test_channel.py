"""What comes over the channel can hurt only who sent it: garbage, half a message, too much, and what cannot be."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
import torch

from serving.conftest import wait_for
from sonant import Engine, EngineConfig, Sampling
from sonant.engine.request import Request
from sonant.serving.channel import connection
from sonant.serving.channel import messages as m
from sonant.serving.channel.engine_port import EnginePort
from sonant.serving.channel.remote_steps import RemoteSteps
from sonant.serving.channel.wire_prompt import to_wire
from sonant.serving.limits.admission import Admission
from sonant.serving.options import ServeOptions
from sonant.types import SpeechRequest
from toy_family.model import ToyModel
from toy_family.prompter import ToyPrompter


class FrontEnd:
    """A front end by hand: whatever bytes one likes."""

    def __init__(self, port: EnginePort) -> None:
        self.port = port
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(10)
        self.socket.connect(str(port.path))
        self._received = b""

    def send(self, message: msgspec.Struct) -> None:
        body = msgspec.msgpack.encode(message)
        self.socket.sendall(struct.pack("<I", len(body)) + body)

    def greet(self) -> m.Welcome:
        self.send(m.Hello(m.PROTOCOL, 1))
        welcome = self.read()
        assert isinstance(welcome, m.Welcome)
        return welcome

    def read(self) -> Any:
        """The next message; None: they have hung up."""
        while len(self._received) < 4 or len(self._received) < 4 + struct.unpack("<I", self._received[:4])[0]:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self._received += data
        end = 4 + struct.unpack("<I", self._received[:4])[0]
        body, self._received = self._received[4:end], self._received[end:]
        return msgspec.msgpack.decode(body, type=m.FromEngine)

    def until_end(self, id: int) -> tuple[list[m.Sound], m.End]:
        """All that is made for one request."""
        sounds: list[m.Sound] = []
        while True:
            told = self.read()
            assert isinstance(told, m.StepDone), told
            sounds += [sound for sound in told.sounds if sound.id == id]
            for end in told.ends:
                if end.id == id:
                    return sounds, end


@pytest.fixture(scope="module")
def port() -> Iterator[EnginePort]:
    config, device = EngineConfig(max_rows=4, kv_tokens=4096), torch.device("cpu")
    with TemporaryDirectory() as folder, Engine(ToyModel(config, device), config, device) as engine:
        opened = EnginePort(engine, Path(folder) / "engine", Admission(ServeOptions()))
        yield opened
        opened.close()


def speak(port: EnginePort, id: int, frames: int = 5, place: int | None = None) -> m.Speak:
    sampling = Sampling(stop_chance=0.0)
    prompt = port.engine.prompter.prompt(SpeechRequest(text="hello", seed=3, max_frames=frames, sampling=sampling))
    return m.Speak(id, place, to_wire(prompt), True, 0, time.monotonic(), None, 0.0, None, False)


def speaks_still(port: EnginePort) -> None:
    front_end = FrontEnd(port)
    front_end.greet()
    front_end.send(speak(port, 1))
    sounds, end = front_end.until_end(1)
    assert end.reason == "length" and sum(sound.frames for sound in sounds) == 5
    front_end.socket.close()
    wait_for(lambda: not port.peers)


GARBAGE: dict[str, Callable[[FrontEnd], None]] = {
    "no message": lambda f: f.socket.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 100),
    "not msgpack": lambda f: f.socket.sendall(struct.pack("<I", 3) + b"\xc1\xc1\xc1"),
    "another message": lambda f: f.socket.sendall(_framed([1, 2, 3])),
    "an engine's own message": lambda f: f.send(m.Done(3)),
    "too large": lambda f: f.socket.sendall(struct.pack("<I", connection.MAX_MESSAGE_BYTES + 1)),
    "greeted twice": lambda f: f.send(m.Hello(m.PROTOCOL, 1)),
    "text where numbers belong": lambda f: f.socket.sendall(_framed(["Heard", "one", 0.5])),
    "a field too many": lambda f: f.socket.sendall(_framed(["AskReport", 1, 2])),
}


def _framed(value: object) -> bytes:
    body = msgspec.msgpack.encode(value)
    return struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("kind", GARBAGE)
def test_what_is_no_message_ends_its_connection_and_nothing_else(port: EnginePort, kind: str) -> None:
    broken, front_end = port.broken, FrontEnd(port)
    front_end.greet()
    GARBAGE[kind](front_end)
    assert front_end.read() is None
    wait_for(lambda: port.broken == broken + 1 and not port.peers)
    speaks_still(port)


@pytest.mark.parametrize("first", [m.AskReport(1), m.Hello(m.PROTOCOL + 1, 1)])
def test_who_does_not_greet_in_this_version_is_turned_away(port: EnginePort, first: msgspec.Struct) -> None:
    front_end = FrontEnd(port)
    front_end.send(first)
    assert front_end.read() is None
    speaks_still(port)


def test_half_a_message_is_counted_and_holds_nothing(port: EnginePort) -> None:
    broken, front_end = port.broken, FrontEnd(port)
    front_end.greet()
    front_end.socket.sendall(struct.pack("<I", 1000) + b"x" * 10)
    front_end.socket.close()
    wait_for(lambda: port.broken == broken + 1 and not port.peers)
    speaks_still(port)


def test_a_prompt_that_does_not_fit_is_refused_by_name(port: EnginePort) -> None:
    front_end = FrontEnd(port)
    front_end.greet()
    good = speak(port, 0)
    keys = good.prompt.keys
    for n, (name, value) in enumerate(
        {
            "length": 99,
            "keys": m.Array(keys.dtype, keys.shape, keys.data[:-4]),
            "staged": {"seed_low": 1},
            "max_frames": 0,
            "payload": {"nothing": 1},
            "variant": 7,
        }.items(),
        start=1,
    ):
        prompt = msgspec.structs.replace(good.prompt, **{name: value})
        front_end.send(msgspec.structs.replace(good, id=n, prompt=prompt))
        _, end = front_end.until_end(n)
        assert end.error == "BadRequest" and end.message, name
    front_end.send(msgspec.structs.replace(speak(port, 50, frames=100_000)))
    assert front_end.until_end(50)[1].error == "BadRequest"
    front_end.send(speak(port, 51))
    assert front_end.until_end(51)[1].reason == "length"
    front_end.socket.close()


def test_what_a_front_end_held_is_free_when_it_is_gone(port: EnginePort) -> None:
    wait_for(lambda: not port.peers)
    front_end = FrontEnd(port)
    front_end.greet()
    for n in range(6):  # two of them wait
        front_end.send(m.Admit(100 + n, "address:x", "session", 1))
        assert front_end.read() == m.Done(100 + n)
        front_end.send(speak(port, n, frames=900))
    wait_for(lambda: port.engine.stats().running == 4)
    assert port.admission.sessions == 6
    front_end.socket.close()
    wait_for(lambda: port.engine.stats().running + port.engine.stats().waiting == 0 and not port.peers)
    assert port.admission.sessions == 0 and not port.admission.active
    speaks_still(port)


def test_who_does_not_read_is_cut_off(port: EnginePort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_UNSENT_BYTES", 1 << 20)
    broken, front_end = port.broken, FrontEnd(port)
    front_end.greet()
    for n in range(4):
        front_end.send(speak(port, n, frames=900))
    wait_for(lambda: port.broken == broken + 1, 30)
    wait_for(lambda: port.engine.stats().running == 0)
    speaks_still(port)


def test_a_request_is_spoken_only_in_a_place_that_was_given(port: EnginePort) -> None:
    """It may come right behind the question for one, and a front end need not wait for the answer."""
    most, steps = port.admission.options.ws_max_sessions, port.engine.stats().steps
    front_end = FrontEnd(port)
    front_end.greet()
    port.admission.sessions = most
    front_end.send(m.Admit(1, "client", "session", 1))
    front_end.send(speak(port, 2, place=1))
    refused = front_end.read()
    assert isinstance(refused, m.Failed) and refused.id == 1 and refused.status == 429
    sounds, end = front_end.until_end(2)
    assert not sounds and end.reason == "abort" and end.error is None and port.engine.stats().steps == steps
    port.admission.sessions = 0
    front_end.send(m.Admit(3, "client", "speech", 1))
    front_end.send(speak(port, 4, place=3))
    assert front_end.read() == m.Done(3)
    sounds, end = front_end.until_end(4)
    assert end.reason == "length" and sum(sound.frames for sound in sounds) == 5
    front_end.socket.close()
    wait_for(lambda: not port.peers)


def test_an_abort_ends_only_its_request(port: EnginePort) -> None:
    front_end = FrontEnd(port)
    front_end.greet()
    front_end.send(speak(port, 1, frames=900))
    front_end.send(speak(port, 2))
    front_end.send(m.Abort([1, 77]))
    assert front_end.until_end(1)[1].reason == "abort"
    front_end.send(speak(port, 3))
    assert front_end.until_end(3)[1].reason == "length"
    front_end.socket.close()


def test_what_was_made_leaves_before_what_comes_is_taken_in(port: EnginePort, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two messages that came together, the second waits for a sound that was made meanwhile."""
    wait_for(lambda: not port.peers)
    front_end = FrontEnd(port)
    front_end.greet()
    (peer,) = port.peers

    def report(_: EnginePort) -> bytes:
        peer.leave(m.Sound(5, b"\0\0", 1, None, 0.0))
        port._flush_soon(False)
        return b"{}"

    monkeypatch.setattr(port.reporter, "json", report)
    front_end.socket.sendall(b"".join(_framed(["AskReport", n]) for n in (1, 2)))
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
    peer.leave(m.End(6, "stop"))  # which the channel's thread must see
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
    for _ in range(20):  # a busy machine may be late for once
        peer.leave(m.End(5, "stop"))
        port._flush_soon(True)
        left = len(peer.unsent)
        assert isinstance(front_end.read(), m.StepDone)
        if left == 0:
            break
    assert left == 0, "the step thread did not wait"
    front_end.socket.close()


def test_what_two_threads_send_arrives_whole_and_in_order_at_a_slow_reader(port: EnginePort) -> None:
    """More than the socket takes, so that what one thread began the other must end."""
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
    """The step thread writes to it meanwhile."""
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
    """Remembers what was written."""

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


class Unheard:
    def push(self, chunk: object) -> None: ...
    def finish(self, reason: object) -> None: ...
    def fail(self, error: Exception) -> None: ...


def test_clips_to_be_encoded_are_bounded(port: EnginePort, monkeypatch: pytest.MonkeyPatch) -> None:
    from sonant.serving.channel import engine_port

    monkeypatch.setattr(engine_port, "MAX_ENCODING", 0)
    front_end = FrontEnd(port)
    front_end.greet()
    front_end.send(m.EncodeVoice(1, b"\0" * 4 * 48_000, None, "x"))
    refused = front_end.read()
    assert isinstance(refused, m.Failed) and refused.error == "Overloaded"
    monkeypatch.undo()
    front_end.send(m.EncodeVoice(2, b"\0" * 3, None, "x"))
    assert front_end.read().error == "BadRequest"
    front_end.send(m.EncodeVoice(3, b"\0" * 4 * 48_000, None, "x"))
    assert isinstance(front_end.read(), m.VoiceEncoded)
    front_end.socket.close()
