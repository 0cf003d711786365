"""Work for someone who may hang up: then it is cancelled, and what it held is free."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


async def until_gone(work: Coroutine[Any, Any, None], receive: Receive) -> bool:
    """Run `work` to its end, or cancel it when the client of an HTTP request is gone; then False."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        finished = task.done()
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()  # raises what the work raised
        return finished
    finally:
        gone.cancel()
        task.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
