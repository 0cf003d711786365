"""What a model declares of itself: shapes, rates, memory, and what its callers may ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sonant.config import EngineConfig
from sonant.sampling import Knob

_ROUNDING = 1e-6  # of a frame: quotients of seconds are not exact


@dataclass(frozen=True)
class Field:
    """One tensor of per-row state: [rows, *shape], or with the rows at another place among its dimensions."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    row_dim: int = 0


@dataclass(frozen=True)
class KVGroup:
    """A stack of layers with one shape of keys and values. All groups lie under one block table."""

    name: str
    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        return 2 * self.layers * self.heads * self.head_dim * self.dtype.itemsize


@dataclass(frozen=True)
class Budget:
    """The runaway guard: a text of n tokens may take `base_s` and n times `s_per_token` of speech, whatever a
    frame lasts."""

    base_s: float
    s_per_token: float

    def with_options(self, options: EngineConfig) -> Budget:
        """What the operator sets goes before what the family allows."""
        base_s = self.base_s if options.budget_s is None else options.budget_s
        per_token_s = self.s_per_token if options.budget_s_per_token is None else options.budget_s_per_token
        return Budget(base_s, per_token_s)

    def frames(self, tokens: int, frame_s: float) -> int:
        base, more = self.base_s / frame_s, self.s_per_token * tokens / frame_s
        return max(1, round(base) + math.ceil(more - _ROUNDING))


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    family: str
    sample_rate: int  # of the sound that the codec makes
    clip_sample_rate: int  # of the clips that voices are encoded from
    samples_per_frame: int
    frame: Field  # what a decode step records: int32 codes or float32 latents
    kv: tuple[KVGroup, ...]
    staged: tuple[Field, ...]  # int32 or float32; the host writes them when a request gets its row
    state: tuple[Field, ...]  # only the model's own steps write them
    max_positions: int
    frame_weight_bytes: int  # read once for each frame step, whatever the batch: the floor of its time
    delay_steps: int = 0  # decode steps before the first that completes a frame, as a delay pattern has them
    codec_lookahead: int = 0  # frames that the codec reads past those that it makes sound of
    prefill_kinds: tuple[int, ...] = (0,)  # kinds of prompts that are packed and prefilled apart from each other
    variants: tuple[int, ...] = (0,)  # kinds of frame step, each with graphs of its own, such as flow steps
    knobs: tuple[Knob, ...] = ()
    voices: tuple[str, ...] = ()  # of the checkpoint's own
    languages: tuple[str, ...] = ()
    clones: bool = False  # takes its voice from a reference clip
    voice_vector: str | None = None  # the tensor that alone is a voice, where callers may bring their own
    speaks_without_voice: bool = False  # a request that names no voice is spoken all the same
    instructs: bool = False  # takes words on how to speak
    most_speakers: int = 1  # in one text; more than one: it speaks dialogues
    context_segments: int = 0  # of a long text: how many that were said before go into the prompt of the next
    segment_chars: int | None = None  # of a text at once; it was taught no longer ones

    @property
    def frame_s(self) -> float:
        return self.samples_per_frame / self.sample_rate

    @property
    def kv_token_bytes(self) -> int:
        return sum(group.token_bytes for group in self.kv)
