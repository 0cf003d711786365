"""The runaway guard: how much speech a text may take, in seconds, whatever a model's frames last."""

from __future__ import annotations

import math
from dataclasses import dataclass

_ROUNDING = 1e-6  # of a frame: quotients of seconds are not exact


@dataclass(frozen=True)
class Budget:
    """A text of n tokens may take `base_s` and n times `s_per_token` of speech."""

    base_s: float
    s_per_token: float

    def frames(self, tokens: int, frame_s: float) -> int:
        base, more = self.base_s / frame_s, self.s_per_token * tokens / frame_s
        return max(1, round(base) + math.ceil(more - _ROUNDING))
