"""Restarts as spans, with the SDK's own exporter into memory; and the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from launcher.records.event_files import dated_events
from launcher.records.event_log import EventLog
from launcher.records.restart_times import PARTS, runs_of
from launcher.run_spans import NumbersOfRun, SpanWriter
from resilience_core.span_export import context_of

S = 1_000_000_000
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def write_run(folder: Path, *, is_over: bool = True) -> None:
    """Write the events of a run whose rank 3 hangs once."""
    log = EventLog(str(folder))
    begin = 1000 * S
    log.write("began", at_ns=begin)
    log.write("started", at_ns=begin + S, generation=0)
    log.write("hang", at_ns=begin + 10 * S, generation=0, culprits=[3], deadline_ns=begin + 9 * S)
    log.write("seen", at_ns=begin + 11 * S, generation=0)
    log.write("asked", at_ns=begin + 12 * S, generation=0)
    log.write("stopped", at_ns=begin + 14 * S, generation=0)
    log.write("rendezvous", at_ns=begin + 17 * S, generation=1, nodes=2)
    log.write("started", at_ns=begin + 20 * S, generation=1)
    log.write("restarted", at_ns=begin + 20 * S, generation=1, cause="the failure", seconds=9.0)
    if is_over:
        log.write("phases", at_ns=begin + 30 * S, generation=1, ranks={"0": {"first_sign_ns": begin + 21 * S}})
        log.write("ended", at_ns=begin + 60 * S, generation=1, outcome="failed", exit_code=1, why="no progress")
    log.close()


class Written:
    """A writer of spans, and what it has written."""

    def __init__(self, environ: dict[str, str] | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.numbers = NumbersOfRun()
        provider = TracerProvider(id_generator=self.numbers, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.writer = SpanWriter(provider.get_tracer("t"), self.numbers, "run-7", context_of(environ or {}))

    def write(self, folder: Path, *, are_over: bool = False) -> dict[str, ReadableSpan]:
        """Write what is new; return everything so far by name."""
        self.writer.write(runs_of(dated_events(folder)), are_over=are_over)
        return {span.name: span for span in self.exporter.get_finished_spans()}


def seconds(span: ReadableSpan) -> int:
    assert span.start_time is not None
    assert span.end_time is not None
    return round((span.end_time - span.start_time) / S)


def test_a_run_is_one_trace_of_restarts_and_their_parts(tmp_path: Path) -> None:
    write_run(tmp_path)
    spans = Written().write(tmp_path)
    assert set(spans) == {"run", "restart", *PARTS}
    assert len({span.context.trace_id for span in spans.values() if span.context}) == 1
    run, restart = spans["run"], spans["restart"]
    assert run.parent is None
    assert restart.parent is not None
    assert run.context
    assert restart.context
    assert restart.parent.span_id == run.context.span_id
    for part in PARTS:
        parent = spans[part].parent
        assert parent is not None
        assert parent.span_id == restart.context.span_id
    assert [seconds(spans[part]) for part in PARTS] == [3, 2, 3, 4]
    assert (seconds(restart), seconds(run)) == (12, 60)
    about = dict(restart.attributes or {})
    assert about == {
        "ft.run": "run-7",
        "ft.generation": 1,
        "ft.kind": "hang",
        "ft.cause": "the failure",
        "ft.culprit.ranks": (3,),
        "ft.culprit.rank": 3,
    }
    assert run.status.status_code is StatusCode.ERROR
    assert (run.attributes or {})["ft.exit_code"] == 1


def test_what_is_exported_twice_has_the_same_numbers(tmp_path: Path) -> None:
    write_run(tmp_path)
    first, second = Written().write(tmp_path), Written().write(tmp_path)
    for name, span in first.items():
        assert span.context == second[name].context, name
    assert len({span.context.span_id for span in first.values() if span.context}) == len(first)


def test_a_run_that_goes_on_is_followed_and_nothing_is_written_twice(tmp_path: Path) -> None:
    write_run(tmp_path, is_over=False)
    written = Written()
    assert written.write(tmp_path) == {}
    assert set(written.write(tmp_path, are_over=True)) == {"run", "restart", *PARTS}
    written.write(tmp_path, are_over=True)
    assert len(written.exporter.get_finished_spans()) == 6


def test_the_restart_comes_as_soon_as_it_is_complete(tmp_path: Path) -> None:
    write_run(tmp_path)
    path = tmp_path / "events.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))  # it has not ended
    written = Written()
    assert set(written.write(tmp_path)) == {"restart", *PARTS}
    assert written.writer.restarts == 1
    spans = written.write(tmp_path, are_over=True)
    restart, run = spans["restart"], spans["run"]
    assert restart.parent is not None
    assert run.context
    assert restart.parent.span_id == run.context.span_id


def test_a_run_whose_launcher_was_killed_is_not_followed_for_ever(tmp_path: Path) -> None:
    write_run(tmp_path)
    path = tmp_path / "events.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))  # it has not written that it ended
    done = call(tmp_path, "--follow", str(tmp_path), OTEL_TRACES_EXPORTER="none")
    assert (done.returncode, done.stderr.partition(" of ")[0]) == (0, "1 restart(s)")


@pytest.mark.parametrize("how", ["export", "shutdown"])
def test_an_exporter_that_hangs_is_said_within_a_bound(how: str, tmp_path: Path) -> None:
    write_run(tmp_path)
    program = f"""
import sys, time
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from launcher import spans
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
spans._LONGEST_END_SECONDS = 0.5
sys.exit(spans.main([{str(tmp_path)!r}]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("launcher.spans: error: not all spans could be sent within 0.5 s\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_followed_until_a_signal_came_is_exported(number: signal.Signals, tmp_path: Path) -> None:
    """The run goes on for as long as the test does; its restart is complete."""
    write_run(tmp_path)
    program = f"""
import os, sys
from launcher import spans
def goes_on(folder, rounds=[]):
    rounds.append(folder)
    if len(rounds) == 3:
        os.kill(os.getpid(), {int(number)})
    return True
spans._may_go_on = goes_on
spans._ROUND_SECONDS = 0.01
sys.exit(spans.main(["--follow", {str(tmp_path)!r}]))
"""
    environ = {**os.environ, "OTEL_TRACES_EXPORTER": "console"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 128 + number
    assert done.stdout.count('"name": "restart"') == 1
    assert done.stderr == f"1 restart(s) of 1 run(s) in {tmp_path.name}\n"


FAILS = """
import sys, threading
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from launcher import spans
from resilience_core import span_export
class Fails(SpanExporter):
    def export(self, spans):
        if {how!r} == "raises":
            raise RuntimeError("the collector is gone")
        return SpanExportResult.FAILURE if {how!r} == "fails" else SpanExportResult.SUCCESS
    def shutdown(self):
        pass
class Hangs(Fails):
    def export(self, spans):
        threading.Event().wait()
others = {{"fails": [], "raises": [], "is one of two": [Hangs()], "goes well": [Fails()]}}
span_export.exporters_of = lambda environ, seconds: [Fails(), *others[{how!r}]]
spans._LONGEST_END_SECONDS = {seconds}
code = spans.main([{folder!r}])
print("ended by itself", flush=True)
sys.exit(code)
"""


@pytest.mark.parametrize(("how", "code"), [("fails", 1), ("raises", 1), ("goes well", 0)])
def test_an_export_that_has_failed_is_said_and_is_no_success(how: str, code: int, tmp_path: Path) -> None:
    write_run(tmp_path)
    program = FAILS.format(how=how, folder=str(tmp_path), seconds=60)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (code, "ended by itself\n")
    said = "launcher.spans: error: an exporter has failed: 6 span(s) were not exported\n"
    assert done.stderr.endswith(said if code else f"1 restart(s) of 1 run(s) in {tmp_path.name}\n")


def test_one_exporter_of_two_that_hangs_is_said_too(tmp_path: Path) -> None:
    write_run(tmp_path)
    program = FAILS.format(how="is one of two", folder=str(tmp_path), seconds=0.5)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("launcher.spans: error: not all spans could be sent within 0.5 s\n")


def test_a_run_with_more_spans_than_the_queue_of_the_environment_is_exported_whole(tmp_path: Path) -> None:
    write_run(tmp_path)
    few = {"OTEL_BSP_MAX_QUEUE_SIZE": "2", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1"}
    done = call(tmp_path, str(tmp_path), OTEL_TRACES_EXPORTER="console", **few)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"span_id"') >= 6
    assert all(f'"name": "{name}"' in done.stdout for name in ("run", "restart", *PARTS))


def test_a_folder_whose_name_is_no_text_has_one_that_exporters_take(tmp_path: Path) -> None:
    write_run(tmp_path)
    exporter, numbers = InMemorySpanExporter(), NumbersOfRun()
    provider = TracerProvider(id_generator=numbers, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    SpanWriter(provider.get_tracer("t"), numbers, "run\udce4", context_of({})).write(
        runs_of(dated_events(tmp_path)), are_over=True
    )
    assert {(span.attributes or {}).get("ft.run") for span in exporter.get_finished_spans()} == {"run?", None}


def test_a_parent_of_outside_is_the_parent_of_the_run(tmp_path: Path) -> None:
    write_run(tmp_path)
    spans = Written({"TRACEPARENT": PARENT}).write(tmp_path)
    assert {f"{span.context.trace_id:032x}" for span in spans.values() if span.context} == {PARENT.split("-")[1]}
    parent = spans["run"].parent
    assert parent is not None
    assert f"{parent.span_id:016x}" == PARENT.split("-")[2]


def call(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    command = [sys.executable, "-m", "launcher.spans", *arguments]
    return subprocess.run(
        command, cwd=folder, env={**known, **environ}, capture_output=True, text=True, timeout=180, check=False
    )


def test_the_command_exports_by_what_the_environment_names(tmp_path: Path) -> None:
    write_run(tmp_path)
    done = call(tmp_path, str(tmp_path), OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="mine")
    assert done.returncode == 0, done.stderr
    for word in ('"name": "detection"', '"name": "run"', '"service.name": "mine"'):
        assert word in done.stdout
    assert done.stderr == f"1 restart(s) of 1 run(s) in {tmp_path.name}\n"
    done = call(tmp_path, "--follow", str(tmp_path), OTEL_TRACES_EXPORTER="none")
    assert (done.returncode, done.stdout) == (0, "")


def test_the_folder_of_log_folders_stands_for_its_newest_run(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_run(tmp_path / name)
    done = call(tmp_path, ".", OTEL_TRACES_EXPORTER="none")
    assert done.returncode == 2
    assert "holds 2 runs and no link 'latest'; name one of them: one, two" in done.stderr
    (tmp_path / "latest").symlink_to("one")
    done = call(tmp_path, ".", OTEL_TRACES_EXPORTER="none")
    assert (done.returncode, done.stderr) == (0, "1 restart(s) of 1 run(s) in one\n")
    (tmp_path / "empty").mkdir()
    done = call(tmp_path, "empty", OTEL_TRACES_EXPORTER="none")
    assert done.returncode == 2
    assert done.stderr.startswith("launcher.spans: error: empty holds no run")


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    done = call(tmp_path, "nowhere", OTEL_TRACES_EXPORTER="console")
    assert done.returncode == 2
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr
    done = call(tmp_path, ".", OTEL_TRACES_EXPORTER="pigeon")
    assert done.returncode == 2
    assert "OTEL_TRACES_EXPORTER is 'pigeon', and no exporter of spans named 'pigeon' is installed" in done.stderr


@pytest.mark.parametrize(
    "module",
    [pytest.param("launcher.agent.job", marks=pytest.mark.long), "launcher.spans", "launcher.notices.caller"],
)
def test_no_process_of_a_job_imports_opentelemetry(module: str) -> None:
    program = f"import sys, {module}; print(sorted(name for name in sys.modules if 'opentelemetry' in name))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
