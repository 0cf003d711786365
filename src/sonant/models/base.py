"""What the engine asks of a model family, and nothing more.

The engine knows requests, rows, blocks, frames and samples. A family owns its prompt (`prompt.py`), its prefill, its
frame step, its codec and its checkpoint names, and keeps all state of a request in the row tensors it declares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from sonant.models.memory import Memory
from sonant.models.prompt import Ints, Prompt, Prompter
from sonant.models.spec import ModelSpec
from sonant.models.weight_blocks import ModelWeights
from sonant.types import Samples
from sonant.voice import Voice


@dataclass(frozen=True)
class PrefillItem:
    """Positions [start, end) of a prompt, to be written to the row's blocks. The `last` readies the row to speak."""

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
    """The sizes to which prompts are packed: fixed for a graph, and just what the items need for an eager prefill."""

    prompts: int
    positions: int  # of each prompt
    span_blocks: int  # how many blocks of a row's table attention must read
    kind: int = 0  # one of the spec's `prefill_kinds`


@dataclass
class FrameStep:
    """One decode step of rows [B] on its way through the parts; a family adds what its parts pass on."""

    rows: Tensor
    span_blocks: int
    variant: int
    record: Tensor | None = None  # [B, 1 + words] int32: a `Status`, then the frame's codes or the bits of its latents


@dataclass(frozen=True)
class InnerPart:
    """Something inside a part, timed as the difference between the part with and without it."""

    name: str
    run_without: Callable[[Any], None]
    floor_bytes: Callable[[int], int]  # bytes that it must move at least for so many rows


@dataclass(frozen=True)
class FramePart:
    """A piece of a decode step. It reads what the parts before it left in the step, and may be run again."""

    name: str
    run: Callable[[Any], None]  # takes the family's own FrameStep
    floor_bytes: Callable[[int, int], int]  # bytes that it must move at least for so many rows and positions in all
    inner: InnerPart | None = None
    repeats: int = 1  # how often a benchmark runs it in one measurement, where one run is too short to be timed


class SpeechModel(Protocol):
    spec: ModelSpec
    prompter: Prompter
    frame_parts: tuple[FramePart, ...]

    def weights(self) -> ModelWeights:
        """All weights, and which of them can leave a device that is too small."""
        ...

    def opening(self, prompt: Prompt, frames: int) -> Samples:
        """Samples that precede those of so many frames in a whole result. Runs on any thread but the step thread."""
        ...

    def encode_voice(self, samples: Samples, text: str | None, name: str) -> Voice:
        """Encode a mono clip at the spec's `clip_sample_rate`. Runs on any thread but the step thread."""
        ...

    def bind(self, memory: Memory) -> None:
        """Use the engine's memory; called once, before the first step."""
        ...

    def packed_size(self, item: PrefillItem) -> PackedSize:
        """How many positions a shape must have for this item, and the kind that it must be of."""
        ...

    def pack(self, items: Sequence[PrefillItem], shape: PrefillShape) -> Ints:
        """All that `prefill` needs from the host, [shape.prompts, …]; unused places go to the scratch row."""
        ...

    def prefill(self, packed: Tensor, shape: PrefillShape) -> None:
        """Write keys and values, and ready the rows of prompts that are complete. May be captured in a graph."""
        ...

    def has_preroll(self, prompt: Prompt) -> bool:
        """Whether `preroll` must feed the codec before this prompt's first frame; if not, it is not called."""
        ...

    def preroll(self, item: PrefillItem, start: int, frames: int) -> int:
        """Feed the row's codec the next `frames` frames of its voice, from frame `start` → the next start; -1: done."""
        ...

    def begin_frame(self, rows: Tensor, span_blocks: int, variant: int) -> FrameStep:
        """Begin a decode step of rows [B]; all `frame_parts` are then run on it in their order."""
        ...

    def codec(self, rows: Tensor, frames: int) -> Tensor:
        """The next `frames` frames of each row as samples [B, frames · samples_per_frame] float32.

        It may run beside the next decode step of the same rows, or the prefill of others (engine/codec_stream.py), so
        it writes only what neither reads; and of what they write it reads only earlier frames and their number.
        """
        ...

    def codec_floor_bytes(self, rows: int, frames: int) -> int:
        """The bytes that a chunk of so many frames for so many rows must move at least."""
        ...


def decode_frame(model: SpeechModel, rows: Tensor, span_blocks: int, variant: int = 0) -> Tensor:
    """One decode step of each row → their records. Benchmarks time the same parts one by one."""
    step = model.begin_frame(rows, span_blocks, variant)
    for part in model.frame_parts:
        part.run(step)
    assert step.record is not None
    return step.record
