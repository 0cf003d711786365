"""Hands a part's sound on to the text that it belongs to."""

from __future__ import annotations

from typing import Protocol

from sonant.types import AudioChunk, FinishReason


class Whole(Protocol):
    """A text of several parts, which `index` tells apart."""

    def on_chunk(self, index: int, chunk: AudioChunk) -> None: ...
    def on_finish(self, index: int, reason: FinishReason) -> None: ...
    def on_fail(self, error: Exception) -> None: ...


class PartSink:
    """The sink of one part's request."""

    def __init__(self, whole: Whole, index: int) -> None:
        self.whole, self.index = whole, index

    def push(self, chunk: AudioChunk) -> None:
        self.whole.on_chunk(self.index, chunk)

    def finish(self, reason: FinishReason) -> None:
        self.whole.on_finish(self.index, reason)

    def fail(self, error: Exception) -> None:
        self.whole.on_fail(error)
