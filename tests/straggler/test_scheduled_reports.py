"""Reports beside training: ranks are threads of this process, the store between them is real."""

import itertools
import threading
import time
from datetime import timedelta

import pytest

from straggler.exchange.exchange import LocalExchange
from straggler.exchange.store import StoreExchange
from straggler.measurement.section import Section, SectionClock
from straggler.probes.cpu_wall import CpuWallProbe
from straggler.reporter import Reporter
from straggler.scheduled_reports import ScheduledReports
from straggler.settings import DetectorSettings, RobustSettings

dist = pytest.importorskip("torch.distributed")

GENEROUS = 60.0
INTERVAL = 0.2


class WatchedStore:
    """A store that notes which threads have called it."""

    def __init__(self, store, callers):
        self._store, self._callers = store, callers

    def clone(self):
        return WatchedStore(self._store.clone(), self._callers)

    def __getattr__(self, name):
        self._callers.add(threading.current_thread().name)
        return getattr(self._store, name)


class Rank:
    """One rank: its reports, its iterations, and what it was given."""

    def __init__(self, store, rank, world_size, prefix, **settings):
        self.callers = set()
        exchange = StoreExchange(
            WatchedStore(store, self.callers),
            rank,
            world_size,
            bound_seconds=settings.pop("bound", GENEROUS),
            prefix=prefix,
            heard_within=0.01,
        )
        probe = CpuWallProbe()
        self.section = Section("work", SectionClock())
        probe.watch(self.section, False)
        made = DetectorSettings(**{"node_name": f"node-{rank}", "report_time_interval": INTERVAL, **settings})
        self.reports = ScheduledReports(Reporter(exchange, [probe], made), made)
        self.found, self.ended, self.decided = [], [], []
        self.iteration = 0

    def step(self, seconds=0.0005):
        with self.section:
            time.sleep(seconds)
        self.iteration += 1
        report = self.reports.tick()
        if report is not None:
            self.found.append(report)
        if self.reports.is_due:
            self.ended.append(self.iteration)
        if self.reports.decision:
            self.decided.append((self.iteration, self.reports.decision))


class Ranks:
    """Ranks that train in lockstep until ``is_done``, each on a thread of its own."""

    def __init__(self, world_size, prefix, of_rank=None, **settings):
        self.store = store = dist.TCPStore("127.0.0.1", 0, None, True, timeout=timedelta(seconds=60))
        self.ranks = [
            Rank(store, rank, world_size, prefix, **{**settings, **(of_rank or {}).get(rank, {})})
            for rank in range(world_size)
        ]
        self.errors = []

    def train(self, is_done, each=None, limit=GENEROUS):
        end = time.monotonic() + limit
        over = threading.Event()

        def look():
            if is_done(self) or time.monotonic() > end:
                over.set()

        barrier = threading.Barrier(len(self.ranks), action=look)

        def run(rank):
            try:
                while not over.is_set():
                    (each or Rank.step)(rank)
                    barrier.wait(GENEROUS)
            except Exception as error:
                self.errors.append(error)
                barrier.abort()
                raise

        threads = [threading.Thread(target=run, args=[rank], name=f"training {n}") for n, rank in enumerate(self.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert self.errors == []

    def close(self):
        closing = [threading.Thread(target=rank.reports.close) for rank in self.ranks]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()


def has_reports(count):
    return lambda job: len(job.ranks[0].found) >= count


def test_all_ranks_end_their_windows_at_the_same_iterations_and_training_calls_no_store(request):
    job = Ranks(3, request.node.name)
    for rank in job.ranks:  # the connection was made on this thread
        rank.callers.clear()
    job.train(has_reports(4))
    job.close()
    first, second, third = (rank.ended for rank in job.ranks)
    shortest = min(len(first), len(second), len(third))
    assert shortest >= 4
    assert first[:shortest] == second[:shortest] == third[:shortest]
    for rank in job.ranks:
        assert rank.callers == {"straggler-exchange"}
    assert [report.sequence for report in job.ranks[0].found] == list(range(len(job.ranks[0].found)))
    assert all(report.coverage == 1.0 for report in job.ranks[0].found)
    assert job.ranks[1].found == []


def test_without_gathering_every_rank_gets_reports_of_its_own(request):
    job = Ranks(2, request.node.name, gather_on_rank0=False)
    job.train(lambda job: all(len(rank.found) >= 2 for rank in job.ranks))
    job.close()
    assert [report.sequence for report in job.ranks[1].found[:2]] == [0, 1]
    assert job.ranks[1].found[0].notes == ()


@pytest.mark.parametrize("gathers", [True, False])
def test_ranks_that_differ_in_gathering_are_all_heard(gathers, request):
    """One that waited for an answer in vain heard nothing of the next report, and was told as dead."""
    job = Ranks(3, request.node.name, {1: {"gather_on_rank0": not gathers}}, gather_on_rank0=gathers)
    job.train(lambda job: len(job.ranks[0].found) >= 6 and all(len(rank.ended) >= 6 for rank in job.ranks))
    job.close()
    assert [report.coverage for report in job.ranks[0].found[:6]] == [1.0] * 6
    said = f"gather_on_rank0 is {gathers} on rank 0 and {not gathers} on 1 ranks (1)"
    assert all(any(said in note for note in report.notes) for report in job.ranks[0].found[:6])
    alone = job.ranks[1 if gathers else 2]
    assert len(alone.found) >= 4
    assert all(report.coverage == 1.0 and report.missing_ranks == [] for report in alone.found[:4])
    assert job.ranks[2 if gathers else 1].found == []


def test_a_rank_that_is_late_once_is_heard_again_though_it_stays_slow(request):
    """It was never heard again before, unless it answered within a tenth of a second."""
    job = Ranks(2, request.node.name, bound=10 * INTERVAL)
    late = job.ranks[1]
    posted = late.reports.reporter.exchange.post

    def post_late(sequence, payload):
        time.sleep(2.5 * INTERVAL if sequence == 0 else 0.6 * INTERVAL)  # rank 0 waits no longer than an interval
        posted(sequence, payload)

    late.reports.reporter.exchange.post = post_late
    job.train(has_reports(8))
    job.close()
    coverage = [report.coverage for report in job.ranks[0].found]
    assert coverage[0] == 0.5
    assert coverage[-1] == 1.0
    assert sum(share == 1.0 for share in coverage) >= 4


def test_a_rank_that_hangs_does_not_hold_up_the_others_reports(request):
    job = Ranks(3, request.node.name)
    hangs = threading.Event()
    silent = job.ranks[2]
    silent.reports.reporter.exchange.post = lambda sequence, payload: hangs.wait(GENEROUS)
    job.train(has_reports(3))
    hangs.set()
    job.close()
    assert [report.missing_ranks for report in job.ranks[0].found[:3]] == [[2]] * 3


def test_all_ranks_learn_of_a_decision_at_the_same_iteration(request):
    job = Ranks(3, request.node.name)
    for rank in job.ranks:
        rank.reports.reporter.decide = lambda report: {"stop": "now"} if report.sequence == 2 else {}
    job.train(lambda job: any(rank.decided for rank in job.ranks))
    job.close()
    (at, what), *_ = job.ranks[0].decided
    assert what == {"stop": "now"}
    assert [rank.decided for rank in job.ranks] == [[(at, what)]] * 3
    assert job.ranks[0].ended[2] < at


def test_a_report_in_the_making_is_hurried_where_training_waits_to_agree(request):
    """The thread that makes it is the one that hears the final word."""
    job = Ranks(2, request.node.name)
    reports = job.ranks[0].reports
    assert not reports._is_hurried()
    assert not reports._pacer._is_hurried()
    seen = []
    wait_for = reports._agreement._changed.wait_for

    def look(predicate, timeout):
        seen.append((reports._is_hurried(), reports._pacer._is_hurried()))
        reports._agreement._waits_since -= 1.0
        seen.append((reports._is_hurried(), reports._pacer._is_hurried()))
        return wait_for(predicate, 0.0)

    reports._agreement._changed.wait_for = look
    reports._agreement.propose({"stop": "now"})
    assert reports._agreement.due(10**6) is None
    assert seen == [(False, True), (True, True)]  # the windows of the others have some time to come
    assert not reports._is_hurried()
    job.close()


def test_a_report_that_is_asked_for_comes_at_once_and_does_not_disturb_those_on_schedule(request):
    job = Ranks(2, request.node.name, report_time_interval=1.0)
    first = job.ranks[0]

    def step(rank):
        rank.step()
        if rank.iteration % 20 == 0:
            # A report in the making waits for no rank any more once another one is asked for.
            while rank is first and len(first.ended) > len(first.found) + len(first.reports._finished):
                first.reports._pacer.step()  # nor does its making wait for a step that comes only after it
                time.sleep(0.001)
            report = rank.reports.make_now()
            assert (report is not None) == (rank is job.ranks[0])
            assert report is None or report.coverage == 1.0

    job.train(has_reports(2), each=step)
    job.close()
    assert [report.coverage for report in first.found] == [1.0] * len(first.found)


def test_steps_longer_than_the_interval_make_windows_that_can_be_scored(request):
    job = Ranks(2, request.node.name, report_time_interval=0.02, settings=RobustSettings(min_samples=5))
    job.train(has_reports(3), each=lambda rank: rank.step(0.02))
    job.close()
    for rank in job.ranks:
        assert min(later - earlier for earlier, later in itertools.pairwise(rank.ended)) >= 5


def test_a_hook_that_fails_is_logged_and_training_goes_on(request, caplog):
    job = Ranks(1, request.node.name)
    job.ranks[0].reports.reporter.decide = lambda report: 1 // 0
    job.train(lambda job: "decision hook" in caplog.text)
    job.close()
    assert "ZeroDivisionError" in caplog.text


class HeldExchange(LocalExchange):
    """An exchange that takes its time to close, with a report that comes meanwhile."""

    def __init__(self):
        super().__init__()
        self.go, self.in_time, self.closed_by = threading.Event(), None, None

    def close(self):
        self.in_time = self.go.wait(GENEROUS / 4)
        self.closed_by = threading.current_thread().name


def test_training_does_not_wait_until_the_reports_of_another_group_are_closed():
    settings = DetectorSettings(report_time_interval=0.001)
    before, after = (
        ScheduledReports(Reporter(exchange, [], settings), settings) for exchange in (HeldExchange(), LocalExchange())
    )
    held = before.reporter.exchange
    while not before.is_due:
        time.sleep(0.001)
        before.tick()
    after.follow(before)
    held.go.set()
    last = after.make_now()
    assert held.in_time, "it was waited for"
    assert held.closed_by == "straggler-reports"
    kept = after.take_finished()
    assert kept, "the report in the making was lost"
    assert last is not None
    after.close()
