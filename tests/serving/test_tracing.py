"""One span for each request, with its parent, its events and its outcome, and no tracing unless it is asked for."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import httpx
import pytest

from serving.conftest import Serve, wait_for
from sonant.errors import ConfigError
from sonant.serving.observability import tracing
from sonant.serving.observability.request_log import RequestLog, RequestRecord
from sonant.serving.observability.tracing import OtelTracer, tracer_for

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BODY = {"input": "hello the world", "voice": "alloy", "max_frames": 3, "response_format": "pcm"}


def test_without_an_endpoint_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.startswith("opentelemetry")] or ["opentelemetry"]:
        monkeypatch.setitem(sys.modules, name, None)
    importlib.reload(tracing)  # which would fail if it imported any of them
    assert tracing.tracer_for(None) is None


def test_where_it_is_not_installed_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("opentelemetry", "opentelemetry.sdk", "opentelemetry.sdk.resources"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"pip install 'sonant\[otel\]'"):
        tracer_for("http://localhost:4318/v1/traces")


@pytest.fixture
def exporter() -> Any:
    return pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: Any) -> OtelTracer:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    return OtelTracer("http://localhost:1/v1/traces", SimpleSpanProcessor(exporter))


def test_a_request_is_a_span_of_its_callers_trace(serve: Serve, exporter: Any, tracer: OtelTracer) -> None:
    served = serve("custom")
    served.server.service.log.tracer = tracer
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    answer = httpx.post(f"{served.url}/v1/audio/speech", json=BODY, headers=headers, timeout=30)
    assert answer.status_code == 200
    httpx.get(f"{served.url}/health")
    wait_for(lambda: len(exporter.get_finished_spans()) == 1)
    (span,) = exporter.get_finished_spans()
    assert span.name == "POST /v1/audio/speech" and span.kind.name == "SERVER"
    assert f"{span.context.trace_id:032x}" == TRACE and f"{span.parent.span_id:016x}" == PARENT
    assert [event.name for event in span.events] == ["queue", "first sound", "end"]
    moments = [span.start_time, *(event.timestamp for event in span.events)]
    assert moments == sorted(moments) and moments[-1] == span.end_time
    assert span.attributes["http.response.status_code"] == 200 and span.attributes["sonant.voice"] == "alloy"
    assert span.attributes["sonant.characters"] == len(BODY["input"]) and "hello" not in str(dict(span.attributes))
    assert span.resource.attributes["service.name"] == "sonant" and span.status.is_unset


@pytest.mark.parametrize("parent", [None, "", "rubbish", f"00-{'0' * 32}-{PARENT}-01"])
def test_a_span_without_a_caller_begins_a_trace(exporter: Any, tracer: OtelTracer, parent: str | None) -> None:
    log = RequestLog(tracer)
    log.write(RequestRecord("a", "b", "GET /x", traceparent=parent, status=500))
    log.close()
    (span,) = exporter.get_finished_spans()
    assert span.parent is None and span.context.trace_id and not span.status.is_ok and not span.status.is_unset
