"""Prompts that only an ended part makes possible: those that go on from what was just said.

The step thread is the first to know that a part has ended, and must not build the next one's prompt; the caller may be
asleep. So each engine has one thread for it, begun with the first such prompt. A long text has at most one prompt here
at a time: no more can wait than texts are being spoken.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from sonant.errors import EngineClosed


class Expecting(Protocol):
    """Who must not end while a prompt is being laid out, as a draining step loop."""

    def expect(self) -> None: ...
    def stop_expecting(self) -> None: ...


class PromptThread:
    def __init__(self, loop: Expecting) -> None:
        self._loop = loop
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="sonant-prompt")

    def run_soon(self, lay_out: Callable[[], None]) -> None:
        """`lay_out` is to post a request, and tells its own text of errors. A draining engine waits for it."""
        self._loop.expect()
        try:
            laid_out = self._executor.submit(lay_out)
        except RuntimeError as e:
            self._loop.stop_expecting()
            raise EngineClosed("the engine is closed; load it again") from e
        laid_out.add_done_callback(self._done)

    def close(self) -> None:
        """Wait for the prompt that is being laid out, and drop the others: their texts were told by the step loop."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _done(self, _: Future[None]) -> None:
        self._loop.stop_expecting()
