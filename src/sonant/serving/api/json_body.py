"""JSON from untrusted clients. It is parsed on the event loop, which all share, so what costs time is bounded first.

A clip of some megabytes is one value and costs nothing; a million small values in as many bytes would hold everybody
up for seconds, in the parser and again in the list of validation errors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from sonant.serving.refused import Refused

MAX_VALUES = 100_000  # in one body or message: far more than the longest list that any field takes


def parsed(raw: str | bytes) -> Any:
    """Raises `Refused` for JSON beyond our limits or not in UTF-8, and `json.JSONDecodeError` for what is not JSON."""
    commas = raw.count(",") if isinstance(raw, str) else raw.count(b",")
    if commas > MAX_VALUES:  # commas in strings count too, which saves looking for strings
        raise Refused(400, "too_many_values", f"the JSON holds over {MAX_VALUES:,} values; send less at once")
    try:
        return json.loads(raw)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise Refused(400, "too_deep", "the JSON has lists or objects nested too deeply; no field needs that") from None
    except UnicodeDecodeError as e:
        raise Refused(400, "invalid_utf8", f"the JSON is not valid UTF-8 at byte {e.start}") from None
    except ValueError:  # Python refuses longer integers, since parsing time grows with the square of their length.
        raise Refused(400, "number_too_long", "the JSON holds a whole number of over 4,300 digits") from None


class JsonRequest(Request):
    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            chunks: list[bytes] = []
            try:
                async for chunk in self.stream():
                    chunks.append(chunk)
                self._body = b"".join(chunks)
            finally:
                chunks.clear()  # An exception keeps this frame alive until the garbage collector runs.
        return self._body

    async def json(self) -> Any:
        raw = await self.body()
        self._body = b""  # A clip is megabytes, and the request lives as long as its sound is sent.
        return parsed(raw)


class JsonRoute(APIRoute):
    """For routes that take a JSON body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_bounded
