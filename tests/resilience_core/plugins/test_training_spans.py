"""A rank's phases as spans, on a bus of their own, with the SDK's exporter into memory."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from launcher.records.log_folders import as_file_name
from resilience_core import EventBus, RunContext
from resilience_core.errors import ConfigError
from resilience_core.plugins.training_spans import STEPS_VARIABLE, TrainingSpans


class Made:
    """A plugin on a bus, and what it has exported."""

    def __init__(self, **known: Any) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.bus = EventBus()
        self.bus.register(TrainingSpans(provider, **known))
        self.bus.setup(context=RunContext(rank=3, world_size=8, restart_count=2, framework="ddp"))

    def steps(self, *iterations: int) -> None:
        for iteration in iterations:
            self.bus.step_start(iteration=iteration)
            self.bus.step_end(iteration=iteration)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def span(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_phases_are_spans_of_one_trace_and_steps_are_not() -> None:
    made = Made()
    made.bus.checkpoint_loaded(iteration=40, source="local")
    assert made.names == ["training"]  # exported at once: a rank that is killed later has told of it
    made.steps(40, 41)
    made.bus.checkpoint_start(iteration=42, kind="save")
    made.bus.checkpoint_end(iteration=42, kind="save", error=None)
    for index in range(3):
        made.bus.eval_step_start(iteration=42, eval_index=index)
        made.bus.eval_step_end(iteration=42, eval_index=index)
    done_ns = time.time_ns()
    made.steps(42)
    made.bus.teardown(reason="completed")

    assert made.names == ["training", "setup", "checkpoint", "evaluation", "teardown"]
    root = made.span("training")
    assert root.context is not None
    assert about(root)["ft.rank"] == 3
    assert about(root)["ft.generation"] == 2
    for span in made.spans[1:]:
        assert span.parent is not None
        assert span.parent.span_id == root.context.span_id
    assert about(made.span("setup")) == {"ft.rank": 3, "ft.resumed_from": 40, "ft.source": "local"}
    assert about(made.span("checkpoint")) == {"ft.iteration": 42, "ft.kind": "save"}
    assert about(made.span("evaluation"))["ft.steps"] == 3
    assert (made.span("evaluation").end_time or 0) <= done_ns  # with its last step, not with what follows it
    assert about(made.span("teardown")) == {"ft.reason": "completed"}


@pytest.mark.parametrize(
    ("run_id", "run"), [(None, None), ("none", None), ("bert", "bert"), ("team/bert", "team_bert")]
)
def test_a_run_has_the_name_of_its_log_folder_or_none(
    run_id: str | None, run: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without a name has a log folder whose name the rank does not know."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if run_id is not None:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", run_id)
        assert run is None or as_file_name(run_id) == run
    assert about(Made().span("training")).get("ft.run") == run


def test_every_so_many_steps_are_spans_where_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(steps_every=10)
    made.steps(*range(25))
    assert [about(span)["ft.iteration"] for span in made.spans if span.name == "step"] == [0, 10, 20]
    monkeypatch.setenv(STEPS_VARIABLE, "2")
    made = Made()
    made.steps(*range(4))
    assert made.names.count("step") == 2


@pytest.mark.parametrize("text", ["-1", "many", "1.5"])
def test_a_number_of_steps_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STEPS_VARIABLE, text)
    with pytest.raises(ConfigError, match="FT_SPAN_STEPS is"):
        TrainingSpans(TracerProvider(shutdown_on_exit=False))


def test_an_error_marks_the_save_and_the_training() -> None:
    made = Made()
    made.bus.checkpoint_start(iteration=1, kind="save")
    made.bus.checkpoint_end(iteration=1, kind="save", error=OSError("disk full, /secret"))
    made.bus.training_error(error=RuntimeError("x"), iteration=1)
    for name, kind in (("checkpoint", "OSError"), ("training_error", "RuntimeError")):
        assert made.span(name).status.status_code is StatusCode.ERROR
        assert about(made.span(name))["error.type"] == kind


def test_saves_of_several_threads_end_each_their_own() -> None:
    made = Made()
    made.steps(0)
    made.bus.checkpoint_start(iteration=1, kind="save")

    def in_another_thread() -> None:
        made.bus.checkpoint_start(iteration=2, kind="finalize")
        made.bus.checkpoint_end(iteration=2, kind="finalize", error=None)

    thread = threading.Thread(target=in_another_thread)
    thread.start()
    thread.join()
    made.bus.checkpoint_end(iteration=1, kind="save", error=None)
    made.bus.checkpoint_end(iteration=9, kind="save", error=None)  # nobody has begun it
    assert [about(span)["ft.iteration"] for span in made.spans if span.name == "checkpoint"] == [2, 1]


def test_each_evaluation_counts_its_own_steps() -> None:
    """Also before the first training step, and where one follows the other."""
    made = Made()
    for steps in (3, 2):
        for index in range(steps):
            made.bus.eval_step_start(iteration=0, eval_index=index)
            made.bus.eval_step_end(iteration=0, eval_index=index)
    assert made.names == ["training", "setup", "evaluation"]
    made.steps(0)
    made.bus.teardown(reason="completed")
    assert [about(span)["ft.steps"] for span in made.spans if span.name == "evaluation"] == [3, 2]


def test_a_second_run_in_the_process_is_a_trace_of_its_own() -> None:
    made = Made()
    made.bus.teardown(reason="completed")
    made.bus.setup(context=RunContext())
    made.bus.teardown(reason="completed")
    assert len({span.context.trace_id for span in made.spans if span.context}) == 2
    assert made.names.count("setup") == 2


def test_a_parent_of_outside_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPARENT", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    made = Made()
    made.bus.teardown(reason="completed")
    assert {f"{span.context.trace_id:032x}" for span in made.spans if span.context} == {
        "4bf92f3577b34da6a3ce929d0e0e4736"
    }


def test_an_exporter_that_fails_does_not_reach_the_training() -> None:
    made = Made()
    tried: list[str] = []

    def fail(spans: Any) -> Any:
        tried.extend(span.name for span in spans)
        raise RuntimeError("the collector is gone")

    made.exporter.export = fail  # type: ignore[method-assign]
    made.steps(0)
    made.bus.checkpoint_start(iteration=1, kind="save")
    made.bus.checkpoint_end(iteration=1, kind="save", error=None)
    made.bus.teardown(reason="completed")
    assert tried == ["setup", "checkpoint", "teardown"]


def test_a_rank_exports_by_what_the_environment_names() -> None:
    program = (
        "from resilience_core import bus, RunContext\n"
        "from resilience_core.plugins.training_spans import TrainingSpans\n"
        "bus().register(TrainingSpans())\n"
        "bus().setup(context=RunContext(rank=5)); bus().teardown(reason='completed')\n"
    )
    environ = {"OTEL_TRACES_EXPORTER": "console", "OTEL_SERVICE_NAME": "mine", "PATH": "", "FT_LOAD_PLUGINS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False, cwd=_home()
    )
    assert done.returncode == 0, done.stderr
    assert '"name": "setup"' in done.stdout
    assert '"service.name": "mine"' in done.stdout


def _home() -> str:
    from resilience_core.system.installation import HOME

    return HOME


@pytest.mark.parametrize("how", ["export", "shutdown"])
def test_an_exporter_that_hangs_does_not_keep_a_rank_from_ending(how: str) -> None:
    """A rank that is late to end is killed as one that hangs, and the training is done again."""
    program = f"""
import time
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from resilience_core import span_export
class Hangs(SpanExporter):
    def export(self, spans):
        if {how!r} == "export":
            time.sleep(3600)
        return SpanExportResult.SUCCESS
    def shutdown(self):
        if {how!r} == "shutdown":
            time.sleep(3600)
span_export.exporters_of = lambda environ, seconds: [Hangs()]
tracer = span_export.shared_provider().get_tracer("test")
tracer.start_span("one").end()
print("trained", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=25, cwd=_home())
    said = "1 span(s) were not exported within 2 s of the end\n" if how == "export" else ""
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", said)


def test_an_exporter_that_is_never_made_keeps_a_rank_neither_from_beginning_nor_from_ending() -> None:
    program = """
import time
from types import SimpleNamespace
from resilience_core import span_export
offer = SimpleNamespace(name="slow", load=lambda: lambda: time.sleep(3600))
span_export.entry_points = lambda group: [offer]
tracer = span_export.shared_provider({"OTEL_TRACES_EXPORTER": "slow"}).get_tracer("test")
tracer.start_span("one").end()
print("trained", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=25, cwd=_home())
    said = "1 span(s) were not exported within 2 s of the end\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", said)


def test_the_module_needs_no_opentelemetry_to_be_imported() -> None:
    program = (
        "import sys; import resilience_core.plugins.training_spans; "
        "print([name for name in sys.modules if 'opentelemetry' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=_home())
    assert done.stdout == "[]\n"
