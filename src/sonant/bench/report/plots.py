"""A run in four pictures. matplotlib is loaded only when they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sonant.bench.client.load_level import LoadLevel
from sonant.bench.report.results import Run
from sonant.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE_IN = (8.0, 4.5)
_MAX_STREAMS = 40  # more would make a timeline that nobody can read
_BLUE, _RED, _GREY = "#1f5fa8", "#c0392b", "#bbbbbb"


def draw(run: Run) -> dict[str, bytes]:
    """The pictures by name, as PNG."""
    levels = [level for level in run.levels if level.good]
    if not levels:
        raise ConfigError("no request succeeded: there is nothing to draw")
    pictures: dict[str, Callable[[Axes], None]] = {
        "ttfp": lambda axes: _latency(axes, levels),
        "rtf": lambda axes: _rtf(axes, levels),
        "continuity": lambda axes: _continuity(axes, levels),
        "timeline": lambda axes: _timeline(axes, levels[-1]),
    }
    return {name: png(paint) for name, paint in pictures.items()}


def save(run: Run, folder: Path) -> None:
    for name, picture in draw(run).items():
        write_png(folder / f"{name}.png", picture)


def need_matplotlib() -> None:
    """Call it before a long measurement, so that its plot does not fail at the end."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as e:
        raise ConfigError("plots need matplotlib; install it with: pip install 'sonant[bench]'") from e


def png(*paints: Callable[[Axes], None]) -> bytes:
    """One picture with all of them side by side."""
    need_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, height = _SIZE_IN
    figure = Figure(figsize=(width * len(paints), height), layout="constrained")
    for place, paint in enumerate(paints, start=1):
        axes = figure.add_subplot(1, len(paints), place)
        axes.grid(alpha=0.3)
        paint(axes)
    FigureCanvasAgg(figure)
    out = BytesIO()
    figure.savefig(out, format="png", dpi=120)
    return out.getvalue()


def write_png(path: Path, picture: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture)
    except OSError as e:
        raise ConfigError(f"the plot cannot be written to {path}: {e.strerror}") from e


def _against_load(axes: Axes, levels: list[LoadLevel], curves: dict[str, list[float]]) -> None:
    for (name, values), style in zip(curves.items(), ("o-", "s--", "^:"), strict=False):
        axes.plot(range(len(levels)), values, style, label=name)
    axes.set_xticks(range(len(levels)), [level.load.label for level in levels])
    axes.set_xlabel("requests a second" if levels[0].load.rate else "listeners at once")
    axes.set_ylim(bottom=0)
    axes.legend()


def _latency(axes: Axes, levels: list[LoadLevel]) -> None:
    spreads = [level.summary.ttfp_s for level in levels]
    curves = {p: [1e3 * getattr(s, p) for s in spreads] for p in ("p50", "p90", "p99")}
    _against_load(axes, levels, curves)
    axes.set(title="Time to first sound", ylabel="ms")


def _rtf(axes: Axes, levels: list[LoadLevel]) -> None:
    spreads = [level.summary.rtf for level in levels]
    _against_load(axes, levels, {p: [getattr(s, p) for s in spreads] for p in ("p50", "p90", "p99")})
    axes.axhline(1.0, color=_RED, linewidth=1)
    axes.set(title="Real-time factor: under 1 is faster than speech", ylabel="E2EL / audio")


def _continuity(axes: Axes, levels: list[LoadLevel]) -> None:
    """For each pre-buffer, the share of listeners that would have heard no gap."""
    worst_ms = 200.0
    for level in levels:
        needed = np.sort([1e3 * h.prebuffer_s for h in (s.heard for s in level.good) if h is not None])
        if not len(needed):
            continue
        worst_ms = max(worst_ms, float(needed[-1]))
        shares = 100 * np.arange(1, len(needed) + 1) / len(needed)
        ahead = [100 * float(np.mean(needed <= 0)), *shares, 100]
        axes.step([0, *needed, 10 * worst_ms], ahead, where="post", label=level.load.label)
    axes.set_xlim(0, 1.1 * worst_ms)
    axes.set_ylim(0, 103)
    if axes.lines:
        axes.legend(title="load")
    axes.set(title="Continuity", xlabel="pre-buffer, ms", ylabel="% of streams without a gap")


def _timeline(axes: Axes, level: LoadLevel) -> None:
    """Grey is waiting for sound, blue from first sound to last byte, red where the listener's buffer was empty."""
    chosen = level.good[:: max(1, len(level.good) // _MAX_STREAMS)][:_MAX_STREAMS]
    for row, sample in enumerate(chosen):
        start = sample.started_s - level.origin_s
        axes.barh(row, sample.ttfp_s, left=start, color=_GREY, height=0.8)
        axes.barh(row, sample.end_s - sample.ttfp_s, left=start + sample.ttfp_s, color=_BLUE, height=0.8)
        for dry_s, until_s in _dry(sample.arrivals_s, sample.durations_s or ()):
            axes.barh(row, until_s - dry_s, left=start + dry_s, color=_RED, height=0.8)
        marks = [start + t for t in sample.arrivals_s]
        axes.plot(marks, [row] * len(marks), "|", color="white", markersize=3)
    axes.set(title=f"Streams at load {level.load.label}: waiting, sending, dry", xlabel="s", ylabel="stream")


def _dry(arrivals_s: tuple[float, ...], durations_s: tuple[float, ...]) -> list[tuple[float, float]]:
    """When a listener that plays from the first chunk on has nothing to play."""
    found: list[tuple[float, float]] = []
    played_to = arrivals_s[0] if arrivals_s else 0.0
    for at_s, duration in zip(arrivals_s, durations_s, strict=False):
        if at_s > played_to:
            found.append((played_to, at_s))
        played_to = max(at_s, played_to) + duration
    return found
