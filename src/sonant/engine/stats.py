"""What an engine has at a moment, and what follows from it: how soon one who comes now would hear something."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sonant.engine.row_sharing import RowSharing


@dataclass(frozen=True)
class EngineStats:
    running: int
    waiting: int
    free_rows: int
    rows: int
    free_blocks: int
    blocks: int
    steps: int
    parked: int = 0
    lendable_rows: int = 0  # that one who needs sound now would be lent
    in_need: int = 0  # of those without a row: who would go before one who comes now
    start_s: float = 0.0  # measured lately: from a row to the first sound
    turn_s: float = 0.0  # … from a row to the moment when it may go to another
    whole_s: float = 0.0  # … from a request's blocks to its end

    def first_sound_s(self, on_the_way: int = 0) -> float:
        """Seconds to the first sound of one who comes after all that wait and `on_the_way` more."""
        place = self.in_need + on_the_way + 1
        return max(self._row_s(place), self._blocks_s(place)) + self.start_s

    def _row_s(self, place: int) -> float:
        """Until the so-manieth in line has a row: each row takes one every `turn_s`."""
        return max(0, place - self.free_rows - self.lendable_rows) * self.turn_s / self.rows

    def _blocks_s(self, place: int) -> float:
        """… has blocks: those who hold them give them back only at their end."""
        holders = self.running + self.parked
        if not holders:
            return 0.0
        room = self.free_blocks * holders / max(1, self.blocks - self.free_blocks)
        return max(0.0, place - room) * self.whole_s / holders


def read_stats(sharing: RowSharing, steps: int, *, waiting: int, unseen: int) -> EngineStats:
    """From any thread. `unseen` have come, and the step thread has not looked at them yet."""
    telemetry, now_s = sharing.telemetry, time.monotonic()
    return EngineStats(
        running=len(sharing.running),
        waiting=waiting,
        free_rows=len(sharing.rows.free),
        rows=sharing.rows.scratch,
        free_blocks=len(sharing.pool.free),
        blocks=sharing.pool.total,
        steps=steps,
        parked=len(sharing.parked),
        lendable_rows=sharing.lendable(now_s),
        in_need=sharing.in_need(now_s) + unseen,
        start_s=telemetry.start_s.value,
        turn_s=telemetry.turn_s.value,
        whole_s=telemetry.whole_s.value,
    )
