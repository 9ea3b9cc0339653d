"""A thread that does what might block, and callers that never wait longer than they said."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from launcher.processes.background import Background, NotDoneError

PATIENCE = 180.0


class Gate:
    """Something that hangs until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def pass_through(self) -> str:
        self.entered.set()
        assert self.opened.wait(PATIENCE)
        return "through"


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def test_calls_are_made_in_order_by_another_thread() -> None:
    background, made = Background("test", 100), []
    background.start()
    for number in range(50):
        assert background.submit(lambda number=number: made.append((number, threading.current_thread().name)))  # type: ignore[misc]
    assert background.flush(PATIENCE)
    assert made == [(number, "test") for number in range(50)]


def test_a_call_that_hangs_costs_room_and_no_time(gate: Gate) -> None:
    background = Background("test", 10)
    background.start()
    background.submit(gate.pass_through, 1)
    assert gate.entered.wait(PATIENCE)

    assert [background.submit(lambda: None, 3) for _ in range(5)] == [True, True, True, False, False]
    assert not background.flush(0)
    gate.opened.set()
    assert background.flush(PATIENCE)
    assert background.submit(lambda: None, 10), "the room was given back"


@pytest.mark.parametrize("is_started", [True, False])
def test_a_call_that_raises_is_reported_and_the_next_one_is_made(
    is_started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_value))
    background, made = Background("test", 10), []
    if is_started:
        background.start()
    background.submit(lambda: 1 // 0)
    background.submit(lambda: made.append("next"))
    assert background.flush(PATIENCE)
    assert made == ["next"]
    assert [type(each) for each in reported] == [ZeroDivisionError]


def test_a_result_is_waited_for_but_not_for_long(gate: Gate) -> None:
    background = Background("test", 10)
    background.start()
    assert background.call(lambda: 7, PATIENCE) == 7
    with pytest.raises(ZeroDivisionError):
        background.call(lambda: 1 // 0, PATIENCE)
    with pytest.raises(NotDoneError, match=r"no answer within 0\.01 s"):
        background.call(gate.pass_through, 0.01)
    assert gate.entered.wait(PATIENCE)
    assert not background.flush(0.01)
    # It is known to be stuck by now: whoever comes later does not wait at all.
    waited: list[float] = []
    background_wait = threading.Event.wait
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Event, "wait", lambda event, timeout: waited.append(timeout))
        with pytest.raises(NotDoneError):
            background.call(lambda: 8, 0.001)
    assert waited == []
    assert threading.Event.wait is background_wait
    gate.opened.set()
    assert background.flush(PATIENCE)
    assert background.call(lambda: 9, PATIENCE) == 9


def test_the_thread_is_woken_once_for_all_that_is_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    background, made, woken = Background("test", 100), [], []  # type: Background, list[int], list[int]
    wake = background._changed.notify_all
    monkeypatch.setattr(background._changed, "notify_all", lambda: (woken.append(len(background._calls)), wake()))
    with contextlib.suppress(KeyError), background.gathering(), background.gathering():
        background._thread = threading.Thread(target=background._run, daemon=True)  # not started: it wakes nobody
        for number in range(3):
            background.submit(lambda number=number: made.append(number))  # type: ignore[misc]
        assert woken == []
        raise KeyError
    assert woken == [3]
    assert made == []

    background._thread.start()
    assert background.flush(PATIENCE)
    assert made == [0, 1, 2]


@pytest.mark.parametrize("waits", ["call", "flush"])
def test_who_waits_for_a_result_does_not_wait_for_the_end_of_the_gathering(waits: str) -> None:
    background, made = Background("test", 100), []  # type: Background, list[str]
    background.start()
    with background.gathering():
        background.submit(lambda: made.append("before"))
        assert background.flush(PATIENCE) if waits == "flush" else background.call(lambda: True, PATIENCE)
        assert made == ["before"]


def test_without_a_thread_the_caller_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    background, made = Background("test", 1), []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    background.start()
    assert not background.is_started
    assert background.submit(lambda: made.append(1), 1000)
    assert background.call(lambda: 2, 0) == 2
    assert made == [1]
    assert background.flush(0)
