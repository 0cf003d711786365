"""A hand-made front end, connected to an engine's channel, for tests of what it may send and what it is told."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

import msgspec

from serving.conftest import wait_for
from sonant import Sampling
from sonant.serving.channel import messages as m
from sonant.serving.channel.engine_port import EnginePort
from sonant.serving.channel.wire_prompt import to_wire
from sonant.types import SpeechRequest


class FrontEnd:
    """A front end that can send any bytes."""

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
        """The next message; None: the engine has hung up."""
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

    def read_answer(self) -> Any:
        """The next message but for sound, which may come before the answer to a later question."""
        while isinstance(message := self.read(), m.StepDone):
            pass
        return message

    def until_end(self, id: int) -> tuple[list[m.Sound], m.End]:
        """Return all sounds that are made for one request, and its end."""
        sounds: list[m.Sound] = []
        while True:
            told = self.read()
            assert isinstance(told, m.StepDone), told
            sounds += [sound for sound in told.sounds if sound.id == id]
            for end in told.ends:
                if end.id == id:
                    return sounds, end


def framed(value: object) -> bytes:
    body = msgspec.msgpack.encode(value)
    return struct.pack("<I", len(body)) + body


def speak(port: EnginePort, id: int, frames: int = 5, place: int | None = None) -> m.Speak:
    sampling = Sampling(stop_chance=0.0)
    prompt = port.engine.prompter.prompt(SpeechRequest(text="hello", seed=3, max_frames=frames, sampling=sampling))
    return m.Speak(id, place, to_wire(prompt), True, 0, time.monotonic(), None, 0.0, None, False, 1.0)


def speaks_still(port: EnginePort) -> None:
    front_end = FrontEnd(port)
    front_end.greet()
    front_end.send(speak(port, 1))
    sounds, end = front_end.until_end(1)
    assert end.reason == "length" and sum(sound.frames for sound in sounds) == 5
    front_end.socket.close()
    wait_for(lambda: not port.peers)
