"""Sonant: text to speech, for many listeners at once.

import sonant
engine = sonant.load("path/to/checkpoint")
for chunk in engine.stream("Hello."):
    play(chunk.samples)

A name is imported when it is first used: torch takes seconds and hundreds of megabytes, which a process that only lays
prompts out, or prints help, must not pay.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sonant import errors as errors  # every caller catches some, and importing them costs nothing

if TYPE_CHECKING:
    from sonant.config import EngineConfig
    from sonant.engine.engine import Engine
    from sonant.engine.stream import SpeechStream
    from sonant.loading import load
    from sonant.sampling import Sampling
    from sonant.types import AudioChunk, FinishReason, Speech, SpeechRequest, Spoken
    from sonant.voice import Voice

__all__ = [
    "AudioChunk",
    "Engine",
    "EngineConfig",
    "FinishReason",
    "Sampling",
    "Speech",
    "SpeechRequest",
    "SpeechStream",
    "Spoken",
    "Voice",
    "load",
]

_HOMES = {
    "Engine": "sonant.engine.engine",
    "EngineConfig": "sonant.config",
    "Sampling": "sonant.sampling",
    "SpeechStream": "sonant.engine.stream",
    "Voice": "sonant.voice",
    "load": "sonant.loading",
    **dict.fromkeys(("AudioChunk", "FinishReason", "Speech", "SpeechRequest", "Spoken"), "sonant.types"),
}


if not TYPE_CHECKING:  # with it a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
