"""What is loaded, and how it does: for the page at `/`, and for people with curl.

Counters and the lengths of lists are read, without a lock that the step thread takes.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from sonant.engine.engine import Engine
from sonant.serving.observability.gpu import GpuCollector
from sonant.serving.observability.recent_stats import RecentFigures
from sonant.serving.service import SpeechService


def engine_routes(service: SpeechService, model_name: str) -> APIRouter:
    router = APIRouter(prefix="/v1/engine")
    gpu = GpuCollector(service.host)
    recent = RecentFigures(service.metrics, service.host, time.monotonic())

    @router.get("")
    async def facts() -> dict[str, Any]:
        """What does not change while an engine runs; 503 while there is none."""
        return _facts(service, service.host.engine, model_name)

    @router.get("/stats")
    async def stats() -> dict[str, Any]:
        """While there is no engine, `ready` is false, `trouble` says why, and its own figures are left out."""
        host = service.host
        answer: dict[str, Any] = {"ready": host.ready, "trouble": host.trouble, "restarts": host.restarts}
        engine = host.loaded
        if engine is not None:
            answer |= asdict(engine.stats())
        return {**answer, "recent": asdict(recent.at(time.monotonic())), "gpu": await run_in_threadpool(_gpu, gpu)}

    return router


def _facts(service: SpeechService, engine: Engine, model_name: str) -> dict[str, Any]:
    spec, config = engine.model.spec, engine.config
    uploads = None
    if service.options.voices_folder is not None and spec.clones:
        clip = {"clip_min_s": config.clip_min_s, "clip_max_s": config.clip_max_s}
        uploads = {"consent": service.options.consent, **clip}
    return {
        "model": model_name,
        "version": version("sonant"),
        "device": str(engine.device),
        "languages": list(engine.languages),
        "instructs": spec.instructs,
        "clones": spec.clones,
        "uploads": uploads,  # null: the server takes none
        "max_text_chars": config.max_text_chars,
    }


def _gpu(collector: GpuCollector) -> dict[str, float] | None:
    """As /metrics has it, without the prefix. Asks the driver: not for the event loop."""
    return {m.name.removeprefix("sonant_gpu_"): m.samples[0].value for m in collector.collect()} or None
