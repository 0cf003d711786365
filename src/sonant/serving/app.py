"""The app: OpenAI's speech API with all its routes, listings of voices and models, health, readiness and metrics."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.middleware.cors import CORSMiddleware

from sonant.models.description import Description
from sonant.serving.api.batch import batch_routes
from sonant.serving.api.debug_routes import debug_routes
from sonant.serving.api.engine_routes import engine_routes
from sonant.serving.api.error_responses import DOCUMENTED, add_handlers, error_response
from sonant.serving.api.json_body import JsonRoute
from sonant.serving.api.speech_response import ShortWay, speech_answer, speech_routes
from sonant.serving.api.speech_session import session_routes
from sonant.serving.api.voice_routes import voice_routes
from sonant.serving.channel.engine_link import EngineLink
from sonant.serving.limits.keys import ApiKeys
from sonant.serving.limits.middleware import RequestMiddleware
from sonant.serving.limits.origins import friends
from sonant.serving.observability.metrics import CONTENT_TYPE
from sonant.serving.options import ServeOptions
from sonant.serving.page.routes import page_routes
from sonant.serving.refused import Refused
from sonant.serving.service import SpeechService
from sonant.serving.voices.aliases import check_aliases, parsed_aliases, reserved_names
from sonant.serving.voices.bucket import Bucket
from sonant.serving.voices.voice_names import VoiceNames
from sonant.serving.voices.voice_store import StoreOptions, VoiceStore
from sonant.serving.warm_up import warm_encoders

MODEL_ALIASES = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")  # what stock clients send; all mean the loaded model
# A browser asks whether it may send a header by that header's name. OpenAI's SDK sends all of these.
_SDK = (
    "lang package-version os arch runtime runtime-version retry-count timeout read-timeout async raw-response "
    "helper-method poll-helper custom-poll-interval"
)
CORS_HEADERS = (
    *("authorization", "content-type", "accept", "x-request-id", "traceparent", "tracestate"),
    *("openai-organization", "openai-project", "openai-beta", "idempotency-key"),
    *(f"x-stainless-{name}" for name in _SDK.split()),
)


@dataclass(frozen=True)
class ServedModel:
    link: EngineLink
    description: Description  # what the checkpoint's folder says of it
    name: str  # what clients see

    @property
    def mark(self) -> str:
        """The mark of voices that this model encoded."""
        return f"{self.description.family}/{self.description.kind}/{self.description.size}"


def create_app(
    link: EngineLink, options: ServeOptions, model: Description, model_name: str, others: Sequence[ServedModel] = ()
) -> FastAPI:
    """The app of a front end. `model` is what the checkpoint's folder says of it; `model_name` is what clients see.
    `others` are served beside it, by their own names."""
    models = (ServedModel(link, model, model_name), *others)
    service, store = _service(models, options)
    keys = ApiKeys.of(options)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for m in models:
            await run_in_threadpool(warm_encoders, m.link.prompter.spec.sample_rate)
            await m.link.start()
        yield
        await service.close()

    app = FastAPI(
        title="Sonant",
        version=version("sonant"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses=DOCUMENTED,
        redirect_slashes=False,  # a redirect would name this server by an address that a proxy's clients do not use
    )
    app.router.route_class = JsonRoute
    app.state.service = service
    add_handlers(app)
    answer = speech_answer(service)
    app.include_router(speech_routes(answer))
    _add_listings(app, service, model_name)
    _add_health(app, service)
    app.include_router(batch_routes(service))
    app.include_router(session_routes(service))
    if store is not None:
        app.include_router(voice_routes(service, store))
    app.include_router(engine_routes(service, model_name))
    app.include_router(page_routes())
    if options.debug_profile == "on":
        app.include_router(debug_routes(service))
    app.add_middleware(ShortWay, answer=answer)  # inside the middleware below, which every request passes first
    app.add_middleware(
        RequestMiddleware,
        options=options,
        keys=keys,
        bodies=service.bodies,
        admit=service.check_room,
        finished=service.finished,
    )
    if options.cors_origins:  # outermost, since a browser's preflight request carries no key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=friends(options),
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=CORS_HEADERS,
            expose_headers=["x-request-id", "x-seed", "x-sample-rate", "retry-after"],
        )
    return app


def _service(models: Sequence[ServedModel], options: ServeOptions) -> tuple[SpeechService, VoiceStore | None]:
    """The service of all models, and the store of their uploaded voices, if there is a folder for them."""
    store, given = None, parsed_aliases(options.voice_aliases)
    voices = tuple(dict.fromkeys(voice for m in models for voice in m.description.voices))
    uploads = any(m.description.clones for m in models) and options.voices_folder is not None
    check_aliases(voices, given, uploads=uploads)
    if options.voices_folder is not None:
        reserved = reserved_names(voices, given)
        bucket = None if options.voices_url is None else Bucket(options.voices_url)
        kept = StoreOptions(consent=options.consent, reserved_names=reserved)
        store = VoiceStore(options.voices_folder, kept, bucket)
    names = [VoiceNames(store, model=m.mark, given=given) for m in models]
    service = SpeechService(models[0].link, options, names[0])
    if len(models) > 1:
        beside = [(m.name, m.link, own) for m, own in zip(models[1:], names[1:], strict=True)]
        service.serve_beside(models[0].name, beside, MODEL_ALIASES)
    return service, store


def _add_listings(app: FastAPI, service: SpeechService, model_name: str) -> None:
    created = int(time.time())
    elsewhere = () if service.others is None else service.others.names
    known = {
        name: {"id": name, "object": "model", "created": created, "owned_by": "sonant"}
        for name in (*(service.models or (model_name,)), *MODEL_ALIASES, *elsewhere)
    }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": list(known.values())}

    @app.get("/v1/models/{model_id:path}")
    async def model(model_id: str) -> dict[str, Any]:
        if model_id not in known:
            there = ", ".join(known)
            raise Refused(404, "model_not_found", f"no model {model_id[:64]!r}; there is {there}", param="model")
        return known[model_id]

    @app.get("/v1/audio/models")
    async def audio_models() -> dict[str, Any]:
        served = (*(service.models or (model_name,)), *elsewhere)
        return {"models": [{"id": name, "name": name} for name in served]}

    @app.get("/v1/audio/voices")
    async def voices(model: str | None = None) -> dict[str, Any]:
        chosen = service.of(model)
        return {"voices": await run_in_threadpool(chosen.names.listing, chosen.link.engine)}


def _add_health(app: FastAPI, service: SpeechService) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> JSONResponse:
        if service.ready:
            return JSONResponse({"status": "ready"})
        trouble = next(s.link.trouble for s in service.all if not s.link.ready)
        return error_response(503, f"not ready: {trouble}", "not_ready", headers={"retry-after": "1"})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(await service.all_metrics(), media_type=CONTENT_TYPE)
