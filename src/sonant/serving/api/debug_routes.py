"""Records the steps of the engine while it serves: `POST /debug/profile`. Off unless the operator turned it on.

A recording slows everybody down and shows how the server is built, so it needs an API key like every route, there is
one at a time, and its steps and time are bounded.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.background import BackgroundTask

from sonant.serving.api.json_body import JsonRoute
from sonant.serving.channel.remote_engine import RemoteEngine
from sonant.serving.refused import Refused
from sonant.serving.service import SpeechService

MAX_STEPS = 2000
MAX_WAIT_S = 120.0


class ProfileBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] = 100
    timeout_s: Annotated[float, Field(gt=0, le=MAX_WAIT_S, allow_inf_nan=False)] = 60.0
    stacks: bool = False  # record Python lines, shapes and memory: the recorded steps take far longer
    graphs: bool = True  # false: launch operators one by one, so that each kernel has a source


def debug_routes(service: SpeechService) -> APIRouter:
    router = APIRouter(prefix="/debug", route_class=JsonRoute)
    turn = asyncio.Lock()

    @router.post("/profile", response_class=FileResponse)
    async def profile(body: ProfileBody) -> FileResponse:
        """Return a gzipped Chrome trace of the next steps; the header `x-steps` says how many ran in time."""
        if turn.locked():
            raise Refused(409, "profile_under_way", "a recording is under way; wait for it to end", retry_s=1.0)
        async with turn:
            steps, path = await _record(service.link.engine, body)
        return FileResponse(
            path,
            media_type="application/gzip",
            filename="trace.json.gz",
            headers={"x-steps": str(steps)},
            background=BackgroundTask(path.unlink, missing_ok=True),
        )

    return router


async def _record(engine: RemoteEngine, body: ProfileBody) -> tuple[int, Path]:
    steps, path = await engine.profile(body.steps, body.timeout_s, stacks=body.stacks, graphs=body.graphs)
    if not steps:
        path.unlink(missing_ok=True)
        message = f"no step ran in {body.timeout_s:g} s: send speech requests while it records"
        raise Refused(409, "nothing_to_profile", message)
    return steps, path
