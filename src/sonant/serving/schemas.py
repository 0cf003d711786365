"""The bodies that clients send, field by field with its limits. A field that nobody knows is refused by name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sonant.types import Sampling

AudioFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
Name = Annotated[str, Field(max_length=256)]
MAX_INPUT_CHARS = 100_000  # the engine's own limit, with its own message, lies below


class VoiceId(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: Name


class SpeechBody(BaseModel):
    """`POST /v1/audio/speech`: OpenAI's fields, then ours. Sound is streamed unless `stream` is false."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Name = ""
    input: Annotated[str, Field(max_length=MAX_INPUT_CHARS)]
    voice: Name | VoiceId | None = None
    response_format: AudioFormat = "mp3"
    speed: Annotated[float, Field(ge=0.25, le=4.0, allow_inf_nan=False)] = 1.0
    instructions: Annotated[str, Field(max_length=4096)] | None = None
    stream_format: Literal["audio", "sse"] = "audio"

    stream: bool = True
    language: Name = "auto"
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    sample_rate: Literal[8000, 16000, 24000, 48000] = 24000
    max_frames: Annotated[int, Field(ge=1, le=2**20)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1, le=2**20)] | None = None  # another server's name for max_frames
    ref_audio: str | None = None  # base64 or a data: URI
    ref_text: Annotated[str, Field(max_length=4096)] | None = None

    def sampling(self) -> Sampling:
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            repetition_penalty=self.repetition_penalty,
        )
