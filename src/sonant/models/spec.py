"""What a model declares to the engine: the memory that its rows take, and how its steps are made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch

from sonant.models.speech_spec import SpeechSpec


@dataclass(frozen=True)
class Field:
    """One tensor of per-row state: [rows, *shape], or with the rows in dimension `row_dim`."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    row_dim: int = 0


@dataclass(frozen=True)
class KVGroup:
    """A stack of layers with one shape of keys and values. All groups share a row's block table."""

    name: str
    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        return 2 * self.layers * self.heads * self.head_dim * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class ModelSpec(SpeechSpec):
    """A prompter's spec and what only the engine needs: `ModelSpec(**vars(prompter.spec), kv=…, state=…, …)`."""

    kv: tuple[KVGroup, ...]
    state: tuple[Field, ...]  # only the model's own steps write them
    frame_weight_bytes: int  # read once in a frame step, whatever the batch: the floor of its time
    codec_lookahead: int = 0  # frames that the codec reads beyond those that it turns into sound
    prefill_kinds: tuple[int, ...] = (0,)  # kinds of prompts, each packed and prefilled separately

    @property
    def frame(self) -> Field:
        return Field("frame", self.frame_shape, getattr(torch, self.frame_dtype))

    @property
    def staged(self) -> tuple[Field, ...]:
        """The staged numbers as fields of a row."""
        return tuple(Field(n.name, n.shape, getattr(torch, n.dtype)) for n in self.staged_numbers)

    @property
    def kv_token_bytes(self) -> int:
        return sum(group.token_bytes for group in self.kv)

    def with_kv_dtype(self, dtype: torch.dtype) -> Self:
        """With a cache of another type than the weights: code that writes or reads pages knows it, no family does."""
        return replace(self, kv=tuple(replace(group, dtype=dtype) for group in self.kv))
