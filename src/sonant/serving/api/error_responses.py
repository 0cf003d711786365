"""Every error as OpenAI's error JSON, mapped from our types in one place.

Clients read `error.message`, `type`, `param` and `code`; FastAPI's own `detail` bodies leave them empty.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from sonant import errors
from sonant.serving.api.mistakes import first_mistake
from sonant.serving.refused import Refused

logger = logging.getLogger(__name__)

# More specific types come first, since the first class that an error belongs to decides the response.
_RESPONSES: tuple[tuple[type[Exception], int, str, str | None], ...] = (
    (errors.VoiceExists, 409, "voice_exists", "name"),
    (errors.UnknownConsent, 400, "consent_not_found", "consent"),
    (errors.UnknownVoice, 400, "voice_not_found", "voice"),
    (errors.UnknownLanguage, 400, "language_not_found", "language"),
    (errors.BadText, 400, "invalid_input", "input"),
    (errors.BadAudio, 400, "invalid_audio", "ref_audio"),
    (errors.Unsupported, 400, "unsupported", None),
    (errors.BadRequest, 400, "invalid_value", None),
    (errors.EngineError, 503, "engine_unavailable", None),
    (errors.StoreError, 503, "store_unavailable", None),
)


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every error response."""

    error: ErrorDetail


DOCUMENTED: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "What was wrong with the request, or why it was not taken"},
    "5XX": {"model": ErrorBody, "description": "What is wrong with the server, and when to come back"},
}


def error_response(
    status: int, message: str, code: str | None, param: str | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    if status == 429:
        kind = "rate_limit_error"
    elif status in (401, 403):
        kind = "authentication_error"
    else:
        kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return JSONResponse(body, status, dict(headers or {}))


@dataclass(frozen=True)
class ClientError:
    """What a client may see of an error."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_s: float = 0.0


def client_error(error: Exception) -> ClientError:
    """Our own errors are shown in full; any other is a 500 that reveals nothing of our internals."""
    known = _known(error)
    if known is not None:
        return known
    logger.error("a request failed", exc_info=error)
    return ClientError(500, "internal_error", "the server failed on this request; its log says more")


def outcome_of(error: Exception) -> str:
    """Who caused it, for metrics and the log: the client (bad_request), too many requests (refused), or we (error)."""
    known = _known(error)
    if isinstance(error, Refused | errors.Overloaded) and known is not None and known.status in (429, 503):
        return "refused"
    return "bad_request" if known is not None and known.status < 500 else "error"


def _known(error: Exception) -> ClientError | None:
    if isinstance(error, Refused):
        return ClientError(error.status, error.code, str(error), error.param, error.retry_s)
    if isinstance(error, errors.Overloaded):
        return ClientError(429, "overloaded", str(error), retry_s=error.retry_s)
    for kind, status, code, param in _RESPONSES:
        if isinstance(error, kind):
            return ClientError(status, code, str(error), param, 1.0 if status in (429, 503) else 0.0)
    return None


def response_for(error: Exception) -> JSONResponse:
    shown = client_error(error)
    headers = {}
    if shown.retry_s > 0:
        headers = {"retry-after": str(math.ceil(shown.retry_s)), "retry-after-ms": str(round(1e3 * shown.retry_s))}
    return error_response(shown.status, shown.message, shown.code, shown.param, headers)


def add_handlers(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        message, where = first_mistake(error)
        return error_response(400, message, "invalid_value", where)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, Refused):  # FastAPI wraps exceptions raised while the body is read.
            return response_for(error.__cause__)
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_body")
        return error_response(error.status_code, str(error.detail), code, headers=error.headers)

    @app.exception_handler(errors.SonantError)
    async def ours(_: Request, error: errors.SonantError) -> JSONResponse:
        return response_for(error)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        cause = error.__cause__
        if isinstance(error, RuntimeError) and isinstance(cause, errors.SonantError):
            error = cause  # It broke an answer off, and FastAPI has wrapped it; the log has a line of it already.
        return response_for(error)
