"""Several texts in one request, each spoken into a file: vllm-omni's batch shape.

All items run at once. An item that fails has its error in its place, and the others go on. A client that hangs up stops
them all.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from sonant.errors import BadRequest, BadText, EngineError
from sonant.serving.api.error_responses import client_error, outcome_of, response_for
from sonant.serving.api.json_body import JsonRoute
from sonant.serving.api.schemas import MAX_INPUT_CHARS, BatchBody, SpeechBody
from sonant.serving.api.speech_response import until_gone
from sonant.serving.audio_pipeline import check_complete
from sonant.serving.channel.remote_engine import Admitted
from sonant.serving.observability.request_log import RequestRecord
from sonant.serving.service import SpeechService

_PATH = "/v1/audio/speech/batch"
_CLIPS_AT_ONCE = 2  # of one batch: all of them together are more than the readers of clips let wait


def batch_routes(service: SpeechService) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post(_PATH, response_class=JSONResponse)
    async def batch(body: BatchBody, request: Request) -> Response:
        chars = sum(len(item.input) for item in body.items)
        if chars > MAX_INPUT_CHARS:
            raise BadText(
                f"the batch has {chars:,} characters, over the limit of {MAX_INPUT_CHARS:,}; send fewer items"
            )
        request.state.record.asks(body, chars)
        bodies = body.bodies()
        services = {id(found): found for found in (service.of(item.model) for item in bodies)}
        places = {service.others.place(item.model) if service.others else None for item in bodies}
        if len(services) > 1 or len(places) > 1:
            raise BadRequest("a batch is spoken by one model; send a batch for each")
        if service.others and (elsewhere := service.others.sent_on(bodies[0].model, _PATH)):
            request.state.record.outcome = "sent_on"
            return elsewhere
        return BatchResponse(next(iter(services.values())), bodies, request.state.client)

    return router


class BatchResponse(Response):
    def __init__(self, service: SpeechService, bodies: list[SpeechBody], client: str) -> None:
        self.service, self.bodies, self.client = service, bodies, client
        self.background = None
        self.started_s = time.monotonic()
        self._clips = asyncio.Semaphore(_CLIPS_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record: RequestRecord = scope["state"]["record"]
        if not await until_gone(self._work(record, scope, receive, send), receive):
            self.service.metrics.aborted.labels("client_gone").inc()
            record.outcome = "client_gone"

    async def _work(self, record: RequestRecord, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as resources:
            try:
                admitted = await self.service.admit(self.client, resources, requests=len(self.bodies))
            except Exception as e:
                record.outcome = outcome_of(e)
                self.service.metrics.requests.labels("batch", record.outcome).inc(len(self.bodies))
                return await response_for(e)(scope, receive, send)
            record.queued_s = record.now_s
            tasks = [asyncio.create_task(self._item(admitted, body)) for body in self.bodies]
            resources.callback(lambda: [task.cancel() for task in tasks])
            results = await asyncio.gather(*tasks, return_exceptions=True)
            failures = [r for r in results if isinstance(r, Exception)]
            record.outcome = outcome_of(failures[0]) if len(failures) == len(results) else "stop"
            record.voice = record.asked_voice if len(failures) < len(results) else None
            record.audio_s = sum(r.pop("audio_s") for r in results if isinstance(r, dict))
            if len(failures) == len(results) and isinstance(failures[0], EngineError):
                return await response_for(failures[0])(scope, receive, send)  # The server failed, not the items.
            response = await run_in_threadpool(self._response, results)
            return await response(scope, receive, send)

    async def _item(self, admitted: Admitted, body: SpeechBody) -> dict[str, Any]:
        with ExitStack() as resources:
            try:
                turn: AbstractAsyncContextManager[None]
                turn = nullcontext() if body.ref_audio is None and body.speakers is None else self._clips
                async with turn:
                    stream, pipeline = await self.service.speak(admitted, body, True, resources)
                sound = [await pipeline.push(chunk) async for chunk in stream]
                check_complete(stream)
                sound.append(await pipeline.finish())
            except Exception as e:
                self.service.metrics.requests.labels("batch", outcome_of(e)).inc()
                raise
            self.service.metrics.count("batch", stream, pipeline, self.started_s)
            kind = pipeline.encoder.content_type
            usage = pipeline.usage(stream)
            return {
                "audio_data": b"".join(sound), "media_type": kind, "usage": usage, "audio_s": pipeline.audio_s,
            }  # fmt: skip

    def _response(self, results: list[dict[str, Any] | BaseException]) -> JSONResponse:
        items: list[dict[str, Any]] = []
        for index, result in enumerate(results):
            if isinstance(result, BaseException):
                error = result if isinstance(result, Exception) else RuntimeError("cancelled")
                items.append({"index": index, "status": "error", "error": client_error(error).message})
            else:
                sound = base64.b64encode(result["audio_data"]).decode()
                items.append({"index": index, "status": "success", **result, "audio_data": sound})
        failed = sum(item["status"] == "error" for item in items)
        answered = {"total": len(items), "succeeded": len(items) - failed, "failed": failed}
        return JSONResponse({"id": f"speech-batch-{secrets.token_hex(16)}", "results": items, **answered})
