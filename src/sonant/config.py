"""Engine options: frozen, checked once, passed down. Unknown names are errors, not silence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

from sonant.errors import ConfigError


def option(default: Any, help: str, *, flag: str | None = None) -> Any:
    """A field that users can set, with what it means; `flag` is its name on a command line, if not the field's."""
    return field(default=default, metadata={"help": help, "flag": flag})


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """All that can be tuned. None means: chosen for the device, see `resolved`."""

    max_rows: int | None = option(None, "requests that speak at once")
    max_batch: int | None = option(None, "rows in one frame step; the others have sound in hand and wait")
    max_waiting: int = option(1024, "requests that may queue for a row")
    block_tokens: int = option(16, "positions in a KV block, the unit of prefix reuse")
    max_positions: int = option(4096, "prompt and frames of one request")
    kv_tokens: int | None = option(None, "size of the KV cache in positions; none: from free memory")
    kv_memory_fraction: float = option(0.85, "share of the GPU memory left after loading that the KV cache takes")
    prefill_tokens: int = option(
        512,
        "prompt positions in one step, so that running streams do not wait; while all have sound in hand, four times",
    )
    chunk_frames: tuple[int, ...] = option((1, 2, 4, 8, 16), "how many frames the codec may take at once")
    codec_frames: int = option(1024, "frames through the codec in one step")
    steps_ahead: int | None = option(None, "steps launched before the last one's result is read: 0 or 1")
    warm_rows: int = option(
        8, "batch sizes with a CUDA graph before the engine answers; larger ones follow between steps. max_rows: all"
    )
    max_text_chars: int = option(20_000, "characters of one text")
    segment_chars: int = option(300, "longer texts are split at sentence ends; a model may ask for less")
    budget_frames: int = option(50, "runaway guard: a text of n tokens may take this many frames …")
    budget_frames_per_token: float = option(12.0, "… and n times this many")
    clip_max_s: float = option(60.0, "longest reference clip, in seconds")
    clip_min_s: float = option(0.5, "shortest reference clip, in seconds")

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            least = 0 if f.name == "steps_ahead" else 1
            if isinstance(value, bool) or (isinstance(value, int) and value < least):
                raise ConfigError(f"{f.name} must be at least {least}, not {value!r}")
        if not 0 < self.kv_memory_fraction <= 1:
            raise ConfigError(f"kv_memory_fraction must be over 0 and at most 1, not {self.kv_memory_fraction!r}")
        sizes = self.chunk_frames
        if not sizes or sizes[0] != 1 or any(a >= b for a, b in pairwise(sizes)):
            raise ConfigError(f"chunk_frames must begin with 1 and rise, not {sizes!r}")
        if self.codec_frames < sizes[-1]:
            raise ConfigError(f"codec_frames must be at least the largest of chunk_frames, {sizes[-1]}")
        if (self.steps_ahead or 0) > 1:
            raise ConfigError("steps_ahead is 0 or 1: a row's next step needs its last one's launch, no more")

    def resolved(self, device_type: str) -> EngineConfig:
        """With every None replaced by what suits the device."""
        gpu = device_type == "cuda"
        rows = self.max_rows or (256 if gpu else 8)
        return replace(
            self,
            max_rows=rows,
            max_batch=min(self.max_batch or rows, rows),
            steps_ahead=int(gpu) if self.steps_ahead is None else self.steps_ahead,
        )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> EngineConfig:
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(f"unknown option {unknown[0]!r}; options are {', '.join(sorted(known))}")
        converted: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**converted)
