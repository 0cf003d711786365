"""All messages that front ends and the engine exchange.

Messages are msgpack, typed, and checked when they are read; the engine is sent none that names code or a file to be
opened. A front end numbers its requests, and an answer bears the number of what it answers. Sound goes back in one
message a step, with all that the step made for that front end.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from sonant.types import SoundFormat

PROTOCOL = 2  # both ends come from one installation; a front end that outlived an upgrade is turned away by this

PlaceKind = Literal["speech", "session", "utterance", "upload", "look_speech", "look_upload"]
"""Speech and a session take one of the client's places, an utterance has its session's; a look takes nothing."""

Staged = dict[str, "bool | int | float | Array"]
Payload = dict[str, "bool | int | float | str | list[int] | Array | None"]


class Message(msgspec.Struct, tag=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Encoded as an array: the name of the class, then the fields in order."""


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
    """Asks whether this client may start now. It keeps the place that it is given until `Leave`."""

    id: int
    client: str
    kind: PlaceKind
    requests: int


class Arrived(Message):
    """One of the requests that the place was taken for has been sent, or never will be."""

    id: int


class Leave(Message):
    id: int


class Speak(Message):
    """May follow an `Admit` before the answer to it: it is spoken only if the place is given."""

    id: int
    place: int | None  # the id of an `Admit`, without whose place it is not spoken; None: it needs none
    prompt: WirePrompt
    live: bool
    priority: int
    arrival_s: float  # of the monotonic clock, which all processes of a machine share
    first_audio_s: float | None  # when its listener was given the first sound, if that has been …
    heard_s: float  # … and how much the listener has been given
    first_audio_within_s: float | None  # a request that has waited this long for a row is refused
    wants_frames: bool  # the frames themselves, not only their count
    playback_speed: float


class Heard(Message):
    """How much sound a request's listener has been given before it."""

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
    sound: SoundFormat  # of the samples in `Sound`


class Sound(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    id: int
    samples: bytes  # when sent, any buffer that msgspec encodes as bytes
    frames: int  # how many it was made from
    codes: bytes | None  # the frames themselves, if they were asked for
    start_s: float


class End(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A request is over, with a `FinishReason` or an error."""

    id: int
    reason: str | None
    error: str | None = None  # a class of sonant.errors
    message: str = ""
    retry_s: float = 0.0


class StepDone(Message):
    """All that a step made for a front end: sound, then the requests that have ended."""

    sounds: list[Sound]
    ends: list[End]


class Done(Message):
    """The place that was asked for is given."""

    id: int


class Failed(Message):
    """Something was not done: one of our errors by the name of its class, or a refusal with its HTTP status."""

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
