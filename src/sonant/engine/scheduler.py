"""What runs next.

Each step: rows go to those who need them (`row_sharing.py`); prefill within a token budget; decode a frame for the
rows with the least slack; vocode the chunks that are due (`codec_batching.py`). Slack is how much sound a listener
still has buffered: one who has heard nothing yet has none, one who only wants the file has `OFFLINE_SLACK_S`.

Invariants: a request is admitted only with every block it can ever need. Frames that wait for the codec never outgrow
the ring that holds them. Nothing here reads the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sonant.config import EngineConfig, FrameSizes
from sonant.engine.blocks import BlockPool
from sonant.engine.codec_batching import CodecBatching
from sonant.engine.ledger import OFFLINE_SLACK_S, Places
from sonant.engine.request import Request, State
from sonant.engine.row_sharing import RowSharing
from sonant.engine.rows import Rows
from sonant.engine.telemetry import Telemetry
from sonant.models.prompt import Prompt
from sonant.models.spec import ModelSpec

BURST = 4  # times `prefill_tokens` in one step at most, while …
BURST_SLACK_S = 1.0  # … every listener has so much sound buffered, or …
BURST_MARGIN = 1.5  # … so many times what that step and the one before it will take


@dataclass
class Plan:
    """What one step is to do, as the runner launches it."""

    prefill: list[tuple[Request, int, int]] = field(default_factory=list)  # positions [start, end)
    preroll: list[Request] = field(default_factory=list)
    preroll_frames: int = 0  # of each
    decode: dict[int, Places] = field(default_factory=dict)  # by variant of the frame step
    codec: dict[int, Places] = field(default_factory=dict)  # by how many frames each is given
    first_sound: bool = False  # whether the codec makes the first that somebody hears
    begun: bool = False  # its prefill has been launched already, see `Scheduler.plan`

    def __bool__(self) -> bool:
        return bool(self.prefill or self.preroll or self.decode or self.codec)

    @property
    def decoding(self) -> Places:
        """All that decode, in the order of their records."""
        return _together(list(self.decode.values()))

    @property
    def prompt_positions(self) -> int:
        return sum(end - start for _, start, end in self.prefill)

    def users(self) -> Places:
        """Everyone whose row this step reads or writes, once each."""
        filled = [r.place for r, _, _ in self.prefill] + [r.place for r in self.preroll]
        return np.unique(_together([np.array(filled, np.intp), *self.decode.values(), *self.codec.values()]))


class Scheduler:
    def __init__(
        self,
        config: EngineConfig,
        spec: ModelSpec,
        sizes: FrameSizes,
        rows: Rows,
        pool: BlockPool,
        telemetry: Telemetry,
        has_preroll: Callable[[Prompt], bool],
    ) -> None:
        self.has_preroll, self.telemetry = has_preroll, telemetry
        self.config, self.spec, self.sizes, self.rows = config, spec, sizes, rows
        self.frame_s = spec.frame_s
        self.sharing = RowSharing(config, spec, sizes, rows, pool, telemetry)
        self.ledger = self.sharing.ledger
        self.codec_batching = CodecBatching(spec, sizes, self.ledger, telemetry)
        # the same lists
        self.waiting, self.running, self.parked = self.sharing.waiting, self.sharing.running, self.sharing.parked

    @property
    def requests(self) -> list[Request]:
        """All that are not over."""
        return [*self.waiting, *self.running, *self.parked]

    def plan(self, now_s: float, begin: Callable[[Plan], None] | None = None) -> Plan:
        """`begin` is called as soon as prefill is planned, so that the device works on it while the rest is planned:
        a listener without sound waits for whatever is done before their prefill is launched."""
        self.sharing.share(now_s)
        plan, sitting = Plan(), self.ledger.with_rows()
        self._plan_prefill(plan, sitting, now_s)
        if begin is not None and plan.prefill:
            begin(plan)
        self._plan_decode(plan, sitting, now_s)
        self._plan_codec(plan, sitting, now_s)
        return plan

    def release(self, request: Request) -> None:
        """Forget a request and free what it held. No launched step may still use its row."""
        self.sharing.release(request)
        request.finish()

    def slack_s(self, request: Request, now_s: float) -> float:
        if not request.live:
            return OFFLINE_SLACK_S
        if request.first_audio_s is None:
            return float("-inf")
        return request.dry_s(request.first_audio_s, self.frame_s) - now_s

    def _plan_prefill(self, plan: Plan, sitting: Places, now_s: float) -> None:
        pending = self.ledger.all_at(sitting[self.ledger.state[sitting] == State.PREFILL])
        if not pending:
            return
        left = whole = self._prefill_budget(pending, sitting, now_s)
        pending.sort(key=lambda r: (-r.priority, self.sharing.due_s(r)))
        for request in pending:
            need = request.prefill_length - request.prefilled
            if need == 0 and request.preroll > 0:
                plan.preroll.append(request)
                continue
            if left < need <= whole:
                break  # The next step takes it whole; cut in two it would not be ready any sooner.
            take = min(left, need)
            if take == 0 and need > 0:
                continue
            plan.prefill.append((request, *request.plan_prefill(take)))
            left -= take
            if request.prefilled < request.prefill_length:
                continue
            if self.has_preroll(request.prompt):
                plan.preroll.append(request)
            else:  # It decodes its first frame in this very step, since prefill is launched before decoding.
                request.preroll_up_to(-1)
        if plan.preroll:
            plan.preroll_frames = self._preroll_frames(len(plan.preroll), sitting, now_s)

    def _preroll_frames(self, count: int, sitting: Places, now_s: float) -> int:
        """How many reference frames of each voice the codec is given in a step, before the request's own.

        On a CPU they take at most half of the time that listeners can wait: the other half is for their own sound.
        """
        most, slack_s = self.sizes.chunks[-1], self.ledger.slacks_s(sitting, now_s, self.frame_s)
        room = self.codec_batching.frames_within(float(slack_s[np.isfinite(slack_s)].min(initial=OFFLINE_SLACK_S)))
        return max(1, int(min(most, room / 2 / count)))

    def _prefill_budget(self, pending: list[Request], sitting: Places, now_s: float) -> int:
        """In positions. If no listener would run dry meanwhile, it is larger, so that newcomers start together.

        A step with n times the usual positions takes at most n times as long as a full one. The step before it may
        still be running, and a listener who has just begun gets their next sound only after both.
        """
        usual = self.config.prefill_tokens
        if sum(request.prefill_length - request.prefilled for request in pending) <= usual:
            return usual
        slack_s = self.ledger.slacks_s(sitting, now_s, self.frame_s)
        least_s = float(slack_s[np.isfinite(slack_s)].min(initial=OFFLINE_SLACK_S))
        step_s = BURST_MARGIN * self.telemetry.full_prefill_s.value
        times = BURST if least_s > BURST_SLACK_S else int(least_s / step_s) - 1 if step_s else 1
        return usual * min(BURST, max(1, times))

    def _plan_decode(self, plan: Plan, sitting: Places, now_s: float) -> None:
        ledger, most = self.ledger, self.config.max_batch or 1
        ahead = ledger.frames_launched(sitting, self.spec.delay_steps) - ledger.vocoded[sitting]
        has_steps_left = ledger.launched[sitting] < ledger.step_limit[sitting]
        decoding = ledger.state[sitting] == State.DECODING
        # One place of the ring stays free: a codec on its own stream may still read the frames that it was given last.
        able = sitting[decoding & has_steps_left & (ahead < self.sizes.ring - 1)]
        if len(able) > most:
            able = self.ledger.by_need(able, now_s, self.frame_s)[:most]
        ledger.launched[able] += 1
        for place in able[ledger.launched[able] == ledger.tenure_at[able]]:
            self.sharing.count_turn(ledger.at(place), now_s)
        plan.decode = _grouped(able, ledger.variant[able])

    def _plan_codec(self, plan: Plan, sitting: Places, now_s: float) -> None:
        due, frames = self.codec_batching.plan(sitting, now_s)
        new = self.ledger.live[due] & (self.ledger.vocoded[due] == 0)
        plan.first_sound = bool((new & np.isneginf(self.ledger.first_audio_s[due])).any())
        self.ledger.vocoded[due] += frames
        plan.codec = _grouped(due, frames)


def _together(groups: list[Places]) -> Places:
    return groups[0] if len(groups) == 1 else np.concatenate([np.zeros(0, np.intp), *groups])


def _grouped(places: Places, kinds: npt.NDArray[np.int64]) -> dict[int, Places]:
    """By kind; each group keeps its order."""
    return {int(kind): places[kinds == kind] for kind in np.unique(kinds)}
