"""From a body to a running utterance: admission, voice, request, and the way its sound will go."""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Lock

from starlette.concurrency import run_in_threadpool

from sonant.engine.engine import Engine
from sonant.engine.stream import SpeechStream
from sonant.errors import BadAudio
from sonant.serving.admission import Admission
from sonant.serving.host import EngineHost
from sonant.serving.metrics import Metrics
from sonant.serving.options import ServeOptions
from sonant.serving.problems import Refused
from sonant.serving.schemas import SpeechBody, VoiceId
from sonant.serving.sound import SoundPath
from sonant.serving.voice_names import VoiceNames
from sonant.types import SpeechRequest, Voice

_ENCODER_THREADS = 4
_CACHED_CLIPS = 32


class SpeechService:
    def __init__(self, host: EngineHost, options: ServeOptions, names: VoiceNames) -> None:
        self.host, self.options, self.names = host, options, names
        self.metrics = Metrics(host)
        self.admission = Admission(options)
        self.executor = ThreadPoolExecutor(_ENCODER_THREADS, thread_name_prefix="sonant-encode")
        self._clips: OrderedDict[str, Voice] = OrderedDict()  # voices sent along with a request, by their content
        self._clips_lock = Lock()

    async def open(self, body: SpeechBody, client: str, whole: bool, held: ExitStack) -> tuple[SpeechStream, SoundPath]:
        """Start speaking. What must be given back at the end is entered on `held`."""
        try:
            engine = self.host.engine
            held.enter_context(self.admission.enter(client, engine.stats()))
        except Refused as e:
            self.metrics.rejected.labels(e.code).inc()
            raise
        # off the event loop: opening an encoder takes milliseconds, a submission tokenizes and may encode a clip
        path = await run_in_threadpool(
            SoundPath, body.response_format, engine.sample_rate, body.sample_rate, body.speed, not whole, self.executor
        )
        stream = await run_in_threadpool(self._submit, engine, body)
        held.callback(stream.abort)
        held.callback(self._ended, time.monotonic())
        return stream, path

    def _submit(self, engine: Engine, body: SpeechBody) -> SpeechStream:
        if body.ref_audio is not None:
            voice: str | Voice | None = self._clip(engine, body.ref_audio, body.ref_text)
        else:
            name = body.voice.id if isinstance(body.voice, VoiceId) else body.voice
            voice = self.names.resolve(name, engine)
        return engine.submit(
            SpeechRequest(
                text=body.input,
                voice=voice,
                language=body.language,
                instruct=body.instructions if engine.model.spec.instructs else None,
                sampling=body.sampling(),
                seed=body.seed,
                max_frames=body.max_frames or body.max_new_tokens,
            )
        )

    def _clip(self, engine: Engine, given: str, text: str | None) -> Voice:
        data = decode_clip(given)
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

    def _ended(self, began_s: float) -> None:
        self.admission.ended(time.monotonic() - began_s)


def decode_clip(given: str) -> bytes:
    """The bytes of a data: URI or of plain base64. Addresses are refused: a server that fetches can be aimed."""
    if given.startswith(("http://", "https://", "file:")):
        raise BadAudio("ref_audio is an address; fetching is off, send the clip itself as base64 or a data: URI")
    if given.startswith("data:"):
        head, comma, given = given.partition(",")
        if not comma or not head.endswith(";base64"):
            raise BadAudio("ref_audio is a data: URI without ;base64,")
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError) as e:
        raise BadAudio(f"ref_audio is not base64: {e}") from None
