"""Which request goes next: first sound first, then the listener with the least slack, and none starves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sonant.config import EngineConfig
from sonant.engine.blocks import BlockPool
from sonant.engine.request import Request, State
from sonant.engine.rows import Rows
from sonant.engine.scheduler import Plan, Scheduler
from sonant.engine.telemetry import Telemetry
from sonant.models.prompt import Prompt
from sonant.models.spec import KVGroup, ModelSpec
from sonant.types import SpeechRequest

SPEC = ModelSpec(
    family="test",
    clip_sample_rate=1000,
    sample_rate=1000,
    samples_per_frame=100,
    frame_shape=(2,),
    frame_dtype="int32",
    kv=(KVGroup("all", 1, 1, 1, torch.float32),),
    staged_numbers=(),
    state=(),
    max_positions=1000,
    frame_weight_bytes=0,
)


class Nowhere:
    def push(self, chunk: object) -> None: ...
    def finish(self, reason: object) -> None: ...
    def fail(self, error: Exception) -> None: ...


def make(blocks: int = 1000, spec: ModelSpec = SPEC, **options: Any) -> Scheduler:
    defaults = {"max_rows": 8, "block_tokens": 4, "chunk_s": (0.1, 0.2, 0.4, 0.8, 1.6)}
    config = EngineConfig(**{**defaults, **options}).resolved(None)
    assert config.max_rows is not None
    rows = Rows(spec, config.max_rows, 100, torch.device("cpu"))
    sizes = config.frame_sizes(spec.frame_s, spec.codec_lookahead)
    return Scheduler(config, spec, sizes, rows, BlockPool(blocks, 4), Telemetry(), has_preroll=lambda _: True)


def ask(scheduler: Scheduler, arrival_s: float = 0, length: int = 5, frames: int = 50, **options: Any) -> Request:
    keys = np.arange(length, dtype=np.int32)[:, None] + int(arrival_s * 1000)
    prompt = Prompt(length=length, keys=keys, staged={}, max_frames=frames, payload=None)
    request = Request(SpeechRequest(text="x", **options), prompt, Nowhere(), arrival_s)
    scheduler.waiting.append(request)
    return request


def speaking(scheduler: Scheduler, first_audio_s: float, vocoded: int, **options: Any) -> Request:
    request = ask(scheduler, **options)
    scheduler.plan(0)
    request.state, request.first_audio_s = State.DECODING, first_audio_s
    request.launched = request.vocoded = vocoded
    return request


def prefilled(scheduler: Scheduler, now_s: float = 0) -> list[tuple[Request, int, int]]:
    """Plan a step, and let the requests speak whose prompt is complete → the step's prefill."""
    plan = scheduler.plan(now_s)
    for request in plan.preroll:
        request.state = State.DECODING
    return plan.prefill


def test_long_prompts_are_prefilled_in_pieces_within_the_budget() -> None:
    scheduler = make(prefill_tokens=10)
    speaking(scheduler, 0.0, 1)
    long, short = ask(scheduler, 0, length=26), ask(scheduler, 1, length=6)
    spans = [[(r is long, start, end) for r, start, end in prefilled(scheduler)] for _ in range(4)]
    assert spans == [[(True, 0, 10)], [(True, 10, 20)], [(True, 20, 25), (False, 0, 5)], []]
    assert short.state is State.DECODING


def test_a_prompt_that_fits_into_a_step_is_not_cut() -> None:
    scheduler = make(prefill_tokens=10)
    speaking(scheduler, 0.0, 1)
    first, second = ask(scheduler, 0, length=8), ask(scheduler, 1, length=8)
    assert prefilled(scheduler) == [(first, 0, 7)]
    assert prefilled(scheduler) == [(second, 0, 7)]


def test_those_who_wait_start_together_while_nobody_would_run_dry() -> None:
    scheduler = make(prefill_tokens=10)
    listener = speaking(scheduler, 0.0, 20)  # frames of 100 ms
    burst = [ask(scheduler, 1 + n, length=8) for n in range(6)]
    assert [r for r, _, _ in prefilled(scheduler, 0.5)] == burst[:5]
    listener.vocoded = 10
    more = [ask(scheduler, 9, length=8)]
    assert [r for r, _, _ in prefilled(scheduler, 0.5)] == burst[5:]
    assert [r for r, _, _ in prefilled(scheduler, 0.5)] == more


@pytest.mark.parametrize(("full_prefill_s", "starts"), [(0.0, 1), (0.02, 5), (0.1, 2), (0.4, 1)])
def test_a_crowd_starts_together_if_what_steps_take_lets_listeners_hear_on(full_prefill_s: float, starts: int) -> None:
    """The listener has half a second left: time for a step with four times the positions, with twice as many, or for no
    more than usual."""
    scheduler = make(prefill_tokens=10)
    speaking(scheduler, 0.0, 10)
    scheduler.telemetry.full_prefill_s.add(full_prefill_s)
    crowd = [ask(scheduler, 1 + n, length=8) for n in range(6)]
    assert [r for r, _, _ in prefilled(scheduler, 0.5)] == crowd[:starts]


def test_nobody_starts_with_many_while_somebody_is_dry() -> None:
    scheduler = make(prefill_tokens=10)
    speaking(scheduler, 0.0, 4)
    scheduler.telemetry.full_prefill_s.add(0.001)
    crowd = [ask(scheduler, 1 + n, length=8) for n in range(6)]
    assert [r for r, _, _ in prefilled(scheduler, 0.5)] == crowd[:1]


def test_prompts_are_given_away_before_what_follows_them_is_planned() -> None:
    """The rest of the step is planned as if they had not been."""
    plans = []
    for begin in (True, False):
        scheduler = make()
        scheduler.has_preroll = lambda _: False
        seen: list[tuple[int, int]] = []
        ask(scheduler, 0)
        ask(scheduler, 1)

        def look(plan: Plan, seen: list[tuple[int, int]] = seen) -> None:
            seen.append((len(plan.prefill), len(plan.decode) + len(plan.codec)))

        for step in range(3):
            if step == 1:
                ask(scheduler, 2)
            plan = scheduler.plan(0.1 * step, look if begin else None)
            plans.append((plan.prompt_positions, [len(g) for g in plan.decode.values()], [*plan.codec]))
        assert seen == ([(2, 0), (1, 0)] if begin else [])
    assert plans[:3] == plans[3:]


def test_the_listener_with_least_in_hand_draws_first() -> None:
    scheduler = make(max_batch=2)
    rich = speaking(scheduler, 0.0, 40)
    poor = speaking(scheduler, 0.0, 12)
    file = speaking(scheduler, 0.0, 0, live=False)
    new = speaking(scheduler, 0.0, 0)
    new.first_audio_s = None
    plan = scheduler.plan(1.0)
    assert scheduler.ledger.all_at(plan.decoding) == [new, poor]
    assert rich.row >= 0 and file.row >= 0


def test_who_hears_it_faster_runs_dry_sooner() -> None:
    scheduler = make(max_batch=1)
    usual = speaking(scheduler, 0.0, 20)
    hasty = speaking(scheduler, 0.0, 24, playback_speed=2.0)
    assert [scheduler.slack_s(r, 1.0) for r in (usual, hasty)] == pytest.approx([1.0, 0.2])
    assert scheduler.ledger.all_at(scheduler.plan(1.0).decoding) == [hasty]


def test_priority_outranks_slack() -> None:
    scheduler = make(max_batch=1)
    poor = speaking(scheduler, 0.0, 11)
    vip = speaking(scheduler, 0.0, 45, priority=1)
    drawn = poor.launched
    assert scheduler.ledger.all_at(scheduler.plan(1.0).decoding) == [vip]
    assert poor.launched == drawn


def test_the_first_in_line_waits_for_blocks_and_is_not_overtaken() -> None:
    scheduler = make(blocks=21)
    running = ask(scheduler, 0, length=5, frames=30)
    scheduler.plan(0)
    big, small = ask(scheduler, 1, length=40, frames=20), ask(scheduler, 2, length=5, frames=1)
    scheduler.plan(0)
    assert (running.state, big.state, small.state) == (State.PREFILL, State.WAITING, State.WAITING)
    scheduler.release(running)
    scheduler.plan(0)
    assert (big.state, small.state) == (State.PREFILL, State.PREFILL)


def test_frames_never_outgrow_their_ring() -> None:
    scheduler = make(codec_batch_s=1.6)
    request = speaking(scheduler, 0.0, 0, live=False)
    for _ in range(60):
        scheduler.plan(0)
        assert request.launched - request.vocoded < scheduler.sizes.ring
    assert request.launched == 51  # its 50 frames, and the draw that tells a stop from a cut at the limit


@pytest.mark.parametrize(("vocoded", "frames"), [(1, 1), (6, 6), (40, 16)])
def test_a_new_voices_own_sound_waits_for_those_who_listen_already(vocoded: int, frames: int) -> None:
    scheduler = make()
    speaking(scheduler, 0.0, vocoded)  # frames of 100 ms
    scheduler.telemetry.decode_s.add(0.01)
    scheduler.telemetry.vocode_s.add(0.045)
    ask(scheduler, 1)
    assert scheduler.plan(0.05).preroll_frames == frames


def test_a_new_voices_own_sound_waits_for_nobody_where_nobody_listens() -> None:
    scheduler = make()
    scheduler.telemetry.vocode_s.add(0.02)
    ask(scheduler, 1)
    assert scheduler.plan(0.0).preroll_frames == 16
