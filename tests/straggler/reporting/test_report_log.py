"""The log of reports: written by a thread, complete after close, and never a reason to wait."""

import os
import threading
import time

import pytest

from straggler.reporting.background_lines import BackgroundLines
from straggler.reporting.report_log import ReportLog, read
from straggler.simulation.reports import reports
from straggler.simulation.simulator import SimulatedJob

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
