"""A trace is cut into steps, and each is of the right kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from profiling.plays import STEP, item, prefill, start_up, steps, zeros
from profiling.scripted import ADD, FILL, GEMM, SAMPLE, STREAM, Machine, write_kineto
from sonant.profiling.analysis import Analysis, analyze
from sonant.profiling.events import TraceError
from sonant.profiling.read import read_trace
from sonant.profiling.report import ProfileReport, make_report
from sonant.profiling.steps import StepKind

Analyzed = Callable[..., Analysis]  # (machine, step_name=None)


@pytest.fixture
def analyzed(tmp_path: Path) -> Analyzed:
    def make(machine: Machine, step_name: str | None = None) -> Analysis:
        return analyze(read_trace(write_kineto(machine, tmp_path / "trace.json")), step_name=step_name)

    return make


def report(analysis: Analysis) -> ProfileReport:
    return make_report(analysis, "trace")


def by_work_ms(found: ProfileReport, name: StepKind) -> dict[str, float]:
    return next(p.by_work_ms for p in found.phases if p.phase == name)


@pytest.mark.parametrize("annotate", [True, False])
@pytest.mark.parametrize("graphs", [True, False])
def test_steps_are_found_by_range_graph_or_sequence(analyzed: Analyzed, annotate: bool, graphs: bool) -> None:
    machine = steps(prefill(start_up(Machine()), annotate), 24, graphs=graphs, annotate=annotate)
    found = analyzed(machine)
    expected = "range sonant.step" if annotate else "graph launches" if graphs else "repeating kernels"
    assert found.steps.how.startswith(expected)
    assert 22 <= found.count <= 24
    assert found.step_ns / 1e3 == pytest.approx(2598, rel=0.02)
    assert by_work_ms(report(found), StepKind.STARTUP)["fill"] == pytest.approx(60.5, rel=0.01)
    assert "fill" not in by_work_ms(report(found), StepKind.DECODE)


def test_filling_a_cache_at_start_is_no_cost_of_a_step(analyzed: Analyzed) -> None:
    """The well-known mistake is to count it: 54 % of this trace is zeroing, and none of that is serving."""
    found = report(analyzed(steps(start_up(Machine()))))
    assert found.metrics["fills"] == 0
    assert not [f for f in found.findings if f.rule == "fills"]
    (told,) = [remark for remark in found.remarks if "fills before the first step" in remark]
    assert "60.5 ms, 54 % of all device time" in told and "start-up cost" in told and "0.0 % of a step" in told


def test_filling_in_every_step_beside_one_at_start_is_told_apart(analyzed: Analyzed) -> None:
    found = report(analyzed(steps(start_up(Machine()), wastes=[zeros])))
    (fills,) = [f for f in found.findings if f.rule == "fills"]
    assert fills.count == 1 and fills.lost_us == pytest.approx(240, abs=1)
    assert by_work_ms(found, StepKind.STARTUP)["fill"] == pytest.approx(60.5, rel=0.01)


def test_prefill_between_steps_is_reported_apart(analyzed: Analyzed) -> None:
    # Without ranges the first decode step counts as part of it; 2 µs of a product overlap the copy before it.
    for annotate, products in ((True, 3.598), (False, 5.066)):
        machine = steps(start_up(Machine()), 12, annotate=annotate)
        steps(prefill(machine, annotate), 12, annotate=annotate)
        found = analyzed(machine)
        assert len(found.steps.indices(StepKind.PREFILL)) == 1
        assert found.count >= 22
        assert report(found).metrics["kernels"] == 38
        assert by_work_ms(report(found), StepKind.PREFILL)["matrix product"] == pytest.approx(products, abs=5e-4)


def test_steps_that_capture_or_crawl_at_the_beginning_are_warm_up(analyzed: Analyzed) -> None:
    machine = Machine()
    for _ in range(2):
        with machine.range("sonant.step rows=4 bucket=4 prefill=0 codec=4"):
            machine.call("cudaStreamBeginCapture", 20.0)
            machine.call("cudaGraphInstantiate", 9000.0)
            machine.graph(STEP)
    found = analyzed(steps(machine, 20))
    assert found.steps.kinds[:3] == (StepKind.WARMUP, StepKind.WARMUP, StepKind.DECODE)
    assert report(found).metrics["captures"] == 0


def test_a_capture_in_the_middle_is_waste(analyzed: Analyzed) -> None:
    machine = steps(Machine(), 15)
    with machine.range("sonant.step rows=5 bucket=8 prefill=0 codec=4"):
        machine.wait("cudaDeviceSynchronize")
        machine.call("cudaStreamBeginCapture", 50.0)
        machine.call("cudaGraphInstantiate", 20_000.0)
        machine.graph(STEP)
    found = report(analyzed(steps(machine, 15)))
    (capture,) = [f for f in found.findings if f.rule == "preparation"]
    assert capture.lost_us * len(found.step_us) == pytest.approx(20_050, rel=0.01)


@pytest.mark.parametrize(
    ("label", "prefill_label"),
    [
        ("execute_context_0(0)_generation_4(4)", "execute_context_1(300)_generation_3(3)"),
        ("step[DECODE bs=4]", "step[EXTEND bs=1 toks=300]"),
    ],
    ids=["vLLM", "SGLang"],
)
def test_other_engines_ranges_are_known(analyzed: Analyzed, label: str, prefill_label: str) -> None:
    machine = steps(Machine(), 8, label=label)
    with machine.range(prefill_label):
        machine.kernel("flash_fwd_kernel", 900.0)
    found = analyzed(steps(machine, 8, label=label))
    assert found.count == 16 and len(found.steps.indices(StepKind.PREFILL)) == 1


def test_a_range_can_be_named(analyzed: Analyzed) -> None:
    machine = steps(Machine(), 10, label="my loop")
    assert analyzed(machine, "my loop").steps.how == "range my loop"
    with pytest.raises(TraceError, match=r"no range is called 'mine' in this trace; there are: my loop"):
        analyzed(machine, "mine")


def test_layers_are_not_mistaken_for_steps(analyzed: Analyzed) -> None:
    machine = Machine()
    for _ in range(10):
        for _ in range(28):
            for name in (GEMM, "_attention", "_rms_norm", ADD):
                machine.kernel(name, 20.0)
        for name in ("lm_head_gemm", "cunn_SoftMaxForward", SAMPLE):
            machine.kernel(name, 20.0)
    found = analyzed(machine)
    assert found.steps.how == "repeating kernels" and found.count == 9  # the last step may be cut off
    assert report(found).metrics["kernels"] == 28 * 4 + 3


def test_waiting_for_requests_is_not_idle_time_of_a_step(analyzed: Analyzed) -> None:
    machine = steps(Machine(), 10)
    machine.host = max(machine.host, machine.free[STREAM]) + 400_000.0
    found = analyzed(steps(machine, 10))
    assert found.step_ns / 1e3 == pytest.approx(2598, rel=0.02)
    assert any("waits for requests" in remark for remark in report(found).remarks)


def test_a_step_thread_that_cupti_calls_by_another_number_is_recognised(analyzed: Analyzed) -> None:
    machine = steps(start_up(Machine()), wastes=[item])
    for event in machine.events:
        if event["cat"] == "cuda_runtime":
            event["tid"] = 1_234_567
    found = analyzed(machine)
    assert found.count == 20 and report(found).metrics["syncs"] == 1
    assert {f.rule: f.source for f in report(found).findings}["syncs"] == "aten::item at stop.py(12): stopped"


def test_ranges_of_a_thread_that_launches_nothing_are_no_steps(analyzed: Analyzed) -> None:
    machine, other = steps(Machine(), annotate=False), Machine(thread=99, last_id=10_000)
    for _ in range(10):
        with other.range("step"), other.op("aten::nothing"):
            other.host += 100.0
    with machine.op("aten::op"):
        machine.events += other.events
    assert analyzed(machine).steps.how == "graph launches"
    assert analyzed(machine, "step").steps.how == "none"  # though they were asked for by name


def test_a_trace_without_steps_is_looked_at_as_one(analyzed: Analyzed) -> None:
    machine = Machine()
    machine.kernel(FILL, 100.0)
    machine.kernel(GEMM, 300.0)
    found = report(analyzed(machine))
    assert found.steps_by == "none" and any("--step" in remark for remark in found.remarks)
    assert found.metrics["fills"] == 1
