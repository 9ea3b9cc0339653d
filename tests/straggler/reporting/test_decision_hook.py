"""What a user's decision hook does wrong is logged once, and neither costs the report nor reaches the training."""

import re
import threading
import time

import pytest

from straggler import Detector
from straggler.probes.cpu_wall import CpuWallProbe
from straggler.reporting.decision_hook import GuardedHook


@pytest.fixture
def detector():
    made = Detector()
    made.initialize(probes=[CpuWallProbe()], report_time_interval=0.02)
    yield made
    made.shutdown()


def divide(report):
    return {"stop": 1 // 0}


def circular(report):
    made = {}
    made["made"] = made
    return made


def leave(report):
    raise SystemExit(3)


def interrupt(report):
    raise KeyboardInterrupt


WRONG = [
    (leave, "leave raised SystemExit: 3"),
    (interrupt, "interrupt raised KeyboardInterrupt"),
    (divide, "divide raised ZeroDivisionError"),
    (circular, "circular returned .*not JSON"),
    (lambda report: None, "returned None, and no mapping"),
    (lambda report: [1], r"returned \[1\], and no mapping"),
    (lambda report: {"a": object()}, "which is not JSON .*object is not JSON serializable"),
]


@pytest.mark.parametrize(("hook", "said"), WRONG)
def test_a_report_that_is_waited_for_is_made_without_a_decision(detector, caplog, hook, said):
    detector.set_decision_hook(hook)
    for _ in range(2):
        assert detector.generate_report() is not None
        assert detector.last_decision() == {}
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert re.search(said, record.getMessage())
    if record.exc_info:
        frames = []
        trace = record.exc_info[2]
        while trace is not None:
            frames.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
        assert frames == [hook.__name__]


@pytest.mark.parametrize(("hook", "said"), WRONG)
def test_a_report_beside_training_is_made_without_a_decision(detector, caplog, hook, said):
    detector.set_decision_hook(hook)
    deadline = time.monotonic() + 60.0
    reports = 0
    while not (reports > 1 and caplog.records) and time.monotonic() < deadline:
        reports += detector.generate_report_if_interval_elapsed() is not None
        time.sleep(0.001)
    assert time.monotonic() < deadline
    assert [record.name for record in caplog.records] == ["straggler.reporting.decision_hook"]


def test_a_right_decision_is_taken(detector):
    detector.set_decision_hook(lambda report: {"at": report.sequence})
    detector.generate_report()
    assert detector.last_decision() == {"at": 0}


def test_a_hook_that_never_returns_costs_no_report(detector, caplog):
    never = threading.Event()
    detector.set_decision_hook(lambda report: never.wait(60.0) or {})
    reports, deadline = [], time.monotonic() + 60.0
    while not (len(reports) >= 4 and caplog.records) and time.monotonic() < deadline:
        if (report := detector.generate_report_if_interval_elapsed()) is not None:
            reports.append(report.sequence)
        time.sleep(0.001)
    assert reports[:4] == [0, 1, 2, 3]
    (record,) = caplog.records
    assert "takes longer than the time between two reports" in record.getMessage()
    never.set()


def test_what_a_hook_decides_later_is_proposed_then():
    hook, decided, may_go = GuardedHook(), [], threading.Event()

    def slow(report):
        assert may_go.wait(60.0)
        return {"stop": report}

    hook.begin(slow, "first", decided.append)
    hook.begin(slow, "second", decided.append)
    assert hook.ask(slow, "asked for") == {}
    assert decided == []
    may_go.set()
    deadline = time.monotonic() + 60.0
    while (not decided or hook._is_busy) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert decided == [{"stop": "first"}]
    hook.begin(lambda report: {}, "third", decided.append)
    hook.begin(None, "fourth", decided.append)
    assert decided == [{"stop": "first"}]


def test_one_fault_of_a_hook_does_not_hide_another(caplog):
    hook = GuardedHook()
    for _ in range(2):
        assert hook.ask(lambda report: None, "report") == {}
        assert hook.ask(divide, "report") == {}
    assert [record.getMessage().split(" (said")[0].rpartition("; ")[2] for record in caplog.records] == [
        "nothing is decided on the report"
    ] * 2


def test_where_no_thread_can_be_had_a_hook_is_called_in_place(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    decided = []
    GuardedHook().begin(lambda report: {"stop": report}, "report", decided.append)
    assert decided == [{"stop": "report"}]
