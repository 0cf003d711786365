"""What has been said of a long text, as far as its next part takes it as context."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from sonant.engine.prompt_thread import PromptThread
from sonant.engine.request import Request
from sonant.types import Frames, Spoken

GoOn = Callable[[Request, Sequence[Spoken]], Request]
"""Lays a part out anew, with as much of what was said before it as there is room for."""


class Context:
    """Guarded by the lock of its `LongText`, except for `go_on` and `thread`, which never change."""

    def __init__(self, most: int, given: Sequence[Spoken], go_on: GoOn, thread: PromptThread) -> None:
        self.go_on, self.thread = go_on, thread
        self.said: deque[Spoken] = deque(given, maxlen=most)  # the oldest first
        self._frames: list[Frames] = []  # of the part that is being said

    def hear(self, frames: Frames) -> None:
        self._frames.append(frames)

    def end_part(self, text: str) -> None:
        """Add the part to what was said, unless it had no sound."""
        frames, self._frames = self._frames, []
        if frames:
            self.said.append(Spoken(text, np.concatenate(frames)))
