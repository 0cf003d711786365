"""Who has a row: rows are shared by listeners' need.

A request is *due* when its listener needs sound: a new listener on arrival, one who hears already when their buffer
will be empty, one who only wants a file `OFFLINE_SLACK_S` after they began to wait. Rows go by priority, then by that
moment, new listeners as if they had come `HEAD_START_S` sooner. So they come first, by arrival, then later parts of
long texts by least slack, then files. Nobody waits for ever: within its priority, a request is overtaken only by those
that are due before it, and by new listeners who come less than `HEAD_START_S` after it was due.

Where no row is free, one is lent to those who need sound within `NEED_S`, and the lender is parked (`parking.py`). Only
requests that have made something of their row (the largest chunk's frames, or those of `TENURE_S`) can lend it, and the
one with the least need does: a file, or a listener at least `PARK_SLACK_S` ahead. Where nobody is, rows take turns: one
who is `OVERDUE_S` past due gets a row all the same. Files take no rows from each other, since each ends soon enough.

Parking frees rows, not blocks. When the first in line lacks blocks, no other request that needs blocks overtakes it;
only parked requests may, since they have kept theirs.
"""

from __future__ import annotations

import time

import numpy as np

from sonant.config import EngineConfig, FrameSizes
from sonant.engine.blocks import Allocation, BlockPool
from sonant.engine.ledger import OFFLINE_SLACK_S, Column, Ledger, Places
from sonant.engine.parking import Parking
from sonant.engine.request import Request, State
from sonant.engine.rows import Rows
from sonant.engine.telemetry import EngineStats, Telemetry
from sonant.models.spec import ModelSpec

NEED_S = 2.0  # with less sound left a request should get a row now, since its turn may be a while in coming
HEAD_START_S = 5.0  # without it, listeners who are behind all the time would go before every newcomer
TENURE_S = 1.0  # for slow steps; a fast machine makes the largest chunk in a tenth of this
PARK_SLACK_S = 2 * NEED_S  # so that whoever lends their row is not back for it at once
PARKINGS_A_STEP = 16  # more would hold the step up by milliseconds, and could hardly all be prefilled in it
LOOK_AGAIN_S = 0.02  # for rows for those who got none, unless more have come or a row is free
OVERDUE_S = 1.0  # a gap this long is noticed anyway; a shorter one is not worth making one for the lender


class RowSharing:
    def __init__(
        self,
        config: EngineConfig,
        spec: ModelSpec,
        sizes: FrameSizes,
        rows: Rows,
        pool: BlockPool,
        telemetry: Telemetry,
    ) -> None:
        self.rows, self.pool, self.telemetry, self.frame_s = rows, pool, telemetry, spec.frame_s
        self.parking, self.ledger = Parking(rows, config.max_parked or 0), Ledger()
        self.least = 1 + spec.delay_steps + spec.codec_lookahead  # steps to the first sound of a row
        self.tenure = self.least + sizes.chunks[-1] - 1
        self.waiting: list[Request] = []
        self._seated = 0  # of those waiting, how many have been given a row by now
        self.running: list[Request] = []
        self.parked: list[Request] = []
        self._again_s, self._without = 0.0, 0  # nobody got a row: when to look again, and how many had none

    @property
    def queued(self) -> int:
        """How many wait for their first row. It is right for any thread, also while rows are being given away."""
        return len(self.waiting) - self._seated

    def due_s(self, request: Request) -> float:
        """When its listener needs sound."""
        first_s = request.first_audio_s
        if not request.live:
            return request.since_s + OFFLINE_SLACK_S
        if first_s is None:
            return max(request.arrival_s, request.since_s)
        dry_s = request.dry_s(first_s, self.frame_s)
        # One who ran dry long ago, but has had a row since, is due since they lost it.
        return dry_s if request.row >= 0 else max(dry_s, request.since_s)

    def _rank_s(self, request: Request) -> float:
        """Its place in line, by time."""
        new = request.live and request.first_audio_s is None
        return self.due_s(request) - (HEAD_START_S if new else 0.0)

    def share(self, now_s: float) -> None:
        """Give rows to those who wait, as many as there are or can be lent."""
        if not self.waiting and not self.parked:
            return
        without = len(self.waiting) + len(self.parked)
        if not self.rows.free and now_s < self._again_s and without <= self._without:
            return
        lenders = self.lenders(now_s) if len(self.rows.free) < without else []
        if (self.rows.free or lenders) and self._give_rows(self._line(now_s), lenders, now_s):
            self.waiting[:] = [r for r in self.waiting if r.state is State.WAITING]
            self._seated, self._again_s = 0, 0.0
        else:
            self._again_s, self._without = now_s + LOOK_AGAIN_S, without

    def lenders(self, now_s: float) -> list[Request]:
        """Who may have to lend their row, those with the least need first."""
        return self.ledger.all_at(self._lenders(now_s)[0])

    def _lenders(self, now_s: float) -> tuple[Places, Column]:
        """… and when each is due. Any thread may ask for this, as for `lendable` and `in_need`."""
        ledger, sitting = self.ledger, self.ledger.with_rows()
        launched, tenure_at = ledger.launched[sitting], ledger.tenure_at[sitting]
        slow = (ledger.row_s[sitting] <= now_s - TENURE_S) & (launched + self.tenure - self.least >= tenure_at)
        decoding = (ledger.state[sitting] == State.DECODING) & ~ledger.abort_requested[sitting]
        heard = np.isfinite(ledger.first_audio_s[sitting]) | ~ledger.live[sitting]
        able = sitting[((launched >= tenure_at) | slow) & decoding & heard]
        live = ledger.live[able]
        due_s = np.where(live, ledger.dry_s(able, self.frame_s), ledger.since_s[able] + OFFLINE_SLACK_S)
        order = np.lexsort((-due_s, live, ledger.priority[able]))
        return able[order], due_s[order]

    def lendable(self, now_s: float) -> int:
        """Rows that one who needs sound now would be lent."""
        if not self.parking.most:
            return 0
        places, due_s = self._lenders(now_s)
        count = int(np.count_nonzero(~self.ledger.live[places] | (due_s >= now_s + PARK_SLACK_S)))
        return min(count, self.parking.most - len(self.parked))

    def in_need(self, now_s: float) -> int:
        """How many without a row would go before a listener who comes now."""
        rank_s = now_s - HEAD_START_S
        return sum(self._rank_s(r) <= rank_s for r in [*self.waiting, *self.parked])

    def stats(self, steps: int, *, waiting: int, unseen: int, coming: int | None = None) -> EngineStats:
        """`unseen`: requests that the step thread has not looked at yet. `coming`: so many are on their way; if free
        rows are enough for all of them and one more, lendable rows are not counted, which takes longest."""
        telemetry, now_s = self.telemetry, time.monotonic()
        enough = coming is not None and len(self.rows.free) > waiting + len(self.parked) + coming
        return EngineStats(
            running=len(self.running),
            waiting=waiting,
            free_rows=len(self.rows.free),
            rows=self.rows.scratch,
            free_blocks=len(self.pool.free),
            blocks=self.pool.total,
            steps=steps,
            parked=len(self.parked),
            lendable_rows=0 if enough else self.lendable(now_s),
            in_need=self.in_need(now_s) + unseen,
            start_s=telemetry.start_s.value,
            turn_s=telemetry.turn_s.value,
            whole_s=telemetry.whole_s.value,
        )

    def release(self, request: Request) -> None:
        """Free what a request holds. No launched step may still use its row."""
        assert request.steps_in_flight == 0
        if request.allocation is None:
            self.waiting.remove(request)
            return
        if request.row >= 0:
            self.running.remove(request)
            self.rows.give_back(request.row)
        else:
            self.parked.remove(request)
            self.parking.drop(request)
        self.pool.release(request.allocation)
        now_s = time.monotonic()
        self.telemetry.whole_s.add(now_s - request.admitted_s)
        if request.row >= 0 and request.launched < request.tenure_at:
            self.count_turn(request, now_s)

    def count_turn(self, request: Request, now_s: float) -> None:
        held_s, most_s = now_s - request.row_s, self.telemetry.start_s.value + TENURE_S
        self.telemetry.turn_s.add(min(held_s, most_s))

    def _line(self, now_s: float) -> list[Request]:
        """Those who wait, by need; where no row is free only those who need one now."""
        rank_s, until_s = self._rank_s, float("inf") if self.rows.free else now_s + NEED_S
        waiting = self.waiting + [r for r in self.parked if r.state is State.PARKED]
        line = [(-r.priority, rank, n) for n, r in enumerate(waiting) if (rank := rank_s(r)) <= until_s]
        return [waiting[n] for _, _, n in sorted(line)]

    def _give_rows(self, line: list[Request], lenders: list[Request], now_s: float) -> int:
        """How many got one."""
        lacks_blocks = files_wait = nobody_rich = False
        parkings, given = self.telemetry.parkings, 0
        for request in line:
            parked, live = request.state is State.PARKED, request.live
            if (lacks_blocks and not parked) or (files_wait and not live):
                continue
            lender = None
            if not self.rows.free:
                late_s = now_s - self.due_s(request)
                overdue = late_s >= OVERDUE_S
                if -late_s > NEED_S or (nobody_rich and not overdue) or not self.parking.has_room(exchange=parked):
                    continue
                lender = self._lender(request, lenders, overdue, now_s)
                if self.telemetry.parkings - parkings == PARKINGS_A_STEP or (lender is None and live and overdue):
                    return given  # Nobody later in line could be lent a row either.
                if lender is None:
                    files_wait, nobody_rich = files_wait or not live, nobody_rich or live
                    continue
            allocation = request.allocation if parked else self._allocate(request)
            if allocation is None:
                lacks_blocks = True
                continue
            if lender is not None:
                lenders.remove(lender)
                self._park(lender, now_s)
            self._seated += not parked
            self._seat(request, allocation, now_s)
            given += 1
        return given

    def _lender(self, request: Request, lenders: list[Request], overdue: bool, now_s: float) -> Request | None:
        priority, rich_s = request.priority, now_s + PARK_SLACK_S
        for lender in lenders:
            if lender.priority != priority:
                return lender if lender.priority < priority else None
            if not lender.live:
                if request.live:
                    return lender
                continue
            return lender if overdue or self.due_s(lender) >= rich_s else None
        return None

    def _allocate(self, request: Request) -> Allocation | None:
        return self.pool.allocate(request.prompt.keys, request.prefill_length, request.positions)

    def _park(self, request: Request, now_s: float) -> None:
        """Free its row for another. Steps in flight that still use it were launched before any that will."""
        self.parking.save(request)
        self.rows.give_back(request.row)
        self.running.remove(request)
        self.parked.append(request)
        request.park(now_s)
        self.telemetry.parkings += 1

    def _seat(self, request: Request, allocation: Allocation, now_s: float) -> None:
        row = self.rows.take()
        if request.state is State.PARKED:
            self.parking.restore(request, row)
            self.parked.remove(request)  # only now: if the copy fails the engine ends, and tells all that are listed
            request.resume(row, self.tenure, now_s)
        else:
            self.rows.stage(row, request.prompt.staged, allocation.blocks)
            request.admit(self.ledger, row, allocation, self.tenure, now_s)
            self.telemetry.queue_s.add(now_s - request.queued_s)
        self.running.append(request)
