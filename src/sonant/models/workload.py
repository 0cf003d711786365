"""The shapes with which a family calls the kernels, as plain numbers, for benchmarks and the tuner.

A family has a module `workload` that gives them for its published sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class StackWorkload:
    """A stack of transformer layers."""

    name: str  # as tables show it: "talker 1.7b"
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int  # positions that attention reads
    per_frame: bool  # starts anew with every frame: no prefill, no paged cache, no masks on what is drawn

    dual: bool = False  # norms and feed-forward weights exist twice, and a prefill has positions of both kinds
    draws: bool = True  # has a head from which ids are drawn
    tokens: int = 1  # of each row in products; more than one: sequences of `context` that attend only to themselves
    patch: tuple[int, int] | None = None  # steps and channels that flow matching moves, if this is its estimator
    head_norms: bool = True  # queries and keys are normalised
    codebooks: int = 1  # drawn at once; each has its share of `vocab`, and RAS looks back at earlier codes

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim


@dataclass(frozen=True)
class CodecWorkload:
    """A decoder from frames to samples: attention over a window, if any, then convolutions between upsamplings."""

    name: str
    heads: int  # 0: there is no attention, nor the ConvNeXt that goes with it
    head_dim: int
    window: int  # positions before a chunk to which it still attends
    latent: int  # channels before the convolutions
    channels: int  # of the first convolution; each upsampling halves them
    steps_per_frame: int  # before the first upsampling
    upsample_rates: tuple[int, ...]
    samples_per_frame: int
    depthwise: bool = False  # convolutions over time are, except the last, and pointwise ones follow them


@dataclass(frozen=True)
class Workloads:
    stacks: tuple[StackWorkload, ...]
    codec: CodecWorkload
    uniforms: int  # random numbers for each frame


class WorkloadProvider(Protocol):
    """A family's `workload` module."""

    SIZES: tuple[str, ...]  # the published ones
    TUNED_SIZE: str  # the one for whose shapes the tuner measures tiles

    def workloads(self, sizes: Sequence[str]) -> Workloads:
        """The workloads of these sizes; what they share appears once."""
        ...
