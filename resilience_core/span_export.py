"""Where OpenTelemetry's spans of ranks and of runs go: to whatever OpenTelemetry's own environment variables name.

``OTEL_TRACES_EXPORTER`` names an installed exporter (``console``, or ``otlp`` with its package), ``OTEL_SERVICE_NAME``
and ``OTEL_RESOURCE_ATTRIBUTES`` describe the service, ``OTEL_BSP_...`` bound the queue, ``OTEL_SDK_DISABLED`` switches
all of it off. Needs the extra ``telemetry``; this module is imported where it is used, and never by the launcher.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping
from importlib.metadata import entry_points

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from resilience_core.errors import ConfigError

__all__ = ["Ending", "context_of", "exporter_of", "provider_of", "shared_provider"]

_GROUP = "opentelemetry_traces_exporter"
"""Entry points by which installed exporters are found; part of OpenTelemetry's specification for Python."""
_LONGEST_END_SECONDS = 2.0
_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


def shared_provider(environ: Mapping[str, str] = os.environ) -> trace.TracerProvider:
    """Return the provider that this process has, or, where nobody has set one, make it and set it.

    Raises:
        ConfigError: The exporter that the environment names is not installed.
    """
    current = trace.get_tracer_provider()
    if isinstance(current, TracerProvider) or type(current).__name__ != "ProxyTracerProvider":
        return current
    made = provider_of(environ)
    atexit.register(Ending(made).finish, _LONGEST_END_SECONDS)  # a rank must not be late for its spans
    trace.set_tracer_provider(made)
    return made


class Ending:
    """The end of a provider, within a bound: what an exporter that hangs has not taken then is lost.

    OpenTelemetry's own end waits as long as the exporter does. The thread is started here, since from Python 3.12 on
    none can be started at the exit.

    Args:
        provider: Made with ``shutdown_on_exit=False``.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._asked = threading.Event()
        self._is_sent = False
        self._thread = threading.Thread(target=self._run, name="ft_spans_end", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._asked.wait()
        self._is_sent = self._provider.force_flush()
        self._provider.shutdown()

    def finish(self, timeout_seconds: float) -> bool:
        """Export what is left, and shut the provider down.

        Returns:
            Whether all was sent, and the provider has ended, in time.
        """
        self._asked.set()
        self._thread.join(timeout_seconds)
        return self._is_sent and not self._thread.is_alive()


def provider_of(environ: Mapping[str, str] = os.environ, id_generator: IdGenerator | None = None) -> TracerProvider:
    """Make a provider whose spans go where the environment says. Whoever has it made ends it (:class:`Ending`).

    Args:
        environ: The variables; those that OpenTelemetry reads itself it takes from the process's environment.
        id_generator: Where traces and spans get their numbers from; random ones when None.

    Raises:
        ConfigError: The exporter is not installed.
    """
    resource = None if environ.get("OTEL_SERVICE_NAME") else Resource.create({SERVICE_NAME: "torch-resilience"})
    provider = TracerProvider(resource=resource, id_generator=id_generator, shutdown_on_exit=False)
    if (exporter := exporter_of(environ)) is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def exporter_of(environ: Mapping[str, str]) -> SpanExporter | None:
    """Return the exporter that ``OTEL_TRACES_EXPORTER`` names, ``otlp`` by default; None for ``none``.

    Raises:
        ConfigError: It is not installed.
    """
    name = environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if name == "none" or environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    wanted = name
    if name == "otlp":
        protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        wanted = _OTLP.get(protocol or "grpc", "otlp_proto_grpc")
    offers = {each.name: each for each in entry_points(group=_GROUP)}
    offer = offers.get(wanted) or offers.get(name)
    if offer is None and name == "otlp":
        offer = next((offers[each] for each in _OTLP.values() if each in offers), None)
    if offer is None:
        package = "opentelemetry-exporter-otlp" if name == "otlp" else "the package that brings it"
        raise ConfigError(
            f"OTEL_TRACES_EXPORTER is {name!r}, and no such exporter of spans is installed (there is: "
            f"{', '.join(sorted(offers)) or 'none'}); install {package}, or set OTEL_TRACES_EXPORTER"
        )
    made: SpanExporter = offer.load()()
    return made


def context_of(environ: Mapping[str, str]) -> Context:
    """Return the context of the span that ``TRACEPARENT`` names (W3C Trace Context), an empty one without it."""
    carrier = {key: environ[key.upper()] for key in ("traceparent", "tracestate") if environ.get(key.upper())}
    return TraceContextTextMapPropagator().extract(carrier, context=Context())
