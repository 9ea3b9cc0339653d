"""The log of reports: written by a thread, complete after close, and never a reason to wait."""

import os
import resource
import signal
import threading
import time

import pytest

from straggler.exchange.wire import encode
from straggler.measurement.measured import Family, Measured
from straggler.measurement.name_table import hash_name
from straggler.measurement.summary import summarise
from straggler.reporter import Reporter
from straggler.reporting.background_lines import BackgroundLines
from straggler.reporting.report_log import ReportLog, read
from straggler.settings import DetectorSettings
from straggler.simulation.reports import reports
from straggler.simulation.simulator import SimulatedJob
from straggler.testing import RecordedWindowsExchange

GENEROUS = 60.0


@pytest.fixture
def pipe(tmp_path):
    """A file that hangs when it is opened: a pipe without a reader."""
    path = tmp_path / "reports.jsonl"
    os.mkfifo(path)
    yield path
    for _ in range(100):  # lets go the thread that hangs
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        time.sleep(0.01)
        os.close(reader)
        if not any(thread.name == "straggler-reports" for thread in threading.enumerate()):
            break


def test_every_report_is_there_after_close(tmp_path):
    log = ReportLog(tmp_path / "folder" / "reports.jsonl")
    for report in reports(SimulatedJob(ranks=4, windows=3)):
        log.append(report)
    log.close()
    log.close()
    assert [record["sequence"] for record in read(log.path)] == [0, 1, 2]


def test_a_file_system_that_hangs_holds_up_nobody_and_is_said_once(pipe, caplog):
    lines = BackgroundLines(pipe, "reports", most_waiting=3)
    began = time.monotonic()
    for number in range(10):
        lines.append(f"{number}\n")
    lines.close(limit_seconds=0.05)
    assert time.monotonic() - began < GENEROUS
    assert len(caplog.messages) == 1
    assert f"straggler reports cannot be written to {pipe}: 3 wait already" in caplog.text


@pytest.mark.parametrize("left", [b'{"format":"straggler-report","ver', b'{"fo', b"\0" * 20, b"\0" * 20 + b'":3}'])
def test_a_report_begins_on_a_line_of_its_own_after_what_was_cut_off(tmp_path, caplog, left):
    first, second, third = reports(SimulatedJob(ranks=4, windows=3))
    log = ReportLog(tmp_path / "reports.jsonl")
    log.append(first)
    log.close()
    with log.path.open("ab") as file:
        file.write(left)
    for report in (second, third):
        log = ReportLog(log.path)
        log.append(report)
        log.close()
    assert log.path.read_bytes().split(b"\n")[1] == left
    assert log.path.read_bytes().count(b"\n") == 4
    assert [record["sequence"] for record in read(log.path)] == [0, 1, 2]
    assert caplog.text.count("left out 1 line(s)") == 1


def test_a_report_begins_on_a_line_of_its_own_after_a_full_disk(tmp_path, caplog):
    """The disk takes half of a line, and has space again later."""
    lines = BackgroundLines(tmp_path / "reports.jsonl", "reports", most_waiting=3)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (11, limits[1]))
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for line in ("first\n", "second\n", "third\n"):
            lines.append(line)
            assert lines.flush(GENEROUS)
    finally:
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
        )
        signal.signal(signal.SIGXFSZ, before)
    lines.append("fourth\n")
    lines.close()
    assert (tmp_path / "reports.jsonl").read_text() == "first\nsecon\nfourth\n"
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    "content", ["my own notes\n", "notes", '{"a": 1}\n', "{\n", "{}\n", '{"format": "straggler-past"}']
)
def test_to_a_file_that_is_no_log_of_ours_nothing_is_added_and_that_is_said_once(tmp_path, caplog, content):
    path = tmp_path / "notes"
    path.write_text(content)
    log = ReportLog(path)
    made = list(reports(SimulatedJob(ranks=4, windows=3)))
    for report in made:
        log.append(report)
        assert log.flush(GENEROUS)
    assert path.read_text() == content
    (said,) = caplog.messages
    assert f"{path}: it holds something else than reports and is left as it is; move it away (said once)" in said
    path.rename(tmp_path / "elsewhere")
    log.append(made[0])
    log.close()
    assert len(read(path)) == 1


@pytest.mark.parametrize("content", [b"", b"\n", b"\0" * 100, b'{"format": "straggler-report", "version": 1}\n'])
def test_to_an_empty_log_and_one_of_another_spelling_reports_are_added(tmp_path, caplog, content):
    path = tmp_path / "reports.jsonl"
    path.write_bytes(content)
    log = ReportLog(path)
    log.append(next(iter(reports(SimulatedJob(ranks=4, windows=1)))))
    log.close()
    assert not caplog.messages
    assert read(path)[-1]["sequence"] == 0
    assert path.read_bytes().startswith(content)


def test_what_is_not_written_within_the_bound_of_close_is_said(pipe, caplog):
    lines = BackgroundLines(pipe, "reports", most_waiting=3)
    lines.append("1\n")
    lines.close(limit_seconds=0.05)
    assert "not within 0.05 s, lines left: 1 (said once)" in caplog.text


def test_a_file_that_cannot_be_written_is_said_once(tmp_path, caplog):
    (tmp_path / "file").touch()
    lines = BackgroundLines(tmp_path / "file" / "reports.jsonl", "reports", most_waiting=3)
    for _ in range(2):
        lines.append("1\n")
        assert lines.flush(GENEROUS)
    lines.close()
    assert len(caplog.messages) == 1


def test_without_a_thread_the_caller_writes(tmp_path, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    lines = BackgroundLines(tmp_path / "reports.jsonl", "reports", most_waiting=3)
    lines.append("1\n")
    assert (tmp_path / "reports.jsonl").read_text() == "1\n"
    assert lines.flush(0.0)
    lines.close()


def test_a_line_after_close_is_written_at_once(tmp_path):
    lines = BackgroundLines(tmp_path / "reports.jsonl", "reports", most_waiting=3)
    lines.append("before\n")
    lines.close()
    lines.append("after\n")
    assert (tmp_path / "reports.jsonl").read_text() == "before\nafter\n"


@pytest.mark.parametrize("gathers", [True, False])
def test_the_log_has_the_verdicts_on_all_ranks(gathers, tmp_path):
    """Without gathering, rank 0's own report is about rank 0, and its log was so, too."""

    def window(sequence, rank, seconds):
        head = {"sequence": sequence, "rank": rank, "world_size": 5, "elapsed": 1.0, "node": b"n"}
        row = Measured(Family.SECTION, "work", summarise([seconds] * 20), (0.0, 0.0), False)
        return encode(head, [(hash_name("work"), row)])

    exchange = RecordedWindowsExchange(
        5, lambda sequence: [window(sequence, rank, 0.02 if rank == 3 else 0.01) for rank in range(1, 5)], ["work"]
    )
    settings = DetectorSettings(node_name="n", gather_on_rank0=gathers, log_path=tmp_path / "log")
    reporter = Reporter(exchange, [], settings)
    for number in range(3):
        report, _ = reporter.make(number, reporter.cut(), None)
    reporter.close()
    assert report.ranks == (range(5) if gathers else [0])
    assert [verdict.rank for verdict in report.stragglers()] == ([3] if gathers else [])
    last = list(read(tmp_path / "log"))[-1]
    assert [(verdict["rank"], verdict["state"]) for verdict in last["verdicts"]][:1] == [(3, "SLOW")]
