"""What is made of a trace: text, a page, a marked trace, a comparison, a budget."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

from profiling.plays import WASTE, item, start_up, steps, zeros
from profiling.scripted import ADD, ATTENTION, GEMM, Machine, write_kineto
from sonant.errors import ConfigError
from sonant.profiling.analysis import Analysis, analyze
from sonant.profiling.budget import broken_limits, parse_budget
from sonant.profiling.diff import compare, diff_text, median_ratio
from sonant.profiling.events import TraceError
from sonant.profiling.finding import times
from sonant.profiling.page import write_page
from sonant.profiling.perfetto import write_perfetto
from sonant.profiling.read import read_trace
from sonant.profiling.report import ProfileReport, load_report, make_report, save_report
from sonant.profiling.table import report_text


def analysis_of(machine: Machine, folder: Path) -> Analysis:
    return analyze(read_trace(write_kineto(machine, folder / "trace.json")))


@pytest.fixture(scope="module")
def wasteful(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    machine = steps(start_up(Machine()), wastes=[waste for waste, _, _ in WASTE.values()])
    return analysis_of(machine, tmp_path_factory.mktemp("wasteful"))


def test_kernels_that_start_before_the_one_ahead_ends_are_not_counted_twice(tmp_path: Path) -> None:
    machine = start_up(Machine())
    for _ in range(20):
        with machine.range("sonant.step rows=1"):
            machine.graph([(GEMM, 100.0), (ATTENTION, 100.0)] * 5, early=40.0)
        machine.wait()
    report = make_report(analysis_of(machine, tmp_path), "trace.json")
    assert sum(report.by_work_us.values()) == pytest.approx(report.metrics["busy_us"], rel=0.01)
    assert sum(row.us for row in report.kernels) == pytest.approx(report.metrics["busy_us"], rel=0.01)
    assert report.by_work_us["attention"] == pytest.approx(5 * 60, rel=0.01)
    decoding = next(phase for phase in report.phases if phase.phase == "decode")
    assert sum(decoding.by_work_ms.values()) == pytest.approx(decoding.busy_ms, rel=0.01)


def test_the_text_has_the_dearest_finding_first_and_hides_trifles(wasteful: Analysis) -> None:
    report = make_report(wasteful, "trace.json")
    text = report_text(report)
    order = re.findall(r"\[(\w+)\]", text)
    assert order[:5] == ["pauses", "allocations", "pageable", "chains", "fills"] and "syncs" not in order
    assert "findings under 1 % of a step" in text and "json/encoder.py(183): encode" in text
    assert "[syncs]" in report_text(report, everything=True)


def test_large_counts_are_written_out(tmp_path: Path) -> None:
    machine = Machine()
    for _ in range(6):
        with machine.range("sonant.step rows=1"):
            for _ in range(1100):
                machine.kernel(GEMM, 2.0)
    text = report_text(make_report(analysis_of(machine, tmp_path), "trace.json"))
    assert re.search(r"1,\d{3} × a step", text) and "e+0" not in text


def test_the_largest_kernels_and_what_is_needless_are_named(wasteful: Analysis) -> None:
    report = make_report(wasteful, "t")
    text = report_text(report)
    names = {"fills": "fill", "cats": "concatenation", "copies": "copy", "casts": "cast", "syncs": "sync"}
    told = ", ".join(f"{times(report.metrics[name])} {word}" for name, word in names.items())
    assert f"in a steady step: {told}\n" in text and report.metrics["fills"] > 0 and report.metrics["syncs"] > 0
    shown = text.partition("largest kernels")[2].partition("\n\n")[0].splitlines()[1:]
    assert len(shown) == 3
    for line, kernel in zip(shown, report.kernels, strict=False):
        assert line.startswith(kernel.name) and f"{kernel.us:,.1f}" in line
    times_us = [kernel.us for kernel in report.kernels]
    assert times_us == sorted(times_us, reverse=True)


def test_the_page_needs_nothing_else_and_cannot_be_broken_by_a_name(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><!--"
    machine = Machine()
    for _ in range(8):
        with machine.range("sonant.step rows=1 bucket=1 prefill=0 codec=1"):
            machine.kernel(evil, 50.0)
    analysis = analysis_of(machine, tmp_path)
    write_page(analysis, make_report(analysis, "evil"), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert not re.search(r"(src|href)\s*=|https?:|@import|url\(", page.replace(evil, ""))
    assert "</script><script>alert" not in page
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page, re.DOTALL)[0])
    assert data["report"]["kernels"][0]["name"].startswith("</script>")
    assert evil in data["timeline"]["names"]


def test_the_page_has_the_timeline_of_some_steps(wasteful: Analysis, tmp_path: Path) -> None:
    write_page(wasteful, make_report(wasteful, "t"), tmp_path / "page.html")
    data = json.loads(re.findall(r'id="data">(.*?)</script>', (tmp_path / "page.html").read_text(), re.DOTALL)[0])
    timeline = data["timeline"]
    lanes = {lane["name"]: lane["spans"] for lane in timeline["lanes"]}
    assert {"stream 7", "stream 13", "CUDA calls"} <= lanes.keys()
    for spans in lanes.values():
        assert [s[0] for s in spans] == sorted(s[0] for s in spans)
    assert {"fills", "pauses", "syncs"} <= {mark["rule"] for mark in timeline["marks"]}


def test_the_marked_trace_loads_and_shows_findings_where_they_are(wasteful: Analysis, tmp_path: Path) -> None:
    report = make_report(wasteful, "t")
    write_perfetto(wasteful, report.findings, tmp_path / "marked.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "marked.json.gz").read_bytes()))["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert all(e["dur"] >= 0 and {"name", "ts", "pid", "tid"} <= e.keys() for e in spans)
    fills = [(e["ts"], e["dur"]) for e in spans if e["name"].startswith("memory is filled")]
    kernels = [(e["ts"], e["dur"]) for e in spans if "FillFunctor" in e["name"]]
    assert fills and fills == kernels


def test_a_saved_report_is_the_same_report(tmp_path: Path) -> None:
    report = report_of(steps(start_up(Machine()), 8, wastes=[zeros, item]), tmp_path)
    save_report(report, tmp_path / "report.json")
    assert load_report(tmp_path / "report.json") == report
    assert load_report(tmp_path / "trace.json").metrics == report.metrics  # a trace can take a report's place


def test_a_damaged_report_is_told(wasteful: Analysis, tmp_path: Path) -> None:
    save_report(make_report(wasteful, "t"), tmp_path / "report.json")
    text = (tmp_path / "report.json").read_text()
    (tmp_path / "cut.json").write_text(text[:-100])
    with pytest.raises(TraceError, match="damaged report"):
        load_report(tmp_path / "cut.json")
    (tmp_path / "old.json").write_text(text.replace("sonant-profile/1", "sonant-profile/0"))
    with pytest.raises(TraceError, match="another version"):
        load_report(tmp_path / "old.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [("step_us", []), ("step_us", ["soon"]), ("metrics", {}), ("findings", [{"rule": "fills"}]), ("kernels", None)],
)
def test_a_report_with_a_wrong_field_is_damaged(wasteful: Analysis, tmp_path: Path, field: str, value: object) -> None:
    save_report(make_report(wasteful, "t"), tmp_path / "report.json")
    data = json.loads((tmp_path / "report.json").read_text())
    (tmp_path / "report.json").write_text(json.dumps({**data, field: value}))
    with pytest.raises(TraceError, match="damaged report"):
        load_report(tmp_path / "report.json")


def report_of(machine: Machine, folder: Path) -> ProfileReport:
    return make_report(analysis_of(machine, folder), "t")


def test_a_fix_shows_in_the_diff(tmp_path: Path) -> None:
    before = report_of(steps(start_up(Machine()), wastes=[zeros, item]), tmp_path)
    after = report_of(steps(start_up(Machine()), wastes=[item]), tmp_path)
    found = compare(before, after)
    assert found.verdict == "faster" and found.interval is not None
    assert found.interval == pytest.approx((-0.0839, -0.0839), abs=0.001)  # 240 of 2864 µs
    changes = {c.what: c.by for c in found.metrics}
    assert changes["fills"] == -1 and "syncs" not in changes
    assert {c.what: round(c.by) for c in found.findings}["fills"] == -240
    assert "fill" in diff_text(found) and "faster" in diff_text(found)
    assert compare(after, before).verdict == "slower"


def test_kernels_of_one_short_name_count_together_in_the_diff(tmp_path: Path) -> None:
    def add(m: Machine) -> None:
        m.kernel(ADD, 50.0)

    def add_halves(m: Machine) -> None:
        m.kernel(ADD.replace("<float>", "<c10::BFloat16>"), 10.0)

    before = report_of(steps(Machine(), wastes=[add, add_halves]), tmp_path)
    after = report_of(steps(Machine(), wastes=[add]), tmp_path)
    assert len({kernel.name for kernel in before.kernels}) == len(before.kernels) - 1
    changes = {c.what: (round(c.before), round(c.after)) for c in compare(before, after).kernels}
    assert changes == {next(k.name for k in after.kernels if "add" in k.name): (60, 50)}


def test_noise_is_not_called_a_difference() -> None:
    wrong = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        old, new = (1000 + 50 * random.standard_normal(60) for _ in range(2))
        interval = median_ratio(old, new)
        assert interval is not None
        wrong += not interval[0] <= 0 <= interval[1]
    assert wrong <= 12  # of a hundred intervals at 95 % confidence


def test_too_few_steps_are_said_to_be_too_few(tmp_path: Path) -> None:
    few = report_of(steps(Machine(), 5), tmp_path)
    assert compare(few, few).verdict == "too few steps to tell"


def test_a_budget_holds_or_tells_what_broke_it() -> None:
    metrics = {"fills": 0.0, "syncs": 1.0, "kernels": 1301.0}
    assert broken_limits("fills=0, syncs<=1, kernels<1302", metrics) == []
    broken = broken_limits("fills==0,syncs=0,kernels<=1300", metrics)
    assert [line.split(" is ")[0] for line in broken] == ["syncs", "kernels"]
    assert "kernels is 1301 a step, not <= 1300" in broken[1]


@pytest.mark.parametrize(
    "text", ["", "fills", "fills=", "fills=-1", "fills=0;syncs=0", "nonsense=0", "fills=0,,syncs=0"]
)
def test_a_budget_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_budget(text)
