"""All that was found in a trace, as data: for the table, the page, JSON, and the comparison of two."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sonant.profiling import rules
from sonant.profiling.analysis import Scene, look
from sonant.profiling.events import TraceError
from sonant.profiling.finding import Finding
from sonant.profiling.gaps import busy_union
from sonant.profiling.kernels import ORDER, Work, short
from sonant.profiling.metrics import measure
from sonant.profiling.read import read_trace
from sonant.profiling.steps import Phase

FORMAT = "sonant-profile/1"
_KERNELS = 60
_STEP_TIMES = 20_000


@dataclass(frozen=True)
class PhaseSummary:
    """One phase of the trace. Times are totals, so that what happens once is not mistaken for what repeats."""

    phase: str
    steps: int
    wall_ms: float
    busy_ms: float
    by_work_ms: dict[str, float]


@dataclass(frozen=True)
class KernelRow:
    name: str
    work: str
    count: float  # a steady step
    us: float  # a steady step, without what others before it covered
    source: str | None


@dataclass(frozen=True)
class Report:
    trace: str
    made_by: str
    gpu: str | None
    steps_by: str
    phases: list[PhaseSummary]
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
    def from_json(cls, data: dict[str, Any]) -> Report:
        return cls(
            **{
                **data,
                "phases": [PhaseSummary(**row) for row in data["phases"]],
                "kernels": [KernelRow(**row) for row in data["kernels"]],
                "findings": [Finding.from_json(row) for row in data["findings"]],
            }
        )


def make_report(scene: Scene, name: str) -> Report:
    if not scene.count:
        raise TraceError(f"{name} holds no steady steps: record longer, after the warm-up")
    times = scene.windows_ns[:_STEP_TIMES] / 1e3
    return Report(
        trace=name,
        made_by=scene.trace.made_by,
        gpu=scene.trace.gpu.name if scene.trace.gpu else None,
        steps_by=scene.steps.how,
        phases=_phases(scene),
        step_us=[round(float(t), 3) for t in times],
        metrics=measure(scene),
        by_work_us=_by_work(scene),
        kernels=_kernels(scene),
        findings=rules.apply(scene),
        remarks=_remarks(scene),
    )


def load_report(path: Path, progress: Callable[[float], None] = lambda share: None, **options: Any) -> Report:
    """A report that was saved as JSON, or one made now from a trace."""
    try:
        with path.open("rb") as file:
            ours = b'"format": "sonant-profile' in file.read(200)
    except OSError as e:
        raise TraceError(f"{path} cannot be read: {e.strerror}") from e
    if not ours:
        return make_report(look(read_trace(path, progress), **options), str(path))
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise TraceError(f"{path} is a report of another version ({data['format']}); read its trace again")
        return Report.from_json(data)
    except (ValueError, KeyError, TypeError) as e:
        raise TraceError(f"{path} is a damaged report ({e}); read its trace again") from e


def save_report(report: Report, path: Path) -> None:
    data = report.to_json()
    path.write_text(json.dumps({"format": data.pop("format"), **data}, indent=1), encoding="utf-8")


def _phases(scene: Scene) -> list[PhaseSummary]:
    device, steps = scene.trace.device, scene.steps
    phases = np.array([list(Phase).index(p) for p in steps.phase_of_events(device)])
    rows = []
    for code, phase in enumerate(Phase):
        mine = np.flatnonzero(phases == code)
        if not len(mine):
            continue
        starts, ends = busy_union(device.start[mine], device.end[mine])
        picked = steps.indices(phase)
        wall = (steps.end - steps.start)[picked].sum() if len(picked) else ends[-1] - starts[0]
        time = np.bincount(scene.works.code[mine], scene.added[mine], len(ORDER)) / 1e6
        by_work = {str(work): round(float(ms), 4) for work, ms in zip(ORDER, time, strict=True) if ms}
        rows.append(
            PhaseSummary(str(phase), len(picked), float(wall) / 1e6, float((ends - starts).sum()) / 1e6, by_work)
        )
    return rows


def _by_work(scene: Scene) -> dict[str, float]:
    events = scene.steady()
    time = np.bincount(scene.works.code[events], scene.added[events], len(ORDER)) / scene.count / 1e3
    pairs = [(str(work), round(float(us), 3)) for work, us in zip(ORDER, time, strict=True) if us]
    return dict(sorted(pairs, key=lambda pair: -pair[1]))


def _kernels(scene: Scene) -> list[KernelRow]:
    events, device = scene.steady(), scene.trace.device
    names, place = np.unique(device.name[events], return_inverse=True)
    time, count = np.bincount(place, scene.added[events]), np.bincount(place)
    rows = []
    for i in np.argsort(-time, kind="stable")[:_KERNELS]:
        example = int(events[int(np.argmax(place == i))])
        work = ORDER[int(scene.works.code[example])]
        us, each = float(time[i]) / scene.count / 1e3, float(count[i]) / scene.count
        rows.append(KernelRow(short(scene.trace.names[names[i]], 100), str(work), each, us, scene.source_of([example])))
    return rows


def _remarks(scene: Scene) -> list[str]:
    remarks = [*scene.trace.remarks, *scene.steps.remarks]
    if scene.trace.stand_in:
        remarks.append("no GPU work in this trace: operators on the CPU stand in for kernels")
    elif not len(scene.trace.runtime):
        remarks.append("no CUDA calls in this trace: waits, launches and pauses cannot be told")
    if scene.bandwidth is None and not scene.trace.stand_in:
        remarks.append("the GPU's bandwidth is not known: give it with --bandwidth for the roofline")
    remarks.append(_fills(scene))
    return [remark for remark in remarks if remark]


def _fills(scene: Scene) -> str:
    """What is often taken for the cost of serving: memory that is filled once, before the first step."""
    device = scene.trace.device
    before = device.start < scene.steps.start[0]
    fills = scene.works.among([Work.FILL])
    once, steady = int(device.duration[fills & before].sum()), int(device.duration[scene.steady(Work.FILL)].sum())
    total = int(device.duration.sum())
    if once < 0.01 * total:
        return ""
    return (
        f"fills before the first step took {once / 1e6:.1f} ms, {100 * once / total:.0f} % of all device time in this "
        f"trace; that is start-up cost, paid once. In the steady state fills are "
        f"{100 * steady / max(1, scene.count * scene.step_ns):.1f} % of a step"
    )
