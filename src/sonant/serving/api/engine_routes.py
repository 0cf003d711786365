"""Which models are loaded, and how their engines are doing: for the page at `/`, and for people with curl.

Only counters and the lengths of lists are read, without a lock that the step thread takes; the engine's process
reports them.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter

from sonant.sampling import Knob
from sonant.serving.channel.remote_engine import RemoteEngine
from sonant.serving.observability.recent_stats import RecentStatsReader
from sonant.serving.service import SpeechService


def engine_routes(service: SpeechService, model_name: str) -> APIRouter:
    router = APIRouter(prefix="/v1/engine")
    readers = {id(s): RecentStatsReader(service.metrics, time.monotonic()) for s in service.all}
    names = {id(s): name for name, s in service.models.items()} or {id(service): model_name}

    @router.get("")
    async def facts(model: str | None = None) -> dict[str, Any]:
        """Return what does not change while an engine runs; 503 while there is none."""
        chosen = service.of(model)
        return _facts(chosen, chosen.link.engine, names[id(chosen)])

    @router.get("/stats")
    async def stats(model: str | None = None) -> dict[str, Any]:
        """Return current figures. While there is no engine, `ready` is false, `trouble` says why, and the engine's own
        figures are left out."""
        chosen = service.of(model)
        link, report, recent = chosen.link, await chosen.link.report(), readers[id(chosen)]
        shown: dict[str, Any] = {"ready": link.ready, "trouble": link.trouble, "restarts": link.restarts}
        if report is not None:
            shown |= {**report.stats, "front_ends": report.front_ends}
        gpu = None if report is None else report.gpu
        return {**shown, "recent": asdict(recent.at(time.monotonic(), report)), "gpu": gpu}

    return router


def _facts(service: SpeechService, engine: RemoteEngine, model_name: str) -> dict[str, Any]:
    spec, config = engine.spec, engine.config
    uploads = None
    if service.options.voices_folder is not None and spec.clones:
        clip = {"clip_min_s": config.clip_min_s, "clip_max_s": config.clip_max_s}
        uploads = {"consent": service.options.consent, **clip}
    return {
        "model": model_name,
        "version": version("sonant"),
        "device": engine.device,
        "languages": list(engine.languages),
        "sample_rate": spec.sample_rate,
        "clip_sample_rate": spec.clip_sample_rate,
        "instructs": spec.instructs,
        "clones": spec.clones,
        "speaks_without_voice": spec.speaks_without_voice,
        "most_speakers": spec.most_speakers,  # in one text; 1: it takes no `speakers`
        "context_segments": spec.context_segments,  # of a long text, in the prompt of its next segment
        "knobs": [_knob(knob) for knob in spec.knobs],  # what `extra_params` may set
        "uploads": uploads,  # null: the server takes none
        "max_text_chars": config.max_text_chars,
    }


def _knob(knob: Knob) -> dict[str, Any]:
    """An open end of a knob's range is null, since JSON has no infinity."""
    low, high = (None if math.isinf(end) else end for end in (knob.low, knob.high))
    shown: dict[str, Any] = {"name": knob.name, "type": knob.kind.__name__, "default": knob.default}
    return {**shown, "low": low, "high": high, "choices": list(knob.choices) or None, "help": knob.help}
