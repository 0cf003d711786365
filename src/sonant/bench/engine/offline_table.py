"""The engine's figures as tables for people, each with its floor, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sonant.bench.engine.breakdown import Breakdown
from sonant.bench.engine.offline import OfflineReport, StreamLevel
from sonant.bench.engine.startup import Stages, Startup
from sonant.bench.engine.step_counts import Counts
from sonant.bench.engine.sustained_listeners import SustainedLevel, SustainedListeners
from sonant.bench.report.plots import png
from sonant.text_table import grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def table(report: OfflineReport) -> str:
    head = (
        f"{report.device}, torch {report.torch}: copy {report.copy_gb_per_s:,.0f} GB/s, "
        f"{report.weight_gb_per_frame:.2f} GB of weights a frame, {report.frames} frames a request"
    )
    blocks = [head]
    if report.levels:
        blocks.append(_titled("Streams that start at once, through the engine's API", level_rows(report.levels)))
    if report.breakdowns:
        blocks += [_titled(title, rows) for title, rows in step_tables(report.breakdowns)]
    if (s := report.saturated) is not None:
        blocks.append(
            f"Saturated: {s.audio_s_per_s:,.1f} audio-s/s ({s.requests} requests for files, {s.rows} rows, "
            f"{s.wall_s:.1f} s)"
        )
    if report.held is not None:
        blocks.append(_titled("Listeners held in real time, Poisson starts", sustained_rows(report.held.levels)))
        blocks.append(sustained_sentence(report.held))
    if report.startup is not None:
        blocks.append(_titled("From the start of a process to its first sound, s", startup_rows(report.startup)))
    return "\n\n".join(blocks)


def level_rows(levels: Sequence[StreamLevel]) -> list[tuple[str, ...]]:
    head: tuple[str, ...] = (
        "streams", "ms/frame", "floor", "first p50", "p99 ms", "RTF p50", "p99", "audio-s/s", "with gaps",
        "pre-buffer ms", "memory GB",
    )  # fmt: skip
    return [head] + [
        (
            str(v.streams), f"{v.frame_ms:.2f}", f"{v.floor_ms:.2f}", f"{v.first_audio_p50_ms:.1f}",
            f"{v.first_audio_p99_ms:.1f}", f"{v.rtf_p50:.3f}", f"{v.rtf_p99:.3f}", f"{v.audio_s_per_s:.1f}",
            str(v.streams_with_gaps), f"{v.worst_prebuffer_ms:.1f}", f"{v.memory_gb:.1f}",
        )
        for v in levels
    ]  # fmt: skip


def step_tables(breakdowns: Sequence[Breakdown]) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Time, bytes and counts of one frame for all rows."""
    names = [p.name for p in breakdowns[0].parts]
    chunk = breakdowns[0].chunk_frames
    times: list[tuple[str, ...]] = [("streams", *names, "step", "floor", "share", "codec by 1", "positions")]
    moved: list[tuple[str, ...]] = [("streams", *(p.name for p in breakdowns[0].parts if p.floor_ms))]
    counts: list[tuple[str, ...]] = [
        ("streams", "kernels", "copies", "syncs", "waits", "codec kernels", "copies", "syncs", "waits")
    ]
    for b in breakdowns:
        share = f"{100 * b.floor_ms / b.step_ms:.0f}%"
        numbers = (*(p.ms for p in b.parts), b.step_ms, b.floor_ms)
        last = (f"{b.codec_ms[1]:.3f}", f"{b.mean_positions:.0f}")
        times.append((str(b.streams), *(f"{n:.3f}" for n in numbers), share, *last))
        rates = (f"{p.gb_per_s:,.0f} ({100 * p.share:.0f}%)" for p in b.parts if p.floor_ms)
        moved.append((str(b.streams), *rates))
        counts.append((str(b.streams), *_count_cells(b.frame_counts), *_count_cells(b.codec_counts)))
    return [
        (f"One frame for all rows by part, ms (codec: {chunk} frames at once)", times),
        ("GB/s, and the share of its floor that each part reaches", moved),
        (f"A decode step, and the codec steps of {chunk} frames: what they ask of the device", counts),
    ]


def sustained_rows(levels: Sequence[SustainedLevel]) -> list[tuple[str, ...]]:
    head: tuple[str, ...] = (
        "listeners", "rate/s", "mean at once", "window s", "counted", "underruns", "failed", "first p50", "p99 ms",
        "late p99 ms", "",
    )  # fmt: skip
    return [head] + [
        (
            str(v.listeners), f"{v.rate:.2f}", f"{v.mean_listeners:.1f}", f"{v.window_s:.1f}", str(v.requests),
            str(v.underruns), str(v.failed), f"{v.first_audio_p50_ms:.1f}", f"{v.first_audio_p99_ms:.1f}",
            f"{v.late_p99_ms:.1f}", "cut at the first bad one" if v.cut else "",
        )
        for v in levels
    ]  # fmt: skip


def sustained_sentence(sustained: SustainedListeners) -> str:
    promise, found = sustained.promise, sustained.capacity
    bound = f"no underrun, and first sound within {1e3 * promise.ttfp_s:g} ms"
    if not found.listeners:
        return f"Not even one listener at a time was held: {bound}."
    confirmed = next(p for p in found.probes if p.confirmed and p.holds)
    above = f"{found.breaks_at} did not hold" if found.breaks_at else "more were not tried"
    return (
        f"Held: {found.listeners} listeners at once, streams of {sustained.stream_s:g} s: {bound} in any of "
        f"{confirmed.requests} streams, so in at least {100 * promise.share:g} % at {100 * promise.confidence:g} % "
        f"confidence; {above}."
    )


def startup_rows(startup: Startup) -> list[tuple[str, ...]]:
    def row(name: str, s: Stages) -> tuple[str, ...]:
        stages = (s.imports, s.weights, s.memory, s.kernels, s.graphs, s.first_request, s.total)
        return (name, *(f"{v:.2f}" for v in stages))

    head = ("caches", "imports", "weights", "memory", "kernels", "graphs", "first request", "in all")
    return [head, row("as found", startup.first), row("warm", startup.warm)]


def picture(report: OfflineReport) -> bytes:
    """Two plots: the time of a frame, stacked by part, with its floor; and the seconds of sound made in a second."""
    return png(lambda axes: _parts(axes, report.breakdowns), lambda axes: _rates(axes, report))


def _parts(axes: Axes, breakdowns: Sequence[Breakdown]) -> None:
    places = range(len(breakdowns))
    bottom = [0.0] * len(breakdowns)
    for n, part in enumerate(breakdowns[0].parts):
        heights = [max(0.0, b.parts[n].ms) for b in breakdowns]  # a difference of two times may be below 0
        axes.bar(places, heights, bottom=bottom, label=part.name, width=0.6)
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    axes.plot(places, [b.floor_ms for b in breakdowns], "k_", markersize=30, label="floor (bytes)")
    axes.set_xticks(list(places), [str(b.streams) for b in breakdowns])
    axes.set(title="A frame by part", xlabel="streams", ylabel="ms")
    axes.legend()


def _rates(axes: Axes, report: OfflineReport) -> None:
    places = range(len(report.levels))
    axes.plot(places, [v.audio_s_per_s for v in report.levels], "o-", label="listeners who start at once")
    if report.saturated is not None:
        axes.axhline(report.saturated.audio_s_per_s, linestyle="--", label="files, saturated")
    axes.set_xticks(list(places), [str(v.streams) for v in report.levels])
    axes.set(title="Sound made", xlabel="streams", ylabel="audio seconds a second")
    axes.set_ylim(bottom=0)
    axes.legend()


def _count_cells(counts: Counts) -> tuple[str, ...]:
    return tuple(f"{n:g}" for n in (counts.kernels, counts.copies, counts.syncs, counts.waits))


def _titled(title: str, rows: Sequence[Sequence[str]]) -> str:
    return f"{title}\n{grid(rows)}"
