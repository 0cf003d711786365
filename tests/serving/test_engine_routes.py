"""What the server tells of its engine, at rest and at work."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from serving.conftest import Serve, Served, wait_for
from sonant.engine.telemetry import PagedTotals
from sonant.serving.observability.engine_report import EngineReport
from sonant.serving.observability.gpu import GpuReader
from sonant.serving.observability.metrics import Metrics
from sonant.serving.observability.recent_stats import WINDOW_S, RecentStatsReader

BODY = {"input": "hello the world", "seed": 5, "max_frames": 12, "response_format": "pcm"}


@pytest.fixture(scope="module")
def served(serve_once: Serve, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return serve_once("custom", voices_folder=tmp_path_factory.mktemp("voices"))


def test_what_is_loaded(served: Served, serve: Serve, tmp_path: Path) -> None:
    custom = httpx.get(f"{served.url}/v1/engine").json()
    assert custom["model"] == "tiny" and custom["device"] == "cpu" and "english" in custom["languages"]
    assert custom["uploads"] is None  # this model has voices of its own, and cannot clone
    base = httpx.get(f"{serve('base', voices_folder=tmp_path, consent='asserted').url}/v1/engine").json()
    assert base["clones"] and base["uploads"]["consent"] == "asserted" and base["uploads"]["clip_max_s"] == 60
    assert httpx.get(f"{serve('base').url}/v1/engine").json()["uploads"] is None


def test_figures_follow_the_requests(serve: Serve) -> None:
    served = serve(max_streams_per_client=1, checkpoint="endless")
    address = f"{served.url}/v1/engine/stats"
    rest = httpx.get(address).json()
    assert rest["ready"] and rest["running"] == 0 and rest["recent"]["requests"] == 0
    assert rest["recent"]["ttfp_p50_s"] is None and rest["gpu"] is None
    assert served.post(**BODY).status_code == 200
    body = {"input": "hello the world " * 20, "response_format": "pcm"}
    with httpx.stream("POST", f"{served.url}/v1/audio/speech", json=body) as response:
        pieces = response.iter_raw()
        next(pieces)
        assert served.post(**BODY).status_code == 429
        work = httpx.get(address).json()
    assert work["running"] == 1 and work["free_blocks"] < work["blocks"]
    recent = work["recent"]
    assert recent["requests"] == 2 and recent["rejected"] == 1
    assert 0 < recent["ttfp_p50_s"] <= recent["ttfp_p99_s"] and recent["rtf_p50"] > 0
    assert recent["batch_rows"] == 1 and recent["audio_s_per_s"] > 0 and recent["steps_per_s"] > 0
    assert sum(recent["step_phases_s"].values()) == pytest.approx(recent["step_s"]) and recent["step_s"] > 0
    wait_for(lambda: httpx.get(address).json()["running"] == 0)


def test_an_engine_that_is_not_there_is_said_to_be_so(served: Served) -> None:
    served.link.trouble = "loading"
    answer = httpx.get(f"{served.url}/v1/engine/stats").json()
    assert answer["ready"] is False and answer["trouble"] == "loading"
    assert httpx.get(f"{served.url}/v1/engine").status_code == 503
    served.link.trouble = None


def test_before_the_first_engine_there_are_no_steps() -> None:
    recent = RecentStatsReader(Metrics(), now_s=0.0).at(1.0, None)
    assert recent.step_s is None and recent.batch_rows is None and recent.step_phases_s == {}
    assert recent.audio_s_per_s == recent.steps_per_s == 0


def test_a_gpus_figures_are_told_as_metrics_has_them(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"memory_used_bytes": 5e9, "utilisation_ratio": 0.5}
    monkeypatch.setattr(GpuReader, "read", lambda _: figures)
    metrics = httpx.get(f"{served.url}/metrics").text
    assert "sonant_gpu_memory_used_bytes 5e+09" in metrics and "sonant_gpu_utilisation_ratio 0.5" in metrics
    answer = httpx.get(f"{served.url}/v1/engine/stats").json()
    assert answer["gpu"] == {"memory_used_bytes": 5e9, "utilisation_ratio": 0.5}


def test_the_share_of_steps_that_waits_for_weights(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = f"{served.url}/v1/engine/stats"
    assert httpx.get(stats).json()["recent"]["weight_wait_share"] is None  # all weights stay on the device
    paged = PagedTotals(pass_s=8.0, wait_s=2.0, copied_bytes=10**9)
    monkeypatch.setattr(served.supervisor.engine.telemetry, "paged", paged)
    recent = httpx.get(stats).json()["recent"]
    assert recent["weight_wait_share"] == 0.25 and recent["paged_bytes_per_s"] > 0
    metrics = httpx.get(f"{served.url}/metrics").text
    assert "sonant_weights_paged_bytes_total 1e+09" in metrics and "sonant_weights_wait_seconds_total 2.0" in metrics


def test_what_is_older_than_the_window_is_forgotten() -> None:
    metrics = Metrics()
    recent = RecentStatsReader(metrics, now_s=0.0)
    metrics.ttfp.observe(0.1)
    metrics.rejected.labels("overloaded").inc()
    for second in range(1, 31):
        assert recent.at(float(second), None).requests == 1
    metrics.ttfp.observe(5.0)
    assert recent.at(31.0, None).requests == 2
    later = {second: recent.at(float(second), None) for second in range(32, 120)}
    assert all(r.window_s <= WINDOW_S for s, r in later.items() if s > WINDOW_S)
    slow = later[75].ttfp_p50_s
    assert later[75].requests == 1 and slow is not None and slow > 2  # the earlier request is forgotten
    assert later[119].requests == 0 and later[119].rejected == 0 and later[119].ttfp_p50_s is None


def test_a_front_end_that_is_younger_than_its_engine_does_not_count_its_steps_as_its_own(served: Served) -> None:
    report = asyncio.run_coroutine_threadsafe(served.link.report(), served.link.engine.remote.loop).result(10)
    assert report is not None and 0 < report.loaded_s < time.monotonic()

    def at(steps: int) -> EngineReport:
        return replace(report, loaded_s=1_000.0, stats={**report.stats, "steps": steps})

    recent = RecentStatsReader(Metrics(), now_s=11_000.0)
    first, second = recent.at(11_001.0, at(100_010)), recent.at(11_002.0, at(100_030))
    assert first.steps_per_s == pytest.approx(10, rel=0.01) and first.steps_window_s == 10_001
    assert (second.steps_per_s, second.steps_window_s) == (20, 1)
    anew = recent.at(11_003.0, replace(at(100_040), loaded_s=11_002.5))  # and has done more already
    assert anew.steps_per_s == 100_040


def test_many_who_ask_do_not_make_it_grow() -> None:
    metrics = Metrics()
    recent = RecentStatsReader(metrics, now_s=0.0)
    for tick in range(4_000):
        recent.at(tick * 0.05, None)
    assert len(recent._readings) <= WINDOW_S / 0.5 + 2
