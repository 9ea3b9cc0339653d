"""Work beside training goes on in portions: one for each step, unless somebody waits for it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from straggler import Detector, pacing
from straggler.exchange.bounded_calls import BoundedCalls
from straggler.pacing import Pacer, carried, longest_wait, pace, paced, wait_no_longer_than
from straggler.reporter import Reporter
from straggler.scheduled_reports import ScheduledReports
from straggler.settings import DetectorSettings
from straggler.testing import RecordedWindowsExchange

LONG = 60.0


class Worker:
    """Does work beside training on a thread: it tells each piece, and paces after it."""

    def __init__(self, pacer: Pacer, longest_seconds: float = LONG, pieces: int = 4) -> None:
        self.done: queue.Queue[int] = queue.Queue()
        self.thread = threading.Thread(target=self._work, args=(pacer, longest_seconds, pieces), daemon=True)
        self.thread.start()

    def _work(self, pacer: Pacer, longest_seconds: float, pieces: int) -> None:
        with pacer.beside_training(longest_seconds):
            for number in range(pieces):
                self.done.put(number)
                pace()

    def is_over(self) -> bool:
        self.thread.join(LONG)
        return not self.thread.is_alive()


@pytest.fixture(autouse=True)
def each_pace_is_a_portion(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pacing, "_PORTION_SECONDS", 0.0)
    monkeypatch.setattr(pacing, "_LONGEST_STEP", LONG)
    yield
    pace()  # nothing is left on this thread


def until(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.001)  # what another thread does without telling it


def test_after_a_portion_work_waits_for_the_next_step() -> None:
    pacer = Pacer(lambda: False)
    worker = Worker(pacer)
    for number in range(4):
        assert worker.done.get(timeout=LONG) == number
        until(lambda: pacer._is_waiting)
        assert worker.done.empty()
        pacer.step()
    assert worker.is_over()


def test_a_portion_is_processor_time_of_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter([10.0, 10.4, 10.9, 11.1, 11.5, 12.3])
    monkeypatch.setattr(pacing, "_PORTION_SECONDS", 1.0)
    monkeypatch.setattr(pacing.time, "thread_time", lambda: next(used))
    pacer, waits = Pacer(lambda: False), list[float]()
    monkeypatch.setattr(pacer, "_wait", lambda: waits.append(pacer._portion))
    with pacer.beside_training(LONG):
        pace()
        pace()
        assert waits == []
        pace()
        assert waits == [pytest.approx(1.1)]
        pace()
        pacer.step()  # what was used before it does not count
        pace()
    assert len(waits) == 1


def test_work_that_somebody_waits_for_is_done_at_once() -> None:
    hurried = threading.Event()
    pacer = Pacer(hurried.is_set)
    worker = Worker(pacer)
    until(lambda: pacer._is_waiting)
    hurried.set()
    assert worker.is_over()
    assert worker.done.qsize() == 4


def test_all_waits_of_a_piece_of_work_are_bounded() -> None:
    assert Worker(Pacer(lambda: False), longest_seconds=0.05).is_over()
    pacer = Pacer(lambda: False)
    with pacer.beside_training(7.0):
        assert longest_wait() == 7.0
    assert longest_wait() == 0.0


def test_where_no_step_ends_work_goes_on_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "_LONGEST_STEP", 0.01)
    assert Worker(Pacer(lambda: False), longest_seconds=10 * LONG).is_over()


def test_elsewhere_nothing_waits() -> None:
    pacer = Pacer(lambda: False)
    with pacer.beside_training(0.0):
        pass
    pace()
    assert list(paced(range(5), 2)) == [0, 1, 2, 3, 4]
    function = lambda: 3  # noqa: E731
    assert carried(function) is function


def test_what_another_thread_does_in_its_stead_is_in_portions_too() -> None:
    pacer, calls = Pacer(lambda: False), BoundedCalls(Always())
    got: queue.Queue[int | None] = queue.Queue()

    def ask() -> None:
        with pacer.beside_training(LONG):
            got.put(calls.call("counting", lambda: sum(paced(range(3))), 1.0))  # with its waits it takes longer

    began = time.monotonic()
    threading.Thread(target=ask, daemon=True).start()
    until(lambda: pacer._is_waiting and time.monotonic() > began + 1.2)
    assert got.empty()
    while got.empty():
        pacer.step()
    assert got.get() == 3
    calls.close()


class Always:
    """A store that is there."""

    def is_expected(self) -> bool:
        return True

    def answers(self, limit_seconds: float) -> bool:
        return True


@pytest.fixture
def detector() -> Iterator[Detector]:
    made = Detector()
    made.initialize(
        report_time_interval=20 * LONG, probes=[], exchange=RecordedWindowsExchange(3, lambda _: [None, None])
    )
    yield made
    made.shutdown()


def make_due(detector: Detector) -> Pacer:
    """Let the time of a report be over; return the pacer once the report waits for a step."""
    reports = detector._measuring.reports  # type: ignore[union-attr]
    reports._schedule.interval_seconds = 0.0
    reports._schedule._from = (0, time.monotonic() - 20 * LONG)
    while not detector.is_interval_elapsed():
        detector.generate_report_if_interval_elapsed()
    reports._schedule.interval_seconds = 20 * LONG  # no later window waits, which would hurry this one
    reports._schedule._plan = None
    until(lambda: reports._pacer._is_waiting)
    return reports._pacer


def test_a_scheduled_report_is_made_in_the_course_of_steps(detector: Detector) -> None:
    pacer = make_due(detector)
    steps, report = 0, None
    while report is None:
        until(lambda: pacer._is_waiting or bool(detector._measuring.reports._finished))  # type: ignore[union-attr]
        report = detector.generate_report_if_interval_elapsed()
        steps += 1
    assert report.world_size == 3
    assert steps > 3


def test_a_report_that_is_waited_for_is_made_at_once_and_so_is_the_one_before(detector: Detector) -> None:
    make_due(detector)
    report = detector.generate_report()
    assert report is not None
    assert detector.generate_report_if_interval_elapsed() is not None


def test_the_end_waits_for_no_step(detector: Detector) -> None:
    make_due(detector)
    (report,) = detector.shutdown()
    assert report.world_size == 3


@pytest.mark.parametrize(
    ("rank", "gathers", "seconds"), [(0, True, 60.0), (1, True, 2.5), (0, False, 2.5), (1, False, 2.5)]
)
def test_where_a_plan_is_to_be_heard_or_ranks_wait_for_the_report_it_waits_for_less(
    rank: int, gathers: bool, seconds: float
) -> None:
    exchange = RecordedWindowsExchange(3, lambda _: [None, None])
    exchange.rank = rank
    settings = DetectorSettings(gather_on_rank0=gathers, report_time_interval=60.0, report_bound_seconds=10.0)
    reports = ScheduledReports(Reporter(exchange, [], settings), settings)
    assert reports.reporter.paced_seconds == seconds
    reports.reporter._wanting.add(2)  # a rank that expects a report of its own though rank 0 gathers
    assert reports.reporter.paced_seconds == 2.5
    reports.close()


def test_waits_that_remain_may_be_limited_and_are_never_made_longer() -> None:
    wait_no_longer_than(1.0)  # no work beside training: nothing to limit
    with Pacer(lambda: False).beside_training(60.0):
        wait_no_longer_than(3.0)
        assert longest_wait() == 3.0
        wait_no_longer_than(9.0)
        assert longest_wait() == 3.0
