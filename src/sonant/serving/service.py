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
from threading import Lock

import numpy as np
from starlette.concurrency import run_in_threadpool

from sonant.engine.engine import Engine
from sonant.engine.stream import SpeechStream
from sonant.errors import BadAudio, BadRequest, Overloaded, Unsupported
from sonant.models.spec import ModelSpec
from sonant.serving.api.error_responses import Refused
from sonant.serving.api.schemas import SpeechBody, SpeechFields, TaskType, VoiceId
from sonant.serving.audio_pipeline import SoundPath
from sonant.serving.engine_supervisor import EngineHost
from sonant.serving.limits.admission import Admission
from sonant.serving.limits.in_flight import Work
from sonant.serving.observability.metrics import Metrics
from sonant.serving.options import ServeOptions
from sonant.serving.voices.fetch import ClipFetcher, is_address
from sonant.serving.voices.voice_names import VoiceNames
from sonant.types import SpeechRequest
from sonant.voice import Voice

_ENCODER_THREADS = 4
_FETCHER_THREADS = 4
_CACHED_CLIPS = 32
DEFAULT_RATE_HZ = 24000


class SpeechService:
    def __init__(self, host: EngineHost, options: ServeOptions, names: VoiceNames) -> None:
        self.host, self.options, self.names = host, options, names
        self.metrics = Metrics(host, names.store.cache if names.store is not None else None)
        self.admission = Admission(options)
        self.work = Work()
        self.executor = ThreadPoolExecutor(_ENCODER_THREADS, thread_name_prefix="sonant-encode")
        self._fetcher = ClipFetcher(options.allow_url)
        self._fetchers = ThreadPoolExecutor(_FETCHER_THREADS, thread_name_prefix="sonant-fetch")
        self._clips: OrderedDict[str, Voice] = OrderedDict()  # voices sent along with a request, by their content
        self._clips_lock = Lock()

    def admit(self, client: str, held: ExitStack, *, requests: int = 1, place: bool = True) -> Engine:
        """The engine, for a client that may use it now; what it takes is given back with `held`.

        Without `place` it has one already, a session's, and speaks as fast as its text comes: no measure for others.
        """
        try:
            engine = self.host.engine
            self.admission.check(client, engine.stats(), engine.config.max_waiting, requests)
            if place:
                held.enter_context(self.admission.place(client))
                held.callback(self._ended, time.monotonic())
        except (Refused, Overloaded) as e:
            self.rejected(e)
            raise
        held.enter_context(self.work.one())
        return engine

    def count_request(self, client: str) -> None:
        """For what is no speech and takes no place, but may not be asked for without end either."""
        try:
            self.admission.rate.take(client, time.monotonic())
        except Refused as e:
            self.rejected(e)
            raise

    def rejected(self, error: Refused | Overloaded) -> None:
        self.metrics.rejected.labels(error.code if isinstance(error, Refused) else "queue_full").inc()

    async def open(self, body: SpeechBody, client: str, whole: bool, held: ExitStack) -> tuple[SpeechStream, SoundPath]:
        """Start speaking. What must be given back at the end is entered on `held`."""
        engine = self.admit(client, held)
        return await self.speak(engine, body, whole, held)

    async def speak(
        self, engine: Engine, body: SpeechBody, whole: bool, held: ExitStack
    ) -> tuple[SpeechStream, SoundPath]:
        request = await self.request(engine, body, text=body.input, live=not whole)
        try:
            stream = await run_in_threadpool(engine.submit, request)
        except Overloaded as e:
            self.rejected(e)
            raise e.with_traceback(None) from None  # it holds the thread's future, which holds it: garbage to collect
        held.callback(stream.abort)
        stream.limit_unread(self.options.max_unread_sound_s)
        # now, while the first frame is being made; and not at all for those who were turned away
        return stream, await self.sound_path(engine, body, body.response_format, streaming=not whole)

    async def sound_path(self, engine: Engine, fields: SpeechFields, form: str, *, streaming: bool) -> SoundPath:
        # off the event loop: opening an encoder takes milliseconds
        rate_hz, speed = fields.sample_rate or DEFAULT_RATE_HZ, 1.0 if fields.speed is None else fields.speed
        return await run_in_threadpool(SoundPath, form, engine.sample_rate, rate_hz, speed, streaming, self.executor)

    async def request(self, engine: Engine, fields: SpeechFields, *, text: str, live: bool) -> SpeechRequest:
        spec = engine.model.spec
        _check_task(fields.task_type, spec)
        clip = None
        if fields.ref_audio is not None:
            clip = await self._clip_bytes(fields.ref_audio)
        voice = await run_in_threadpool(self._voice, engine, fields, clip)  # may encode a clip
        return SpeechRequest(
            text=text,
            voice=voice,
            language=fields.language or "auto",
            instruct=fields.instructions if spec.instructs else None,
            sampling=fields.sampling(),
            seed=fields.seed,
            max_frames=fields.max_frames or fields.max_new_tokens,
            streaming_text=None if fields.non_streaming_mode is None else not fields.non_streaming_mode,
            live=live,
        )

    def _voice(self, engine: Engine, fields: SpeechFields, clip: bytes | None) -> str | Voice | None:
        spec = engine.model.spec
        if fields.speaker_embedding is not None:
            if clip is not None:
                raise BadRequest("speaker_embedding and ref_audio exclude each other; send one of them")
            with np.errstate(over="ignore"):  # infinity is refused with the rest that is wrong
                vector = np.array(fields.speaker_embedding, np.float32)
            if spec.voice_vector is None:
                raise Unsupported("this model takes no speaker_embedding; send ref_audio, or name a voice")
            return Voice({spec.voice_vector: vector}, family=spec.family)
        if clip is not None:
            text = None if fields.x_vector_only_mode else fields.ref_text
            return self._clip(engine, clip, text)
        name = fields.voice.id if isinstance(fields.voice, VoiceId) else fields.voice
        return self.names.resolve(name, engine)

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
        self.host.close()
        self.executor.shutdown(wait=False)
        self._fetchers.shutdown(wait=False, cancel_futures=True)

    def _ended(self, began_s: float) -> None:
        self.admission.ended(time.monotonic() - began_s)


def _check_task(task: TaskType | None, spec: ModelSpec) -> None:
    loaded = "Base" if spec.clones else "CustomVoice" if spec.voices else "VoiceDesign"
    if task not in (None, loaded):
        raise Unsupported(f"task_type {task} needs another model; this server has a {loaded} one")


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
