"""What the engine asks of a model family, and nothing more.

The engine knows requests, rows, blocks, frames and samples. A family owns its prompt, its prefill, its frame
step, its codec and its checkpoint names, and keeps all state of a request in the row tensors it declares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sonant.types import Samples, SpeechRequest, Voice

Ints = npt.NDArray[np.int32]

RUNNING, STOPPED, CAPPED = 0, 1, 2
"""Column 0 of a frame's record: the frame is speech; the model ended; the frame budget ended it."""


@dataclass(frozen=True)
class Field:
    """One tensor of per-row state: [rows, *shape], or with the rows at another place among its dimensions."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    row_dim: int = 0


@dataclass(frozen=True)
class ModelSpec:
    sample_rate: int
    samples_per_frame: int
    codebooks: int
    kv_layers: int
    kv_heads: int
    kv_head_dim: int
    kv_dtype: torch.dtype
    staged: tuple[Field, ...]  # int32 or float32; the host writes them when a request gets its row
    state: tuple[Field, ...]  # only the model's own steps write them
    max_positions: int
    frame_weight_bytes: int  # read once for each frame step, whatever the batch: the floor of its time
    voices: tuple[str, ...]
    languages: tuple[str, ...]
    clones: bool
    instructs: bool  # takes words on how to speak
    segment_chars: int | None = None  # of a text at once; it was taught no longer ones

    @property
    def frame_s(self) -> float:
        return self.samples_per_frame / self.sample_rate


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A request made ready off the step thread. Its last position is the first frame's input, not prefill's."""

    length: int
    keys: Ints  # [length, k]: what each position is made of; equal keys from 0 on mean equal KV
    staged: Mapping[str, Any]
    max_frames: int
    payload: Any  # the family's own


@dataclass(frozen=True)
class Memory:
    """The device memory that the engine owns and the model computes in. Row `-1` is scratch, as is block 0."""

    rows: Mapping[str, Tensor]  # by field name, [rows + 1, *shape] or as the field's `row_dim` says
    kv: Tensor  # [layers, 2, blocks, block_tokens, heads, dim]
    tables: Tensor  # [rows + 1, blocks a row] int32


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


class SpeechModel(Protocol):
    spec: ModelSpec

    def prompt(self, request: SpeechRequest) -> Prompt:
        """Validate and lay out. Runs on any thread but the step thread."""
        ...

    def encode_voice(self, samples: Samples, text: str | None, name: str) -> Voice:
        """Encode a mono clip at the model's sample rate. Runs on any thread but the step thread."""
        ...

    def bind(self, memory: Memory) -> None:
        """Take the engine's memory; called once, before the first step."""
        ...

    def prefill(self, items: Sequence[PrefillItem]) -> None: ...

    def line_positions(self, item: PrefillItem) -> int:
        """How many positions a line must have for an item that is its prompt's `last`."""
        ...

    def pack_lines(self, items: Sequence[PrefillItem], count: int, positions: int) -> Ints:
        """Such items as `count` lines of `positions` positions, the spare ones for the scratch row."""
        ...

    def prefill_lines(self, lines: Tensor, positions: int) -> None:
        """`prefill` of packed lines. Takes nothing else of the host, so that it can be a graph."""
        ...

    def preroll(self, item: PrefillItem, start: int, frames: int) -> int:
        """Bring the row's codec up to its voice, from frame `start`; the next start, or -1 when it is there."""
        ...

    def frame(self, rows: Tensor, span_blocks: int) -> Tensor:
        """One frame for each row → records [B, 1 + codebooks] int32: RUNNING, STOPPED or CAPPED, then codes."""
        ...

    def codec(self, rows: Tensor, frames: int) -> Tensor:
        """The next `frames` frames of each row as samples [B, frames · samples_per_frame] float32."""
        ...


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Send host values without waiting."""
    host = _pinned(array, device)
    return host.to(device, non_blocking=True) if device.type == "cuda" else host


def send_into(array: npt.NDArray[Any], place: Tensor) -> None:
    """The same, to memory on the device that is there already."""
    place.copy_(_pinned(array, place.device), non_blocking=True)


def _pinned(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """In memory that a GPU can read by itself; torch keeps it until copies from it are done."""
    host = torch.from_numpy(np.ascontiguousarray(array))
    return host.pin_memory() if device.type == "cuda" else host


def reserve_pinned(device: torch.device) -> None:
    """Fill torch's cache of pinned memory with as much as `to_device` has on its way at a time.

    It keeps blocks by powers of two. One that is missing comes from the driver, which holds up a step.
    """
    if device.type == "cuda":
        sizes = (1 << power for power in range(3, 18))
        held = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in sizes for _ in range(16)]
        del held
