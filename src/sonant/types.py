"""The only types that cross layers: what a caller asks for, and what comes back."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sonant.errors import BadRequest, BadSampling, BadText
from sonant.sampling import Sampling
from sonant.voice import Voice

MAX_DESCRIPTION_CHARS = 1000  # of a speaker's description in words
MOST_PRIORITY = 2**31 - 1

Samples = npt.NDArray[np.float32]
Pcm = npt.NDArray[np.int16]
SoundFormat = Literal["float32", "int16"]
"""How an engine gives its sound: numbers in -1..1, or rounded to 16 bits on the device, as they are sent."""
Frames = npt.NDArray[Any]
"""[frames, …]: int32 codes or float32 latents, whichever the model decodes to."""

_EXPECTED: dict[str, tuple[type, ...]] = {
    "voice": (str, Voice, type(None)),
    "speakers": (tuple,),
    "language": (str,),
    "instruct": (str, type(None)),
    "sampling": (Sampling,),
    "seed": (int, type(None)),
    "max_frames": (int, type(None)),
    "streaming_text": (bool, type(None)),
    "priority": (int,),
    "context": (tuple,),
    "live": (bool,),
    "first_audio_within_s": (int, float, type(None)),
    "playback_speed": (int, float),
}  # of a `SpeechRequest`


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # the model said it was done
    LENGTH = "length"  # it reached its frame budget first
    ABORT = "abort"  # the caller went away


@dataclass(frozen=True)
class Spoken:
    """A piece of text that has been spoken, which a model may continue when it speaks the next piece."""

    text: str
    frames: Frames

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not isinstance(self.frames, np.ndarray) or not self.frames.ndim:
            raise BadRequest("what was said before is a text and its frames, as a Speech or an AudioChunk has them")


@dataclass(frozen=True, kw_only=True)
class SpeechRequest:
    """One utterance to be spoken. Long texts become several, see `engine/long_text.py`."""

    text: str
    voice: str | Voice | None = None
    speakers: tuple[str | Voice, ...] = ()  # of a dialogue: a voice or a description for [SPEAKER0], [SPEAKER1] …
    language: str = "auto"
    instruct: str | None = None
    sampling: Sampling = field(default_factory=Sampling)
    seed: int | None = None  # None: a fresh one each time
    max_frames: int | None = None  # of the whole text; None: a budget from its length
    streaming_text: bool | None = None  # feed text as speech goes on; None: the checkpoint's default
    priority: int = 0  # higher goes first; at most MOST_PRIORITY either way
    context: tuple[Spoken, ...] = ()  # what was said before this text, the oldest first
    live: bool = True  # someone is listening: first sound soon, then never a gap
    first_audio_within_s: float | None = None  # having waited so long for a row it ends as `TooLate`; None: it waits on
    playback_speed: float = 1.0  # at which it is played: faster playback needs sound sooner; the sound is the same

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise BadText(f"the text must be a string, not {type(self.text).__name__}")
        own = vars(self)
        for name, kinds in _EXPECTED.items():
            value = own[name]
            if type(value) in kinds:
                continue
            if not isinstance(value, kinds) or isinstance(value, bool):
                names = " or ".join("None" if k is type(None) else k.__name__ for k in kinds)
                raise BadRequest(f"{name} must be {names}, not {value!r}")
        self._check_speakers()
        for piece in self.context:
            if not isinstance(piece, Spoken):
                raise BadRequest(f"context must hold what was said before, as Spoken, not {type(piece).__name__}")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise BadSampling(f"seed must be from 0 to 2**64 - 1, not {self.seed}")
        if self.max_frames is not None and self.max_frames < 1:
            raise BadRequest(f"max_frames must be at least 1, not {self.max_frames}")
        if abs(self.priority) > MOST_PRIORITY:
            raise BadRequest(f"priority must be from {-MOST_PRIORITY} to {MOST_PRIORITY}, not {self.priority}")
        if self.first_audio_within_s is not None and not self.first_audio_within_s > 0:
            raise BadRequest(f"first_audio_within_s must be over 0, not {self.first_audio_within_s}")
        if not 0 < self.playback_speed <= sys.float_info.max:  # a whole number can be larger than any float
            raise BadRequest(f"playback_speed must be over 0 and finite, not {self.playback_speed}")

    def _check_speakers(self) -> None:
        if self.speakers and self.voice is not None:
            raise BadRequest("voice and speakers exclude each other; give each speaker's voice in speakers")
        for n, speaker in enumerate(self.speakers):
            if isinstance(speaker, Voice):
                continue
            if not isinstance(speaker, str):
                raise BadRequest(f"speaker {n} must be a Voice, or words, not {type(speaker).__name__}")
            if not speaker.strip():
                raise BadRequest(f"speaker {n} has an empty description; say in words how it sounds, or give a Voice")
            if len(speaker) > MAX_DESCRIPTION_CHARS:
                limit = f"over the limit of {MAX_DESCRIPTION_CHARS:,}"
                raise BadRequest(f"the description of speaker {n} has {len(speaker):,} characters, {limit}; shorten it")


@dataclass(frozen=True)
class AudioChunk:
    """A piece of sound, in order, as it leaves the codec."""

    samples: Samples  # or int16, if the engine was loaded for that
    sample_rate: int
    start_s: float  # where in the utterance it begins
    frames: Frames  # those that it was made from
    part: int = 0  # of a text that came in parts: which of them it speaks
    ends_part: bool = False  # nothing more of that part follows


@dataclass(frozen=True)
class Speech:
    """A whole utterance."""

    samples: Samples
    sample_rate: int
    frames: Frames
    finish_reason: FinishReason
    seed: int
    first_audio_s: float  # from submission to the first chunk
    total_s: float  # from submission to the last

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.sample_rate

    @property
    def real_time_factor(self) -> float:
        """Seconds of work for a second of sound; below 1 is faster than real time."""
        return self.total_s / self.duration_s if self.duration_s else float("inf")
