"""Everything that was found in a trace, as data for the table, the page, JSON, and comparisons."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sonant.profiling import rules
from sonant.profiling.analysis import Analysis, analyze
from sonant.profiling.events import OnRead, TraceError
from sonant.profiling.finding import Finding
from sonant.profiling.gaps import busy_union
from sonant.profiling.kernels import ORDER, Work, short
from sonant.profiling.metrics import MEANING, measure
from sonant.profiling.read import read_trace
from sonant.profiling.steps import StepKind
from sonant.strict import build

FORMAT = "sonant-profile/1"
_KERNELS = 60
_STEP_TIMES = 20_000


@dataclass(frozen=True)
class StepKindSummary:
    """Steps of one kind. Times are totals, so that what happens once is not mistaken for what repeats."""

    phase: str
    steps: int
    wall_ms: float
    busy_ms: float
    by_work_ms: dict[str, float]


@dataclass(frozen=True)
class KernelRow:
    name: str
    work: str
    count: float  # in a steady step
    us: float  # in a steady step, without the time that earlier work covers
    source: str | None


@dataclass(frozen=True)
class ProfileReport:
    trace: str
    made_by: str
    gpu: str | None
    steps_by: str
    phases: list[StepKindSummary]
    step_us: list[float]  # every steady step, in order
    metrics: dict[str, float]  # of a steady step, on average
    by_work_us: dict[str, float]
    kernels: list[KernelRow]
    findings: list[Finding]
    remarks: list[str]
    format: str = FORMAT

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "findings": [finding.to_json() for finding in self.findings]}

    @classmethod
    def from_json(cls, data: object) -> ProfileReport:
        """Raises `ValueError` with the place of what is wrong."""
        report = build(cls, data, "report")
        if not report.step_us or not MEANING.keys() <= report.metrics.keys():
            raise ValueError("it has no steps, or not all figures of a step")
        return report


def make_report(analysis: Analysis, name: str) -> ProfileReport:
    if not analysis.count:
        raise TraceError(f"{name} holds no steady steps: record longer, after the warm-up")
    times = analysis.windows_ns[:_STEP_TIMES] / 1e3
    return ProfileReport(
        trace=name,
        made_by=analysis.trace.made_by,
        gpu=analysis.trace.gpu.name if analysis.trace.gpu else None,
        steps_by=analysis.steps.how,
        phases=_by_kind(analysis),
        step_us=[round(float(t), 3) for t in times],
        metrics=measure(analysis),
        by_work_us=_by_work(analysis),
        kernels=_kernels(analysis),
        findings=rules.apply(analysis),
        remarks=_remarks(analysis),
    )


def load_report(path: Path, on_read: OnRead = lambda share: None, **options: Any) -> ProfileReport:
    """A report that was saved as JSON, or one made now from a trace."""
    try:
        with path.open("rb") as file:
            ours = b'"format": "sonant-profile' in file.read(200)
    except OSError as e:
        raise TraceError(f"{path} cannot be read: {e.strerror}") from e
    if not ours:
        return make_report(analyze(read_trace(path, on_read), **options), str(path))
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise TraceError(f"{path} is a report of another version ({data['format']}); read its trace again")
        return ProfileReport.from_json(data)
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise TraceError(f"{path} is a damaged report ({e}); read its trace again") from e


def save_report(report: ProfileReport, path: Path) -> None:
    data = report.to_json()
    path.write_text(json.dumps({"format": data.pop("format"), **data}, indent=1), encoding="utf-8")


def _by_kind(analysis: Analysis) -> list[StepKindSummary]:
    device, steps = analysis.trace.device, analysis.steps
    kinds = np.array([list(StepKind).index(kind) for kind in steps.kind_of_events(device)])
    rows = []
    for code, kind in enumerate(StepKind):
        mine = np.flatnonzero(kinds == code)
        if not len(mine):
            continue
        starts, ends = busy_union(device.start[mine], device.end[mine])
        picked = steps.indices(kind)
        wall = (steps.end - steps.start)[picked].sum() if len(picked) else ends[-1] - starts[0]
        time = np.bincount(analysis.works.code[mine], analysis.added[mine], len(ORDER)) / 1e6
        by_work = {str(work): round(float(ms), 4) for work, ms in zip(ORDER, time, strict=True) if ms}
        rows.append(
            StepKindSummary(str(kind), len(picked), float(wall) / 1e6, float((ends - starts).sum()) / 1e6, by_work)
        )
    return rows


def _by_work(analysis: Analysis) -> dict[str, float]:
    events = analysis.steady()
    time = np.bincount(analysis.works.code[events], analysis.added[events], len(ORDER)) / analysis.count / 1e3
    pairs = [(str(work), round(float(us), 3)) for work, us in zip(ORDER, time, strict=True) if us]
    return dict(sorted(pairs, key=lambda pair: -pair[1]))


def _kernels(analysis: Analysis) -> list[KernelRow]:
    events, device = analysis.steady(), analysis.trace.device
    names, place = np.unique(device.name[events], return_inverse=True)
    time, count = np.bincount(place, analysis.added[events]), np.bincount(place)
    rows = []
    for i in np.argsort(-time, kind="stable")[:_KERNELS]:
        example = int(events[int(np.argmax(place == i))])
        work = ORDER[int(analysis.works.code[example])]
        us, each = float(time[i]) / analysis.count / 1e3, float(count[i]) / analysis.count
        rows.append(
            KernelRow(short(analysis.trace.names[names[i]], 100), str(work), each, us, analysis.source_of([example]))
        )
    return rows


def _remarks(analysis: Analysis) -> list[str]:
    remarks = [*analysis.trace.remarks, *analysis.steps.remarks]
    if analysis.trace.stand_in:
        remarks.append("no GPU work in this trace: operators on the CPU stand in for kernels")
    elif not len(analysis.trace.runtime):
        remarks.append("no CUDA calls in this trace: waits, launches and pauses cannot be told")
    if analysis.bandwidth is None and not analysis.trace.stand_in:
        remarks.append("the GPU's bandwidth is not known: give it with --bandwidth for the roofline")
    remarks.append(_fills(analysis))
    return [remark for remark in remarks if remark]


def _fills(analysis: Analysis) -> str:
    """A remark on memory that is filled once, before the first step, often mistaken for a cost of serving."""
    device = analysis.trace.device
    before = device.start < analysis.steps.start[0]
    fills = analysis.works.among([Work.FILL])
    once, steady = int(device.duration[fills & before].sum()), int(device.duration[analysis.steady(Work.FILL)].sum())
    total = int(device.duration.sum())
    if once < 0.01 * total:
        return ""
    return (
        f"fills before the first step took {once / 1e6:.1f} ms, {100 * once / total:.0f} % of all device time in this "
        f"trace; that is start-up cost, paid once. In the steady state fills are "
        f"{100 * steady / max(1, analysis.count * analysis.step_ns):.1f} % of a step"
    )
