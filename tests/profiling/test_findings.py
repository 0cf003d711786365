"""Planted waste is found, named and measured, each alone and all together; a clean engine is left in peace."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiling.plays import WASTE, start_up, steps
from profiling.scripted import ADD, COPY_STREAM, GEMM, STREAM, Machine, write_kineto, write_nsight
from sonant.profiling.analysis import analyze
from sonant.profiling.finding import Finding
from sonant.profiling.read import read_trace
from sonant.profiling.rules import apply

# What each waste costs the device in a step, in microseconds; a sync costs the time until the device has work again.
COST_US = {"zeros": 240, "item": 12, "pageable copy": 700, "chain": 497.5, "allocation": 900, "pause": 2000}


def findings(machine: Machine, folder: Path) -> dict[str, Finding]:
    found = apply(analyze(read_trace(write_kineto(machine, folder / "trace.json"))))
    assert len({f.rule for f in found}) == len(found)
    return {f.rule: f for f in found}


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_a_clean_engine_has_no_finding_over_one_percent(tmp_path: Path, graphs: bool) -> None:
    found = findings(steps(start_up(Machine()), graphs=graphs), tmp_path)
    assert max(f.share for f in found.values()) < 0.01, found


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("name", WASTE)
def test_waste_is_found_alone(tmp_path: Path, name: str, graphs: bool) -> None:
    waste, rule, source = WASTE[name]
    found = findings(steps(start_up(Machine()), wastes=[waste], graphs=graphs), tmp_path)
    assert rule in found
    hit = found[rule]
    assert hit.lost_us == pytest.approx(COST_US[name], rel=0.1, abs=3)
    assert hit.source is not None and source in hit.source
    assert hit.count >= 1 and hit.fix and hit.evidence and hit.marks
    if name != "item":
        assert hit is max(found.values(), key=lambda f: f.lost_us)


def test_waits_for_weights_are_named(tmp_path: Path) -> None:
    def waits(m: Machine) -> None:
        m.kernel("_weights_wanted", 2.0, op=None)
        m.free[STREAM] += 300.0
        m.kernel("_weights_there", 2.0, op=None)

    found = findings(steps(start_up(Machine()), wastes=[waits]), tmp_path)
    assert found["weight_waits"].lost_us == pytest.approx(300, rel=0.05)
    assert "gpu_weights" in found["weight_waits"].fix and found["weight_waits"].count == 1
    assert found["weight_waits"].evidence[0].us == pytest.approx(300, rel=0.05)
    assert "weight_waits" not in findings(steps(start_up(Machine())), tmp_path)


def test_all_waste_together_is_found_and_nothing_is_counted_twice(tmp_path: Path) -> None:
    clean = analyze(read_trace(write_kineto(steps(start_up(Machine())), tmp_path / "clean.json")))
    machine = steps(start_up(Machine()), wastes=[waste for waste, _, _ in WASTE.values()])
    analysis = analyze(read_trace(write_kineto(machine, tmp_path / "all.json")))
    found = {f.rule: f for f in apply(analysis)}
    for name, (_, rule, source) in WASTE.items():
        assert rule in found, name
        assert any(source in (e.source or "") for e in found[rule].evidence), name
    # Fused, the chain would still be one kernel; all other time that the step grew by is part of a finding.
    grown_us = (analysis.step_ns - clean.step_ns) / 1e3
    assert sum(f.lost_us for f in found.values() if not f.at_most) == pytest.approx(grown_us, rel=0.02)


def test_waste_is_found_in_an_nsight_trace(tmp_path: Path) -> None:
    machine = steps(start_up(Machine()), wastes=[waste for waste, _, _ in WASTE.values()])
    found = {f.rule: f for f in apply(analyze(read_trace(write_nsight(machine, tmp_path / "trace.sqlite"))))}
    assert {rule for _, rule, _ in WASTE.values()} <= found.keys()
    assert found["syncs"].count == pytest.approx(3, abs=0.1)


def test_a_wait_that_leaves_the_device_work_is_no_finding(tmp_path: Path) -> None:
    found = findings(steps(Machine()), tmp_path)
    assert "syncs" not in found  # though every step waits for the one before


def test_a_copy_beside_other_work_costs_nothing(tmp_path: Path) -> None:
    machine = Machine()
    for _ in range(20):
        with machine.range("sonant.step rows=1 bucket=1 prefill=0 codec=1"):
            machine.kernel(GEMM, 3000.0, STREAM)
            machine.copy("DtoH", "Device", "Pinned", 1 << 20, 50.0, stream=COPY_STREAM)
    found = findings(machine, tmp_path)
    assert found["to_host"].count == 1 and found["to_host"].lost_us < 1


def test_a_host_that_cannot_keep_up_is_told(tmp_path: Path) -> None:
    machine = Machine()
    for _ in range(20):
        with machine.range("sonant.step rows=1 bucket=1 prefill=0 codec=1"), machine.python("model.py(7): forward"):
            for _ in range(100):
                machine.kernel(GEMM, 3.5)
    found = findings(machine, tmp_path)["launch_bound"]
    assert found.share > 0.4 and found.source == "model.py(7): forward"
    assert 90 <= found.count <= 100  # a gap counts once, however many calls and pauses it has


def test_a_gap_with_many_calls_in_it_is_one_gap(tmp_path: Path) -> None:
    machine = Machine()
    for _ in range(20):
        with machine.range("sonant.step rows=1 bucket=1 prefill=0 codec=1"):
            for _ in range(50):
                for _ in range(4):
                    machine.call("cudaStreamIsCapturing", 5.0)
                    machine.host += 5.0
                machine.kernel(GEMM, 3.5)
    found = findings(machine, tmp_path)["launch_bound"]
    assert found.count == pytest.approx(50, abs=1) and found.evidence[0].what == "gaps 10 to 100 µs"


def test_a_pause_without_a_stack_is_told_by_what_follows_it(tmp_path: Path) -> None:
    machine = Machine()
    for _ in range(20):
        with machine.range("sonant.step rows=1 bucket=1 prefill=0 codec=1"):
            machine.kernel(GEMM, 50.0)
            machine.host += 500.0
            machine.kernel(ADD, 50.0, op="aten::add_")
    found = findings(machine, tmp_path)["pauses"]
    assert found.evidence[0].what == "before aten::add_" and found.evidence[0].count == pytest.approx(1, abs=0.1)


def test_casts_copies_and_joins_are_told_apart(tmp_path: Path) -> None:
    cast = "void at::native::unrolled_elementwise_kernel<at::native::bfloat16_copy_kernel_cuda(TensorIteratorBase&)>"
    copy = "void at::native::elementwise_kernel<128, 4, gpu_kernel_impl<at::native::direct_copy_kernel_cuda(x)> >"
    cat = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<2u>, unsigned int, 3, 64, 64>"

    def moving(m: Machine) -> None:
        for name in (cast, copy, copy, cat):
            m.kernel(name, 40.0)

    found = findings(steps(Machine(), wastes=[moving]), tmp_path)["copies"]
    assert "2 × copy on the device, 1 × cast, 1 × concatenation" in found.title
    assert found.lost_us == pytest.approx(160, abs=1)


def test_a_known_chain_names_its_fused_form(tmp_path: Path) -> None:
    def snake(m: Machine) -> None:
        for part in ("exp", "mul", "sin", "pow", "add"):
            m.kernel(f"void at::native::vectorized_elementwise_kernel<4, at::native::{part}_kernel_cuda>", 30.0)

    found = findings(steps(Machine(), wastes=[snake]), tmp_path)["chains"]
    assert "SnakeBeta" in found.fix and found.lost_us == pytest.approx(120, abs=1)


def test_small_kernels_are_a_bound_and_not_a_measurement(tmp_path: Path) -> None:
    def small(m: Machine) -> None:
        m.graph([("_rms_norm", 2.0), (GEMM, 2.5)] * 30, graph_id=3)

    found = findings(steps(Machine(), wastes=[small]), tmp_path)["tiny_kernels"]
    assert found.at_most and found.count == 60 and found.lost_us == pytest.approx(135, abs=1)


def test_padding_is_told_where_the_engine_says_its_rows(tmp_path: Path) -> None:
    found = findings(steps(Machine(), label="sonant.step rows=9 bucket=12 prefill=0 codec=9"), tmp_path)["padding"]
    assert found.title == "25 % of the rows are padding" and found.at_most
    assert found.lost_us == pytest.approx(0.25 * 2590, rel=0.01)


def test_slow_products_are_held_against_the_roofline(tmp_path: Path) -> None:
    """8 MB in 110 µs is 76 GB/s of 4.8 TB/s; bytes come from the eager trace, times from the one with graphs."""
    eager = Machine()
    for _ in range(8):
        with eager.range("sonant.step rows=1 bucket=1 prefill=0 codec=1"), eager.python("layers/linear.py(3): forward"):
            for _ in range(13):
                eager.kernel(GEMM, 500.0, op="aten::mm", dims=[[1, 2048], [2048, 2048]])
    mapping = read_trace(write_kineto(eager, tmp_path / "eager.json"))
    timing = read_trace(write_kineto(steps(Machine()), tmp_path / "graphs.json"))
    assert "low_bandwidth" not in {f.rule for f in apply(analyze(timing))}
    found = {f.rule: f for f in apply(analyze(timing, mapping=mapping))}["low_bandwidth"]
    assert found.source == "aten::mm at layers/linear.py(3): forward"
    assert found.evidence[0].what.endswith("2 % of peak at 8.39 MB")
    assert found.lost_us == pytest.approx(12 * 110 + 150 - 13 * 1.94, rel=0.01)


def test_work_of_other_threads_is_kept_apart(tmp_path: Path) -> None:
    machine = steps(Machine())
    other = Machine(thread=99, last_id=50_000, host=5000.0)
    for _ in range(10):
        other.kernel(ADD, 20.0, stream=21)
    machine.events += other.events
    analysis = analyze(read_trace(write_kineto(machine, tmp_path / "trace.json")))
    assert "chains" not in {f.rule for f in apply(analysis)}
