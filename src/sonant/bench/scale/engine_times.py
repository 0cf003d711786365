"""What one engine was measured to take, and what it holds: all that the simulation knows of it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EngineTimes:
    frame_s: float  # of sound in a frame
    steps: tuple[tuple[int, float], ...]  # seconds of a step by rows in it, in order; between and beyond, by a line
    prompt_s: float  # that a step takes longer for each prompt in it
    prompts: int  # that fit into a step
    start_s: float  # of a request besides: its way to the engine, and its first sound's way back
    rows: int  # requests that hold one
    batch: int  # rows in a step

    def step_s(self, rows: int, prompts: int) -> float:
        return (self._rows_s(rows) if rows else 0.0) + self.prompt_s * prompts

    def _rows_s(self, rows: int) -> float:
        known = [count for count, _ in self.steps]
        at = min(max(1, bisect_left(known, rows)), len(known) - 1)
        (low, low_s), (high, high_s) = self.steps[at - 1], self.steps[at]
        return low_s + (high_s - low_s) * (rows - low) / (high - low)


# docs/bench.md, 15 November 2026: streams that start at once, a frame with the codec, less their prompts' share of it.
# A prompt's time is what brings the 128 and 256 first sounds to where they were measured.
H200_1_7B = EngineTimes(
    frame_s=0.08,
    steps=((1, 2.87e-3), (16, 4.12e-3), (64, 6.09e-3), (128, 8.10e-3), (256, 12.2e-3)),
    prompt_s=0.5e-3,
    prompts=40,
    start_s=4.5e-3,
    rows=2048,
    batch=1024,
)
