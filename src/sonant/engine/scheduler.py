"""What runs next.

Each step: rows go to those who need them (`row_sharing.py`); prefill within a token budget; decode a frame for the
rows with the least slack; vocode the chunks that are due. Slack is how much sound a listener still has buffered: one
who has heard nothing yet has none, one who only wants the file has `OFFLINE_SLACK_S`.

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
from sonant.engine.ledger import Column, Places
from sonant.engine.request import Request, State
from sonant.engine.row_sharing import OFFLINE_SLACK_S, RowSharing
from sonant.engine.rows import Rows
from sonant.engine.telemetry import Telemetry
from sonant.models.prompt import Prompt
from sonant.models.spec import ModelSpec

BURST = 4  # times `prefill_tokens` in one step at most, while …
BURST_SLACK_S = 1.0  # … every listener has so much sound buffered, or …
BURST_MARGIN = 1.5  # … so many times what that step and the one before it will take
FIRST_STEPS = 2.0  # of its own time, that a first sound lasts for where the host computes


@dataclass
class Plan:
    """What one step is to do, as the runner launches it."""

    prefill: list[tuple[Request, int, int]] = field(default_factory=list)  # positions [start, end)
    preroll: list[Request] = field(default_factory=list)
    preroll_frames: int = 0  # of each
    decode: dict[int, Places] = field(default_factory=dict)  # by variant of the frame step
    codec: dict[int, Places] = field(default_factory=dict)  # by how many frames each is given
    first_sound: bool = False  # whether somebody has heard nothing yet of what the codec makes
    begun: bool = False  # its prompts are on the device, see `Scheduler.plan`

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
        self._chunks = np.array(sizes.chunks)
        # the same lists
        self.waiting, self.running, self.parked = self.sharing.waiting, self.sharing.running, self.sharing.parked

    @property
    def requests(self) -> list[Request]:
        """All that are not over."""
        return [*self.waiting, *self.running, *self.parked]

    def plan(self, now_s: float, begin: Callable[[Plan], None] | None = None) -> Plan:
        """`begin` is given the plan as soon as it has prompts, so that the device works on them while what follows
        them is planned: one who waits for their first sound waits for all that is planned before."""
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
        return request.first_audio_s + request.heard_s + request.vocoded * self.frame_s - now_s

    def slacks_s(self, places: Places, now_s: float) -> Column:
        """The same, of many."""
        return np.where(self.ledger.live[places], self.ledger.dry_s(places, self.frame_s) - now_s, OFFLINE_SLACK_S)

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
                break  # the next step takes it in one piece, and piecemeal it would not be any sooner
            take = min(left, need)
            if take == 0 and need > 0:
                continue
            plan.prefill.append((request, *request.plan_prefill(take)))
            left -= take
            if request.prefilled < request.prefill_length:
                continue
            if self.has_preroll(request.prompt):
                plan.preroll.append(request)
            else:  # it has its first frame in this very step: a listener waits for it, and prefill is launched before
                request.preroll_up_to(-1)
        if plan.preroll:
            plan.preroll_frames = self._preroll_frames(len(plan.preroll), sitting, now_s)

    def _preroll_frames(self, count: int, sitting: Places, now_s: float) -> int:
        """Of a voice's own sound that the codec goes through in a step, before the first of a request.

        Where the host computes, half of what those who listen already can wait for: the other half is for their own.
        """
        most, slack_s = self.sizes.chunks[-1], self.slacks_s(sitting, now_s)
        room = self._frames_within(float(slack_s[np.isfinite(slack_s)].min(initial=OFFLINE_SLACK_S)))
        return max(1, int(min(most, room / 2 / count)))

    def _prefill_budget(self, pending: list[Request], sitting: Places, now_s: float) -> int:
        """In positions. Where nobody would run dry meanwhile, those who wait for their first sound start together.

        A step with n times as many positions takes at most n times as long as one with its fill of them; who has just
        begun to hear is given their next sound by it, and the step before it may still be under way.
        """
        usual = self.config.prefill_tokens
        if sum(request.prefill_length - request.prefilled for request in pending) <= usual:
            return usual
        slack_s = self.slacks_s(sitting, now_s)
        least_s = float(slack_s[np.isfinite(slack_s)].min(initial=OFFLINE_SLACK_S))
        step_s = BURST_MARGIN * self.telemetry.full_prefill_s.value
        times = BURST if least_s > BURST_SLACK_S else int(least_s / step_s) - 1 if step_s else 1
        return usual * min(BURST, max(1, times))

    def _plan_decode(self, plan: Plan, sitting: Places, now_s: float) -> None:
        ledger, most = self.ledger, self.config.max_batch or 1
        ahead = ledger.frames_launched(sitting, self.spec.delay_steps) - ledger.vocoded[sitting]
        has_steps_left = ledger.launched[sitting] < ledger.step_limit[sitting]
        decoding = ledger.state[sitting] == State.DECODING
        # One place of the ring stays free: a codec on a stream of its own still reads the frames it was given last.
        able = sitting[decoding & has_steps_left & (ahead < self.sizes.ring - 1)]
        if len(able) > most:
            able = self._by_need(able, now_s)[:most]
        ledger.launched[able] += 1
        for place in able[ledger.launched[able] == ledger.tenure_at[able]]:
            self.sharing.count_turn(ledger.at(place), now_s)
        plan.decode = _grouped(able, ledger.variant[able])

    def _plan_codec(self, plan: Plan, sitting: Places, now_s: float) -> None:
        frames = self._for_full_calls(sitting, self._chunks_due(sitting, now_s))
        due, frames = sitting[frames > 0], frames[frames > 0]
        room = self._room(sitting, now_s)
        if frames.sum() > min(self.sizes.codec_batch, room):
            due, frames = self._that_fit(due, frames, room, now_s)
        new = self.ledger.live[due] & (self.ledger.vocoded[due] == 0)
        plan.first_sound = bool((new & np.isneginf(self.ledger.first_audio_s[due])).any())
        self.ledger.vocoded[due] += frames
        plan.codec = _grouped(due, frames)

    def _for_full_calls(self, sitting: Places, frames: Column) -> Column:
        """The same, or nothing yet: files wait for each other until they fill a call of the codec.

        On a GPU a call for half as many rows takes well over half as long. So while enough files are decoded that they
        will fill one, nobody's sound is made as long as all can wait: not a listener, nor one whose ring is about to
        be full, who could not be decoded in the next steps.
        """
        ledger, sizes = self.ledger, self.sizes
        decoding = ledger.state[sitting] == State.DECODING
        files = ~ledger.live[sitting]
        enough = int((files & decoding).sum()) * sizes.chunks[-1] >= sizes.codec_batch
        if not enough or frames.sum() >= sizes.codec_batch or self.telemetry.vocode_s.value:
            return frames
        ahead = ledger.frames_launched(sitting, self.spec.delay_steps) - ledger.vocoded[sitting]
        patient = files & (ahead < sizes.ring - 2)
        return np.where(patient[frames > 0].all(), 0, frames)

    def _room(self, sitting: Places, now_s: float) -> float:
        """Frames that can be vocoded before the poorest listener runs dry, or hears their first sound late.

        That counts where the host computes. A GPU makes sound for all in next to no time, and best at once.
        """
        return self._frames_within(float(self.slacks_s(sitting, now_s).min(initial=OFFLINE_SLACK_S)))

    def _frames_within(self, seconds: float) -> float:
        """What can be vocoded in that time, after a decode step."""
        decode_s, vocode_s = self.telemetry.decode_s.value, self.telemetry.vocode_s.value
        return max(0.0, (seconds - decode_s) / vocode_s) if vocode_s else float("inf")

    def _that_fit(self, due: Places, frames: Column, room: float, now_s: float) -> tuple[Places, Column]:
        """As many as fit, by need. Where room is scarce, chunks are smaller: the smallest is made at once for the
        poorest, for who wants no larger one, and for whom no more frames can be decoded. First ones are made whole."""
        of, ledger = dict(zip(due.tolist(), frames.tolist(), strict=True)), self.ledger
        ahead = ledger.frames_launched(due, self.spec.delay_steps) - ledger.vocoded[due]
        full = set(due[(ahead >= self.sizes.ring - 1) | (ledger.state[due] == State.DRAINING)].tolist())
        new = set(due[ledger.live[due] & (ledger.vocoded[due] == 0)].tolist())
        smallest, budget, taken = self.sizes.chunks[0], self.sizes.codec_batch, dict[int, int]()
        for place in self._by_need(due, now_s).tolist():
            want, fits = of[place], min(budget, room)
            least = want if place in new else smallest
            if want > fits and room < float("inf") and place not in new:
                urgent = not taken or place in full
                want = max((n for n in self.sizes.chunks if n <= fits), default=smallest if urgent else want)
            if want <= budget and (want <= room or want == least):
                taken[place] = want
                budget, room = budget - want, room - want
        return np.array([*taken], np.intp), np.array([*taken.values()], np.int64)

    def _chunks_due(self, sitting: Places, now_s: float) -> Column:
        """How many frames of each to vocode now, one of the chunk sizes; 0: not yet.

        A listener's first chunk is one frame, or where the host computes as many as last for two steps of all who sit
        there: else the second might come too late. Later ones grow to half of what is buffered. The last chunk may
        reach past the end: what lies there is dropped, and the row's state is not needed again. Until the end is
        known, a chunk waits for the frames that the codec reads past it.
        """
        ledger, sizes, state = self.ledger, self._chunks, self.ledger.state[sitting]
        vocoded, most = ledger.vocoded[sitting], len(self._chunks) - 1
        left = ledger.total[sitting] - vocoded
        last = np.where(left > 0, sizes[np.minimum(np.searchsorted(sizes, left), most)], 0)
        ahead_frames = self.slacks_s(sitting, now_s) / self.frame_s
        largest = np.searchsorted(sizes, ahead_frames / 2, side="right") - 1
        step_s = self.telemetry.decode_s.value + len(sitting) * self.telemetry.vocode_s.value
        first = min(int(np.searchsorted(sizes, FIRST_STEPS * step_s / self.frame_s)), most)
        least = np.where(np.isneginf(ahead_frames) & (vocoded == 0), first, 0)
        want = sizes[np.where(ledger.live[sitting], np.maximum(largest, least), most)]
        waiting = ledger.frames_launched(sitting, self.spec.delay_steps) - vocoded
        next_one = np.where(waiting >= want + self.spec.codec_lookahead, want, 0)
        return np.where(state == State.DRAINING, last, np.where(state == State.DECODING, next_one, 0))

    def _by_need(self, places: Places, now_s: float) -> Places:
        return places[np.lexsort((self.slacks_s(places, now_s), -self.ledger.priority[places]))]


def _together(groups: list[Places]) -> Places:
    return groups[0] if len(groups) == 1 else np.concatenate([np.zeros(0, np.intp), *groups])


def _grouped(places: Places, kinds: npt.NDArray[np.int64]) -> dict[int, Places]:
    """By kind, each group in the order that it has."""
    return {int(kind): places[kinds == kind] for kind in np.unique(kinds)}
