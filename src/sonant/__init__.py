"""Sonant: text to speech, for many listeners at once.

import sonant
engine = sonant.load("path/to/checkpoint")
for chunk in engine.stream("Hello."):
    play(chunk.samples)
"""

from sonant.config import EngineConfig
from sonant.engine.engine import Engine
from sonant.engine.stream import SpeechStream
from sonant.load import load
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
