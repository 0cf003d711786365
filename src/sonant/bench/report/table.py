"""The figures as a table for a terminal, in the field's layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sonant.bench.client.load_level import LoadLevel, Spread
from sonant.bench.report.results import Run
from sonant.text_table import grid

_COLUMNS = (
    "c", "ok", "TTFP p50", "p99 ms", "E2EL p99 s", "underrun p99 ms", "rate", "C50", "C100", "C200", "RTF p50", "p99",
    "audio-s/s", "req/s",
)  # fmt: skip
_TELLING = ("ttft", "ttfp", "token", "step", "rtf", "queue", "underrun", "latency", "audio")  # in a metric's name


def run_table(run: Run) -> str:
    target = run.target
    how = "SSE" if target["sse"] else "streamed" if target["stream"] else "not streamed"
    head = f"{target['base_url']}, model {target['model']}, voice {target['voice'] or 'default'}, "
    head += f"{target['response_format']} {how}, connections: {target['connections']}"
    lines = [head, grid([_COLUMNS, *(level_row(level) for level in run.levels)])]
    return "\n".join([*lines, *(line for level in run.levels for line in remarks(level))])


def level_row(level: LoadLevel) -> tuple[str, ...]:
    s = level.summary
    return (
        level.load.label,
        f"{s.ok}/{s.requests}",
        _cell(s.ttfp_s, "p50", 1e3, 1),
        _cell(s.ttfp_s, "p99", 1e3, 1),
        _cell(s.e2el_s, "p99", 1, 2),
        _cell(s.underrun_s, "p99", 1e3, 1),
        _percent(s.underrun_rate),
        *(_percent(s.gap_free.get(gap)) for gap in ("50", "100", "200")),
        _cell(s.rtf, "p50", 1, 3),
        _cell(s.rtf, "p99", 1, 3),
        f"{s.audio_s_per_s:.1f}",
        f"{s.requests_per_s:.2f}",
    )


def remarks(level: LoadLevel) -> list[str]:
    """Lines about what the numbers alone would hide."""
    s, name, found = level.summary, level.load.label, []
    for kind, count in s.failures.items():
        detail = next(sample.detail for sample in level.samples if not sample.ok and sample.kind == kind)
        found.append(f"{name}: {count} failed: {kind}: {detail}")
    if s.ok and s.one_piece == s.ok and level.good[0].streamed:
        found.append(f"{name}: every answer came in one piece: the server does not stream, C50 to C200 say nothing")
    if s.ok and s.underrun_s is None and level.good[0].streamed:
        found.append(f"{name}: continuity cannot be told in this format; use pcm or wav")
    if level.client is None:
        found.append(f"{name}: WARNING: the client's own timing error was not measured")
    elif level.client.limited:
        worst_ms = 1e3 * max(level.client.stamp_p99_s, level.client.start_p99_s)
        found.append(
            f"{name}: WARNING: the client was {worst_ms:.1f} ms late at p99 (allowed: 2): it limited this result; "
            "give it more cores, --processes, or another machine"
        )
    if level.interrupted:
        found.append(f"{name}: interrupted: only what had ended by then")
    if level.server_metrics:
        found += [f"{name}: server: {told}" for told in metric_lines(level.server_metrics)]
    return found


def metric_lines(metrics: Mapping[str, Any]) -> list[str]:
    lines = []
    for metric, entry in metrics.items():
        if not any(word in metric.lower() for word in _TELLING):
            continue
        if entry["kind"] == "histogram":
            quantiles = ", ".join(f"{p} {entry[p]:.4g}" for p in ("p50", "p99") if entry.get(p) is not None)
            lines.append(f"{metric}: mean {entry['mean']:.4g}, {quantiles} (of {entry['count']:.0f})")
        elif entry.get("per_s") and entry["grown"] > 0:
            each = f", {1e3 / entry['per_s']:.2f} ms each" if "step" in metric else ""
            lines.append(f"{metric}: +{entry['grown']:.6g}, {entry['per_s']:.4g} a second{each}")
    return lines


def _cell(spread: Spread | None, name: str, scale: float, digits: int) -> str:
    return "-" if spread is None else f"{scale * getattr(spread, name):.{digits}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"
