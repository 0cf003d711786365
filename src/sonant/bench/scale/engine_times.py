"""The measured times of one engine, and its limits: all that the simulation knows of it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EngineTimes:
    frame_s: float  # seconds of sound in a frame
    steps: tuple[tuple[int, float], ...]  # seconds of a step by rows in it, ascending; linear between and beyond them
    prompt_s: float  # added to a step for each prompt in it
    prompts: int  # the most in a step
    start_s: float  # added to each request: its way to the engine, and its first sound's way back
    rows: int  # the most requests that hold a row at once
    batch: int  # the most rows in a step
    prefill_s: float = 0.0  # added to a step with prompts in it, however many
    last_steps: int = 0  # of a request after its last frame, such as the one that draws its end
    chunks: tuple[int, ...] = (1,)  # frames that the codec can decode at once, ascending from 1
    codec_frames: int = 2**31  # the most that it decodes in a step, over all rows
    codec_s: float = 0.0  # added to a step with the codec in it, if `steps` do not include that
    codec_frame_s: float = 0.0  # … and for each frame that it decodes

    def step_s(self, rows: int, prompts: int, sounded: int = 0) -> float:
        """Seconds of a step. `sounded`: frames that the codec decodes in it."""
        prompts_s = self.prefill_s + self.prompt_s * prompts if prompts else 0.0
        codec_s = self.codec_s + self.codec_frame_s * sounded if sounded else 0.0
        return (self._rows_s(rows) if rows else 0.0) + prompts_s + codec_s

    def chunk_of(self, ahead_s: float) -> int:
        """Frames of the next chunk for a listener with so much sound buffered: at most half of that, at least one."""
        return self.chunks[max(0, bisect_right(self.chunks, ahead_s / self.frame_s / 2) - 1)]

    def last_chunk(self, left: int) -> int:
        """The smallest chunk that holds all frames left, or else the largest."""
        return self.chunks[min(bisect_left(self.chunks, left), len(self.chunks) - 1)]

    def _rows_s(self, rows: int) -> float:
        known = [count for count, _ in self.steps]
        at = min(max(1, bisect_left(known, rows)), len(known) - 1)
        (low, low_s), (high, high_s) = self.steps[at - 1], self.steps[at]
        return low_s + (high_s - low_s) * (rows - low) / (high - low)


# docs/bench.md, 15 November 2026: streams that start at once, a frame with the codec, less their prompts' share of it.
# A prompt's time is fitted to the measured times of first sounds with 128 and 256 streams.
H200_1_7B = EngineTimes(
    frame_s=0.08,
    steps=((1, 2.87e-3), (16, 4.12e-3), (64, 6.09e-3), (128, 8.10e-3), (256, 12.2e-3)),
    prompt_s=0.5e-3,
    prompts=40,
    start_s=4.5e-3,
    rows=2048,
    batch=1024,
)
