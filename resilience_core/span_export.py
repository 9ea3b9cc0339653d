"""Where OpenTelemetry's spans of ranks and of runs go: to whatever OpenTelemetry's own environment variables name.

``OTEL_TRACES_EXPORTER`` names installed exporters (``console``, or ``otlp`` with its package), ``OTEL_SERVICE_NAME``
and ``OTEL_RESOURCE_ATTRIBUTES`` describe the service, ``OTEL_BSP_...`` bound the queue, ``OTEL_SDK_DISABLED`` switches
all of it off. Needs the extra ``telemetry``; this module is imported where it is used, and never by the launcher.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from resilience_core.errors import ConfigError
from resilience_core.span_exporters import LONGEST_MAKE_SECONDS, LateExporter, WatchedExporter

__all__ = ["Ended", "Ending", "Provider", "context_of", "exporters_of", "provider_of", "shared_provider"]

logger = logging.getLogger(__name__)

_GROUP = "opentelemetry_traces_exporter"
"""Entry points by which installed exporters are found; part of OpenTelemetry's specification for Python."""
_LONGEST_END_SECONDS = 2.0
_NO_NAME = "unknown_service"
"""What the SDK calls a service for which neither the environment nor a detector has a name."""
_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


def shared_provider(environ: Mapping[str, str] = os.environ) -> trace.TracerProvider:
    """Return the provider that this process has, or, where nobody has set one, make it and set it.

    Its exporters are made meanwhile; one that cannot be made, or takes long for it, is named in a warning.

    Raises:
        ConfigError: The exporter that the environment names is not installed.
    """
    current = trace.get_tracer_provider()
    if isinstance(current, TracerProvider) or type(current).__name__ != "ProxyTracerProvider":
        return current
    made = provider_of(environ, make_seconds=None)
    atexit.register(_finish, Ending(made))
    trace.set_tracer_provider(made)
    return made


def _finish(ending: Ending) -> None:
    """End the provider of a rank, which must not be late for its spans."""
    ended = ending.finish(_LONGEST_END_SECONDS)
    if not ended.is_over and ended.lost:
        logger.warning("%d span(s) were not exported within %g s of the end", ended.lost, _LONGEST_END_SECONDS)


class _Export(BatchSpanProcessor):
    """What goes to one exporter. The SDK does not say whether an export has failed, nor what its queue has dropped."""

    def __init__(self, exporter: SpanExporter, queue_size: int | None) -> None:
        self._watched = WatchedExporter(exporter)
        self._handed_over = 0
        super().__init__(self._watched, max_queue_size=queue_size)

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self._handed_over += 1
        super().on_end(span)

    def end(self) -> None:
        """Export what is left, and shut the exporter down."""
        try:
            self.force_flush()
            self.shutdown()  # type: ignore[no-untyped-call]
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an installed package may raise anything
            self._watched.tell_failure(error)

    @property
    def lost(self) -> int:
        """How many spans its exporter has not taken."""
        return self._handed_over - self._watched.sent


class Provider(TracerProvider):
    """A provider that knows what becomes of its spans; :func:`provider_of` makes it."""

    def __init__(self, resource: Resource, id_generator: IdGenerator | None, exports: Sequence[_Export]) -> None:
        super().__init__(resource=resource, id_generator=id_generator, shutdown_on_exit=False)
        self.exports = tuple(exports)
        for export in exports:
            self.add_span_processor(export)


class Ended(NamedTuple):
    """How the end of a provider went."""

    is_over: bool
    """Every exporter has ended in time."""
    lost: int
    """How many spans were not exported, those that are still under way included; each exporter counts by itself."""


class Ending:
    """The end of a provider, within a bound: what an exporter that hangs has not taken then is lost.

    OpenTelemetry's own end waits as long as the exporter does, with each of several in turn. The threads are started
    here, since from Python 3.12 on none can be started at the exit.

    Args:
        provider: Whose.
    """

    def __init__(self, provider: Provider) -> None:
        self._exports = provider.exports
        self._asked = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(export,), name="ft_spans_end", daemon=True)
            for export in self._exports
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, export: _Export) -> None:
        self._asked.wait()
        export.end()

    def finish(self, timeout_seconds: float) -> Ended:
        """Export what is left, and shut the exporters down."""
        self._asked.set()
        end = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        is_over = not any(thread.is_alive() for thread in self._threads)
        return Ended(is_over, sum(export.lost for export in self._exports))


def provider_of(
    environ: Mapping[str, str] = os.environ,
    id_generator: IdGenerator | None = None,
    queue_size: int | None = None,
    make_seconds: float | None = LONGEST_MAKE_SECONDS,
) -> Provider:
    """Make a provider whose spans go where the environment says. Whoever has it made ends it (:class:`Ending`).

    Args:
        environ: The variables; those that OpenTelemetry reads itself it takes from the process's environment.
        id_generator: Where traces and spans get their numbers from; random ones when None.
        queue_size: How many spans may wait for an exporter; as the environment says when None.
        make_seconds: See :func:`exporters_of`.

    Raises:
        ConfigError: An exporter is not installed, or cannot be made as the environment describes it.
    """
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, _NO_NAME)).startswith(_NO_NAME):
        resource = resource.merge(Resource({SERVICE_NAME: "torch-resilience"}))
    exporters = exporters_of(environ, make_seconds)
    try:
        return Provider(resource, id_generator, [_Export(exporter, queue_size) for exporter in exporters])
    except ValueError as error:
        raise ConfigError(f"OTEL_BSP_...: {error}") from error


def exporters_of(environ: Mapping[str, str], make_seconds: float | None = LONGEST_MAKE_SECONDS) -> list[SpanExporter]:
    """Return the exporters that ``OTEL_TRACES_EXPORTER`` names, ``otlp`` by default; nothing for ``none``.

    Args:
        environ: The variables.
        make_seconds: How long it may take to make each; None to have them made meanwhile, while spans wait. One that
            cannot be made is named in a warning then.

    Raises:
        ConfigError: One is not installed, or cannot be made in time.
    """
    names = [name.strip() for name in environ.get("OTEL_TRACES_EXPORTER", "").split(",") if name.strip()] or ["otlp"]
    is_disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_disabled or [name.lower() for name in names] == ["none"]:
        return []
    return [_exporter(name, environ, make_seconds) for name in dict.fromkeys(names)]


def _exporter(name: str, environ: Mapping[str, str], make_seconds: float | None) -> SpanExporter:
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
            f"OTEL_TRACES_EXPORTER is {environ.get('OTEL_TRACES_EXPORTER', '').strip() or name!r}, and no exporter of "
            f"spans named {name!r} is installed (there is: {', '.join(sorted(offers)) or 'none'}); install {package}, "
            "or set OTEL_TRACES_EXPORTER"
        )
    found = offer
    if make_seconds is None:
        return LateExporter(name, lambda: found.load()(), lambda error: logger.warning("%s; no span goes there", error))
    return LateExporter(name, lambda: found.load()()).made(make_seconds)


def context_of(environ: Mapping[str, str]) -> Context:
    """Return the context of the span that ``TRACEPARENT`` names (W3C Trace Context), an empty one without it."""
    carrier = {key: environ[key.upper()] for key in ("traceparent", "tracestate") if environ.get(key.upper())}
    return TraceContextTextMapPropagator().extract(carrier, context=Context())
