"""From a client's fields to a running utterance: admission, request, and the pipeline for its sound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from copy import copy

from starlette.concurrency import run_in_threadpool

from sonant.engine.stream import SpeechStream
from sonant.errors import Overloaded, TooLate
from sonant.serving.api.other_models import OtherModels
from sonant.serving.api.request_builder import RequestBuilder
from sonant.serving.api.schemas import SpeechBody, SpeechFields
from sonant.serving.audio_pipeline import AudioPipeline
from sonant.serving.channel.engine_link import EngineLink
from sonant.serving.channel.messages import PlaceKind
from sonant.serving.channel.remote_engine import Admitted, RemoteEngine
from sonant.serving.encode import carried_rate_hz
from sonant.serving.limits.bodies import BodyBudget
from sonant.serving.observability.engine_metrics import engine_families, families_by_model
from sonant.serving.observability.metrics import Metrics
from sonant.serving.observability.request_log import RequestLog, RequestRecord
from sonant.serving.observability.tracing import tracer_for
from sonant.serving.observability.voice_figures import VoiceFigures
from sonant.serving.options import ServeOptions
from sonant.serving.refused import Refused
from sonant.serving.voices.clips import Clips
from sonant.serving.voices.voice_names import VoiceNames

_ENCODER_THREADS = 4
_QUICK_CHARS = 400  # a text this short is laid out sooner than another thread could begin to
_QUICK_FORMATS = frozenset({"pcm", "wav"})
_KINDS = {"POST /v1/audio/speech": "speech", "POST /v1/audio/speech/batch": "batch"}


class InFlight:
    """Counts what a front end is speaking, so that a shutdown can wait for it while nothing new begins. Used on the
    event loop only."""

    def __init__(self) -> None:
        self.running = 0
        self.draining = asyncio.Event()

    @contextmanager
    def one(self) -> Iterator[None]:
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1


class SpeechService:
    def __init__(self, link: EngineLink, options: ServeOptions, names: VoiceNames) -> None:
        self.link, self.options, self.names = link, options, names
        self.others = OtherModels(options.other_models) if options.other_models else None
        self.metrics = Metrics()
        self.voices = None if names.store is None else VoiceFigures(names.store.cache, self.metrics.registry)
        self.in_flight = InFlight()
        self.log = RequestLog(tracer_for(options.otlp_endpoint))
        self.bodies = BodyBudget(options.max_bodies_bytes, self.rejected)
        self.executor = ThreadPoolExecutor(_ENCODER_THREADS, thread_name_prefix="sonant-encode")
        self.clips = Clips(options.allow_url, self.rejected)
        self.request_builder = RequestBuilder(names, self.clips, options)
        self.models: dict[str, SpeechService] = {}  # by name, this one first; empty where there is one only
        self._aliases: frozenset[str] = frozenset()
        self.all_metrics: Callable[[], Awaitable[bytes]] = self.metrics_text  # a replica adds the others'

    def serve_beside(
        self, name: str, others: Iterable[tuple[str, EngineLink, VoiceNames]], aliases: Iterable[str]
    ) -> None:
        """Serve several models: this one by `name` or an alias, the others by their names. They share everything but
        their engine and their voices."""
        self._aliases = frozenset(aliases)
        self.models = {name: self}
        for other, link, names in others:
            service = copy(self)
            service.link, service.names = link, names
            service.request_builder = RequestBuilder(names, self.clips, self.options)
            self.models[other] = service

    @property
    def all(self) -> Iterator[SpeechService]:
        """A service for each model."""
        return iter(self.models.values() or (self,))

    @property
    def ready(self) -> bool:
        return all(service.link.ready for service in self.all)

    @property
    def any_link(self) -> EngineLink:
        """A link to an engine that is ready, for a client that has not said yet which model it wants."""
        return next((service.link for service in self.all if service.link.ready), self.link)

    def of(self, model: str | None) -> SpeechService:
        """The service for this model. If there is only one model, it answers to every name."""
        if not self.models or model is None or model in self._aliases:
            return self
        if model not in self.models:
            there = ", ".join(self.models)
            raise Refused(404, "model_not_found", f"no model {model[:64]!r}; there is {there}", param="model")
        return self.models[model]

    def drain(self) -> None:
        """Take no more requests; those in flight go on."""
        for service in self.all:
            service.link.drain()

    def cut_off(self) -> None:
        """End all that is in flight with an error."""
        self.metrics.aborted.labels("shutdown").inc(self.in_flight.running)
        self.log.cutting_off = True
        for service in self.all:
            service.link.cut_off()

    async def admit(
        self, client: str, resources: ExitStack, *, kind: PlaceKind = "speech", requests: int = 1
    ) -> Admitted:
        """Raises unless the client may speak now. Its place is given back when `resources` are closed.

        An utterance of a session uses the session's place.
        """
        admitted, given = self.link.engine.ask_in(resources, client, kind, requests)
        await self._place(given, resources)
        return admitted

    async def _place(self, given: Awaitable[object], resources: ExitStack) -> None:
        try:
            await given
        except (Refused, Overloaded) as e:
            self.rejected(e)
            raise
        resources.enter_context(self.in_flight.one())

    async def check_room(self, client: str, path: str) -> None:
        """Raises what would refuse the client now, without taking a place: asked before a large body is read."""
        speaks = path.startswith("/v1/audio/speech")
        with ExitStack() as resources:
            try:
                await self.any_link.engine.admit(resources, client, "look_speech" if speaks else "look_upload")
            except (Refused, Overloaded) as e:
                self.rejected(e)
                raise

    @asynccontextmanager
    async def upload(self, client: str) -> AsyncIterator[None]:
        """For uploads: they take no place, but count against the client's rate, and a drain waits for them."""
        with ExitStack() as resources:
            await self.admit(client, resources, kind="upload")
            yield

    def finished(self, record: RequestRecord) -> None:
        """A request is over. One that never reached its handler is counted here."""
        kind = _KINDS.get(record.route) if record.outcome is None and record.status is not None else None
        self.log.write(record)
        self._tell_voices()
        if kind is not None:
            self.metrics.requests.labels(kind, record.outcome).inc()

    def _tell_voices(self) -> None:
        if self.voices is not None:
            self.voices.tell()

    def rejected(self, error: Refused | Overloaded) -> None:
        waited = "too_late" if isinstance(error, TooLate) else "queue_full"
        self.metrics.rejected.labels(error.code if isinstance(error, Refused) else waited).inc()

    async def metrics_text(self) -> bytes:
        """This server's page."""
        self._tell_voices()
        if self.models:
            links = {name: service.link for name, service in self.models.items()}
            more = families_by_model({name: (link, await link.report()) for name, link in links.items()})
        else:
            more = engine_families(self.link, await self.link.report())
        return await run_in_threadpool(self.metrics.text, more)

    async def open(
        self, body: SpeechBody, client: str, whole: bool, resources: ExitStack
    ) -> tuple[SpeechStream, AudioPipeline]:
        """Start speaking. What must be given back at the end is entered on `resources`.

        A request that is quickly laid out is sent right behind the question whether the client may speak, so that the
        listener waits for one round trip less.
        """
        if not _is_quick(body):
            return await self.speak(await self.admit(client, resources), body, whole, resources)
        admitted, given = self.link.engine.ask_in(resources, client, "speech")
        try:
            return await self.speak(admitted, body, whole, resources)
        finally:
            await self._place(given, resources)  # A client that is refused hears that, whatever else is wrong.

    async def speak(
        self, admitted: Admitted, body: SpeechBody, whole: bool, resources: ExitStack
    ) -> tuple[SpeechStream, AudioPipeline]:
        engine = admitted.engine
        try:
            request = await self.request_builder.build(engine, body, text=body.input, live=not whole)
            if len(body.input) <= _QUICK_CHARS:
                stream = admitted.submit(request)
            else:
                stream = await run_in_threadpool(engine.submit, request)
        finally:
            admitted.arrived()
        resources.callback(stream.abort)
        stream.limit_unread(self.options.max_unread_sound_s)
        # The encoder is opened while the first frame is being made, and not at all for a client that was refused.
        return stream, await self.audio_pipeline(engine, body, body.response_format, streaming=not whole)

    async def audio_pipeline(
        self, engine: RemoteEngine, fields: SpeechFields, form: str, *, streaming: bool
    ) -> AudioPipeline:
        """At the rate that the client asks for, else at the model's own."""
        own_hz, speed = engine.sample_rate, fields.playback_speed
        rate_hz = fields.sample_rate or carried_rate_hz(form, own_hz)
        arguments = (form, own_hz, rate_hz, speed, streaming, self.executor)
        if form in _QUICK_FORMATS and speed == 1 and rate_hz == own_hz:
            return AudioPipeline(*arguments)
        # Not on the event loop, since opening an encoder takes milliseconds.
        return await run_in_threadpool(AudioPipeline, *arguments)

    async def close(self) -> None:
        for service in self.all:
            await service.link.close()
        self.log.close()
        self.executor.shutdown(wait=False)
        self.clips.close()


def _is_quick(body: SpeechBody) -> bool:
    """Whether it costs so little to lay out that it may be done before the client is admitted."""
    return len(body.input) <= _QUICK_CHARS and body.ref_audio is None and body.speakers is None
