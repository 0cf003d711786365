"""What one engine was measured to take, and what it holds: all that the simulation knows of it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
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
    prefill_s: float = 0.0  # that a step with prompts in it takes longer, however many
    last_steps: int = 0  # of a request after its last frame, as the one that draws its end
    chunks: tuple[int, ...] = (1,)  # frames that the codec may make sound of at once, rising from 1
    codec_frames: int = 2**31  # that it may make sound of in a step, over all rows
    codec_s: float = 0.0  # that a step with the codec in it takes longer, if `steps` are without
    codec_frame_s: float = 0.0  # … and for each frame that it makes sound of

    def step_s(self, rows: int, prompts: int, sounded: int = 0) -> float:
        """`sounded`: frames that the codec makes sound of."""
        prompts_s = self.prefill_s + self.prompt_s * prompts if prompts else 0.0
        codec_s = self.codec_s + self.codec_frame_s * sounded if sounded else 0.0
        return (self._rows_s(rows) if rows else 0.0) + prompts_s + codec_s

    def chunk_of(self, ahead_s: float) -> int:
        """Frames of the next chunk for one who has so much sound in hand: half of that at most, and one at least."""
        return self.chunks[max(0, bisect_right(self.chunks, ahead_s / self.frame_s / 2) - 1)]

    def last_chunk(self, left: int) -> int:
        """The smallest chunk that has all that is left, or the largest there is."""
        return self.chunks[min(bisect_left(self.chunks, left), len(self.chunks) - 1)]

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
