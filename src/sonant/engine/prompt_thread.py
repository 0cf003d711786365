"""Lays out prompts that go on from what was just said, which is possible only once the part before has ended.

The step thread is the first to know that a part has ended, but must not spend its time on prompts, and the caller's
thread may be asleep. So each engine has one thread for them, started with the first such prompt. A long text has at
most one prompt here at a time, so no more can wait than texts are being spoken.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from sonant.engine.step_queue import StepQueue
from sonant.errors import EngineClosed


class PromptThread:
    def __init__(self, steps: StepQueue) -> None:
        self._steps = steps
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="sonant-prompt")

    def run_soon(self, lay_out: Callable[[], None]) -> None:
        """`lay_out` posts a request, and reports errors to its own text. A draining engine waits for it."""
        self._steps.expect()
        try:
            laid_out = self._executor.submit(lay_out)
        except RuntimeError as e:
            self._steps.stop_expecting()
            raise EngineClosed("the engine is closed; load it again") from e
        laid_out.add_done_callback(self._done)

    def close(self, *, wait: bool = True) -> None:
        """Drop prompts that are not begun, since their texts were told that the engine has ended."""
        self._executor.shutdown(wait=wait, cancel_futures=True)

    def _done(self, _: Future[None]) -> None:
        self._steps.stop_expecting()
