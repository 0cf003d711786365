"""What the step thread does with its time, counted as it goes and read by whoever asks.

Times are of the host's clock: on a GPU `prefill`, `frame` and `codec` are what launching took, and `wait` is how long
the host then waited for the device. Nothing here touches the device. Only the step thread writes; a reader may see a
count that is one ahead of its sum, which is too little to show in a graph.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal, get_args

StepPhase = Literal["plan", "prefill", "frame", "codec", "wait", "deliver"]
STEP_PHASES: tuple[StepPhase, ...] = get_args(StepPhase)

_SECONDS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_FIRST_STEP_S = (
    1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3, 8e-3, 0.01, 0.0125, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5,
    0.75, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip
_STEP_S = (
    5e-4, 1e-3, 1.25e-3, 1.5e-3, 1.75e-3, 2e-3, 2.5e-3, 3e-3, 4e-3, 5e-3, 6e-3, 8e-3, 0.01, 0.0125, 0.015, 0.02, 0.03,
    0.05, 0.075, 0.1, 0.2, 0.5, 1.0,
)  # fmt: skip
_QUEUE_S = (1e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_FRAMES_AHEAD = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)


class Tally:
    """A histogram of fixed bounds that allocates nothing when it counts."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # at or below each bound, then the rest
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Mean:
    """A moving mean of about the last ten values; 0 before the first."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, value: float) -> None:
        self.value = 0.9 * self.value + 0.1 * value if self.value else value


@dataclass(frozen=True)
class EngineStats:
    """What an engine has at a moment, and how soon a listener who comes then would hear something."""

    running: int
    waiting: int
    free_rows: int
    rows: int
    free_blocks: int
    blocks: int
    steps: int
    parked: int = 0
    lendable_rows: int = 0  # that a listener who needs sound now would be lent
    in_need: int = 0  # requests without a row that would go before a listener who comes now
    start_s: float = 0.0  # measured lately: from a row to the first sound
    turn_s: float = 0.0  # … from a row to the moment when it may go to another
    whole_s: float = 0.0  # … from a request's blocks to its end

    def first_sound_s(self, on_the_way: int = 0) -> float:
        """Seconds to the first sound of a listener who comes after all that wait and `on_the_way` more."""
        place = self.in_need + on_the_way + 1
        return max(self._row_s(place), self._blocks_s(place)) + self.start_s

    def _row_s(self, place: int) -> float:
        """Until the listener at this place in line has a row: each row takes another every `turn_s`."""
        return max(0, place - self.free_rows - self.lendable_rows) * self.turn_s / self.rows

    def _blocks_s(self, place: int) -> float:
        """… has blocks: requests give theirs back only at their end."""
        holders = self.running + self.parked
        if not holders:
            return 0.0
        room = self.free_blocks * holders / max(1, self.blocks - self.free_blocks)
        return max(0.0, place - room) * self.whole_s / holders


@dataclass(frozen=True)
class PagedTotals:
    """Of an engine whose weights come and go, since it was loaded; by the device's clock."""

    pass_s: float = 0.0  # that passes through the model took
    wait_s: float = 0.0  # that they waited for weights
    copied_bytes: int = 0  # of weights that were brought


class Telemetry:
    def __init__(self) -> None:
        self.phase_s = {phase: Tally(_SECONDS) for phase in STEP_PHASES}
        self.rows = Tally(_ROWS)  # that decoded a frame in a step
        self.frames_ahead = Tally(_FRAMES_AHEAD)  # buffered by a listener as a chunk comes; 0: they had run out
        self.first_step_s = Tally(_FIRST_STEP_S)  # from a request's arrival to its first decode step come back
        self.time_per_step_s = Tally(_STEP_S)  # a request's mean from one decode step to the next, at its end
        self.queue_s = Tally(_QUEUE_S)  # from a request's arrival to its row
        self.parkings = 0  # times that a row was lent
        self.start_s = Mean()  # from a row to the first decode step's result: what a first sound takes without a queue
        self.turn_s = Mean()  # from a row to when it may go to another, at the request's end at the latest
        self.whole_s = Mean()  # from a request's blocks to its end
        self.step_s = Mean()  # a step, from the end of the one before it
        self.full_prefill_s = Mean()  # a step with `prefill_tokens` of prompts, from the end of the one before it
        # On a CPU only. What these take on a GPU is not known here, and both stay 0.
        self.decode_s = Mean()  # a decode step
        self.vocode_s = Mean()  # a frame's sound
        self.paged = PagedTotals()
        self._mark_s = 0.0
        self._parts_s: dict[StepPhase, float] = {}  # so far, of phases that go on

    def begin(self) -> None:
        """A phase begins; `took` ends it."""
        self._mark_s = time.perf_counter()

    def came_back(self, positions: int, full: int, step_s: float) -> None:
        """A step with so many positions of prompts has come back. `full`: how many it usually has at most."""
        self.step_s.add(step_s)
        if 2 * positions >= full:
            self.full_prefill_s.add(step_s * full / max(full, positions))

    def took(self, phase: StepPhase, *, goes_on: bool = False) -> float:
        """End a phase. `goes_on`: the rest of it comes later, and it is counted as one then."""
        now_s = time.perf_counter()
        took_s, self._mark_s = now_s - self._mark_s + self._parts_s.pop(phase, 0.0), now_s
        if goes_on:
            self._parts_s[phase] = took_s
        else:
            self.phase_s[phase].add(took_s)
        return took_s
