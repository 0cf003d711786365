"""Traces for OpenTelemetry: a span for each request, made from its record when the request is over.

So nothing is done for it while sound is made; and nothing is imported unless an endpoint is set.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from sonant.errors import ConfigError
from sonant.serving.observability.request_log import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanProcessor

_FAILED = ("error",)


class OtelTracer:
    """`processor` takes the finished spans; None: they go to the endpoint in batches, on a thread of the SDK's."""

    def __init__(self, endpoint: str, processor: SpanProcessor | None = None) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ModuleNotFoundError as e:
            raise ConfigError(f"otlp_endpoint needs {e.name}; install it with: pip install 'sonant[otel]'") from e
        resource = Resource.create({"service.name": "sonant", "service.version": version("sonant")})
        self.provider = TracerProvider(resource=resource)
        self.provider.add_span_processor(_exporter(endpoint) if processor is None else processor)
        self.tracer = self.provider.get_tracer("sonant")
        self.propagator = TraceContextTextMapPropagator()

    def trace(self, record: RequestRecord) -> None:
        from opentelemetry.trace import SpanKind, StatusCode

        carrier = {"traceparent": record.traceparent or "", "tracestate": record.tracestate or ""}
        span = self.tracer.start_span(
            record.route,
            context=self.propagator.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=record.started_ns,
            attributes=_attributes(record),
        )
        for name, at_s in (("queue", record.queued_s), ("first sound", record.first_sound_s), ("end", record.seconds)):
            if at_s is not None:
                span.add_event(name, timestamp=_at(record, at_s))
        if record.outcome in _FAILED:
            span.set_status(StatusCode.ERROR)
        span.end(end_time=_at(record, record.seconds or 0.0))

    def close(self) -> None:
        """Send the spans that are left."""
        self.provider.shutdown()


def tracer_for(endpoint: str | None) -> OtelTracer | None:
    return None if endpoint is None else OtelTracer(endpoint)


def _exporter(endpoint: str) -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as e:
        raise ConfigError(f"otlp_endpoint needs {e.name}; install it with: pip install 'sonant[otel]'") from e
    return BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint))


def _attributes(record: RequestRecord) -> dict[str, str | int | float]:
    named = {"status": "http.response.status_code", "route": "http.route"}
    return {named.get(name, f"sonant.{name}"): value for name, value in record.shown().items()}


def _at(record: RequestRecord, seconds: float) -> int:
    return record.started_ns + round(1e9 * seconds)
