"""What makes replicas of servers, without Ray: options, scaling, their metrics on one page, their edge."""

from __future__ import annotations

import asyncio
import errno
import math
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.conftest import wait_for
from sonant.config import EngineConfig
from sonant.engine.telemetry import EngineStats, Tally, Telemetry
from sonant.errors import ConfigError
from sonant.serving.cluster.autoscaling import replicas_wanted, wanted
from sonant.serving.cluster.cluster_options import ClusterOptions
from sonant.serving.cluster.engine_child import EngineChild
from sonant.serving.cluster.listener_load import GAPS, PROMISE, ListenerLoad, stats_of
from sonant.serving.cluster.ray_settings import ray_environment
from sonant.serving.cluster.replica import SpeechReplica
from sonant.serving.cluster.replica_edge import ReplicaEdge
from sonant.serving.cluster.run import reason_of
from sonant.serving.observability.engine_report import Counts
from sonant.serving.observability.merged_metrics import merged
from sonant.serving.options import ModelOptions, ServeOptions
from sonant.serving.processes.setup import Setup
from sonant.serving.ray_app import options_from

IDLE = EngineStats(
    running=0, waiting=0, free_rows=8, rows=8, free_blocks=100, blocks=100, steps=5, start_s=0.05, turn_s=2.0,
    whole_s=4.0,
)  # fmt: skip
FULL = replace(IDLE, running=8, waiting=4, in_need=4, free_rows=0, free_blocks=20, steps=900, turn_s=8.0)


def told(stats: EngineStats, gaps: float = 0.0, promise_s: float = 10.0) -> dict[str, float]:
    return {**{name: float(value) for name, value in asdict(stats).items()}, GAPS: gaps, PROMISE: promise_s}


# Options


def test_options_of_a_serve_config_are_those_of_the_config_file() -> None:
    model, serving, engine, cluster = options_from(
        {"model": "/models/base", "device": "cuda", "max_first_audio_s": 2, "api_key_file": "/keys.toml",
         "max_rows": 16, "replicas": 4, "max_replicas": 8}
    )  # fmt: skip
    assert (model.model, model.device, engine.max_rows) == ("/models/base", "cuda", 16)
    assert serving.max_first_audio_s == 2.0 and str(serving.api_key_file) == "/keys.toml"
    assert (cluster.least, cluster.max_replicas, cluster.wanted) == (4, 8, True)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"replica": 2}, "no option is called 'replica'.*replicas"),
        ({"replicas": 0}, "replicas must be at least 1"),
        ({"replicas": 3, "max_replicas": 2}, "must not be below replicas"),
        ({"replica_gpus": -1}, "must not be below 0"),
        ({"max_rows": "many"}, "max_rows"),
    ],
)
def test_a_wrong_option_is_told_by_name(args: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        options_from(args)


def test_without_an_option_of_theirs_there_are_no_replicas() -> None:
    assert not ClusterOptions().wanted
    assert ClusterOptions(ray="auto").wanted and ClusterOptions(max_replicas=2).least == 1


def test_who_reads_nothing_is_cut_off_by_the_proxy_as_by_us() -> None:
    assert ray_environment(ServeOptions(unread_s=12.5))["RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S"] == "13"


# Scaling


def test_idle_replicas_go_one_by_one_and_the_last_one_stays() -> None:
    assert wanted(3, [told(IDLE)] * 3) == 2
    assert wanted(1, [told(IDLE)]) == 1


def test_nothing_changes_before_anybody_has_told_anything() -> None:
    assert wanted(3, []) == 3


def test_a_burst_that_would_wait_too_long_brings_replicas_at_most_twice_as_many() -> None:
    assert FULL.first_sound_s(2) > 5.0
    assert wanted(2, [told(FULL)] * 2) > 2
    assert wanted(4, [told(replace(FULL, turn_s=1e4))] * 4) == 8


def test_gaps_bring_replicas_although_the_first_sound_is_early() -> None:
    assert wanted(2, [told(IDLE, gaps=0.015)] * 2) == 3
    assert wanted(2, [told(IDLE, gaps=0.005)] * 2) == 2  # neither more nor fewer


def test_none_is_taken_away_whose_listeners_the_others_could_not_take() -> None:
    busy = replace(IDLE, running=6, free_rows=2, free_blocks=40, turn_s=12.0)
    assert busy.first_sound_s(2) < 5.0
    assert wanted(2, [told(busy)] * 2) == 2
    assert wanted(9, [told(busy)] * 9) == 9
    assert wanted(9, [told(replace(busy, running=1, free_rows=7, free_blocks=90))] * 9) == 8


def test_many_requests_that_lend_their_rows_are_no_reason() -> None:
    """Their texts are long and far ahead of their listeners, so whoever comes is heard at once."""
    lending = replace(IDLE, running=8, free_rows=0, lendable_rows=8, parked=20, free_blocks=70)
    assert wanted(2, [told(lending)] * 2) <= 2


def test_the_policy_takes_what_ray_has_gathered() -> None:
    class Context:
        current_num_replicas = 2
        aggregated_metrics = {  # noqa: RUF012
            name: {"a": value, "b": value} | ({"new": value} if name != GAPS else {})
            for name, value in told(FULL).items()
        }

    number, state = replicas_wanted(Context())  # type: ignore[arg-type]
    assert number > 2 and state == {}
    Context.aggregated_metrics = {}
    assert replicas_wanted(Context())[0] == 2  # type: ignore[arg-type]


def test_an_engines_state_survives_the_way_through_averages() -> None:
    assert stats_of(told(FULL)) == FULL
    assert stats_of({**told(FULL), "running": 7.6}).running == 8


def test_the_share_of_gaps_is_of_what_came_since_the_last_look() -> None:
    class Report:
        stats = asdict(IDLE)
        tallies: dict[str, Counts]

    class Link:
        reports = True

        async def report(self) -> Any:
            return Report if self.reports else None

    def heard(tally: Tally) -> None:
        Report.tallies = {"frames_ahead": Counts(tally.bounds, tuple(tally.counts), tally.total)}

    async def look() -> None:
        ahead, link = Telemetry().frames_ahead, Link()
        load = ListenerLoad(link, 10.0)  # type: ignore[arg-type]
        for frames in (0.0, 3.0, 3.0, 3.0):
            ahead.add(frames)
        heard(ahead)
        assert (await load.figures())[GAPS] == 0.25
        assert (await load.figures())[GAPS] == 0.0
        ahead.add(0.0)
        heard(ahead)
        assert (await load.figures())[GAPS] == 1.0
        another = Telemetry().frames_ahead
        another.add(5.0)
        heard(another)
        figures = await load.figures()
        assert figures[GAPS] == 0.0 and figures[PROMISE] == 10.0 and stats_of(figures) == IDLE
        link.reports = False
        assert await load.figures() == {}

    asyncio.run(look())


# Metrics


PAGE = b"""# HELP sonant_requests_total requests
# TYPE sonant_requests_total counter
sonant_requests_total{route="speech"} %d
# HELP sonant_ttfp_seconds first sound
# TYPE sonant_ttfp_seconds histogram
sonant_ttfp_seconds_bucket{le="0.1"} 1.0
sonant_ttfp_seconds_bucket{le="+Inf"} 2.0
sonant_ttfp_seconds_count 2.0
sonant_ttfp_seconds_sum 0.3
# HELP sonant_ready ready
# TYPE sonant_ready gauge
sonant_ready 1.0
"""


def test_metrics_of_all_replicas_are_one_page_with_whose_they_are() -> None:
    page = merged({"b": PAGE % 7, "a": PAGE % 3}).decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert {(s.labels["replica"], s.value) for s in families["sonant_requests"].samples} == {("a", 3.0), ("b", 7.0)}
    assert families["sonant_ttfp_seconds"].type == "histogram" and len(families["sonant_ttfp_seconds"].samples) == 8
    assert page.count("# TYPE sonant_ready gauge") == 1
    assert math.isclose(sum(s.value for s in families["sonant_ready"].samples), 2.0)


def test_a_page_is_of_one_replica_where_the_others_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that hangs costs nobody the page, and Ray's controller is not asked on the loop that streams."""
    serve = pytest.importorskip("ray.serve")

    class Service:
        async def metrics_text(self) -> bytes:
            return PAGE % 3

    class Broadcast:
        async def results_async(self, **_: Any) -> list[Any]:
            raise TimeoutError("one of them hangs")

    def handle(*_: str) -> SimpleNamespace:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return SimpleNamespace(broadcast=lambda _: Broadcast())

    context = SimpleNamespace(deployment="d", app_name="a", replica_id=SimpleNamespace(unique_id="this one"))
    monkeypatch.setattr(serve, "get_replica_context", lambda: context)
    monkeypatch.setattr(serve, "get_deployment_handle", handle)
    replica = object.__new__(type("Lone", (), {**vars(SpeechReplica), "__del__": lambda self: None}))
    replica.service = Service()
    page = asyncio.run(replica._all_metrics()).decode()
    assert 'sonant_requests_total{replica="this one",route="speech"} 3.0' in page


# Starting and ending


def test_an_engine_that_was_just_started_when_it_was_closed_goes_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    setup = Setup(
        folder=tmp_path, scratch=tmp_path, model=ModelOptions(), serving=ServeOptions(), engine=EngineConfig(),
        host="", port=0,
    )  # fmt: skip
    child = EngineChild(setup)
    real = subprocess.Popen

    def popen(_: object, **options: Any) -> subprocess.Popen[bytes]:
        started.append(real([sys.executable, "-c", "import time; time.sleep(60)"], **options))
        child._closing.set()
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    child.start()
    child._thread.join(20)
    assert not child._thread.is_alive() and [each.returncode for each in started] == [-signal.SIGTERM]


def test_an_engine_whose_process_could_not_be_started_is_started_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    setup = Setup(
        folder=tmp_path, scratch=tmp_path, model=ModelOptions(), serving=ServeOptions(), engine=EngineConfig(),
        host="", port=0,
    )  # fmt: skip
    child, tried = EngineChild(setup), 0
    real = subprocess.Popen

    def popen(_: object, **options: Any) -> subprocess.Popen[bytes]:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return real([sys.executable, "-c", "import time; time.sleep(60)"], **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    child.start()
    wait_for(lambda: child._process is not None, 20)
    assert tried == 2 and child.deaths == 0 and child.fatal is None
    child.close()


def test_a_proxy_that_cannot_listen_says_where_and_other_reasons_are_told_whole() -> None:
    alert = "[ALERT]    (7) : Binding for proxy stats: cannot bind socket (Address already in use) for [0.0.0.0:8404]"
    lines = ["ray::HAProxyManager.ready()", "  File x", "RuntimeError: HAProxy crashed: [NOTICE] version", alert]
    said = reason_of(RuntimeError("\n".join(lines)))
    assert said.endswith("for [0.0.0.0:8404]") and "\n" not in said and "File x" not in said
    assert reason_of(RuntimeError("Deploying failed: no such folder")) == "Deploying failed: no such folder"


# The edge


def test_the_edge_asks_for_the_clients_own_connection_and_leaves_one_request_id() -> None:
    seen: dict[str, Any] = {}
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope=scope, receive=receive)
        headers = [(b"x-request-id", b"ours"), (b"x-seed", b"1"), (b"X-Request-ID", b"rays")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"sound", "more_body": False})

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    client = [(b"x-request-disconnect-disabled", b"?0"), (b"host", b"here")]
    asyncio.run(ReplicaEdge(app)({"type": "http", "headers": client}, receive, send))
    assert [value for name, value in seen["scope"]["headers"] if name == b"x-request-disconnect-disabled"] == [b"?1"]
    assert seen["receive"] is receive
    assert sent[0]["headers"] == [(b"x-request-id", b"ours"), (b"x-seed", b"1")]
    assert sent[1]["body"] == b"sound"
