"""The engine as a front end sees it: prompts are laid out here, and steps run in the engine's process."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sonant.config import EngineConfig
from sonant.engine.intake import Intake
from sonant.engine.stream import SpeechStream
from sonant.errors import BadAudio
from sonant.models.prompt import Prompter
from sonant.serving.channel import connection
from sonant.serving.channel import messages as m
from sonant.serving.channel.connection import Connection
from sonant.serving.channel.remote_steps import RemoteSteps
from sonant.serving.channel.wire_prompt import unpack_array
from sonant.serving.observability.engine_report import EngineReport
from sonant.types import Samples, SpeechRequest
from sonant.voice import Voice

_BESIDE_CLIP_BYTES = 32 << 10  # of a message that holds a clip: its text and its name, with room to spare


@dataclass(frozen=True)
class Admitted:
    """The engine, for a client that has been admitted, or awaits the answer."""

    engine: RemoteEngine
    place: int

    def submit(self, request: SpeechRequest) -> SpeechStream:
        """On the event loop. The request is spoken only if the place is given."""
        with self.engine.remote.in_place(self.place):
            return self.engine.submit(request)

    def arrived(self) -> None:
        """One of its requests has been sent, so the engine's queue will count it, or will never come."""
        self.engine.remote.tell(m.Arrived(self.place))


class RemoteEngine(Intake):
    def __init__(self, prompter: Prompter, connection: Connection, welcome: m.Welcome) -> None:
        config = msgspec.json.decode(welcome.config, type=EngineConfig)
        self.remote = RemoteSteps(connection, prompter.spec, welcome.sound)
        super().__init__(prompter, config, self.remote, welcome.most_positions)
        self.device = welcome.device

    async def admit(self, resources: ExitStack, client: str, kind: m.PlaceKind, requests: int = 1) -> Admitted:
        """Take a place for a client, to be given back with `resources`, or raise why there is none."""
        admitted, given = self.ask_in(resources, client, kind, requests)
        await given
        return admitted

    def ask_in(
        self, resources: ExitStack, client: str, kind: m.PlaceKind, requests: int = 1
    ) -> tuple[Admitted, Awaitable[object]]:
        """As `admit`, but without waiting: the second value must be awaited, and raises why there is no place."""
        ask = m.Admit(self.remote.next_id(), client, kind, requests)
        resources.callback(self.remote.tell, m.Leave(ask.id))
        return Admitted(self, ask.id), self.remote.answer_to(ask, self.remote.send_ask(ask), m.Done)

    async def encode(self, samples: Samples, text: str | None, name: str = "clone") -> Voice:
        room_s = (connection.MAX_MESSAGE_BYTES - _BESIDE_CLIP_BYTES) / 4 / self.spec.clip_sample_rate
        clip_s = len(samples) / self.spec.clip_sample_rate
        if clip_s > room_s:  # The engine would hang up on all that this process speaks.
            raise BadAudio(f"The clip is {clip_s:.1f} s long: cut it to {room_s:.1f} s or less")
        ask = m.EncodeVoice(self.remote.next_id(), samples.tobytes(), text, name)
        made = await self.remote.ask(ask, m.VoiceEncoded)
        tensors = {key: unpack_array(tensor) for key, tensor in made.tensors.items()}
        return Voice(tensors, text or None, name, made.family)

    async def report(self) -> EngineReport:
        told = await self.remote.ask(m.AskReport(self.remote.next_id()), m.Report)
        return msgspec.json.decode(told.report, type=EngineReport)

    async def profile(self, steps: int, timeout_s: float, *, stacks: bool, graphs: bool) -> tuple[int, Path]:
        """How many steps were recorded, and the file, which the caller must delete."""
        ask = m.AskProfile(self.remote.next_id(), steps, timeout_s, stacks, graphs)
        told = await self.remote.ask(ask, m.Profiled)
        return told.steps, Path(told.path)

    def lost(self, failure: Exception) -> None:
        self._closed = True
        self.remote.lost(failure)
        self._prompts.close(wait=False)
