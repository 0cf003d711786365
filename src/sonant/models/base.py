"""What the engine asks of a model family, and nothing more.

The engine knows requests, rows, blocks, frames and samples. A family owns its prompt, its prefill, its frame
step, its codec and its checkpoint names, and keeps all state of a request in the row tensors it declares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sonant.models.memory import Memory
from sonant.models.spec import ModelSpec
from sonant.types import Samples, SpeechRequest
from sonant.voice import Voice

Ints = npt.NDArray[np.int32]


def seed_words(seed: int) -> Ints:
    """A seed of 64 bits as `ops.uniforms` takes it: low word, high word."""
    return np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32).view(np.int32)


class Status(IntEnum):
    """The first word of a decode step's record."""

    RUNNING = 0  # it completed a frame, which is speech
    STOPPED = 1  # the model ended before it
    CAPPED = 2  # the frame budget ended before it
    LAST = 3  # it completed a frame, and with that the model ended
    PRIMING = 4  # it completed no frame yet, see `ModelSpec.delay_steps`


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A request made ready off the step thread. Its last position is the first frame's input, not prefill's."""

    length: int
    keys: Ints  # [length, k]: what each position is made of; equal keys from 0 on mean equal KV
    staged: Mapping[str, Any]
    max_frames: int
    payload: Any  # the family's own
    opening: Callable[[int], Samples] | None = None  # samples before those of so many frames, in a whole result only
    variant: int = 0  # the kind of frame step that it needs, one of the spec's
    bad_from: int | None = None  # frames: as many mean that a whole result has gone wrong, and is to be made anew …
    retries: tuple[Mapping[str, Any], ...] = ()  # … with these staged values in the place of its own, one try for each


@dataclass(frozen=True)
class PrefillItem:
    """Positions [start, end) of a prompt, to be written to the row's blocks; `last` readies the row to speak."""

    row: int
    prompt: Prompt
    start: int
    end: int

    @property
    def last(self) -> bool:
        return self.end == self.prompt.length - 1


class PackedSize(NamedTuple):
    positions: int
    kind: int = 0


@dataclass(frozen=True)
class PrefillShape:
    """Sizes of packed prompts: a graph has its own, an eager prefill just as much as its items need."""

    prompts: int
    positions: int  # of each
    span_blocks: int  # of a row's table, as far as attention must look
    kind: int = 0  # one of the spec's `prefill_kinds`


@dataclass
class FrameStep:
    """One decode step of rows [B] on its way through the parts; a family adds what its parts hand on."""

    rows: Tensor
    span_blocks: int
    variant: int
    record: Tensor | None = None  # [B, 1 + words] int32: a `Status`, then the frame's codes or the bits of its latents


@dataclass(frozen=True)
class InnerPart:
    """Something that a part does inside, timed as the difference to the part without it."""

    name: str
    run_without: Callable[[Any], None]
    floor_bytes: Callable[[int], int]  # of so many rows


@dataclass(frozen=True)
class FramePart:
    """A piece of a decode step. It reads what the parts before it left in the step, and may be run again."""

    name: str
    run: Callable[[Any], None]  # of the family's own FrameStep
    floor_bytes: Callable[[int, int], int]  # that it must move for so many rows at so many positions in all
    inner: InnerPart | None = None
    repeats: int = 1  # times that a benchmark runs it in one measurement, where one run is too short to be timed


class SpeechModel(Protocol):
    spec: ModelSpec
    frame_parts: tuple[FramePart, ...]

    def prompt(self, request: SpeechRequest) -> Prompt:
        """Validate and lay out. Runs on any thread but the step thread."""
        ...

    def encode_voice(self, samples: Samples, text: str | None, name: str) -> Voice:
        """Encode a mono clip at the spec's `clip_sample_rate`. Runs on any thread but the step thread."""
        ...

    def bind(self, memory: Memory) -> None:
        """Take the engine's memory; called once, before the first step."""
        ...

    def packed_size(self, item: PrefillItem) -> PackedSize:
        """How many positions a shape must have for this item, and of what kind it must be."""
        ...

    def pack(self, items: Sequence[PrefillItem], shape: PrefillShape) -> Ints:
        """All that `prefill` needs of the host, [shape.prompts, …]; what is spare is for the scratch row."""
        ...

    def prefill(self, packed: Tensor, shape: PrefillShape) -> None:
        """Write keys and values, and ready the rows of prompts that are complete. Can be a graph."""
        ...

    def preroll(self, item: PrefillItem, start: int, frames: int) -> int:
        """Bring the row's codec up to its voice, from frame `start`; the next start, or -1 when it is there."""
        ...

    def begin_frame(self, rows: Tensor, span_blocks: int, variant: int) -> FrameStep:
        """A decode step of rows [B], for `frame_parts` to be run on in their order."""
        ...

    def codec(self, rows: Tensor, frames: int) -> Tensor:
        """The next `frames` frames of each row as samples [B, frames · samples_per_frame] float32."""
        ...

    def codec_floor_bytes(self, rows: int, frames: int) -> int:
        """What a chunk of so many frames for so many rows must move at least."""
        ...


def decode_frame(model: SpeechModel, rows: Tensor, span_blocks: int, variant: int = 0) -> Tensor:
    """One decode step for each row → its records. Benchmarks time the same parts one by one."""
    step = model.begin_frame(rows, span_blocks, variant)
    for part in model.frame_parts:
        part.run(step)
    assert step.record is not None
    return step.record
