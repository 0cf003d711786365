"""What a model declares to callers and to its prompter: rates, limits, and what may be asked for.

It is known from config files alone and without torch, since front ends have it but no weights. What the device needs
besides is in `spec.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from sonant.config import EngineConfig
from sonant.sampling import Knob

_ROUNDING = 1e-6  # of a frame: quotients of seconds are not exact


@dataclass(frozen=True)
class Budget:
    """The runaway guard: n tokens of text may take `base_s` + n · `s_per_token` of speech, however long a frame is."""

    base_s: float
    s_per_token: float

    def with_options(self, options: EngineConfig) -> Budget:
        """What the operator sets takes precedence over what the family allows."""
        base_s = self.base_s if options.budget_s is None else options.budget_s
        per_token_s = self.s_per_token if options.budget_s_per_token is None else options.budget_s_per_token
        return Budget(base_s, per_token_s)

    def frames(self, tokens: int, frame_s: float) -> int:
        base, more = self.base_s / frame_s, self.s_per_token * tokens / frame_s
        return max(1, round(base) + math.ceil(more - _ROUNDING))


@dataclass(frozen=True)
class StagedNumber:
    """A number, or a few, that a prompt sets in its row, each from `low` to `high`."""

    name: str
    dtype: str = "int32"  # or "float32"
    shape: tuple[int, ...] = ()
    low: float = -(2**31)
    high: float = 2**31 - 1

    @classmethod
    def of(cls, knob: Knob) -> StagedNumber:
        return cls(knob.name, "float32" if knob.kind is float else "int32", low=knob.low, high=knob.high)


@dataclass(frozen=True, kw_only=True)
class SpeechSpec:
    family: str
    sample_rate: int  # of the sound that the codec makes
    clip_sample_rate: int  # of the clips that voices are encoded from
    samples_per_frame: int
    frame_shape: tuple[int, ...]  # of a frame, as a decode step records it …
    frame_dtype: str  # … and its type: "int32" codes or "float32" latents
    max_positions: int
    staged_numbers: tuple[StagedNumber, ...]  # the host writes them when a request gets its row
    delay_steps: int = 0  # decode steps before the first that completes a frame, as in a delay pattern
    variants: tuple[int, ...] = (0,)  # kinds of frame step, each with graphs of its own, such as flow steps
    full_batch: int | None = None  # rows of a step that keep a GPU busy: with more, each waits longer for its sound
    knobs: tuple[Knob, ...] = ()
    voices: tuple[str, ...] = ()  # the checkpoint's own
    languages: tuple[str, ...] = ()
    clones: bool = False  # takes its voice from a reference clip
    voice_vector: str | None = None  # name of the tensor that alone is a voice, where callers may bring their own
    speaks_without_voice: bool = False  # a request need not name a voice
    instructs: bool = False  # takes instructions on how to speak
    most_speakers: int = 1  # in one text; more than one: it speaks dialogues
    context_segments: int = 0  # how many of the preceding parts of a long text go into the prompt of the next
    segment_chars: int | None = None  # most characters in one prompt; the model was not trained on longer texts

    @cached_property
    def staged_by_name(self) -> dict[str, StagedNumber]:
        return {number.name: number for number in self.staged_numbers}

    @property
    def usual_variant(self) -> int:
        """The middle variant, for measuring a step."""
        return self.variants[len(self.variants) // 2]

    @property
    def frame_s(self) -> float:
        return self.samples_per_frame / self.sample_rate
