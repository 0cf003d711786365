"""From what a client asks for to a running utterance: admission, voice, request, and the way its sound will go."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Lock

import numpy as np
from starlette.concurrency import run_in_threadpool

from sonant.engine.engine import Engine
from sonant.engine.stream import SpeechStream
from sonant.errors import BadAudio, BadRequest, Overloaded, TooLate, UnknownVoice, Unsupported
from sonant.models.spec import ModelSpec
from sonant.serving.api.error_responses import Refused
from sonant.serving.api.schemas import SpeakerFields, SpeechBody, SpeechFields, TaskType, VoiceId
from sonant.serving.audio_pipeline import AudioPipeline
from sonant.serving.encode import carried_rate_hz
from sonant.serving.engine_supervisor import EngineSupervisor
from sonant.serving.limits.admission import Admission, InFlight, Ticket
from sonant.serving.observability.metrics import Metrics
from sonant.serving.options import ServeOptions
from sonant.serving.voices.fetch import ClipFetcher, is_address
from sonant.serving.voices.voice_names import VoiceNames
from sonant.types import SpeechRequest
from sonant.voice import Voice

_ENCODER_THREADS = 4
_FETCHER_THREADS = 4
_CACHED_CLIPS = 32


@dataclass(frozen=True)
class Admitted:
    """The engine, for a client that may use it now, and what it holds meanwhile."""

    engine: Engine
    ticket: Ticket


class SpeechService:
    def __init__(self, supervisor: EngineSupervisor, options: ServeOptions, names: VoiceNames) -> None:
        self.supervisor, self.options, self.names = supervisor, options, names
        self.metrics = Metrics(supervisor, names.store.cache if names.store is not None else None)
        self.admission = Admission(options)
        self.in_flight = InFlight()
        self.executor = ThreadPoolExecutor(_ENCODER_THREADS, thread_name_prefix="sonant-encode")
        self._fetcher = ClipFetcher(options.allow_url)
        self._fetchers = ThreadPoolExecutor(_FETCHER_THREADS, thread_name_prefix="sonant-fetch")
        self._clips: OrderedDict[str, Voice] = OrderedDict()  # voices sent along with a request, by their content
        self._clips_lock = Lock()

    def admit(self, client: str, resources: ExitStack, *, requests: int = 1, place: bool = True) -> Admitted:
        """Raises unless the client may speak now; what it takes is given back with `resources`.

        Without `place` it has one already, a session's.
        """
        try:
            engine = self.supervisor.engine
            room = engine.config.max_waiting
            ticket = self.admission.admit(client, engine.stats(), room, requests=requests, place=place)
        except (Refused, Overloaded) as e:
            self.rejected(e)
            raise
        resources.callback(ticket.close)
        resources.enter_context(self.in_flight.one())
        return Admitted(engine, ticket)

    def count_request(self, client: str) -> None:
        """For what is no speech and takes no place, but may not be asked for without end either."""
        try:
            self.admission.rate.take(client, time.monotonic())
        except Refused as e:
            self.rejected(e)
            raise

    def rejected(self, error: Refused | Overloaded) -> None:
        waited = "too_late" if isinstance(error, TooLate) else "queue_full"
        self.metrics.rejected.labels(error.code if isinstance(error, Refused) else waited).inc()

    async def open(
        self, body: SpeechBody, client: str, whole: bool, resources: ExitStack
    ) -> tuple[SpeechStream, AudioPipeline]:
        """Start speaking. What must be given back at the end is entered on `resources`."""
        return await self.speak(self.admit(client, resources), body, whole, resources)

    async def speak(
        self, admitted: Admitted, body: SpeechBody, whole: bool, resources: ExitStack
    ) -> tuple[SpeechStream, AudioPipeline]:
        engine = admitted.engine
        try:
            request = await self.request(engine, body, text=body.input, live=not whole)
            stream = await run_in_threadpool(engine.submit, request)
        except Overloaded as e:
            self.rejected(e)
            raise e.with_traceback(None) from None  # its traceback refers back to it through the future
        finally:
            admitted.ticket.arrived()
        resources.callback(stream.abort)
        stream.limit_unread(self.options.max_unread_sound_s)
        # The encoder is opened while the first frame is being made, and not at all for those who were turned away.
        return stream, await self.audio_pipeline(engine, body, body.response_format, streaming=not whole)

    async def audio_pipeline(
        self, engine: Engine, fields: SpeechFields, form: str, *, streaming: bool
    ) -> AudioPipeline:
        """At the rate that the client asks for, else at the model's own."""
        own_hz, speed = engine.sample_rate, 1.0 if fields.speed is None else fields.speed
        rate_hz = fields.sample_rate or carried_rate_hz(form, own_hz)
        # This is not done on the event loop, since opening an encoder takes milliseconds.
        return await run_in_threadpool(AudioPipeline, form, own_hz, rate_hz, speed, streaming, self.executor)

    async def request(self, engine: Engine, fields: SpeechFields, *, text: str, live: bool) -> SpeechRequest:
        spec = engine.model.spec
        _check_task(fields.task_type, spec)
        speakers = await self._speakers(engine, fields)
        clip = None
        if fields.ref_audio is not None:
            clip = await self._clip_bytes(fields.ref_audio)
        voice = None  # nobody's, of a dialogue
        if not speakers:
            voice = await run_in_threadpool(self._voice, engine, fields, clip)  # since it may encode a clip
        return SpeechRequest(
            text=text,
            voice=voice,
            speakers=speakers,
            language=fields.language or "auto",
            instruct=fields.instructions if spec.instructs else None,
            sampling=fields.sampling(),
            seed=fields.seed,
            max_frames=fields.max_frames or fields.max_new_tokens,
            streaming_text=None if fields.non_streaming_mode is None else not fields.non_streaming_mode,
            live=live,
            # Who only wants a file waits for as long as their client does.
            first_audio_within_s=self.options.max_first_audio_s if live else None,
        )

    def _voice(self, engine: Engine, fields: SpeechFields, clip: bytes | None) -> str | Voice | None:
        spec = engine.model.spec
        if fields.speaker_embedding is not None:
            if clip is not None:
                raise BadRequest("speaker_embedding and ref_audio exclude each other; send one of them")
            if spec.voice_vector is None:
                raise Unsupported("this model takes no speaker_embedding; send ref_audio, or name a voice")
            with np.errstate(over="ignore"):  # Voice refuses infinity with the rest that is wrong
                vector = np.array(fields.speaker_embedding, np.float32)
            return Voice({spec.voice_vector: vector}, family=spec.family)
        if clip is not None:
            text = None if fields.x_vector_only_mode else fields.ref_text
            return self._clip(engine, clip, text)
        return self.names.resolve(_name(fields.voice), engine)

    async def _speakers(self, engine: Engine, fields: SpeechFields) -> tuple[str | Voice, ...]:
        """One after the other, so that no client holds all who fetch, nor all its clips in memory at once."""
        if fields.speakers is None:
            return ()
        engine.check_speakers(len(fields.speakers))
        given = [name for name in ("ref_audio", "ref_text", "speaker_embedding") if getattr(fields, name) is not None]
        if await run_in_threadpool(self._named, engine, fields.voice):
            given.append("voice")
        if given:
            raise BadRequest(f"{given[0]} and speakers exclude each other; say who each speaker is in speakers")
        found: list[str | Voice] = []
        for speaker in fields.speakers:
            try:
                clip = None if speaker.ref_audio is None else await self._clip_bytes(speaker.ref_audio)
                text = None if fields.x_vector_only_mode else speaker.ref_text
                found.append(await run_in_threadpool(self._speaker, engine, speaker, clip, text))
            except BadRequest as e:
                raise type(e)(f"speaker {len(found)}: {e}") from None
        return tuple(found)

    def _speaker(self, engine: Engine, speaker: SpeakerFields, clip: bytes | None, text: str | None) -> str | Voice:
        if clip is not None:
            return self._clip(engine, clip, text)
        if speaker.description is not None:
            return speaker.description
        name = _name(speaker.voice)
        voice = self.names.resolve(name, engine)
        if voice is None:
            raise UnknownVoice(f"{name!r} is nobody's voice here; name an upload, or give a description or ref_audio")
        return voice

    def _named(self, engine: Engine, voice: str | VoiceId | None) -> bool:
        """Whether it is somebody's, here or not. Clients of OpenAI's cannot leave it out when they mean nobody."""
        try:
            return self.names.resolve(_name(voice), engine) is not None
        except BadRequest:
            return True

    async def _clip_bytes(self, given: str) -> bytes:
        if is_address(given):
            return await asyncio.get_running_loop().run_in_executor(self._fetchers, self._fetcher.fetch, given)
        return await run_in_threadpool(decode_clip, given)

    def _clip(self, engine: Engine, data: bytes, text: str | None) -> Voice:
        key = hashlib.sha256(data + b"\0" + (text or "").encode()).hexdigest()
        with self._clips_lock:
            if key in self._clips:
                self._clips.move_to_end(key)
                return self._clips[key]
        voice = engine.clone(data, text or None)
        with self._clips_lock:
            self._clips[key] = voice
            if len(self._clips) > _CACHED_CLIPS:
                self._clips.popitem(last=False)
        return voice

    def close(self) -> None:
        self.supervisor.close()
        self.executor.shutdown(wait=False)
        self._fetchers.shutdown(wait=False, cancel_futures=True)


def _name(voice: str | VoiceId | None) -> str | None:
    return voice.id if isinstance(voice, VoiceId) else voice


def _check_task(task: TaskType | None, spec: ModelSpec) -> None:
    """A task is vllm-omni's word for one way of giving a voice; a model may know several."""
    known: dict[TaskType, bool] = {
        "Base": spec.clones,
        "CustomVoice": bool(spec.voices),
        "VoiceDesign": spec.speaks_without_voice and spec.instructs and not spec.voices,
    }
    if task is not None and not known[task]:
        able = " or ".join(name for name, can in known.items() if can) or "none"
        raise Unsupported(f"task_type {task} needs another model; this one's is {able}")


def decode_clip(given: str) -> bytes:
    """The bytes of a data: URI or of plain base64. Files of the server are nobody's to name."""
    if given.startswith("file:"):
        raise BadAudio("ref_audio is a file address; send the clip itself as base64 or a data: URI")
    if given.startswith("data:"):
        head, comma, given = given.partition(",")
        if not comma or not head.endswith(";base64"):
            raise BadAudio("ref_audio is a data: URI without ;base64,")
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError) as e:
        raise BadAudio(f"ref_audio is not base64: {e}") from None
