"""Each kernel against the plain torch it replaces, on the same device in the same run, with the floor beside both.

On CUDA a measurement is the median over replays of one graph of many calls, so that launching from Python costs
nothing. Calls go through more weights and KV cache than the device's own cache holds, since a step does not find them
there either. The floor is the larger of bytes over copy bandwidth and operations over the library's best product.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import cycle
from typing import Any

import torch

from sonant.bench.engine.device_clock import copy_bandwidth, product_rate, time_ms
from sonant.bench.engine.step_counts import count
from sonant.bench.kernels.case import Call, Case, Rival
from sonant.bench.report.results import FORMAT
from sonant.config import Quantization
from sonant.kernels import reference
from sonant.kernels.dispatch import Choice, choose
from sonant.kernels.gpu import gpu_of
from sonant.text_table import grid

_LOG = logging.getLogger(__name__)

_ROTATED_BYTES = 256 << 20  # no L2 cache of today reaches even 200 MB
_LEAST_CALLS, _MOST_CALLS = 32, 256


@dataclass(frozen=True)
class Ceiling:
    bytes_per_s: float
    flops_per_s: float

    def floor_us(self, case: Case) -> float:
        return 1e6 * max(case.bytes / self.bytes_per_s, case.flops / self.flops_per_s)


@dataclass(frozen=True)
class KernelTime:
    op: str
    where: str
    rows: int
    floor_us: float
    reference_us: float | None  # of the plain torch that our kernel replaces; None: not measured
    kernel_us: float | None  # None: the reference runs here
    gb_per_s: float  # of what `pick` returns
    tflop_per_s: float
    picked: str
    reason: str
    launches: Mapping[str, float]  # what a call of the picked one runs: names of kernels, or of operators on a CPU
    rivals_us: Mapping[str, float] = field(default_factory=dict)

    @property
    def picked_us(self) -> float:
        picked = self.reference_us if self.kernel_us is None else self.kernel_us
        assert picked is not None
        return picked

    @property
    def share(self) -> float:
        return self.floor_us / self.picked_us

    @property
    def speed_up(self) -> float | None:
        return None if self.kernel_us is None or self.reference_us is None else self.reference_us / self.kernel_us


@dataclass(frozen=True)
class KernelReport:
    device: str
    torch: str
    dtype: str
    ceiling: Ceiling
    times: list[KernelTime]
    made_at: str

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        for row, timed in zip(data["times"], self.times, strict=True):
            row |= {"share_of_floor": timed.share, "speed_up": timed.speed_up}
        return {"format": FORMAT, "kind": "kernels", **data}


def run(
    cases: Iterable[Case],
    device: torch.device,
    dtype: torch.dtype,
    on_time: Callable[[KernelTime], None] = lambda timed: None,
    *,
    compare: bool = True,
    quantize: Quantization | None = None,
) -> KernelReport:
    """Without `compare` only what `pick` returns is timed, without its launches: a third of the time."""
    ceiling = ceiling_of(device, dtype, quantize)
    times = []
    for timed in measure_all(cases, device, ceiling, compare=compare):
        times.append(timed)
        on_time(timed)
    return KernelReport(
        device=device_name(device),
        torch=torch.__version__,
        dtype=dtype_name(dtype, quantize),
        ceiling=ceiling,
        times=times,
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def ceiling_of(device: torch.device, dtype: torch.dtype, quantize: Quantization | None) -> Ceiling:
    """The ceiling as it is now: a GPU's clock varies with power and temperature, in a large product by a tenth."""
    return Ceiling(copy_bandwidth(device), product_rate(device, dtype, quantize))


def dtype_name(dtype: torch.dtype, quantize: Quantization | None) -> str:
    return str(dtype).removeprefix("torch.") + (f", weights {quantize}" if quantize else "")


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()


def measure_all(
    cases: Iterable[Case], device: torch.device, ceiling: Ceiling, *, compare: bool = True
) -> Iterator[KernelTime]:
    for case in cases:
        with torch.inference_mode():  # `pick` returns the reference where gradients are enabled
            timed = measure(case, device, ceiling, compare=compare)
        yield timed


def measure(case: Case, device: torch.device, ceiling: Ceiling, *, compare: bool = True) -> KernelTime:
    choice = choose(case.op, device.type, gpu=gpu_of(device))
    calls = calls_of(case)
    plain = getattr(reference, case.op)
    ours = choice.function is not plain
    reference_us = call_us(case.usual or plain if ours else plain, calls, device) if compare or not ours else None
    kernel_us = call_us(choice.function, calls, device) if ours else None
    picked_us = reference_us if kernel_us is None else kernel_us
    assert picked_us is not None
    rivals = case.rivals if compare else {}
    return KernelTime(
        op=case.op,
        where=case.where,
        rows=case.rows,
        floor_us=ceiling.floor_us(case),
        reference_us=reference_us,
        kernel_us=kernel_us,
        gb_per_s=case.bytes / picked_us / 1e3,
        tflop_per_s=case.flops / picked_us / 1e6,
        picked=choice.implementation,
        reason=choice.reason,
        launches=_launches(choice, calls[0], device) if compare else {},  # a profile takes longer than the measurement
        rivals_us={name: rival_us(rival, calls, device) for name, rival in rivals.items()},
    )


def rival_us(rival: Rival, calls: Sequence[Call], device: torch.device) -> float:
    """The rival's time; NaN if it does not run here, as a kernel of another version or for another GPU may not."""
    try:
        return call_us(rival.function, [rival.prepare(call) for call in calls], device)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        _LOG.warning("a kernel to compare with did not run: %s", error)
        return float("nan")


def calls_of(case: Case) -> list[Call]:
    if not case.streamed_bytes:
        return [case.make()]
    return [case.make() for _ in range(min(_MOST_CALLS, 1 + _ROTATED_BYTES // case.streamed_bytes))]


def call_us(function: Callable[..., Any], calls: Sequence[Call], device: torch.device) -> float:
    """Time of one call among many."""
    turns = cycle(calls)

    def one() -> None:
        call = next(turns)
        function(*call.args, **call.kwargs)

    if device.type != "cuda":
        return 1e3 * time_ms(one, device)
    count = max(_LEAST_CALLS, len(calls))

    def many() -> None:
        for _ in range(count):
            one()

    many()  # compiles kernels and picks library algorithms, which a capture may not
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        many()
    return 1e3 * time_ms(graph.replay, device) / count


def _launches(choice: Choice, call: Call, device: torch.device) -> Mapping[str, float]:
    """The kernels that really run, since an op of ours may leave a shape to the library."""
    return count(lambda: choice.function(*call.args, **call.kwargs), device, runs=1).names


def table(report: KernelReport) -> str:
    on_gpu = any(t.kernel_us is not None for t in report.times)
    head = (
        f"{report.device}, torch {report.torch}, {report.dtype}: copy {report.ceiling.bytes_per_s / 1e9:,.0f} GB/s, "
        f"library product {report.ceiling.flops_per_s / 1e12:,.1f} TFLOP/s"
    )
    blocks = [head]
    for op in sorted({t.op for t in report.times}):
        mine = [t for t in report.times if t.op == op]
        blocks.append(f"{op}: {mine[0].picked}, {mine[0].reason}\n{grid(list(_rows(mine)))}")
        blocks += [_beside(t) for t in mine if t.rivals_us]
    if not on_gpu:
        blocks.append("The reference only: there are no kernels for this device, so there is nothing to compare.")
    return "\n\n".join(blocks)


def _rows(times: Sequence[KernelTime]) -> Iterator[tuple[str, ...]]:
    yield ("where", "rows", "floor µs", "plain µs", "ours µs", "speed-up", "GB/s", "TFLOP/s", "of floor", "runs")
    for t in times:
        plain = "-" if t.reference_us is None else f"{t.reference_us:.2f}"
        ours = "-" if t.kernel_us is None else f"{t.kernel_us:.2f}"
        faster = "-" if t.speed_up is None else f"{t.speed_up:.2f}×"
        flops = f"{t.tflop_per_s:.2f}" if t.tflop_per_s else "-"
        yield (
            t.where, str(t.rows), f"{t.floor_us:.2f}", plain, ours, faster, f"{t.gb_per_s:,.0f}",
            flops, f"{100 * t.share:.0f}%", _short(t.launches),
        )  # fmt: skip


def _beside(timed: KernelTime) -> str:
    others = ", ".join(f"{name} {us:.2f} µs ({us / timed.picked_us:.2f}×)" for name, us in timed.rivals_us.items())
    return f"{timed.op}, {timed.where}, {timed.rows} rows, {timed.picked_us:.2f} µs; beside it: {others}"


def _short(launches: Mapping[str, float], width: int = 40) -> str:
    names = " + ".join(name.split("<")[0].split("(")[0].removeprefix("void ").split("::")[-1] for name in launches)
    return names if len(names) <= width else names[: width - 1] + "…"
