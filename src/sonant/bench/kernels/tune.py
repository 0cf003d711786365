"""Finds each kernel's best tile on this GPU: every candidate is checked and timed in a CUDA graph, the library too.

Candidates compile first, in one process for each core but one: each runs its share of them once, which leaves the
binaries in Triton's cache on disk. Only then is the GPU quiet enough to measure. Weights rotate through more than the
device's cache holds. Candidates that are not compiled in time are left out, and a shape that is not reached in time
keeps its rule.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import torch

from sonant.bench.kernels.case import Call, use
from sonant.bench.kernels.tune_cases import Tunable
from sonant.bench.kernels.versus_torch import Ceiling
from sonant.kernels.tuning import LIBRARY, Tile
from sonant.text_table import grid

_ROTATED_BYTES = 96 << 20  # twice the cache of an H200
_MOST_COPIES = 12
_GRAPH_US = 300.0
_REPLAYS = 5
_HOPELESS = 1.3  # times the best so far: a slower candidate is not replayed again
_RELATIVE_ERROR = 2e-2
_COMPILE_SHARE = 0.6  # of the time given
_JOBS_AT_ONCE = 4  # kernels that a process compiles before it reports

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Tuned:
    key: str
    where: str
    tile: Tile
    best_us: float
    rule_us: float
    library_us: float
    floor_us: float
    tried: int
    failed: tuple[str, ...]  # candidates whose result is wrong, or missing

    @property
    def share(self) -> float:
        return self.floor_us / self.best_us


def compile_all(
    cases: Sequence[Tunable], device: torch.device, deadline_s: float, tell: Tell
) -> set[tuple[object, ...]]:
    """Compile the candidates until the deadline → those in Triton's cache now, by what they were compiled as."""
    jobs = {case.compiled_as(tile): (case.least(), tile) for case in reversed(cases) for tile in case.candidates()}
    names = list(reversed(jobs))  # the first cases' first
    batches = [names[i : i + _JOBS_AT_ONCE] for i in range(0, len(names), _JOBS_AT_ONCE)]
    processes = min(len(batches), max(1, (os.cpu_count() or 2) - 1))
    tell(f"{len(names)} kernels to compile in {processes} processes")
    done: set[tuple[object, ...]] = set()
    pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))
    try:
        running: dict[Future[list[bool]], list[tuple[object, ...]]] = {
            pool.submit(compile_some, [jobs[name] for name in batch], device): batch for batch in batches
        }
        while running and time.monotonic() < deadline_s:
            finished, _ = wait(running, timeout=max(0.0, deadline_s - time.monotonic()), return_when=FIRST_COMPLETED)
            for future in finished:
                done |= {name for name, good in zip(running.pop(future), future.result(), strict=True) if good}
            tell(f"compiled {len(done)} of {len(names)}")
    except BrokenProcessPool as error:
        tell(f"a compiling process died, what was not compiled is left out: {error}")
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return done


def compile_some(jobs: Sequence[tuple[Tunable, Tile]], device: torch.device) -> list[bool]:
    """Runs in a process of its own. A tile that needs more than the GPU has is no error, but it is not a candidate."""
    from triton.errors import TritonError

    good = []
    use(device)
    with torch.inference_mode():
        for case, tile in jobs:
            try:
                case.run(case.make(device), tile)
                good.append(True)
            except (TritonError, RuntimeError):
                good.append(False)
    return good


def tune(
    cases: Sequence[Tunable],
    device: torch.device,
    ceiling: Ceiling,
    compiled: set[tuple[object, ...]],
    deadline_s: float,
    tell: Tell,
) -> list[Tuned]:
    results: list[Tuned] = []
    with torch.inference_mode():
        for case in cases:
            if time.monotonic() > deadline_s:
                tell(f"out of time: {len(cases) - len(results)} of {len(cases)} shapes keep their rule")
                break
            results.append(tune_one(case, device, ceiling, compiled))
            torch.cuda.empty_cache()  # each graph had memory of its own
            tell(" ".join(_row(results[-1])))
    return results


def tune_one(case: Tunable, device: torch.device, ceiling: Ceiling, compiled: set[tuple[object, ...]]) -> Tuned:
    floor_us = 1e6 * max(case.bytes / ceiling.bytes_per_s, case.flops / ceiling.flops_per_s)
    call = case.make(device)
    copies = min(_MOST_COPIES, _ROTATED_BYTES // case.streamed_bytes)
    calls = [call, *(case.with_other_weights(call) for _ in range(copies))]
    expected = case.expected(call).float()
    candidates = case.candidates()
    spare = case.make(device)  # the library adds to a residual in place
    spares = [spare, *(case.with_other_weights(spare) for _ in range(copies))]
    times, failed = {LIBRARY: call_us(case, spares, LIBRARY, floor_us)}, []
    for tile in candidates:
        if case.compiled_as(tile) not in compiled:
            continue
        got = case.run(calls[0], tile).float()
        error = float((got - expected).norm() / expected.norm())
        if error < _RELATIVE_ERROR:
            times[tile] = call_us(case, calls, tile, floor_us, limit_us=_HOPELESS * min(times.values()))
        else:
            failed.append(f"{tile}: relative error {error:.1e}")
    best = min(times, key=lambda tile: times[tile])
    return Tuned(
        case.key, case.where, best, times[best], times.get(candidates[0], float("nan")), times[LIBRARY], floor_us,
        len(times) - 1, tuple(failed),
    )  # fmt: skip


def call_us(case: Tunable, calls: Sequence[Call], tile: Tile, floor_us: float, limit_us: float = float("inf")) -> float:
    """Time of one call: the best of some replays, since a disturbance only makes one slower. A replay above the limit
    is the last."""
    count = max(len(calls), min(64, int(_GRAPH_US / max(floor_us, 1.0))))
    if floor_us > _GRAPH_US:
        count = 2

    def many() -> None:
        for index in range(count):
            case.run(calls[index % len(calls)], tile)

    many()  # does what a capture may not do: counters, library plans
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # not torch.cuda.graph(), which collects garbage and empties caches: for thousands of graphs that is minutes
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        many()
        graph.capture_end()
    graph.replay()
    best_us = float("inf")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(_REPLAYS):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        best_us = min(best_us, 1e3 * begin.elapsed_time(end) / count)
        if best_us > limit_us:
            break
    return best_us


def run(cases: Sequence[Tunable], device: torch.device, ceiling: Ceiling, seconds: float, tell: Tell) -> list[Tuned]:
    began_s = time.monotonic()
    compiled = compile_all(cases, device, began_s + _COMPILE_SHARE * seconds, tell)
    tell(f"compiled after {time.monotonic() - began_s:.0f} s; measuring")
    return tune(cases, device, ceiling, compiled, began_s + seconds, tell)


def table(results: Iterable[Tuned]) -> str:
    head = ("where", "key", "floor µs", "library µs", "rule µs", "best µs", "of floor", "tried", "tile")
    results = list(results)
    lines = [grid([head, *(_row(r) for r in results)])]
    lines += [f"WRONG {r.key}: {line}" for r in results for line in r.failed]
    return "\n".join(lines)


def _row(r: Tuned) -> tuple[str, ...]:
    t = r.tile
    tile = f"{t.m}×{t.width}×{t.k} w{t.warps} s{t.stages} /{t.splits} f{t.fold}"
    return (
        r.where, r.key, f"{r.floor_us:.1f}", f"{r.library_us:.1f}", f"{r.rule_us:.1f}", f"{r.best_us:.1f}",
        f"{100 * r.share:.0f}%", str(r.tried), "library" if t.library else tile,
    )  # fmt: skip
