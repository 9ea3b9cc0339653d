"""One check in a thread of its own: its bound, what a stuck one says, and that it is not started again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.health.check import Check, Context
from launcher.health.watch import Answer, Watch

PATIENCE = 60.0


def asked(watch: Watch, changed: threading.Condition) -> Answer:
    """Begin, and wait for the answer."""
    with changed:
        watch.begin()
        while (answer := watch.answer()) is None:
            changed.wait(watch.seconds_left())
    return answer


def watched(check: Check, context: Context | None = None) -> tuple[Watch, threading.Condition]:
    changed = threading.Condition()
    return Watch(check, context or Context(), changed), changed


class Fifo:
    """Waits for somebody to open the other end, as others wait for a server that is gone."""

    name, bound_seconds = "fifo", 0.2

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path, self.looks = path, 0

    def check(self, context: Context) -> str | None:
        self.looks += 1
        context.tell(f"opening {self.path}")
        with self.path.open("rb"):
            return None


def test_a_stuck_check_has_failed_when_its_time_is_up_and_says_where_it_was(tmp_path: Path):
    check = Fifo(tmp_path / "fifo")
    watch, changed = watched(check)
    reason = asked(watch, changed).reason
    assert reason is not None
    assert reason.startswith("no answer for ")
    assert "(it has 0.2 s)" in reason
    assert f"was last at: opening {check.path}" in reason

    assert asked(watch, changed).reason is not None  # at once, and not started again
    assert asked(watch, changed).reason is not None
    assert check.looks == 1
    assert watch.is_busy

    check.bound_seconds = PATIENCE
    os.close(os.open(check.path, os.O_WRONLY))  # the server is back
    with changed:
        assert changed.wait_for(lambda: not watch.is_busy, PATIENCE)
    writer = threading.Thread(target=lambda: os.close(os.open(check.path, os.O_WRONLY)))
    writer.start()
    assert asked(watch, changed) == Answer(None)
    writer.join(PATIENCE)
    assert check.looks == 2


def test_a_late_answer_is_no_answer_of_the_next_look(scripted: Callable):
    check = scripted(bound_seconds=0.05)
    check.went_on.clear()
    watch, changed = watched(check)
    assert asked(watch, changed).reason is not None
    with changed:
        watch.begin()
        check.went_on.set()
        assert changed.wait_for(lambda: not watch.is_busy, PATIENCE)
        answer = watch.answer()
    assert answer is not None
    assert answer.reason is not None
    check.bound_seconds = PATIENCE
    assert asked(watch, changed) == Answer(None)
    assert check.looks == 2


def test_two_who_ask_at_once_share_a_look(scripted: Callable):
    check = scripted()
    check.went_on.clear()
    watch, changed = watched(check)
    with changed:
        watch.begin()
        assert watch.answer() is None
        watch.begin()
        assert watch.answer() is None
        check.went_on.set()
        assert changed.wait_for(lambda: watch.answer() is not None, PATIENCE)
        assert watch.answer() == Answer(None)
    assert check.looks == 1


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, None),
        ("disk\n  is full", "disk is full"),
        ("", "no reason was given"),
        (RuntimeError("no\nway"), "the check itself has failed: RuntimeError: no way"),
        (SystemExit(3), "the check itself has failed: SystemExit: 3"),
        (False, "the check has returned False, neither a reason nor None; mend the check"),
        ("x" * 9999, "x" * 2000),
    ],
)
def test_what_a_check_returns_or_raises_is_one_line(scripted: Callable, found: object, expected: str | None):
    check = scripted()
    check.answer = found
    assert asked(*watched(check)) == Answer(expected)


def test_a_thread_that_the_system_refuses_is_a_failure(scripted: Callable, monkeypatch: pytest.MonkeyPatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    watch, changed = watched(scripted())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    reason = asked(watch, changed).reason
    assert reason is not None
    assert "refuses a thread" in reason
    assert "pids.max" in reason
    monkeypatch.undo()
    assert asked(watch, changed) == Answer(None)


def test_a_check_learns_that_nobody_waits_any_more():
    began = threading.Event()

    class Long:
        name, bound_seconds = "long", PATIENCE

        def check(self, context: Context) -> str | None:
            began.set()
            while not context.is_cancelled():
                threading.Event().wait(0.01)
            return "cancelled"

    watch, changed = watched(Long())
    with changed:
        watch.begin()
    assert began.wait(PATIENCE)
    with changed:
        watch.cancel()
        assert watch.is_ending or not watch.is_busy
        assert changed.wait_for(lambda: not watch.is_busy, PATIENCE)
        assert not watch.is_ending


def test_a_check_gets_what_it_is_given(tmp_path: Path):
    class Curious:
        name, bound_seconds = "curious", PATIENCE

        def check(self, context: Context) -> str | None:
            return f"{context.log_dir} {context.arguments}"

    context = Context(str(tmp_path), arguments=("a", "b"))
    assert asked(*watched(Curious(), context)) == Answer(f"{tmp_path} ('a', 'b')")
