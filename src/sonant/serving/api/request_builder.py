"""Turns a request's fields into a request for an engine: who speaks, in what way, and for how long."""

from __future__ import annotations

import numpy as np
from starlette.concurrency import run_in_threadpool

from sonant.errors import BadRequest, UnknownVoice, Unsupported
from sonant.models.speech_spec import SpeechSpec
from sonant.serving.api.schemas import SpeakerFields, SpeechFields, TaskType, VoiceId
from sonant.serving.channel.remote_engine import RemoteEngine
from sonant.serving.options import ServeOptions
from sonant.serving.voices.clips import Clips
from sonant.serving.voices.voice_names import VoiceNames
from sonant.types import SpeechRequest
from sonant.voice import Voice


class RequestBuilder:
    """For one model, whose voices `names` knows. Used on the event loop."""

    def __init__(self, names: VoiceNames, clips: Clips, options: ServeOptions) -> None:
        self._names, self._clips, self._options = names, clips, options

    async def build(self, engine: RemoteEngine, fields: SpeechFields, *, text: str, live: bool) -> SpeechRequest:
        spec = engine.spec
        _check_task(fields.task_type, spec)
        fields.check_ref_text()
        speakers = await self._speakers(engine, fields)
        return SpeechRequest(
            text=text,
            voice=None if speakers else await self._voice(engine, fields),  # a dialogue has none of its own
            speakers=speakers,
            language=fields.language or "auto",
            instruct=fields.instructions if spec.instructs else None,
            sampling=fields.sampling(),
            seed=fields.seed,
            max_frames=fields.max_frames,
            streaming_text=None if fields.non_streaming_mode is None else not fields.non_streaming_mode,
            live=live,
            # A client that only wants a file may wait for as long as it likes.
            first_audio_within_s=self._options.max_first_audio_s if live else None,
            playback_speed=fields.playback_speed,
        )

    async def _voice(self, engine: RemoteEngine, fields: SpeechFields) -> str | Voice | None:
        spec = engine.spec
        if fields.speaker_embedding is not None:
            if fields.ref_audio is not None:
                raise BadRequest("speaker_embedding and ref_audio exclude each other; send one of them")
            if spec.voice_vector is None:
                raise Unsupported("this model takes no speaker_embedding; send ref_audio, or name a voice")
            with np.errstate(over="ignore"):  # Voice refuses infinity, and all else that is wrong
                vector = np.array(fields.speaker_embedding, np.float32)
            return Voice({spec.voice_vector: vector}, family=spec.family)
        if fields.ref_audio is not None:
            text = None if fields.x_vector_only_mode else fields.ref_text
            return await self._clips.voice(engine, fields.ref_audio, text or None)
        if fields.voice is None and not spec.voices and not spec.speaks_without_voice:
            raise UnknownVoice("this model clones: name an uploaded voice (POST /v1/audio/voices), or send ref_audio")
        return await self._named_voice(engine, _name(fields.voice))

    async def _named_voice(self, engine: RemoteEngine, name: str | None) -> str | Voice | None:
        if self._names.is_own(name, engine):
            return self._names.resolve(name, engine)
        return await run_in_threadpool(self._names.resolve, name, engine)  # which may read an upload from disk

    async def _speakers(self, engine: RemoteEngine, fields: SpeechFields) -> tuple[str | Voice, ...]:
        """One after the other, so that no client keeps all fetchers busy, or has all its clips in memory at once."""
        if fields.speakers is None:
            return ()
        engine.check_speakers(len(fields.speakers))
        given = [name for name in ("ref_audio", "ref_text", "speaker_embedding") if getattr(fields, name) is not None]
        if await self._is_somebody(engine, fields.voice):
            given.append("voice")
        if given:
            raise BadRequest(f"{given[0]} and speakers exclude each other; say who each speaker is in speakers")
        found: list[str | Voice] = []
        for speaker in fields.speakers:
            try:
                text = None if fields.x_vector_only_mode else speaker.ref_text
                found.append(await self._speaker(engine, speaker, text or None))
            except BadRequest as e:
                raise type(e)(f"speaker {len(found)}: {e}") from None
        return tuple(found)

    async def _speaker(self, engine: RemoteEngine, speaker: SpeakerFields, text: str | None) -> str | Voice:
        if speaker.ref_audio is not None:
            return await self._clips.voice(engine, speaker.ref_audio, text)
        if speaker.description is not None:
            return speaker.description
        name = _name(speaker.voice)
        voice = await self._named_voice(engine, name)
        if voice is None:
            raise UnknownVoice(f"{name!r} is nobody's voice here; name an upload, or give a description or ref_audio")
        return voice

    async def _is_somebody(self, engine: RemoteEngine, voice: str | VoiceId | None) -> bool:
        """Whether a voice was really asked for, known here or not: OpenAI's clients must name one in any case."""
        try:
            return await self._named_voice(engine, _name(voice)) is not None
        except BadRequest:
            return True


def _name(voice: str | VoiceId | None) -> str | None:
    return voice.id if isinstance(voice, VoiceId) else voice


def _check_task(task: TaskType | None, spec: SpeechSpec) -> None:
    """Raise `Unsupported` unless this model knows the task: vllm-omni's word for a way of giving a voice. A model may
    know several."""
    known: dict[TaskType, bool] = {
        "Base": spec.clones,
        "CustomVoice": bool(spec.voices),
        "VoiceDesign": spec.speaks_without_voice and spec.instructs and not spec.voices,
    }
    if task is not None and not known[task]:
        able = " or ".join(name for name, can in known.items() if can) or "none"
        raise Unsupported(f"task_type {task} needs another model; this one's is {able}")
