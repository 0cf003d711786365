"""A server with our page and a voice whose sound comes as the test says: in which pieces, and when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from serving.conftest import wait_for
from sonant.audio.pcm import pcm16
from sonant.serving.page.routes import page_routes

RATE_HZ = 24_000
SEED = "9007199254740999"  # too large for a number of JavaScript's
ENGINE = {"model": "slow", "device": "cpu", "languages": ["auto", "english"], "instructs": False, "clones": False}
ENGINE |= {"uploads": None, "max_text_chars": 1000, "sample_rate": RATE_HZ, "speaks_without_voice": True}
VOICES = [{"id": "a", "name": "a", "kind": "own"}, {"id": "b", "name": "b", "kind": "own"}]
RECENT = {"window_s": 1, "requests": 0, "ttfp_p50_s": None, "ttfp_p99_s": None, "rtf_p50": None, "rejected": 0}
RECENT |= {"step_s": None, "step_phases_s": {}, "batch_rows": None, "steps_per_s": 0, "audio_s_per_s": 0}
GPU = {"memory_used_bytes": 40 << 30, "memory_total_bytes": 140 << 30, "utilisation_ratio": 0.5}
GPU |= {"power_watts": 300, "temperature_celsius": 50}

Script = Sequence[bytes | float | Exception]  # a piece, a pause in seconds, or the error that breaks it off


def tone(length_s: float) -> bytes:
    return pcm16(0.5 * np.sin(np.arange(int(length_s * RATE_HZ)) / 10).astype(np.float32)).tobytes()


@dataclass
class PageServer:
    port: int = 0
    script: Script = ()  # for every request from now on
    bodies: list[dict[str, Any]] = field(default_factory=list)  # the requests for speech so far
    speaking: int = 0  # requests that have not ended
    missing: str = ""  # a path that is refused
    trouble: str = "as asked"  # the reason that is given for it

    def url(self, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}"

    async def pieces(self, script: Script) -> AsyncIterator[bytes]:
        self.speaking += 1
        try:
            for part in script:
                if isinstance(part, Exception):
                    raise part
                if isinstance(part, bytes):
                    yield part
                else:
                    await asyncio.sleep(part)
        finally:
            self.speaking -= 1


@contextmanager
def page_server() -> Iterator[PageServer]:
    served = PageServer()
    app = FastAPI()
    app.include_router(page_routes())
    app.get("/v1/engine")(lambda: ENGINE)
    app.get("/v1/audio/voices")(lambda: {"voices": VOICES})
    app.get("/v1/engine/stats")(lambda: {"ready": True, "restarts": 0, "recent": RECENT, "gpu": GPU})

    @app.post("/v1/audio/speech")
    async def speech(body: dict[str, Any]) -> StreamingResponse:
        served.bodies.append(body)
        return StreamingResponse(served.pieces(served.script), media_type="audio/pcm", headers={"x-seed": SEED})

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        refused = JSONResponse({"error": {"message": served.trouble}}, status_code=503)
        await (refused if scope.get("path") == served.missing else app)(scope, receive, send)

    server = uvicorn.Server(uvicorn.Config(answer, port=0, log_level="critical"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    served.port = server.servers[0].sockets[0].getsockname()[1]
    yield served
    server.should_exit = True
    thread.join(10)
