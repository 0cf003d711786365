"""What runs next.

Each step: admit by priority and arrival while rows and blocks last; prefill within a token budget; draw a frame
for the rows with the least slack; voice the chunks that are due. Slack is how much sound a listener still has in
hand: one who has heard nothing yet has none, one who only wants the file has `OFFLINE_SLACK_S`.

Invariants: a request is admitted only with every block it can ever need. Frames not yet voiced never outgrow the
ring that holds them. Nothing here reads the device.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from sonant.config import EngineConfig
from sonant.engine.blocks import BlockPool
from sonant.engine.request import Phase, Request
from sonant.engine.rows import Rows
from sonant.models.base import ModelSpec

OFFLINE_SLACK_S = 5.0
BURST = 4  # times `prefill_tokens` in one step, while …
BURST_SLACK_S = 1.0  # … every listener has so much sound in hand


@dataclass
class Plan:
    prefill: list[tuple[Request, int, int]] = field(default_factory=list)  # positions [start, end)
    preroll: list[Request] = field(default_factory=list)
    draw: list[Request] = field(default_factory=list)
    voice: dict[int, list[Request]] = field(default_factory=dict)  # frames → rows that are given so many

    def __bool__(self) -> bool:
        return bool(self.prefill or self.preroll or self.draw or self.voice)

    def requests(self) -> list[Request]:
        """Everyone whose row this step reads or writes, once each."""
        seen = [r for r, _, _ in self.prefill] + self.preroll + self.draw
        seen += [r for group in self.voice.values() for r in group]
        return list(dict.fromkeys(seen))


class Scheduler:
    def __init__(self, config: EngineConfig, spec: ModelSpec, rows: Rows, pool: BlockPool) -> None:
        self.config, self.spec, self.rows, self.pool = config, spec, rows, pool
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.ring_frames = 2 * config.chunk_frames[-1]

    def plan(self, now_s: float) -> Plan:
        self._admit()
        plan = Plan()
        self._plan_prefill(plan, now_s)
        self._plan_frames(plan, now_s)
        self._plan_sound(plan, now_s)
        return plan

    def release(self, request: Request) -> None:
        """Forget a request and free what it held. No launched step may still use its row."""
        assert request.steps_in_flight == 0
        if request.phase is Phase.WAITING:
            self.waiting.remove(request)
        else:
            self.running.remove(request)
            self.rows.give_back(request.row)
            assert request.allocation is not None
            self.pool.release(request.allocation)
        request.phase = Phase.DONE

    def slack_s(self, request: Request, now_s: float) -> float:
        if not request.speech.live:
            return OFFLINE_SLACK_S
        if request.first_audio_s is None:
            return float("-inf")
        return request.heard_s + request.voiced * self.spec.frame_s - (now_s - request.first_audio_s)

    def _admit(self) -> None:
        self.waiting.sort(key=lambda r: (-r.speech.priority, r.arrival_s))
        while self.waiting and self.rows.free:
            request = self.waiting[0]
            prompt = request.prompt
            allocation = self.pool.allocate(prompt.keys, request.prefill_length, request.positions)
            if allocation is None:
                return  # the first in line waits for blocks; overtaking it could starve it
            self.waiting.pop(0)
            request.allocation, request.prefilled = allocation, allocation.reused_tokens
            request.row, request.phase = self.rows.take(), Phase.PREFILL
            self.rows.stage(request.row, prompt.staged, allocation.blocks)
            self.running.append(request)

    def _plan_prefill(self, plan: Plan, now_s: float) -> None:
        pending = [r for r in self.running if r.phase is Phase.PREFILL]
        if not pending:
            return
        left = whole = self._prefill_budget(now_s)
        pending.sort(key=lambda r: (-r.speech.priority, r.arrival_s))
        for request in pending:
            need = request.prefill_length - request.prefilled
            if need == 0 and request.preroll > 0:
                plan.preroll.append(request)
                continue
            if left < need <= whole:
                break  # the next step takes it in one piece, and piecemeal it would not be any sooner
            take = min(left, need)
            if take == 0 and need > 0:
                continue
            plan.prefill.append((request, request.prefilled, request.prefilled + take))
            request.prefilled += take
            left -= take
            if request.prefilled == request.prefill_length:
                plan.preroll.append(request)

    def _prefill_budget(self, now_s: float) -> int:
        """In positions. Where nobody would run dry meanwhile, those who wait for their first sound start together."""
        listening = (r for r in self.running if r.speech.live and r.first_audio_s is not None)
        rich = all(self.slack_s(r, now_s) > BURST_SLACK_S for r in listening)
        return self.config.prefill_tokens * (BURST if rich else 1)

    def _plan_frames(self, plan: Plan, now_s: float) -> None:
        able = [r for r in self.running if r.has_frames_to_draw and r.launched - r.voiced < self.ring_frames - 1]
        if len(able) > (self.config.max_batch or 1):
            able.sort(key=lambda r: (-r.speech.priority, self.slack_s(r, now_s)))
        plan.draw = able[: self.config.max_batch]
        for request in plan.draw:
            request.launched += 1

    def _plan_sound(self, plan: Plan, now_s: float) -> None:
        due = [(r, frames) for r in self.running if (frames := self._chunk_due(r, now_s))]
        due.sort(key=lambda pair: (-pair[0].speech.priority, self.slack_s(pair[0], now_s)))
        budget = self.config.codec_frames
        groups: defaultdict[int, list[Request]] = defaultdict(list)
        for request, frames in due:
            if frames <= budget:
                budget -= frames
                groups[frames].append(request)
                request.voiced += frames
        plan.voice = dict(groups)

    def _chunk_due(self, request: Request, now_s: float) -> int:
        """How many frames to voice now, one of `chunk_frames`; 0: not yet.

        A listener's first chunk is one frame; later ones grow to half of what is in hand. The last chunk may reach
        past the end: what lies there is dropped, and the row's state is not needed again.
        """
        sizes = self.config.chunk_frames
        if request.phase is Phase.DRAINING:
            left = (request.total or 0) - request.voiced
            return next((s for s in sizes if s >= left), sizes[-1]) if left > 0 else 0
        if request.phase is not Phase.SPEAKING:
            return 0
        want = sizes[-1]
        if request.speech.live:
            ahead_frames = self.slack_s(request, now_s) / self.spec.frame_s
            want = max(s for s in sizes if s == 1 or s <= ahead_frames / 2)
        return want if request.launched - request.voiced >= want else 0
