"""What comes over the channel harms only its sender: garbage, half a message, too much, and impossible values."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from serving.conftest import wait_for
from serving.hand_made_front_end import FrontEnd, framed, speak, speaks_still
from sonant import Engine, EngineConfig
from sonant.serving.channel import connection
from sonant.serving.channel import messages as m
from sonant.serving.channel.engine_link import EngineLink
from sonant.serving.channel.engine_port import EnginePort
from sonant.serving.limits.admission import Admission
from sonant.serving.options import ServeOptions
from toy_family.model import ToyModel
from toy_family.prompter import ToyPrompter

GARBAGE: dict[str, Callable[[FrontEnd], None]] = {
    "no message": lambda f: f.socket.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 100),
    "not msgpack": lambda f: f.socket.sendall(struct.pack("<I", 3) + b"\xc1\xc1\xc1"),
    "another message": lambda f: f.socket.sendall(framed([1, 2, 3])),
    "an engine's own message": lambda f: f.send(m.Done(3)),
    "too large": lambda f: f.socket.sendall(struct.pack("<I", connection.MAX_MESSAGE_BYTES + 1)),
    "greeted twice": lambda f: f.send(m.Hello(m.PROTOCOL, 1)),
    "text where numbers belong": lambda f: f.socket.sendall(framed(["Heard", "one", 0.5])),
    "a field too many": lambda f: f.socket.sendall(framed(["AskReport", 1, 2])),
}


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


def test_who_is_turned_away_does_not_ask_again_at_once(tmp_path: Path) -> None:
    """As a front end that outlived an upgrade is, whenever it comes."""
    came = 0

    def turn_away(_: asyncio.StreamReader, end: asyncio.StreamWriter) -> None:
        nonlocal came
        came += 1
        end.close()

    async def run() -> None:
        server = await asyncio.start_unix_server(turn_away, str(tmp_path / "engine"))
        link = EngineLink(tmp_path / "engine", ToyPrompter(EngineConfig()))
        starting = asyncio.create_task(link.start())
        await asyncio.sleep(0.3)
        await link.close()
        starting.cancel()
        server.close()

    asyncio.run(run())
    assert came == 1


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
    for n in range(6):  # two more than there are rows, so two wait
        front_end.send(m.Admit(100 + n, "address:x", "session", 1))
        assert front_end.read_answer() == m.Done(100 + n)
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
    """A request may follow right behind the question for a place: a front end need not wait for the answer."""
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


def test_a_port_that_is_closed_while_clips_are_encoded_says_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one is whose engine has failed."""
    config, device, may = EngineConfig(max_rows=1, kv_tokens=512), torch.device("cpu"), threading.Event()
    with Engine(ToyModel(config, device), config, device) as engine:
        monkeypatch.setattr(engine, "encode", lambda *_: may.wait(10))
        port = EnginePort(engine, tmp_path / "engine", Admission(ServeOptions()))
        clips = [port.encode_voice(None, None, "clip") for _ in range(3)]
        port.close()
        may.set()
        wait_for(lambda: all(made is not None and made.done() for made in clips))
    assert [record.getMessage() for record in caplog.records] == []
