"""The figures of a level, the server's own view, and what is kept on disk."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.samples import TARGET, failed, level, noisy_run, sample
from sonant.bench.client.load_level import ClientError
from sonant.bench.client.sample import Failure, Sample
from sonant.bench.client.server_metrics import difference, parse
from sonant.bench.report import html, plots, results
from sonant.bench.report.results import Run
from sonant.bench.report.table import run_table
from sonant.errors import ConfigError


def run_of(*levels: object) -> Run:
    return Run(TARGET, {}, list(levels), {}, 2, "now")  # type: ignore[arg-type]


def test_figures_of_a_level() -> None:
    good = [sample(ttfp_s=0.1 * (i + 1), gap_s=0.06 * i) for i in range(4)]  # gaps of 0, 60, 120 and 180 ms
    found = level([*good, failed(Failure.CUT), failed(Failure.STATUS, 503)], wall_s=4.0).summary
    assert (found.requests, found.ok) == (6, 4)
    assert found.failures == {"cut": 1, "status 503": 1}
    assert found.ttfp_s is not None and found.ttfp_s.p50 == pytest.approx(0.25)
    assert found.underrun_rate == 0.5
    assert found.gap_free == {"50": 0.25, "100": 0.5, "200": 1.0}
    assert found.underruns == 3
    assert found.underrun_s is not None and found.underrun_s.most == pytest.approx(0.18)
    assert (found.audio_s, found.audio_s_per_s, found.requests_per_s) == (8.0, 2.0, 1.0)


def test_a_level_where_all_failed_has_no_latencies() -> None:
    bad = level([failed(Failure.EMPTY)] * 3)
    assert bad.summary.ttfp_s is None and bad.summary.failures == {"empty": 3}
    shown = run_table(run_of(bad))
    assert "0/3" in shown and "3 failed: empty: as planned" in shown
    with pytest.raises(ConfigError, match="nothing to draw"):
        plots.draw(run_of(bad))


def test_reads_that_the_network_cut_are_one_chunk() -> None:
    cut = Sample("p", 0.0, end_s=1.0, arrivals_s=(0.1, 0.1004, 0.5), durations_s=(0.1, 0.1, 0.1), audio_s=0.3)
    assert cut.chunk_gaps_s == pytest.approx([0.4])


@pytest.mark.parametrize("late", [ClientError(0.001, 0.003, 0.004, 0.0), ClientError(0.0, 0.001, 0.002, 0.005)])
def test_a_late_client_is_told(late: ClientError) -> None:
    shown = run_table(run_of(level([sample()], client=late)))
    assert "WARNING: the client was" in shown and "it limited this result" in shown
    assert "WARNING" not in run_table(run_of(level([sample()])))


def test_a_server_that_does_not_stream_is_told() -> None:
    whole = Sample("p", 0.0, end_s=1.0, arrivals_s=(1.0,), durations_s=(2.0,), audio_s=2.0, status=200)
    assert "does not stream" in run_table(run_of(level([whole])))


def test_results_survive_the_disk(tmp_path: Path) -> None:
    run = noisy_run(1, requests=12)
    run.levels[0].samples.append(failed(Failure.STATUS, 429))
    run.save(tmp_path / "new" / "run.json")
    again = results.load(tmp_path / "new" / "run.json")
    for old, new in zip(run.levels[0].samples, again.levels[0].samples, strict=True):
        assert (new.prompt, new.failure, new.status) == (old.prompt, old.failure, old.status)
        assert new.arrivals_s == pytest.approx(old.arrivals_s, abs=1e-6)
    assert run_table(again) == run_table(run)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "serve", "format": 99}', '{"kind": "serve", "format": 1}'])
def test_files_that_are_no_results(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match=r"x\.json"):
        results.load(tmp_path / "x.json")


def test_a_report_needs_nothing_but_itself(tmp_path: Path) -> None:
    run = noisy_run(1, requests=12)
    run.notes["gpu"] = "<script>"  # type: ignore[index]
    html.write(run, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 4
    assert not re.search(r'(src|href)="(?!data:)', page) and "<script" not in page
    plots.save(run, tmp_path / "plots")
    for name in ("ttfp", "rtf", "continuity", "timeline"):
        assert (tmp_path / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


METRICS = """
# TYPE a_tokens_total counter
a_tokens_total{{model="x"}} {tokens}
# TYPE a_ttft_seconds histogram
a_ttft_seconds_bucket{{le="0.1"}} {fast}
a_ttft_seconds_bucket{{le="0.5"}} {slow}
a_ttft_seconds_bucket{{le="+Inf"}} {slow}
a_ttft_seconds_count {slow}
a_ttft_seconds_sum {sum}
# TYPE a_steps gauge
a_steps {steps}
"""


def test_the_servers_own_view_is_what_changed() -> None:
    before = parse(METRICS.format(tokens=100, fast=7, slow=9, sum=5.0, steps=10))
    after = parse(METRICS.format(tokens=300, fast=7, slow=19, sum=8.0, steps=60))
    moved = difference(before, after, 4.0)
    assert moved is not None
    assert moved['a_tokens{model="x"}'] == {"kind": "counter", "grown": 200, "per_s": 50}
    assert moved["a_steps"]["per_s"] == 12.5
    # There are ten new observations, all between 0.1 and 0.5.
    assert moved["a_ttft_seconds"] == pytest.approx(
        {"kind": "histogram", "count": 10, "mean": 0.3, "p50": 0.3, "p99": 0.496}
    )


@pytest.mark.parametrize("text", ["", "<html>\nno metrics here</html>", json.dumps({"a": 1})])
def test_a_page_that_is_no_metrics(text: str) -> None:
    assert parse(text) is None
    assert difference(None, None, 1.0) is None
