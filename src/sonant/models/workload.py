"""What a family asks of the kernels, as plain numbers: the shapes that benchmarks measure and tune.

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
    context: int  # positions that attention looks at
    per_frame: bool  # starts afresh with every frame: no prefill, no paged cache, nothing masked when it draws

    dual: bool = False  # norms and feed-forward weights exist twice, and a prefill has positions of both sides
    draws: bool = True  # has a head from which ids are drawn
    tokens: int = 1  # of each row in its products; more than one: sequences of `context` that see only themselves
    patch: tuple[int, int] | None = None  # steps and channels of what a guided flow moves, if this is its estimator
    head_norms: bool = True  # queries and keys are normed
    codebooks: int = 1  # drawn at once; each has its share of `vocab`, and RAS looks back at what was drawn

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim


@dataclass(frozen=True)
class CodecWorkload:
    """A decoder from frames to samples: attention over a window, if any, then convolutions between upsamplings."""

    name: str
    heads: int  # 0: there is no attention, and what goes with it
    head_dim: int
    window: int  # positions before a chunk that its attention still sees
    latent: int  # channels before the convolutions
    channels: int  # of the first convolution; each upsampling halves them
    steps_per_frame: int  # before the first upsampling
    upsample_rates: tuple[int, ...]
    samples_per_frame: int
    depthwise: bool = False  # convolutions over time are, but for the last, and products of one tap follow them


@dataclass(frozen=True)
class Workloads:
    stacks: tuple[StackWorkload, ...]
    codec: CodecWorkload
    uniforms: int  # numbers drawn for a frame


class WorkloadProvider(Protocol):
    """A family's `workload` module."""

    SIZES: tuple[str, ...]  # that are published
    TUNED_SIZE: str  # whose shapes are worth a measurement of every tile

    def workloads(self, sizes: Sequence[str]) -> Workloads:
        """What the sizes share is there once."""
        ...
