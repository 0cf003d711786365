"""/metrics is true, follows Prometheus' rules for names, and has what the dashboard and the docs speak of."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import types
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from serving.conftest import Serve, Served
from serving.session_client import CONFIG, SIX
from serving.session_client import session as socket
from serving.test_voice_routes import upload, wav
from sonant.audio.continuity import Continuity
from sonant.serving import audio_pipeline
from sonant.serving.audio_pipeline import AudioPipeline
from sonant.serving.observability.gpu import GpuReader
from sonant.serving.observability.metrics import ABORTS, REJECTIONS, ROUTES
from sonant.serving.observability.shared_counters import SHARED_FOLDER, share_counters
from sonant.types import AudioChunk

GPU = torch.device("cuda", 0)
ROOT = Path(__file__).parents[2]
BODY = {"input": "hello the world", "voice": "alloy", "seed": 5, "max_frames": 12, "response_format": "pcm"}


@pytest.fixture(scope="module")
def served(serve_once: Serve) -> Served:
    return serve_once()


@pytest.fixture(scope="module")
def cloning(serve_once: Serve, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return serve_once("base", voices_folder=tmp_path_factory.mktemp("voices"))


def scrape(served: Served) -> dict[str, Metric]:
    text = httpx.get(f"{served.url}/metrics").text
    return {f.name: f for f in text_string_to_metric_families(text) if not f.name.endswith("_created")}


def value(families: dict[str, Metric], sample: str, **labels: str) -> float:
    found = [s for f in families.values() for s in f.samples if s.name == sample and labels.items() <= s.labels.items()]
    assert found, f"no {sample} with {labels}"
    return sum(s.value for s in found)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A stand-in for the driver's library."""
    nvml = types.SimpleNamespace(
        NVML_TEMPERATURE_GPU=0,
        NVMLError=type("NVMLError", (Exception,), {}),
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetMemoryInfo=lambda _: types.SimpleNamespace(used=3 << 30, total=8 << 30),
        nvmlDeviceGetUtilizationRates=lambda _: types.SimpleNamespace(gpu=40),
        nvmlDeviceGetPowerUsage=lambda _: 123_000,
        nvmlDeviceGetTemperature=lambda _, kind: 51,
    )
    monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(uuid="1234"))
    return nvml


def test_a_request_is_counted_once_where_it_belongs(serve: Serve) -> None:
    served = serve("endless")
    before = scrape(served)
    assert value(before, "sonant_requests_total", route="speech") == 0
    served.post(**BODY)
    served.post(**{**BODY, "voice": "nobody"})
    after = scrape(served)
    assert value(after, "sonant_requests_total", route="speech", outcome="length") == 1
    assert value(after, "sonant_requests_total", route="speech", outcome="bad_request") == 1
    assert value(after, "sonant_requests_total", outcome="error") == 0
    assert value(after, "sonant_ttfp_seconds_count") == value(after, "sonant_rtf_ratio_count") == 1
    assert value(after, "sonant_audio_seconds_total") == pytest.approx(12 * 0.08)
    steps = value(after, "sonant_engine_steps_total") - value(before, "sonant_engine_steps_total")
    planned = "sonant_step_phase_seconds_count"
    assert value(after, planned, phase="plan") - value(before, planned, phase="plan") == steps > 0
    assert value(after, "sonant_step_rows_count") > value(before, "sonant_step_rows_count")
    assert value(after, "sonant_frames_ahead_count") > value(before, "sonant_frames_ahead_count")
    for by_request in ("sonant_first_step_seconds", "sonant_time_per_step_seconds"):
        assert value(after, f"{by_request}_count") - value(before, f"{by_request}_count") == 1
        assert value(after, f"{by_request}_sum") > value(before, f"{by_request}_sum")
    assert value(after, "sonant_ttfp_seconds_bucket", le="0.005") >= 0  # buckets from 5 ms
    assert value(after, "sonant_rtf_ratio_bucket", le="0.01") >= 0


def test_gaps_are_those_of_streams_and_not_of_files(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio_pipeline, "continuity", lambda *_: Continuity(gaps=3, gap_s=1.5, prebuffer_s=1.0))
    served = serve("endless toy")
    short = {"voice": "alloy", "max_frames": 5, "response_format": "wav"}
    assert served.post(**short, input="hello", stream=False).status_code == 200
    batch = {**short, "items": [{"input": "hello"}, {"input": "the world"}]}
    assert httpx.post(f"{served.url}/v1/audio/speech/batch", json=batch).json()["succeeded"] == 2
    with socket(served) as client:
        client.say("session.config", **short)  # a whole file for each piece
        client.say("input.text", text="hello")
        client.say("input.done")
        client.until("session.done")
    families = scrape(served)
    assert value(families, "sonant_audio_seconds_total") > 0
    assert value(families, "sonant_underruns_total") == value(families, "sonant_underrun_seconds_count") == 0
    assert served.post(**short, input="hello").status_code == 200
    families = scrape(served)
    assert value(families, "sonant_underruns_total") == 3
    assert value(families, "sonant_underrun_seconds_sum") == 1.5


def test_gaps_are_those_of_a_listener_at_the_speed_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are two chunks of a second each, the second 0.75 s after the first."""
    second = AudioChunk(np.zeros(24_000, np.float32), 24_000, 0.0, np.zeros((1, 1), np.int32))
    gaps_s = {}
    for speed in (1.0, 2.0):
        pipeline = AudioPipeline("pcm", 24_000, 24_000, speed, True, ThreadPoolExecutor(1))
        for now_s in (10.0, 10.75):
            with monkeypatch.context() as patch:
                patch.setattr(audio_pipeline.time, "monotonic", lambda now_s=now_s: now_s)
                asyncio.run(pipeline.push(second))
        gaps_s[speed] = pipeline.listener().gap_s
    assert gaps_s == {1.0: 0.0, 2.0: pytest.approx(0.25)}


def test_who_stops_reading_for_a_while_hears_no_gap_of_ours(serve: Serve) -> None:
    served = serve("endless toy")
    asked = [{"type": "http.request", "body": json.dumps({**BODY, "max_frames": 40}).encode(), "more_body": False}]
    scope = {"type": "http", "method": "POST", "path": "/v1/audio/speech", "query_string": b"", "state": {}}
    scope["headers"] = [(b"content-type", b"application/json")]

    async def receive() -> dict[str, Any]:
        return asked.pop() if asked else await asyncio.Event().wait()

    async def send(message: dict[str, Any]) -> None:
        if message.get("body"):
            await asyncio.sleep(0.1)  # far longer than a frame lasts

    speaking = served.server.config.loaded_app(scope, receive, send)
    asyncio.run_coroutine_threadsafe(speaking, served.link.engine.remote.loop).result(20)
    families = scrape(served)
    assert value(families, "sonant_underrun_seconds_count") == 1
    assert value(families, "sonant_underruns_total") == 0


def test_names_and_buckets_follow_the_conventions(served: Served) -> None:
    served.post(**BODY)
    for name, family in scrape(served).items():
        assert name.startswith(("sonant_", "process_")) and family.documentation, name
        if family.type == "counter":
            assert all(s.name.endswith("_total") for s in family.samples if not s.name.endswith("_created"))
        if family.type == "histogram":
            buckets = [s for s in family.samples if s.name.endswith("_bucket")]
            for labels in {tuple(sorted((k, v) for k, v in s.labels.items() if k != "le")) for s in buckets}:
                counts = [s.value for s in buckets if set(labels) <= set(s.labels.items())]
                assert counts == sorted(counts) and buckets[-1].labels["le"] == "+Inf"
        labels = (
            {"version", "python", "torch"}
            if name == "sonant_build_info"
            else {"le", "route", "outcome", "reason", "phase"}
        )
        assert {k for s in family.samples for k in s.labels} <= labels, name


def test_labels_do_not_grow_with_what_clients_send(served: Served) -> None:
    before = sum(len(f.samples) for f in scrape(served).values())
    for n in range(5):
        served.post(input="hello", voice=f"nobody-{n}", model=f"model-{n}", max_frames=1)
        httpx.get(f"{served.url}/nope/{n}")
    assert sum(len(f.samples) for f in scrape(served).values()) == before


def families_ever(served: Served, nvml: object) -> set[str]:
    """The names of all samples, and those of the families that only a GPU has."""
    names = {s.name for f in scrape(served).values() for s in f.samples if not f.name.startswith("process_")}
    return names | {f"sonant_gpu_{name}" for name in GpuReader(GPU).read() or ()}


def test_the_dashboard_asks_only_for_what_there_is(cloning: Served, nvml: types.SimpleNamespace) -> None:
    cloning.post(**{**BODY, "voice": "nobody"})
    known = families_ever(cloning, nvml)
    board = json.loads(files("sonant.serving.observability").joinpath("dashboards/sonant.json").read_text("utf-8"))
    asked: set[str] = set()
    for panel in board["panels"]:
        assert panel["title"] and panel["targets"]
        for target in panel["targets"]:
            asked |= set(re.findall(r"\bsonant_[a-z_]+", target["expr"]))
    assert len(asked) > 20 and asked <= known, asked - known
    base = re.compile(r"_(bucket|sum|count|created)$")
    unseen = {base.sub("", n) for n in known if not n.endswith("_created")} - {base.sub("", n) for n in asked}
    assert not unseen, f"the dashboard leaves out {sorted(unseen)}"


def test_every_metric_is_described_in_the_docs(cloning: Served, nvml: types.SimpleNamespace) -> None:
    names = families_ever(cloning, nvml)
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(sonant_[a-z_]+)", page))
    wanted = {re.sub(r"_(bucket|sum|count)$", "", n) for n in names if not n.endswith("_created")}
    assert wanted == told, (wanted - told, told - wanted)
    assert "`process_" in page


def test_gpu_figures_are_read_once_a_second_at_most(nvml: types.SimpleNamespace) -> None:
    readings: list[Any] = []
    real = nvml.nvmlDeviceGetMemoryInfo

    def counted(handle: object) -> object:
        readings.append(handle)
        return real(handle)

    nvml.nvmlDeviceGetMemoryInfo = counted
    reader = GpuReader(GPU)
    seen = [reader.read() for _ in range(5)][-1]
    assert readings == ["GPU-1234"] and seen is not None
    assert seen["memory_used_bytes"] == 3 << 30 and seen["utilisation_ratio"] == 0.4
    assert seen["power_watts"] == 123.0 and seen["temperature_celsius"] == 51


def test_a_figure_that_a_gpu_does_not_have_takes_no_other_along(nvml: types.SimpleNamespace) -> None:
    def unsupported(_: object) -> int:
        raise nvml.NVMLError("Not Supported")

    nvml.nvmlDeviceGetPowerUsage = unsupported
    seen = GpuReader(GPU).read()
    assert seen is not None and "power_watts" not in seen and seen["temperature_celsius"] == 51


def test_without_nvml_there_are_no_gpu_figures_and_no_harm(nvml: types.SimpleNamespace) -> None:
    def absent() -> None:
        raise OSError("no driver")

    nvml.nvmlInit = absent
    reader = GpuReader(GPU)
    assert reader.read() is None and reader.read() is None
    assert GpuReader(torch.device("cpu")).read() is None


def test_what_was_turned_away_is_counted_by_reason(serve: Serve) -> None:
    served = serve(max_requests_per_minute=1)
    assert [served.post(**BODY).status_code for _ in range(3)] == [200, 429, 429]
    assert value(scrape(served), "sonant_rejected_total", reason="rate_limited") == 2


def test_all_that_is_counted_is_there_before_it_happens(serve: Serve) -> None:
    """A counter that appears with its first increment has no rate: the first error would never be seen."""
    families = scrape(serve("endless toy"))
    for route in ROUTES:
        for outcome in ("stop", "length", "bad_request", "refused", "error"):
            assert value(families, "sonant_requests_total", route=route, outcome=outcome) == 0
    for reason in REJECTIONS:
        assert value(families, "sonant_rejected_total", reason=reason) == 0
    for reason in ABORTS:
        assert value(families, "sonant_aborted_total", reason=reason) == 0
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/sonant/serving").rglob("*.py"))
    assert set(re.findall(r"Refused\((?:429|503), \"(\w+)\"", source)) | {"queue_full", "too_late"} == set(REJECTIONS)


def test_what_is_in_memory_of_uploaded_voices_is_told(serve: Serve, tmp_path: Path) -> None:
    served = serve("base", voices_folder=tmp_path, consent="asserted")
    names = [f"sonant_voice_cache_{name}" for name in ("entries", "hits_total", "misses_total")]
    voice = upload(served.url, wav(), name="me", consent="I agree.").json()["id"]
    assert [value(scrape(served), name) for name in names] == [0, 0, 0]
    for _ in range(3):
        assert served.post(**{**BODY, "voice": "me", "max_frames": 1}).status_code == 200
    assert [value(scrape(served), name) for name in names] == [1, 2, 1]
    httpx.delete(f"{served.url}/v1/audio/voices/{voice}")
    assert [value(scrape(served), name) for name in names] == [0, 2, 1]


def test_the_build_and_the_process_are_told(served: Served) -> None:
    families = scrape(served)
    (build,) = families["sonant_build_info"].samples
    assert build.name == "sonant_build_info" and build.labels["version"] == version("sonant")
    assert value(families, "process_resident_memory_bytes") > 10 << 20
    assert value(families, "process_open_fds") > 3


def test_a_front_end_without_room_for_its_counters_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be killed at its first count, again and again, and nobody would learn why."""
    monkeypatch.setattr(os, "environ", {})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))  # as on a disk that is nearly full
    try:
        with pytest.raises(OSError, match=r"no room for this process's counters: .*TMPDIR"):
            share_counters(tmp_path / "metrics")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert SHARED_FOLDER not in os.environ
    share_counters(tmp_path / "metrics")
    assert os.environ[SHARED_FOLDER] == str(tmp_path / "metrics") and not list((tmp_path / "metrics").iterdir())


def test_an_utterance_is_counted_once_however_many_of_its_sentences_are_refused(serve: Serve) -> None:
    served = serve("endless toy", engine=SIX)
    sentences = {
        "bad_request": ["Lone: \ud800. ", "And \ud800. "],
        "length": ["Hello. ", "Lone: \ud800. ", "And the world. "],
    }
    with socket(served) as client:
        client.say("session.config", **CONFIG, split_granularity="sentence")
        for said in sentences.values():
            client.say("input.text", text="".join(said))
            client.say("input.done")
            client.until("session.done")
    families = scrape(served)
    for outcome in sentences:
        assert value(families, "sonant_requests_total", route="stream", outcome=outcome) == 1
    assert value(families, "sonant_requests_total", route="stream") == 2


def test_whose_fault_it_was_is_told_apart(serve: Serve) -> None:
    served = serve("endless toy", max_requests_per_minute=2, max_body_bytes=10_000)
    assert served.post(input=5).status_code == 400  # never reached its handler
    assert served.post(input="x" * 20_000).status_code == 413
    assert served.post(**{**BODY, "voice": "nobody"}).status_code == 400
    with socket(served) as client:
        client.say("session.config", **CONFIG | {"voice": "nobody"})
        client.say("input.text", text="hello")
        client.say("input.done")
        client.until("session.done")
    assert [served.post(**BODY).status_code for _ in range(2)] == [429, 429]
    batch = httpx.post(f"{served.url}/v1/audio/speech/batch", json={"items": [{"input": "a"}, {"input": "b"}]})
    assert batch.status_code == 429
    families = scrape(served)
    assert value(families, "sonant_requests_total", route="speech", outcome="bad_request") == 3
    assert value(families, "sonant_requests_total", route="speech", outcome="refused") == 2
    assert value(families, "sonant_requests_total", route="batch", outcome="refused") == 2
    assert value(families, "sonant_requests_total", route="stream", outcome="bad_request") == 1
    assert value(families, "sonant_requests_total", outcome="error") == 0
