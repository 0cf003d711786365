"""The bodies and messages that clients send, field by field with their limits. An unknown field is refused by name.

The batch and WebSocket shapes are vllm-omni's, so that its clients need no change. Its fields that ask for what we do
anyway (`initial_codec_chunk_frames`) are accepted and change nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sonant.errors import BadRequest, BadSampling
from sonant.sampling import Sampling, Value
from sonant.text.splitter import Granularity
from sonant.types import MAX_DESCRIPTION_CHARS

AudioFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
StreamFormat = Literal["audio", "sse"]
TaskType = Literal["CustomVoice", "VoiceDesign", "Base"]
Name = Annotated[str, Field(max_length=256)]
Frames = Annotated[int, Field(ge=1, le=2**20)]
MAX_INPUT_CHARS = 100_000  # the engine's own limit is lower, and has its own message
MAX_BATCH_ITEMS = 32
MAX_EMBEDDING = 8192
MAX_FIELDS = 100
MAX_KNOBS = 64
MAX_SPEAKERS = 8  # a model may take fewer
_WHO_SPEAKS = frozenset({"voice", "speakers", "ref_audio", "speaker_embedding"})
KnobName = Annotated[str, Field(max_length=64)]
# What clients of Kokoro send as lang_code; everybody else sends a tag such as en-US.
_KOKORO_CODES = {"a": "en", "b": "en", "e": "es", "f": "fr", "h": "hi", "i": "it", "j": "ja", "p": "pt", "z": "zh"}


def _null_is(default: object, kind: Any) -> BeforeValidator:
    """Clients with typed settings send null for a field that was not set."""
    return BeforeValidator(lambda value: default if value is None else value, json_schema_input_type=kind | None)


class Closed(BaseModel):
    """Refuses unknown fields; very many of them with a single error, not with one for each of a hundred thousand."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def check_size(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MAX_FIELDS:
            raise ValueError(f"an object with {len(value):,} fields; there are not half as many as {MAX_FIELDS}")
        return value


class VoiceId(Closed):
    id: Name


class SpeakerFields(Closed):
    """One speaker of a dialogue: by name, in words, or by a clip."""

    voice: Name | VoiceId | None = None
    description: Annotated[str, Field(min_length=1, max_length=MAX_DESCRIPTION_CHARS)] | None = None
    ref_audio: str | None = None
    ref_text: Annotated[str, Field(max_length=4096)] | None = None

    @model_validator(mode="after")
    def check_one(self) -> Self:
        given = [name for name in ("voice", "description", "ref_audio") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"a speaker has one of voice, description and ref_audio, but there is {found}")
        if self.ref_text is not None and self.ref_audio is None:
            raise ValueError("ref_text is what ref_audio says, and there is none")
        return self


class SpeechFields(Closed):
    """How to speak: the fields that every speech route takes."""

    model: Name | None = None
    voice: Annotated[Name | VoiceId | None, Field(validation_alias=AliasChoices("voice", "speaker"))] = None
    speakers: Annotated[list[SpeakerFields], Field(min_length=1, max_length=MAX_SPEAKERS)] | None = None
    speed: Annotated[float, Field(ge=0.25, le=4.0, allow_inf_nan=False)] | None = None
    instructions: Annotated[str, Field(max_length=4096)] | None = None
    language: Name | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    extra_params: Annotated[dict[KnobName, Value], Field(max_length=MAX_KNOBS)] | None = None  # the model's own knobs
    sample_rate: Literal[8000, 16000, 24000, 48000] | None = None  # None: the model's own
    max_frames: Frames | None = None
    max_new_tokens: Frames | None = None  # another server's name for max_frames
    ref_audio: str | None = None  # base64, a data: URI, or a URL on an allowed host
    ref_text: Annotated[str, Field(max_length=4096)] | None = None
    x_vector_only_mode: bool | None = None  # true: the clip's timbre only, whatever ref_text says
    speaker_embedding: Annotated[list[float], Field(min_length=1, max_length=MAX_EMBEDDING)] | None = None
    task_type: TaskType | None = None  # what the client expects of the model; refused if the model does not know it
    non_streaming_mode: bool | None = None  # true: the prompt holds the whole text
    initial_codec_chunk_frames: Annotated[int, Field(ge=0)] | None = None  # the first chunk is one frame already
    word_timestamps: Annotated[Literal[False], _null_is(False, Literal[False])] = False  # we have none
    lang_code: Name | None = None  # Kokoro's name for language: one of its letters, or a tag
    user: Annotated[str, Field(max_length=1024)] | None = None  # OpenAI's; it changes nothing

    @model_validator(mode="after")
    def read_lang_code(self) -> Self:
        if self.lang_code is not None and self.language is None:
            code = self.lang_code.lower()
            self.language = _KOKORO_CODES.get(code, code.replace("_", "-").partition("-")[0]) or None
        self.lang_code = None  # so that an item's code takes precedence over its batch's language
        return self

    @model_validator(mode="after")
    def read_max_new_tokens(self) -> Self:
        self.max_frames = self.max_frames or self.max_new_tokens
        self.max_new_tokens = None  # likewise
        return self

    @property
    def playback_speed(self) -> float:
        return 1.0 if self.speed is None else self.speed

    def check_ref_text(self) -> None:
        if self.ref_text is not None and self.ref_audio is None and self.speakers is None:
            raise BadRequest("ref_text is what ref_audio says, and there is no ref_audio; send both, or neither")

    def sampling(self) -> Sampling:
        """The knobs that the client sets, by field or in `extra_params`. Only the model knows which knobs it has."""
        fields = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "repetition_penalty": self.repetition_penalty,
        }
        extra = self.extra_params or {}
        if twice := [name for name, value in fields.items() if value is not None and name in extra]:
            raise BadSampling(f"{twice[0]} is set twice, as a field and in extra_params; set it once")
        return Sampling(**{**fields, **extra})


class SpeechBody(SpeechFields):
    """`POST /v1/audio/speech`: OpenAI's fields, then ours. Sound is streamed unless `stream` is false."""

    input: Annotated[str, Field(max_length=MAX_INPUT_CHARS)]
    response_format: Annotated[AudioFormat, _null_is("mp3", AudioFormat)] = "mp3"
    stream_format: Annotated[StreamFormat, _null_is("audio", StreamFormat)] = "audio"
    stream: Annotated[bool, _null_is(True, bool)] = True


class ConsentUpdate(Closed):
    """`POST /v1/audio/voice_consents/{id}`: only the label of a consent may change."""

    name: Name


class BatchItem(SpeechFields):
    """One text of a batch; its own fields take precedence over the batch's."""

    input: Annotated[str, Field(max_length=MAX_INPUT_CHARS)]
    response_format: AudioFormat | None = None


class BatchBody(SpeechFields):
    """`POST /v1/audio/speech/batch`."""

    items: Annotated[list[BatchItem], Field(min_length=1, max_length=MAX_BATCH_ITEMS)]
    response_format: Annotated[AudioFormat, _null_is("wav", AudioFormat)] = "wav"

    def bodies(self) -> list[SpeechBody]:
        shared = _given(self, {"items"})
        merged = [_merged(shared, _given(item, set())) for item in self.items]
        return [SpeechBody.model_validate({**fields, "stream": False}) for fields in merged]


class SessionConfig(SpeechFields):
    """The `session.config` message of `WS /v1/audio/speech/stream`."""

    response_format: Annotated[AudioFormat, _null_is("wav", AudioFormat)] = "wav"
    stream_audio: bool | None = None  # true: sound as it is made; false: a file for each segment; None: true for pcm
    split_granularity: Annotated[Granularity, _null_is("auto", Granularity)] = "auto"

    @property
    def streams(self) -> bool:
        return self.response_format == "pcm" if self.stream_audio is None else self.stream_audio


def _merged(shared: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """An item's fields replace the batch's. One of those that say who speaks replaces them all: of a clip and a voice
    the clip would speak, and a clip of its own would be read with the batch's words."""
    replaced = {*_WHO_SPEAKS, "ref_text"} if _WHO_SPEAKS & own.keys() else set()
    return {**{name: value for name, value in shared.items() if name not in replaced}, **own}


def _given(fields: SpeechFields, without: set[str]) -> dict[str, Any]:
    return fields.model_dump(exclude=without, exclude_none=True)
