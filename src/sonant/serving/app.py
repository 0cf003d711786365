"""The app: OpenAI's speech API with all its routes, listings of voices and models, health, readiness and metrics."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
from sonant.serving.api.speech_response import speech_routes
from sonant.serving.api.speech_session import session_routes
from sonant.serving.api.voice_routes import voice_routes
from sonant.serving.channel.engine_link import EngineLink
from sonant.serving.limits.keys import ApiKeys
from sonant.serving.limits.middleware import RequestMiddleware
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
# A browser asks for each header by name. OpenAI's SDK sends all of these.
_SDK = (
    "lang package-version os arch runtime runtime-version retry-count timeout read-timeout async raw-response "
    "helper-method poll-helper custom-poll-interval"
)
CORS_HEADERS = (
    *("authorization", "content-type", "accept", "x-request-id", "traceparent", "tracestate"),
    *("openai-organization", "openai-project", "openai-beta", "idempotency-key"),
    *(f"x-stainless-{name}" for name in _SDK.split()),
)


def create_app(link: EngineLink, options: ServeOptions, model: Description, model_name: str) -> FastAPI:
    """A front end's. `model` is what the folder says of itself; `model_name` is what clients see."""
    store = None
    given = parsed_aliases(options.voice_aliases)
    check_aliases(model.voices, given, uploads=model.clones and options.voices_folder is not None)
    mark = f"{model.family}/{model.kind}/{model.size}"
    if options.voices_folder is not None:
        reserved = reserved_names(model.voices, given)
        bucket = None if options.voices_url is None else Bucket(options.voices_url)
        kept = StoreOptions(consent=options.consent, reserved_names=reserved)
        store = VoiceStore(options.voices_folder, kept, bucket)
    keys = ApiKeys.of(options)
    service = SpeechService(link, options, VoiceNames(store, model=mark, given=given))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(warm_encoders, link.prompter.spec.sample_rate)
        await link.start()
        yield
        await service.close()

    app = FastAPI(
        title="Sonant",
        version=version("sonant"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses=DOCUMENTED,
        redirect_slashes=False,  # a redirect would name this server as a proxy's client never sees it
    )
    app.router.route_class = JsonRoute
    app.state.service = service
    add_handlers(app)
    app.include_router(speech_routes(service))
    _add_listings(app, service, model_name)
    _add_health(app, service)
    app.include_router(batch_routes(service))
    app.include_router(session_routes(service))
    if store is not None:
        app.include_router(voice_routes(service, store, mark))
    app.include_router(engine_routes(service, model_name))
    app.include_router(page_routes())
    if options.debug_profile == "on":
        app.include_router(debug_routes(service))
    app.add_middleware(
        RequestMiddleware,
        options=options,
        keys=keys,
        bodies=service.bodies,
        admit=service.check_room,
        finished=service.finished,
    )
    if options.cors_origins:  # outermost: a browser's question whether it may ask carries no key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.cors_origins,
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=CORS_HEADERS,
            expose_headers=["x-request-id", "x-seed", "x-sample-rate", "retry-after"],
        )
    return app


def _add_listings(app: FastAPI, service: SpeechService, model_name: str) -> None:
    created = int(time.time())
    known = {
        name: {"id": name, "object": "model", "created": created, "owned_by": "sonant"}
        for name in (model_name, *MODEL_ALIASES, *service.others.names)
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
        return {"models": [{"id": name, "name": name} for name in (model_name, *service.others.names)]}

    @app.get("/v1/audio/voices")
    async def voices() -> dict[str, Any]:
        return {"voices": await run_in_threadpool(service.names.listing, service.link.engine)}


def _add_health(app: FastAPI, service: SpeechService) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> JSONResponse:
        if service.link.ready:
            return JSONResponse({"status": "ready"})
        return error_response(503, f"not ready: {service.link.trouble}", "not_ready", headers={"retry-after": "1"})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(await service.all_metrics(), media_type=CONTENT_TYPE)
