"""How many more frames a text may have: `max_frames` bound the text as a whole, not each part."""

from __future__ import annotations

from dataclasses import replace

from sonant.types import AudioChunk


class FrameLimit:
    def __init__(self, most: int | None, samples_per_frame: int) -> None:
        """`most` is None where there is no limit."""
        self._left, self._samples_per_frame = most, samples_per_frame

    @property
    def reached(self) -> bool:
        return self._left == 0

    def take(self, chunk: AudioChunk) -> tuple[AudioChunk, bool]:
        """As much of the next chunk as may be heard, and whether it was cut."""
        left = self._left
        if left is None:
            return chunk, False
        self._left = max(0, left - len(chunk.frames))
        if len(chunk.frames) <= left:
            return chunk, False
        return replace(chunk, frames=chunk.frames[:left], samples=chunk.samples[: left * self._samples_per_frame]), True
