"""When a node is unhealthy: two failures in a row, told once, before joining and while ranks run."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.health import runner as module
from launcher.health.check import Context, Unhealthy
from launcher.health.runner import HealthRunner
from launcher.health.settings import Chosen, HealthSettings
from launcher.health.watch import Answer
from tests.launcher.health.conftest import Scripted

PATIENCE = 60.0
SOON = 0.02


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., HealthRunner]]:
    """Make a runner of scripted checks."""
    monkeypatch.setattr(module, "_AGAIN_SECONDS", SOON)
    made = []

    def make(*checks, interval: float | None = SOON) -> HealthRunner:
        chosen = Chosen(tuple((check, ()) for check in checks), ())
        monkeypatch.setattr(module, "choose", lambda settings, context: chosen)
        made.append(HealthRunner(HealthSettings(interval_seconds=interval), Context()))
        return made[-1]

    yield make
    for each in made:
        each.stop()


# ---- before joining -----------------------------------------------------------------------------------------


def test_a_healthy_node_is_looked_at_once(run: Callable, scripted: Callable):
    checks = [scripted("a"), scripted("b")]
    assert run(*checks).before_joining() is None
    assert [check.looks for check in checks] == [1, 1]


def test_one_failure_is_looked_at_again_and_what_was_healthy_is_not(run: Callable, scripted: Callable, capfd):
    good, bad = scripted("good"), scripted("bad")
    bad.answers = ["was busy"]
    assert run(good, bad).before_joining() is None
    assert (good.looks, bad.looks) == (1, 2)
    assert "health check 'bad': was busy; looking again" in capfd.readouterr().err


def test_two_failures_are_the_reason_and_the_first_check_is_named(run: Callable, scripted: Callable):
    first, second, third = scripted("first"), scripted("second"), scripted("third")
    second.answers, third.answers = ["one", "two"], ["three", "four"]
    finding = run(first, second, third).before_joining()
    assert finding == Unhealthy("second", "two")
    assert str(finding) == "health check 'second': two"


def test_checks_run_at_once(run: Callable, scripted: Callable):
    """Each of them waits until all have begun."""
    checks = [scripted(name) for name in "abc"]
    barrier = threading.Barrier(3)

    def meet(context: Context) -> str | None:
        barrier.wait(10)
        return None

    for check in checks:
        check.check = meet
    assert run(*checks).before_joining() is None


def test_a_stuck_check_ends_the_wait_and_is_started_once(run: Callable, scripted: Callable):
    stuck = scripted("stuck", 0.1)
    stuck.went_on.clear()
    runner = run(scripted(), stuck)
    finding = runner.before_joining()
    assert finding is not None
    assert finding.check == "stuck"
    assert "no answer" in finding.reason
    assert stuck.looks == 1
    assert runner.bound_seconds >= 3 * PATIENCE


def test_a_slow_check_is_asked_anew_when_it_comes_back(run: Callable, scripted: Callable, monkeypatch):
    slow = scripted("slow", 0.1)
    slow.went_on.clear()
    runner = run(slow)
    told: list[str] = []

    def announce(text: str, level: int, event: str) -> None:  # the first look has failed by now
        told.append(text)
        slow.bound_seconds = PATIENCE
        slow.went_on.set()

    monkeypatch.setattr(module, "announce", announce)
    assert runner.before_joining() is None
    assert slow.looks == 2
    assert len(told) == 1


def test_without_checks_there_is_nothing_to_find(run: Callable):
    runner = run()
    assert runner.names == ()
    assert runner.before_joining() is None
    runner.start(never)
    runner.stop()


# ---- while ranks run ----------------------------------------------------------------------------------------


def test_two_failures_in_a_row_are_told_once(run: Callable, scripted: Callable):
    good, bad = scripted("good"), scripted("bad")
    bad.answer = "broken"
    told: queue.Queue[Unhealthy] = queue.Queue()
    runner = run(good, bad)
    runner.start(told.put)
    assert told.get(timeout=PATIENCE) == Unhealthy("bad", "broken")
    seen = bad.looks
    assert seen >= 2
    wait_for(lambda: bad.looks > seen + 3)
    assert told.empty()


def test_failures_that_are_not_in_a_row_do_not_count(run: Callable, scripted: Callable):
    flaky = scripted("flaky")
    flaky.answers = ["once", None, "twice", None, "three times", None]
    told: queue.Queue[Unhealthy] = queue.Queue()
    runner = run(flaky)
    runner.start(told.put)
    wait_for(lambda: flaky.looks > 7)
    assert told.empty()
    flaky.answer = "for good"
    assert told.get(timeout=PATIENCE).reason == "for good"


def test_what_was_healthy_in_between_is_told_again(run: Callable, scripted: Callable):
    check = scripted()
    check.answers = ["a", "a", "a", None, "b", "b", "b"]
    told: queue.Queue[Unhealthy] = queue.Queue()
    runner = run(check)
    runner.start(told.put)
    assert [told.get(timeout=PATIENCE).reason, told.get(timeout=PATIENCE).reason] == ["a", "b"]
    wait_for(lambda: check.looks > 8)
    assert told.empty()


def test_a_stuck_check_is_told_once_and_holds_up_no_other(run: Callable, scripted: Callable):
    stuck, other = scripted("stuck", 0.1), scripted("other")
    stuck.went_on.clear()
    told: queue.Queue[Unhealthy] = queue.Queue()
    runner = run(stuck, other)
    runner.start(told.put)
    assert told.get(timeout=PATIENCE).check == "stuck"
    seen = other.looks
    wait_for(lambda: other.looks > seen + 3)
    assert stuck.looks == 1
    assert told.empty()


def test_a_long_look_of_one_check_holds_up_no_other(run: Callable, scripted: Callable):
    long, other = scripted("long"), scripted("other")
    long.went_on.clear()
    runner = run(long, other)
    runner.start(never)
    assert long.began.wait(PATIENCE)
    seen = other.looks
    wait_for(lambda: other.looks > seen + 3)


def test_nothing_is_told_after_stop_and_counting_begins_anew(run: Callable, scripted: Callable):
    check = scripted()
    told: queue.Queue[Unhealthy] = queue.Queue()
    runner = run(check)
    runner.start(told.put)
    wait_for(lambda: check.looks > 0)
    runner.stop()
    runner.stop()
    check.answer = "broken"
    assert not [thread for thread in threading.enumerate() if thread.name == "ft_health"]
    assert told.empty()

    check.answers = ["one", None]
    check.answer = None
    seen = check.looks
    runner.start(told.put)
    wait_for(lambda: check.looks > seen + 3)
    assert told.empty()


def test_who_is_told_may_stop_and_other_findings_of_that_look_are_not_told(run: Callable, monkeypatch):
    """Both findings are there at once."""

    class Found:
        def __init__(self, watch: object, due: float) -> None:
            self.watch = watch

        def advance(self, interval_seconds: float, again_seconds: float) -> Unhealthy:
            return Unhealthy("x", "broken")

    monkeypatch.setattr(module, "_Watched", Found)
    told: list[Unhealthy] = []
    runner = run(Scripted("first"), Scripted("second"))

    def stop(finding: Unhealthy) -> None:
        told.append(finding)
        runner.stop()

    runner.start(stop)
    wait_for(lambda: not any(thread.name == "ft_health" for thread in threading.enumerate()))
    assert len(told) == 1


def test_a_listener_that_raises_is_told_the_next_finding(run: Callable, scripted: Callable, capfd):
    check = scripted()
    check.answers = ["a", "a", None, "b", "b"]
    told: queue.Queue[Unhealthy] = queue.Queue()

    def listen(finding: Unhealthy) -> None:
        told.put(finding)
        raise RuntimeError("deaf")

    runner = run(check)
    runner.start(listen)
    assert [told.get(timeout=PATIENCE).reason, told.get(timeout=PATIENCE).reason] == ["a", "b"]
    runner.stop()
    assert "has failed: RuntimeError('deaf')" in capfd.readouterr().err


def test_where_no_rank_runs_the_second_look_follows_at_once(run: Callable, scripted: Callable, monkeypatch):
    """A spare that had failed its first look took the place of a lost node before the second one."""
    monkeypatch.setattr(module.random, "uniform", lambda *_: 0.0)
    bad = scripted("bad")
    bad.answer = "broken"
    told: queue.Queue[Unhealthy] = queue.Queue()
    runner = run(bad, interval=3600.0)
    runner.start(told.put, is_waiting=True)
    assert told.get(timeout=PATIENCE) == Unhealthy("bad", "broken")
    runner.stop()

    runner.start(told.put, is_waiting=True)
    runner.start(told.put)  # its ranks are started
    assert not runner._is_waiting


@pytest.mark.parametrize(("is_busy", "least", "most"), [(True, 9.0, 10.0), (False, 0.0, 1.0)])
def test_one_look_that_has_not_ended_is_not_two_failures(is_busy: bool, least: float, most: float):
    """The second look found the first one still at work, and a storage that stood still once ended all spares."""
    watch: Any = SimpleNamespace(
        name="slow", is_busy=is_busy, bound_seconds=10.0, begin=lambda: None, answer=lambda: Answer("no answer")
    )
    watched = module._Watched(watch, 0.0)
    assert watched.advance(60.0, 1.0) is None
    assert least < watched.due - time.monotonic() <= most

    watched.put_off(60.0)  # its ranks are started
    assert 50.0 < watched.due - time.monotonic() <= 60.0


def test_a_second_start_changes_nothing(run: Callable, scripted: Callable):
    runner = run(scripted())
    runner.start(never)
    runner.start(never)
    assert [thread.name for thread in threading.enumerate()].count("ft_health") == 1


def test_without_an_interval_running_ranks_are_left_alone(run: Callable, scripted: Callable):
    check = scripted()
    runner = run(check, interval=None)
    runner.start(never)
    assert not [thread for thread in threading.enumerate() if thread.name == "ft_health"]
    assert runner.before_joining() is None
    assert check.looks == 1


def test_the_first_look_of_nodes_that_begin_together_is_spread(run: Callable, scripted: Callable, monkeypatch):
    drawn = []

    def uniform(least: float, most: float) -> float:
        drawn.append((least, most))
        return least

    monkeypatch.setattr(module.random, "uniform", uniform)
    runner = run(scripted("a"), scripted("b"))
    runner.start(never)
    assert drawn == [(0.5, 1.0)] * 2


def test_a_command_that_runs_is_ended_by_stop_and_can_be_asked_again(tmp_path: Path, capfd):
    began = tmp_path / "began"
    settings = HealthSettings(
        checks=("command",),
        command=f"if [ -e {began} ]; then exit 0; fi; touch {began}; sleep 1000",
        interval_seconds=SOON,
    )
    runner = HealthRunner(settings, Context())
    runner.start(never)
    wait_for(began.exists)
    runner.stop()
    assert runner.before_joining() is None
    assert "looking again" not in capfd.readouterr().err


def test_the_real_checks_of_this_machine_agree_that_it_is_healthy(tmp_path: Path):
    runner = HealthRunner(HealthSettings(checks=("paths", "shm", "memory"), command="true"), Context(str(tmp_path)))
    assert runner.names == (f"paths:{tmp_path}", "shm", "memory", "command")
    assert runner.before_joining() is None
    assert list(tmp_path.iterdir()) == []


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is so; the runner tells nobody about looks that find nothing."""
    changed = threading.Condition()
    end = PATIENCE
    with changed:
        while not condition():
            changed.wait(0.01)
            end -= 0.01
            assert end > 0


def never(finding: Unhealthy) -> None:
    pytest.fail(str(finding))
