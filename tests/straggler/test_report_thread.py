"""The thread that makes reports: in turn, beside training, and gone when it is closed."""

import subprocess
import sys
import threading
import time

import pytest

from straggler.report_thread import ReportThread


def idle():
    return 60.0


def test_work_is_done_in_turn_and_not_on_the_thread_that_gives_it():
    done, thread = [], ReportThread(idle)
    for number in range(3):
        thread.do(lambda number=number: done.append((number, threading.current_thread().name)))
    assert thread.do_and_wait(lambda: "last") == "last"
    assert done == [(number, "straggler-reports") for number in range(3)]
    thread.close()


def test_what_is_waited_for_raises_where_it_was_asked_for():
    thread = ReportThread(idle)
    with pytest.raises(ZeroDivisionError):
        thread.do_and_wait(lambda: 1 // 0)
    assert thread.do_and_wait(lambda: 7) == 7
    thread.close()


def test_what_nobody_waits_for_is_logged_once_and_the_thread_goes_on(caplog):
    thread = ReportThread(idle)
    thread.do(lambda: 1 // 0)
    thread.do(lambda: 1 // 0)
    assert thread.do_and_wait(lambda: 7) == 7
    assert caplog.text.count("a report was not made (said once); training goes on") == 1
    assert "ZeroDivisionError" in caplog.text
    thread.close()


def test_it_polls_after_work_and_as_often_as_the_poll_says():
    polled = threading.Semaphore(0)

    def poll():
        polled.release()
        return 0.001

    thread = ReportThread(poll)
    assert all(polled.acquire(timeout=60.0) for _ in range(5))
    thread.close()


def test_work_in_hand_is_hurried_when_more_waits_or_the_end_has_come():
    thread = ReportThread(idle)
    seen, go = [], threading.Event()

    def first():
        seen.append(thread.is_hurried())
        go.wait(60.0)
        seen.append(thread.is_hurried())

    thread.do(first)
    thread.do(lambda: None)
    go.set()
    thread.do_and_wait(lambda: None)
    assert seen[1] is True
    assert thread.is_hurried() is False
    thread.close(grace_seconds=0.0)
    assert thread.is_hurried() is True


def test_closing_finishes_what_was_given_and_waits_for_it():
    done, thread = [], ReportThread(idle)
    for number in range(3):
        thread.do(lambda number=number: done.append(number))
    thread.close()
    assert done == [0, 1, 2]
    thread.close()
    with pytest.raises(RuntimeError, match="has ended"):
        thread.do_and_wait(lambda: None)


def test_closing_does_not_wait_for_ever():
    thread, never = ReportThread(idle), threading.Event()
    thread.do(lambda: never.wait(60.0))
    thread.close(limit_seconds=0.01)
    never.set()


AT_EXIT = """
import threading, time
from straggler.report_thread import ReportThread
thread = ReportThread(lambda: 60.0)
began = threading.Event()

def collect():
    began.set()
    while not thread.is_hurried():
        time.sleep(0.001)
    print("finished", flush=True)

thread.do(collect)
began.wait()
"""


def test_a_process_that_ends_finishes_the_report_in_hand_first():
    """A thread inside the store's library while the interpreter ends would abort the process."""
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "finished\n", "")
    assert time.monotonic() - began < 60.0


def test_what_is_done_later_hurries_nothing():
    begun, may_go, done = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        assert may_go.wait(60.0)
        done.append("in hand")

    thread = ReportThread(lambda: 60.0)
    thread.do(work)
    assert begun.wait(60.0)
    thread.do_later(lambda: done.append("later"))
    assert (thread.is_hurried(), thread.is_awaited, thread.waiting) == (False, False, 0)
    thread.do(lambda: done.append("next"))
    assert (thread.is_hurried(), thread.is_awaited, thread.waiting) == (True, True, 1)
    may_go.set()
    thread.close()
    assert done == ["in hand", "later", "next"]
