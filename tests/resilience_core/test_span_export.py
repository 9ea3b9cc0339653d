"""Where spans go, and what they call the service, by the variables of OpenTelemetry; and the end of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from resilience_core import span_export, span_exporters
from resilience_core.errors import ConfigError
from resilience_core.span_export import Ended, Ending, exporters_of, provider_of

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def offers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The installed exporters, from a name to what makes one."""
    made: dict[str, Any] = {"console": ConsoleSpanExporter, "memory": InMemorySpanExporter}
    monkeypatch.setattr(
        span_export,
        "entry_points",
        lambda group: [SimpleNamespace(name=name, load=lambda make=make: make) for name, make in made.items()],
    )
    return made


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "torch-resilience"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "team=ml"}, "torch-resilience"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=theirs,team=ml"}, "theirs"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=theirs", "OTEL_SERVICE_NAME": "mine"}, "mine"),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine"),
    ],
)
def test_the_environment_names_the_service(
    variables: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    attributes = provider_of({"OTEL_TRACES_EXPORTER": "none"}).resource.attributes
    assert attributes["service.name"] == name
    assert attributes.get("team") == ("ml" if "team" in variables.get("OTEL_RESOURCE_ATTRIBUTES", "") else None)
    assert attributes["telemetry.sdk.language"] == "python"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("console", [ConsoleSpanExporter]),
        ("memory,console", [InMemorySpanExporter, ConsoleSpanExporter]),
        (" memory , console, memory,", [InMemorySpanExporter, ConsoleSpanExporter]),
        ("none", []),
        ("None", []),
    ],
)
def test_several_exporters_may_be_named(text: str, kinds: list[type], offers: dict[str, Any]) -> None:
    assert [type(each) for each in exporters_of({"OTEL_TRACES_EXPORTER": text})] == kinds
    assert exporters_of({"OTEL_TRACES_EXPORTER": text, "OTEL_SDK_DISABLED": "true"}) == []


def test_otlp_is_the_default_by_the_protocol_that_is_named(offers: dict[str, Any]) -> None:
    class Grpc(InMemorySpanExporter):
        pass

    class Http(InMemorySpanExporter):
        pass

    offers["otlp_proto_http"] = Http
    assert [type(each) for each in exporters_of({})] == [Http]  # the only one there is
    offers["otlp_proto_grpc"] = Grpc
    assert [type(each) for each in exporters_of({"OTEL_TRACES_EXPORTER": "otlp,memory"})] == [
        Grpc,
        InMemorySpanExporter,
    ]
    assert [type(each) for each in exporters_of({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"})] == [Http]


def test_an_exporter_of_several_that_is_not_installed_is_named(offers: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError,
        match=r"OTEL_TRACES_EXPORTER is 'console,pigeon', and no exporter of spans named 'pigeon' is installed "
        r"\(there is: console, memory\)",
    ):
        exporters_of({"OTEL_TRACES_EXPORTER": "console,pigeon"})
    with pytest.raises(ConfigError, match=r"named 'otlp' is installed .* install opentelemetry-exporter-otlp"):
        exporters_of({})


def test_an_exporter_that_cannot_be_made_is_refused(offers: dict[str, Any]) -> None:
    def fail() -> SpanExporter:
        raise RuntimeError("no certificate")

    offers["memory"] = fail
    with pytest.raises(ConfigError, match=r"the exporter 'memory' of OTEL_TRACES_EXPORTER cannot be made: .*no certif"):
        exporters_of({"OTEL_TRACES_EXPORTER": "memory"})


def test_an_exporter_that_is_not_made_in_time_is_refused(offers: dict[str, Any]) -> None:
    may = threading.Event()
    offers["memory"] = lambda: may.wait(PATIENCE) and InMemorySpanExporter()
    with pytest.raises(ConfigError, match=r"the exporter 'memory' of OTEL_TRACES_EXPORTER was not made within 0\.01 s"):
        exporters_of({"OTEL_TRACES_EXPORTER": "memory"}, 0.01)
    may.set()


def test_an_exporter_is_made_while_spans_wait_for_it(offers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    may, made, warned = threading.Event(), InMemorySpanExporter(), threading.Event()
    said: list[str] = []
    monkeypatch.setattr(
        span_exporters.logger, "warning", lambda text, *about: (said.append(text % about), warned.set())
    )
    offers["memory"] = lambda: made if may.wait(PATIENCE) else None
    monkeypatch.setattr(span_exporters, "LONGEST_MAKE_SECONDS", 0.0)
    provider = provider_of({"OTEL_TRACES_EXPORTER": "memory"}, make_seconds=None)
    ending = Ending(provider)
    provider.get_tracer("t").start_span("one").end()

    assert ending.finish(0.0) == Ended(is_over=False, lost=1)
    assert warned.wait(PATIENCE)
    may.set()

    assert ending.finish(PATIENCE) == Ended(is_over=True, lost=0)
    assert [span.name for span in made.get_finished_spans()] == ["one"]
    assert len(said) == 1
    assert "the exporter 'memory' of OTEL_TRACES_EXPORTER was not made within 0 s; spans wait for it" in said[0]


def test_an_exporter_that_cannot_be_made_meanwhile_is_named_and_takes_nothing(
    offers: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> SpanExporter:
        raise RuntimeError("no certificate")

    offers["memory"] = fail
    provider = provider_of({"OTEL_TRACES_EXPORTER": "memory"}, make_seconds=None)
    ending = Ending(provider)
    provider.get_tracer("t").start_span("one").end()

    assert ending.finish(PATIENCE) == Ended(is_over=True, lost=1)
    (said,) = caplog.messages
    assert said.endswith("cannot be made: RuntimeError: no certificate; no span goes there")


class Raises(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise RuntimeError("no export")

    def shutdown(self) -> None:
        raise SystemExit("no end")


def test_an_exporter_that_raises_is_said_once_in_one_line(
    offers: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    offers["memory"] = Raises
    provider = provider_of({"OTEL_TRACES_EXPORTER": "memory"})
    ending = Ending(provider)
    provider.get_tracer("t").start_span("one").end()

    assert ending.finish(PATIENCE) == Ended(is_over=True, lost=1)
    assert caplog.messages == ["an exporter of spans has failed: RuntimeError: no export (said once)"]
    assert all(record.exc_info is None for record in caplog.records)


def test_settings_of_the_queue_that_contradict_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "2")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "3")
    with pytest.raises(ConfigError, match="OTEL_BSP_"):
        provider_of({"OTEL_TRACES_EXPORTER": "console"})


class Held(InMemorySpanExporter):
    """Takes nothing until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.may.wait(PATIENCE)
        return super().export(spans)


def test_one_exporter_that_hangs_keeps_no_other_from_its_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    held, other = Held(), InMemorySpanExporter()
    monkeypatch.setattr(span_export, "exporters_of", lambda environ, seconds: [held, other])
    provider = provider_of({})
    ending = Ending(provider)
    provider.get_tracer("t").start_span("one").end()

    ended = ending.finish(0.0)
    for thread in ending._threads[1:]:
        thread.join(PATIENCE)

    assert (ended.is_over, ended.lost >= 1) == (False, True)
    assert [span.name for span in other.get_finished_spans()] == ["one"]
    assert held.get_finished_spans() == ()
    held.may.set()
    assert ending.finish(PATIENCE) == Ended(is_over=True, lost=0)
