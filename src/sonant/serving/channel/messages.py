"""What front ends and the engine say to each other. This file is the whole of it.

Messages are msgpack, typed, and checked when they are read; none can name code or a file to be opened. A front end
numbers what it asks for, and the answer bears that number. Sound goes back one message a step, with all that the step
made for that front end.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from sonant.types import SoundFormat

PROTOCOL = 2  # both ends come from one installation; a front end that outlived an upgrade is turned away by this

PlaceKind = Literal["speech", "session", "utterance", "upload", "look_speech", "look_upload"]
"""Speech and a session take one of the client's places, an utterance has its session's; who looks takes nothing."""

Staged = dict[str, "bool | int | float | Array"]
Payload = dict[str, "bool | int | float | str | list[int] | Array | None"]


class Message(msgspec.Struct, tag=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Fields travel by place, behind the name of the class."""


class Array(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class WirePrompt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A `Prompt`, with its layout's fields by name."""

    length: int
    keys: Array
    staged: Staged
    max_frames: int
    payload: Payload
    variant: int
    bad_from: int | None
    retries: list[Staged]


# From a front end


class Hello(Message):
    """The first message on a connection."""

    protocol: int
    pid: int


class Admit(Message):
    """May this client ask now? The place it is given is its own until `Leave`."""

    id: int
    client: str
    kind: PlaceKind
    requests: int


class Arrived(Message):
    """One of the requests that a place was taken for has been sent, or never will be."""

    id: int


class Leave(Message):
    id: int


class Speak(Message):
    """May follow an `Admit` before that is answered: it is only spoken if the place is given."""

    id: int
    place: int | None  # that it is spoken in, of an `Admit`; None: in no place of its own
    prompt: WirePrompt
    live: bool
    priority: int
    arrival_s: float  # of the monotonic clock, which all processes of a machine share
    first_audio_s: float | None  # when its listener began to hear, if they did …
    heard_s: float  # … and how much they have been given
    first_audio_within_s: float | None  # who has waited so long for a row is told to come back
    wants_frames: bool  # and not only their count
    playback_speed: float


class Heard(Message):
    """The listener of a request has been given so much before it."""

    id: int
    heard_s: float


class Abort(Message):
    ids: list[int]


class EncodeVoice(Message):
    id: int
    samples: bytes  # float32, at the model's clip rate
    text: str | None
    name: str


class AskReport(Message):
    id: int


class AskProfile(Message):
    id: int
    steps: int
    timeout_s: float
    stacks: bool
    graphs: bool


FromFrontEnd = Hello | Admit | Arrived | Leave | Speak | Heard | Abort | EncodeVoice | AskReport | AskProfile


# From the engine


class Welcome(Message):
    """The answer to `Hello`, once the engine is ready."""

    config: bytes  # EngineConfig as JSON, as the engine resolved it
    most_positions: int
    device: str
    restarts: int  # of the engine, since the server was started
    sound: SoundFormat  # that `Sound` carries


class Sound(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    id: int
    samples: bytes  # or what msgspec takes for them
    frames: int  # that it was made from
    codes: bytes | None  # the frames themselves, where they were asked for
    start_s: float


class End(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A request is over: a `FinishReason`, or what it failed with."""

    id: int
    reason: str | None
    error: str | None = None  # a class of sonant.errors
    message: str = ""
    retry_s: float = 0.0


class StepDone(Message):
    """All that a step made for a front end: sound first, then who has ended."""

    sounds: list[Sound]
    ends: list[End]


class Done(Message):
    """What was asked for is granted, or done."""

    id: int


class Failed(Message):
    """What was asked for was not done: an error of ours by its class, or a refusal with its HTTP status."""

    id: int
    error: str
    message: str
    status: int = 0
    code: str = ""
    retry_s: float = 0.0


class VoiceEncoded(Message):
    id: int
    tensors: dict[str, Array]
    family: str | None


class Report(Message):
    """The engine's own figures, as `EngineReport` in JSON."""

    id: int
    report: bytes


class Profiled(Message):
    id: int
    steps: int
    path: str


FromEngine = Welcome | StepDone | Done | Failed | VoiceEncoded | Report | Profiled
