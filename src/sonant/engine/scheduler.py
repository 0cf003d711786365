"""What runs next.

Each step: rows go to those who need them (`row_sharing.py`); prefill within a token budget; decode a frame for the
rows with the least slack; vocode the chunks that are due. Slack is how much sound a listener still has buffered: one
who has heard nothing yet has none, one who only wants the file has `OFFLINE_SLACK_S`.

Invariants: a request is admitted only with every block it can ever need. Frames that wait for the codec never outgrow
the ring that holds them. Nothing here reads the device.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from sonant.config import EngineConfig, FrameSizes
from sonant.engine.blocks import BlockPool
from sonant.engine.request import Request, State
from sonant.engine.row_sharing import OFFLINE_SLACK_S, RowSharing
from sonant.engine.rows import Rows
from sonant.engine.telemetry import Telemetry
from sonant.models.spec import ModelSpec

BURST = 4  # times `prefill_tokens` in one step, while …
BURST_SLACK_S = 1.0  # … every listener has so much sound buffered


@dataclass
class Plan:
    """What one step is to do, as the runner launches it."""

    prefill: list[tuple[Request, int, int]] = field(default_factory=list)  # positions [start, end)
    preroll: list[Request] = field(default_factory=list)
    decode: dict[int, list[Request]] = field(default_factory=dict)  # by variant of the frame step
    codec: dict[int, list[Request]] = field(default_factory=dict)  # by how many frames each is given

    def __bool__(self) -> bool:
        return bool(self.prefill or self.preroll or self.decode or self.codec)

    @property
    def decoding(self) -> list[Request]:
        """All rows that decode, in the order of their records."""
        return [request for group in self.decode.values() for request in group]

    def requests(self) -> list[Request]:
        """Everyone whose row this step reads or writes, once each."""
        seen = [r for r, _, _ in self.prefill] + self.preroll + self.decoding
        seen += [r for group in self.codec.values() for r in group]
        return list(dict.fromkeys(seen))


class Scheduler:
    def __init__(
        self,
        config: EngineConfig,
        spec: ModelSpec,
        sizes: FrameSizes,
        rows: Rows,
        pool: BlockPool,
        telemetry: Telemetry,
    ) -> None:
        self.config, self.spec, self.sizes, self.rows = config, spec, sizes, rows
        self.frame_s = spec.frame_s
        self.sharing = RowSharing(config, spec, sizes, rows, pool, telemetry)
        # the same lists
        self.waiting, self.running, self.parked = self.sharing.waiting, self.sharing.running, self.sharing.parked

    @property
    def requests(self) -> list[Request]:
        """All that are not over."""
        return [*self.waiting, *self.running, *self.parked]

    def plan(self, now_s: float) -> Plan:
        self.sharing.share(now_s)
        plan = Plan()
        self._plan_prefill(plan, now_s)
        self._plan_decode(plan, now_s)
        self._plan_codec(plan, now_s)
        return plan

    def release(self, request: Request) -> None:
        """Forget a request and free what it held. No launched step may still use its row."""
        self.sharing.release(request)
        request.finish()

    def slack_s(self, request: Request, now_s: float) -> float:
        if not request.speech.live:
            return OFFLINE_SLACK_S
        if request.first_audio_s is None:
            return float("-inf")
        return request.first_audio_s + request.heard_s + request.vocoded * self.frame_s - now_s

    def _plan_prefill(self, plan: Plan, now_s: float) -> None:
        pending = [r for r in self.running if r.state is State.PREFILL]
        if not pending:
            return
        left = whole = self._prefill_budget(now_s)
        pending.sort(key=lambda r: (-r.speech.priority, self.sharing.due_s(r)))
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
            plan.prefill.append((request, *request.plan_prefill(take)))
            left -= take
            if request.prefilled == request.prefill_length:
                plan.preroll.append(request)

    def _prefill_budget(self, now_s: float) -> int:
        """In positions. Where nobody would run dry meanwhile, those who wait for their first sound start together."""
        listening = (r for r in self.running if r.speech.live and r.first_audio_s is not None)
        rich = all(self.slack_s(r, now_s) > BURST_SLACK_S for r in listening)
        return self.config.prefill_tokens * (BURST if rich else 1)

    def _plan_decode(self, plan: Plan, now_s: float) -> None:
        room = self.sizes.ring - 1
        able = [r for r in self.running if r.has_steps_left and r.frames_launched - r.vocoded < room]
        if len(able) > (self.config.max_batch or 1):
            able.sort(key=lambda r: (-r.speech.priority, self.slack_s(r, now_s)))
        groups: defaultdict[int, list[Request]] = defaultdict(list)
        for request in able[: self.config.max_batch]:
            request.plan_step()
            if request.launched == request.tenure_at:
                self.sharing.count_turn(request, now_s)
            groups[request.prompt.variant].append(request)
        plan.decode = dict(groups)

    def _plan_codec(self, plan: Plan, now_s: float) -> None:
        due = [(r, frames) for r in self.running if (frames := self._chunk_due(r, now_s))]
        due.sort(key=lambda pair: (-pair[0].speech.priority, self.slack_s(pair[0], now_s)))
        budget = self.sizes.codec_batch
        groups: defaultdict[int, list[Request]] = defaultdict(list)
        for request, frames in due:
            if frames <= budget:
                budget -= frames
                groups[frames].append(request)
                request.plan_codec(frames)
        plan.codec = dict(groups)

    def _chunk_due(self, request: Request, now_s: float) -> int:
        """How many frames to vocode now, one of the chunk sizes; 0: not yet.

        A listener's first chunk is one frame; later ones grow to half of what is buffered. The last chunk may reach
        past the end: what lies there is dropped, and the row's state is not needed again. Until the end is known, a
        chunk waits for the frames that the codec reads past it.
        """
        sizes = self.sizes.chunks
        if request.state is State.DRAINING:
            left = (request.total or 0) - request.vocoded
            return next((s for s in sizes if s >= left), sizes[-1]) if left > 0 else 0
        if request.state is not State.DECODING:
            return 0
        want = sizes[-1]
        if request.speech.live:
            ahead_frames = self.slack_s(request, now_s) / self.spec.frame_s
            want = max(s for s in sizes if s == 1 or s <= ahead_frames / 2)
        waiting = request.frames_launched - request.vocoded
        return want if waiting >= want + self.spec.codec_lookahead else 0
