"""`sonant bench kernels`: every op of ours against plain torch, at the shapes of the published models."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sonant.cli.bench.facts import machine_facts
from sonant.cli.options import DTYPES, add_quantize, whole_number
from sonant.config import Quantization
from sonant.errors import ConfigError
from sonant.kernels.gpu import gpu_of
from sonant.loading import check_quantize, pick_device, pick_dtype
from sonant.models.registry import family_module, family_names
from sonant.models.workload import WorkloadProvider

if TYPE_CHECKING:
    import torch

    from sonant.bench.kernels.asked import Asked
    from sonant.bench.kernels.case import Case
    from sonant.bench.kernels.tune_cases import Tunable
    from sonant.bench.kernels.versus_torch import KernelReport, KernelTime

SHIPPED = "shipped"
EXAMPLES = """
sonant bench kernels --device cuda --out kernels.json
sonant bench kernels --ops norm_linear,norm_gated,linear_add --rows 1,8,32,64 --size 1.7b
sonant bench kernels --against accepted.json
sonant bench kernels --size 1.7b --rows 1,16,64 --jobs 12 --against shipped --accept
sonant bench kernels --tune
sonant bench kernels --tune --quantize fp8
sonant bench kernels --tune --size 2b --where flow --rows 32,16 --out tiles.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_shapes(parser.add_argument_group("what is measured"))
    _add_tuning(parser.add_argument_group("tuning"))
    _add_gate(parser.add_argument_group("accepted figures"))
    parser.add_argument("--device", default="auto", help="where to run: auto, cpu, cuda, cuda:1 … (default: auto)")
    parser.add_argument(
        "--out", metavar="FILE", type=Path,
        help="write all figures as JSON (default: nowhere); with --tune, write the tiles (default: where kernels read"
        " them)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", metavar="S", type=whole_number(1),
        help="seconds after which no measurement is begun (default: no limit)",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", metavar="N", type=whole_number(1),
        help="processes that compile all kernels before the first is measured, which is faster if none is compiled yet"
        " (default: compile each when it is measured)",
    )  # fmt: skip


def _add_shapes(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--ops", metavar="OP,OP…", help="ops to measure, as `sonant doctor` names them (default: all)")
    group.add_argument(
        "--size", metavar="S,S…",
        help=f"models whose shapes to measure: {', '.join(_sizes(_providers()))} (default: all)",
    )  # fmt: skip
    group.add_argument(
        "--where", metavar="WORDS", default="",
        help='only in parts whose name contains this, such as "flow" (default: all)',
    )  # fmt: skip
    group.add_argument(
        "--rows", metavar="N,N…",
        help="rows of decode steps (default: 1,2,4,8,16,32,64,128 on a GPU, 1,4 on a CPU); with --tune, the rows that"
        " keys of a tile table end with (default: all)",
    )  # fmt: skip
    group.add_argument(
        "--prefill", metavar="N", type=whole_number(0),
        help="prompt positions in a prefill; 0: none (default: 512 on a GPU, 0 on a CPU)",
    )  # fmt: skip
    group.add_argument(
        "--dtype", choices=DTYPES, default="auto", help="data type of weights and activations (default: auto)"
    )
    add_quantize(group)


def _add_tuning(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--tune", action="store_true",
        help="find each kernel's best tile on this GPU, at the shapes of each family's largest model",
    )  # fmt: skip
    group.add_argument(
        "--tune-seconds", metavar="S", type=whole_number(1), default=120,
        help="seconds after which to stop tuning (default: 120)",
    )  # fmt: skip


def _add_gate(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--against", metavar="TABLE",
        help="exit with 1 if a kernel comes less close to its least possible time (its floor) than in this table of "
        "accepted figures; shipped: Sonant's own table for this GPU and --quantize. Plain torch is not measured then",
    )  # fmt: skip
    group.add_argument(
        "--tolerance", metavar="%", type=float, default=5.0,
        help="shortfall that counts as noise, in percent (default: 5)",
    )  # fmt: skip
    group.add_argument("--accept", action="store_true", help="write the measured figures into the table of --against")


def run(args: argparse.Namespace) -> int:
    from sonant.bench.kernels import versus_torch as kernels
    from sonant.bench.kernels.asked import Asked, compile_ahead
    from sonant.bench.kernels.case import use
    from sonant.bench.report.results import check_places, write_json
    from sonant.kernels.dispatch import OPS

    device = pick_device(args.device)
    dtype = pick_dtype(args.dtype, device)
    gpu = device.type == "cuda"
    ops = args.ops.split(",") if args.ops else list(OPS)
    if unknown := [op for op in ops if op not in OPS]:
        raise ConfigError(f"there is no op {unknown[0]!r}; choose from {', '.join(OPS)}")
    providers = _providers()
    sizes = args.size.split(",") if args.size else _sizes(providers)
    if unknown := [size for size in sizes if size not in _sizes(providers)]:
        raise ConfigError(f"there is no size {unknown[0]!r}; choose from {', '.join(_sizes(providers))}")
    accepted = _accepted(args, device, dtype)
    check_places(args.out)
    use(device)
    if args.tune:
        tuned = [p for p in providers if p.TUNED_SIZE in sizes]
        asked_rows = _rows(args.rows) if args.rows else None

        def wanted_case(case: Tunable) -> bool:
            return case.op in ops and args.where in case.where and (asked_rows is None or case.rows in asked_rows)

        return _tune(tuned, device, wanted_case, args.tune_seconds, args.out, args.quantize)
    rows = _rows(args.rows or ("1,2,4,8,16,32,64,128" if gpu else "1,4"))
    prefill = args.prefill if args.prefill is not None else 512 * gpu
    workloads = tuple(p.workloads(own) for p in providers if (own := [size for size in sizes if size in p.SIZES]))
    check_quantize(args.quantize, gpu_of(device))
    asked = Asked(device, dtype, args.quantize, workloads, tuple(rows), prefill, tuple(ops), args.where)
    if gpu and args.jobs:
        compile_ahead(asked, args.jobs)
    report = kernels.run(
        _in_time(asked.cases(), args.seconds), device, dtype, on_time=_tell, compare=args.against is None,
        quantize=args.quantize,
    )  # fmt: skip
    print(kernels.table(report))
    if args.ops and (idle := [op for op in ops if op not in {timed.op for timed in report.times}]):
        _say(f"nothing was measured for {', '.join(idle)}: no model uses it at these --size, --rows and --prefill")
    if args.out:
        write_json(args.out, report.to_json() | {"machine": machine_facts(("triton",))}, indent=1)
    return 0 if args.against is None else _hold(report, accepted, asked, device, args)


def _in_time(cases: Iterator[Case], seconds: int | None) -> Iterator[Case]:
    """The cases that can be begun in time."""
    deadline_s = None if seconds is None else time.monotonic() + seconds
    for number, case in enumerate(cases):
        if deadline_s is not None and time.monotonic() > deadline_s:
            _say(f"out of time: only the first {number} kernels were measured, those before {case.op}, {case.where}")
            return
        yield case


def _hold(
    report: KernelReport, accepted: Mapping[str, float], asked: Asked, device: torch.device, args: argparse.Namespace
) -> int:
    """Compare with the accepted figures; what seems slower is measured again. Return the exit code."""
    from sonant.bench.kernels import gate
    from sonant.bench.kernels.versus_torch import ceiling_of, measure_all

    path = _table_path(args, device)

    def again(names: Collection[str]) -> Iterator[KernelTime]:
        _say(f"measuring again: {', '.join(sorted(names))}")
        seen = (case for case in asked.cases() if gate.key(case) in names)
        ceiling = ceiling_of(device, asked.dtype, asked.quantize)
        return measure_all(seen, device, ceiling, compare=False)

    verdict = gate.judge(report.times, accepted, again, args.tolerance / 100)
    print(gate.told(verdict, path, args.tolerance / 100))
    if args.accept:
        print(f"{gate.write(path, report, verdict.times, accepted)} figures → {path}")
        return 0
    return int(not verdict.passed)


def _accepted(args: argparse.Namespace, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """The table of --against. Read before anything is measured, so that its errors do not come minutes later."""
    from sonant.bench.kernels import gate
    from sonant.bench.kernels.versus_torch import device_name, dtype_name

    if not 0 < args.tolerance < 100:
        raise ConfigError(f"--tolerance must be a percentage between 0 and 100, not {args.tolerance:g}")
    if args.accept and not args.against:
        raise ConfigError("--accept writes the table that --against names: give --against too")
    if not args.against:
        return {}
    path = _table_path(args, device)
    if not args.accept and not path.is_file():
        raise ConfigError(f"there is no table of accepted figures at {path}; --accept writes it")
    if args.accept and not gate.can_write(path):
        raise ConfigError(f"{path} cannot be written; name a file of your own: --against FILE --accept")
    return gate.read(path, device_name(device), dtype_name(dtype, args.quantize)) if path.exists() else {}


def _table_path(args: argparse.Namespace, device: torch.device) -> Path:
    from sonant.bench.kernels import gate
    from sonant.bench.kernels.versus_torch import device_name

    return gate.shipped(device_name(device), args.quantize) if args.against == SHIPPED else Path(args.against)


def _providers() -> list[WorkloadProvider]:
    return [cast("WorkloadProvider", family_module(name, "workload")) for name in family_names()]


def _sizes(providers: list[WorkloadProvider]) -> list[str]:
    return [size for provider in providers for size in provider.SIZES]


def _tune(
    providers: list[WorkloadProvider],
    device: torch.device,
    wanted: Callable[[Tunable], bool],
    seconds: int,
    out: Path | None,
    quantize: Quantization | None,
) -> int:
    if device.type != "cuda":  # elsewhere triton may not be installed
        raise ConfigError(f"--tune needs a GPU, not {device}")
    import torch

    from sonant.bench.engine.device_clock import copy_bandwidth, product_rate
    from sonant.bench.kernels import tune
    from sonant.bench.kernels.tune_cases import conv_cases, product_cases
    from sonant.bench.kernels.tune_dual_cases import dual_cases
    from sonant.bench.kernels.tune_local_cases import local_cases
    from sonant.bench.kernels.tune_tiled_cases import tiled_cases
    from sonant.bench.kernels.versus_torch import Ceiling
    from sonant.kernels import tuning

    gpu = torch.cuda.get_device_name(device)
    every: list[Tunable] = []
    for workloads in (provider.workloads([provider.TUNED_SIZE]) for provider in providers):
        stacks = workloads.stacks
        every += [*local_cases(stacks, quantize), *product_cases(stacks, quantize), *dual_cases(stacks, quantize)]
        every += [*tiled_cases(stacks), *conv_cases(workloads.codec)] if quantize is None else ()
    cases = [case for case in every if wanted(case)]
    if not cases:
        tunable = ", ".join(sorted({c.op for c in every}))
        raise ConfigError(
            f"there is nothing to tune: ops with tiles are {tunable}, and --rows must be in the keys of a tile table"
        )
    ceiling = Ceiling(copy_bandwidth(device), product_rate(device, torch.bfloat16, quantize))
    results = tune.run(cases, device, ceiling, seconds, _say)
    print(tune.table(results))
    path = out or tuning.user_path(gpu)
    known = {} if out else dict(tuning.read(path))
    figures = {r.key: [round(us, 2) for us in (r.best_us, r.library_us, r.floor_us)] for r in results}
    facts = {"machine": machine_facts(("triton",)), "best_library_floor_us": figures}
    tuning.write(path, gpu, known | {r.key: r.tile for r in results}, facts)
    print(f"{len(results)} of {len(cases)} shapes tuned → {path}")
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _rows(text: str) -> list[int]:
    try:
        rows = [int(n) for n in text.split(",")]
    except ValueError:
        raise ConfigError(f"--rows takes whole numbers separated by commas, not {text!r}") from None
    if min(rows) < 1:
        raise ConfigError(f"--rows takes numbers of at least 1, not {text!r}")
    return rows


def _tell(timed: KernelTime) -> None:
    """Show progress on a terminal."""
    if sys.stderr.isatty():
        print(f"{timed.op}, {timed.where}, {timed.rows} rows: {timed.picked_us:.1f} µs", file=sys.stderr)
