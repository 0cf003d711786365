"""Time on the device itself that a better kernel, or fewer of them, would save."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from sonant.profiling.analysis import Analysis
from sonant.profiling.events import Ints, Kind
from sonant.profiling.finding import Evidence, Finding
from sonant.profiling.gaps import Cause
from sonant.profiling.kernels import NO_SOUND, Work, short
from sonant.profiling.rules.builders import amount, by_kernel, finding, spans
from sonant.profiling.rules.host_time import sizes
from sonant.profiling.sources import input_bytes

TINY_NS = 3_000
_CHAIN = 4  # kernels in a row that are worth fusing into one
_FUSABLE = (Work.ELEMENTWISE, Work.ACTIVATION, Work.CAST, Work.COPY)
_COUNTED = (Work.ELEMENTWISE, Work.ACTIVATION)
_REACHABLE = 0.9  # share of a GPU's peak bandwidth that a good kernel reaches
# Chains that have a known fused form: the form's name, and a pattern for the names of such a chain.
_CATALOGUE: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "SnakeBeta as one kernel: x + sin²(αx)/β, with e^α and e^β prepared once",
        re.compile(r"sin.*(pow|mul)|pow.*sin", re.I),
    ),
    ("SwiGLU as one kernel: silu(gate) · up", re.compile(r"silu.*mul|sigmoid.*mul", re.I)),
    ("RMSNorm as one kernel: pow, mean, rsqrt, mul", re.compile(r"pow.*(mean|reduce).*rsqrt", re.I)),
    ("rotary embedding as one kernel: neg, cat, mul, add", re.compile(r"neg.*mul.*add|mul.*neg", re.I)),
    (
        "sampling as one kernel: penalties, temperature, top-k, top-p, draw",
        re.compile(r"div.*(softmax|where|masked)", re.I),
    ),
)


def kernel_gaps(analysis: Analysis) -> Iterator[Finding]:
    gaps = analysis.steady_gaps(Cause.DEVICE)
    if len(gaps):
        yield finding(
            analysis,
            "kernel_gaps",
            "the device pauses between kernels that were launched in time",
            lost_ns=float(analysis.gaps.duration[gaps].sum()),
            count=len(gaps),
            evidence=sizes(analysis, gaps),
            marks=list(zip(analysis.gaps.start[gaps].tolist(), analysis.gaps.end[gaps].tolist(), strict=True)),
            fix="fewer, fused kernels; programmatic dependent launch, with weights loaded before the wait; "
            "gaps over 10 µs: look for events and copies that streams wait for",
        )


def _chains(analysis: Analysis) -> list[Ints]:
    """Runs of fusable kernels that follow each other on a stream in one step."""
    device, found = analysis.trace.device, []
    events = analysis.steady()
    for stream in np.unique(device.track[events]):
        mine = events[(device.track[events] == stream) & (device.kind[events] != Kind.MEMCPY)]
        if not len(mine):
            continue
        fusable = analysis.works.among(_FUSABLE, mine)
        step = analysis.steps.of_event[mine]
        edge = np.flatnonzero(np.append(True, (fusable[1:] != fusable[:-1]) | (step[1:] != step[:-1])))
        for start, end in zip(edge, [*edge[1:], len(mine)], strict=True):
            if fusable[start] and end - start >= _CHAIN:
                found.append(mine[start:end])
    return found


def chains(analysis: Analysis) -> Iterator[Finding]:
    device, found = analysis.trace.device, _chains(analysis)
    if not found:
        return
    lost, members = 0, 0
    rows: dict[tuple[int, ...], list[Any]] = {}
    for chain in found:
        counted = chain[analysis.works.among(_COUNTED, chain)]  # `copies` counts the others
        if not len(counted):
            continue
        members += len(chain)
        cost = int(device.duration[counted].sum() - device.duration[counted].max())
        lost += cost
        key = tuple(device.name[chain].tolist())
        entry = rows.setdefault(key, [0, 0, chain])
        entry[0] += cost
        entry[1] += 1
    if not members:
        return
    seen = np.bincount(device.name)
    ordered = sorted(rows.items(), key=lambda row: -row[1][0])[:6]
    evidence, fixes = [], []
    for key, (cost, times, chain) in ordered:
        names = [short(analysis.trace.names[n], 40) for n in key]
        known = next(
            (fix for fix, pattern in _CATALOGUE if pattern.search(" ".join(analysis.trace.names[n] for n in key))), None
        )
        fixes += [known] if known and known not in fixes else []
        text = f"{len(key)} kernels: {' · '.join(names[:4])}{' …' if len(names) > 4 else ''}"
        # The rarest kernel of a chain is the least likely to come from elsewhere too.
        rarest = sorted(chain.tolist(), key=lambda e: seen[device.name[e]])
        source = analysis.source_of(rarest)
        evidence.append(Evidence(text, times / analysis.count, cost / analysis.count / 1e3, source))
    yield finding(
        analysis,
        "chains",
        "chains of elementwise kernels that one kernel could do",
        lost_ns=lost,
        count=members,
        evidence=evidence,
        marks=[(int(device.start[c[0]]), int(device.end[c[-1]])) for c in found],
        fix="; ".join(fixes) or "fuse each chain: a Triton kernel, or torch.compile around it",
    )


def tiny_kernels(analysis: Analysis) -> Iterator[Finding]:
    device, events = analysis.trace.device, analysis.steady()
    chained = np.concatenate(_chains(analysis) or [np.zeros(0, np.int64)])
    tiny = events[(device.duration[events] < TINY_NS) & (device.kind[events] == Kind.KERNEL)]
    tiny = tiny[~np.isin(tiny, chained) & ~analysis.works.among(NO_SOUND, tiny)]
    if len(tiny) and not analysis.trace.stand_in:
        lost = device.duration[tiny]
        yield finding(
            analysis,
            "tiny_kernels",
            f"kernels under {TINY_NS // 1000} µs, whose cost is being a kernel",
            lost_ns=float(lost.sum()),
            count=len(tiny),
            evidence=by_kernel(analysis, tiny, lost),
            marks=spans(analysis, tiny),
            fix="fuse each into the kernel before or after it (norm into the product, rotary into the cache write)",
            at_most=True,
        )


def padding(analysis: Analysis) -> Iterator[Finding]:
    told = [(step, rows) for step in analysis.steps.steady.tolist() if (rows := analysis.steps.rows(step)) is not None]
    padded = [(step, rows, bucket) for step, (rows, bucket) in told if bucket > rows]
    if not padded:
        return
    busy = np.zeros(len(analysis.steps.start))
    inside = analysis.steps.of_event >= 0
    np.add.at(busy, analysis.steps.of_event[inside], analysis.added[inside])
    lost = sum(float(busy[step]) * (1 - rows / bucket) for step, rows, bucket in padded)
    empty, all_rows = sum(b - r for _, r, b in padded), sum(b for _, (_, b) in told)
    example = max(padded, key=lambda p: p[2] - p[1])
    yield finding(
        analysis,
        "padding",
        f"{100 * empty / all_rows:.0f} % of the rows are padding",
        lost_ns=lost,
        count=empty,
        evidence=[
            Evidence(
                f"{example[1]} rows in a graph for {example[2]}",
                len(padded) / analysis.count,
                lost / analysis.count / 1e3,
            )
        ],
        marks=[(int(analysis.steps.start[s]), int(analysis.steps.end[s])) for s, _, _ in padded],
        fix="capture graphs for sizes nearer to the batches that occur; small batches cost little by it: weights are "
        "read once whatever their size",
        at_most=True,
    )


def low_bandwidth(analysis: Analysis) -> Iterator[Finding]:
    if analysis.bandwidth is None:
        return
    device, rows = analysis.trace.device, []
    events = analysis.steady(Work.GEMM)
    for number in np.unique(device.name[events]):
        mine = events[device.name[events] == number]
        name = analysis.trace.names[number]
        size = analysis.mapping.bytes_of(name) if analysis.mapping else input_bytes(analysis.trace, mine)
        if size is None:
            continue
        time = float(device.duration[mine].mean())
        lost = time - 1e9 * size / (_REACHABLE * analysis.bandwidth)
        if lost > 0:
            rows.append((lost * len(mine), mine, name, size, 1e9 * size / time / analysis.bandwidth))
    if not rows:
        return
    rows.sort(key=lambda row: -row[0])
    yield finding(
        analysis,
        "low_bandwidth",
        f"matrix products below the {amount(analysis.bandwidth)}/s that this GPU can read",
        lost_ns=sum(row[0] for row in rows),
        count=sum(len(row[1]) for row in rows),
        evidence=[
            Evidence(f"{short(name, 60)}: {100 * share:.0f} % of peak at {amount(size)}", len(mine) / analysis.count,
                     lost / analysis.count / 1e3, analysis.source_of(mine.tolist()))
            for lost, mine, name, size, share in rows
        ],
        marks=[span for _, mine, *_ in rows for span in spans(analysis, mine)][:2000],
        fix="for few rows: a matrix-vector kernel that loads weights before it waits for its input; 8-bit weights",
        at_most=True,
    )  # fmt: skip
