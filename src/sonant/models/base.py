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
    prompter: Prompter
    frame_parts: tuple[FramePart, ...]

    def weights(self) -> ModelWeights:
        """All of them, and what of them can leave a device that is too small."""
        ...

    def opening(self, prompt: Prompt, frames: int) -> Samples:
        """Samples before those of so many frames, in a whole result only. Runs on any thread but the step thread."""
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

    def has_preroll(self, prompt: Prompt) -> bool:
        """Whether the codec must hear something before this prompt's first frame; if not, `preroll` is not called."""
        ...

    def preroll(self, item: PrefillItem, start: int, frames: int) -> int:
        """Bring the row's codec up to its voice, from frame `start`; the next start, or -1 when it is there."""
        ...

    def begin_frame(self, rows: Tensor, span_blocks: int, variant: int) -> FrameStep:
        """A decode step of rows [B], for `frame_parts` to be run on in their order."""
        ...

    def codec(self, rows: Tensor, frames: int) -> Tensor:
        """The next `frames` frames of each row as samples [B, frames · samples_per_frame] float32.

        It may run beside the same rows' next decode step, or another's prefill (engine/codec_stream.py): it writes only
        what neither reads, and of what they write it reads only frames that were there before, and their number.
        """
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
