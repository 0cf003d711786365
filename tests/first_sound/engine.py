"""An engine's process that takes notes, also of the GPU if there is one."""

from __future__ import annotations

import sys
from functools import partial
from types import MethodType
from typing import Any

from first_sound.marks import Marks
from sonant.serving.processes import engine_process


def install(marks: Marks) -> None:
    """Called once torch is imported: that takes seconds, and must not come before the compiler's process is started."""
    from sonant.engine.graphs import PrefillGraphs
    from sonant.engine.loop import StepLoop
    from sonant.engine.output import OutputRing
    from sonant.engine.runner import Runner
    from sonant.engine.scheduler import Scheduler
    from sonant.serving.channel.engine_port import EnginePort
    from sonant.serving.channel.front_end_peer import FrontEndPeer

    def planned(_: Any, plan: Any) -> Any:
        codec = {frames: len(group) for frames, group in plan.codec.items()}
        return len(plan.prefill), sum(end - start for _, start, end in plan.prefill), len(plan.decoding), codec

    marks.around(FrontEndPeer, "_admit", "asked for", None)
    marks.around(FrontEndPeer, "_speak", "prompt in", "queued")
    marks.around(Scheduler, "plan", "plan", "planned", planned)
    marks.around(Scheduler, "_plan_prefill", "shared", "prompts")
    marks.around(PrefillGraphs, "__call__", "staged", "prefill launched")
    marks.around(Runner, "launch", None, "launched")
    marks.around(Runner, "collect", None, "booked")
    wait = OutputRing.wait

    def waited(*args: Any) -> None:
        marks.note("wait")
        wait(*args)
        marks.note("waited")

    OutputRing.wait = staticmethod(waited)  # type: ignore[method-assign]
    marks.around(StepLoop, "_collect", None, "told")
    marks.around(EnginePort, "_flush", "flush", "flushed")


def note_device(marks: Marks, runner: Any) -> None:
    """Note for each step with prompts when the device was done with prompts, frame and sound, in ms since its start."""
    import torch

    begin, launch, prefill, took = runner.begin, runner.launch, runner.prefill, runner.telemetry.took
    events: list[Any] = []

    def record() -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        events.append(event)

    def noted_begin(plan: Any) -> None:
        events.clear()
        if plan.prefill:
            record()
        begin(plan)

    def noted_launch(plan: Any, ledger: Any) -> Any:
        step = launch(plan, ledger)
        if not plan.prefill:
            return step
        record()
        marks.note("device", DeviceTimes(list(events)))
        events.clear()
        return step

    def noted_prefill(items: Any) -> None:
        prefill(items)
        record()

    def noted_took(phase: Any, **options: Any) -> Any:
        if phase == "frame" and events:
            record()
        return took(phase, **options)

    runner.begin, runner.launch, runner.prefill = noted_begin, noted_launch, noted_prefill
    runner.telemetry.took = noted_took


class DeviceTimes:
    """CUDA events that become times only when they are written."""

    def __init__(self, events: list[Any]) -> None:
        self.events = events

    def to_json(self) -> list[float]:
        self.events[-1].synchronize()
        return [self.events[0].elapsed_time(event) for event in self.events[1:]]


def ways(engine: Any) -> list[Any]:
    """Return the ways that `Marks` goes through: the engine works as it does now, or as it did before."""
    from sonant.engine import runner as runner_module
    from sonant.engine import scheduler
    from sonant.serving.channel.engine_port import EnginePort

    runner = engine.loop.runner
    flush_soon, margin, few = EnginePort._flush_soon, scheduler.BURST_MARGIN, runner_module._FEW_ROWS
    prefill, begin, switch_s = runner.prefill, engine.loop._begin, sys.getswitchinterval()
    all_sizes = dict(prefill.captured)
    few_sizes = {bucket: graph for bucket, graph in all_sizes.items() if bucket[0] <= 16}

    def flush_in_turn(port: EnginePort, _: bool) -> None:
        flush_soon(port, False)

    def work(now: bool) -> None:
        sys.setswitchinterval(switch_s if now else 5e-4)
        prefill.captured = all_sizes if now else few_sizes
        engine.loop._begin = begin if now else None
        scheduler.BURST_MARGIN, runner_module._FEW_ROWS = (margin, few) if now else (1e9, 0)
        port = engine.loop.after_delivery.__self__
        engine.loop.after_delivery = MethodType(flush_soon if now else flush_in_turn, port)

    return [partial(work, True), partial(work, False)]


def main() -> int:
    marks = Marks("engine")
    serve = engine_process._serve

    def with_marks(setup: Any) -> int:
        from sonant.serving import warm_up

        ready = warm_up.warm_up

        def then_install(engine: Any) -> None:
            ready(engine)
            install(marks)
            marks.ways = ways(engine)
            if engine.device.type == "cuda":
                note_device(marks, engine.loop.runner)

        warm_up.warm_up = then_install
        return serve(setup)

    engine_process._serve = with_marks
    return engine_process.main()


if __name__ == "__main__":
    sys.exit(main())
