"""A rank that is slow because other processes keep it from running: not named for it at once, and named if it lasts."""

import os
import signal
import statistics
import time

import attrs
import numpy as np
import pytest

from straggler import State
from straggler.exchange.gathered import assemble
from straggler.exchange.wire import encode
from straggler.measurement.measured import BATCHES_OF_WORKERS, OWN_WORK_OF_AN_ITERATION, STATE_FIELDS, Family, Measured
from straggler.measurement.name_table import NameTable
from straggler.measurement.summary import summarise
from straggler.probes.host_cpu import HostCpuProbe
from straggler.reporting.rank_messages import decode_for_rank, encode_for_ranks
from straggler.reporting.rank_verdicts import RankVerdicts
from straggler.reporting.report import Report
from straggler.reporting.report_log import as_record
from straggler.scoring.processor_waits import MOST_EXPLAINED, PERIOD_SECONDS
from straggler.scoring.scorer import Scorer
from straggler.settings import DetectorSettings

ELAPSED, RANKS, VICTIM = 60.0, 4, 2
FIELD = {name: STATE_FIELDS.index(name) for name in ("cpu_waited", "cpu_throttled", "loader_waited")}


class Job:
    """Windows of four ranks: what iterations took and what was waited for a processor, in shares of the time."""

    def __init__(self, ranks=RANKS):
        self.ranks = ranks
        self.names = NameTable()
        self.scorer = Scorer(ranks, DetectorSettings())
        self.sequence = -1

    def window(
        self,
        work,
        waited,
        *,
        throttled=None,
        num=10,
        family=Family.OWN_WORK,
        elapsed=ELAPSED,
        core=None,
        loading=None,
        batches=None,
        kept=(0.0,) * RANKS,
    ):
        """Each of them one number per rank; ``waited`` may be NaN. ``core`` is what iterations took on a core.

        ``loading`` was waited for workers of a data loader, and ``batches`` is what these took in all, of which they
        waited ``kept`` for a core.
        """
        self.sequence += 1
        name = self.names.add(OWN_WORK_OF_AN_ITERATION if family == Family.OWN_WORK else "work")
        payloads = []
        for rank in range(self.ranks):
            state = np.full(len(STATE_FIELDS), np.nan)
            state[FIELD["cpu_waited"]] = waited[rank]
            if throttled is not None:
                state[FIELD["cpu_throttled"]] = throttled[rank]
            if loading is not None:
                state[FIELD["loader_waited"]] = loading[rank]
            rows = [(name, Measured(family, "", summarise(np.full(num, work[rank] * elapsed / num))))]
            if core is not None and core[rank] == core[rank]:
                number = self.names.add(OWN_WORK_OF_AN_ITERATION)
                told = summarise(np.full(num, core[rank] * elapsed / num))
                rows.append((number, Measured(Family.ON_CORE, "", told)))
                if family != Family.OWN_WORK:
                    told = summarise(np.full(num, (core[rank] + waited[rank]) * elapsed / num))
                    rows.append((number, Measured(Family.OWN_WORK, "", told)))
            if batches is not None and batches[rank] is not None:
                number = self.names.add(BATCHES_OF_WORKERS)
                for each, took in ((Family.OWN_WORK, batches[rank]), (Family.ON_CORE, batches[rank] - kept[rank])):
                    rows.append((number, Measured(each, "", summarise(np.full(num, took * elapsed / num)))))
            head = {"sequence": self.sequence, "rank": rank, "world_size": self.ranks, "elapsed": elapsed}
            payloads.append(encode({**head, "node": b"node", "device": state, "peer_group": 0}, rows))
        gathered = assemble(payloads, self.sequence)
        self.scores = self.scorer.score(gathered)
        return Report(
            scores=self.scores,
            gathered=gathered,
            name_of=self.names.get,
            sequence=self.sequence,
            rank=0,
            report_seconds=[elapsed] * (self.sequence + 1),
        )

    def windows(self, count, *args, **kwargs):
        return [self.window(*args, **kwargs) for _ in range(count)]


def per_rank(others, own):
    return [own if rank == VICTIM else others for rank in range(RANKS)]


def named(reports):
    return [[verdict.rank for verdict in report.stragglers()] for report in reports]


@pytest.mark.parametrize(
    ("waited", "told"),
    [(0.001, "about 1 %"), (0.034, "about 3 %"), (0.094, "about 9 %"), (0.096, "about 10 %"), (0.26, "about 30 %")],
)
def test_a_wait_is_told_in_percent_and_a_long_one_in_tens(waited, told):
    report = Job().windows(4, per_rank(0.4, 0.65), per_rank(0.2, 0.45))[-1]
    verdicts = RankVerdicts(
        attrs.evolve(report.scores, kept_waiting=np.full(RANKS, waited)), report.gathered, str, 0, [1.0]
    )
    assert f"waited for a core {told} of the time" in verdicts._waited(VICTIM)


def test_a_rank_that_is_slow_by_a_wait_is_unknown_with_that_reason():
    report = Job().windows(4, per_rank(0.4, 0.65), per_rank(0.2, 0.45))[-1]
    (verdict,) = report.verdicts()
    assert (verdict.rank, verdict.state) == (VICTIM, State.UNKNOWN)
    assert verdict.because == (
        "it is slower, and it waited for a core about 40 % of the time, which may be why: see what else runs on its "
        "machine"
    )
    assert "UNKNOWN 1 ranks (2): it is slower, and" in report.table()
    assert not any(report.identify_stragglers().values())
    assert not any(report.identify_stragglers(section_rel_threshold=0.8).values())


def test_a_wait_that_own_work_does_not_hold_is_said_beside_the_verdict():
    waited = per_rank(0.02, 0.12)
    core = per_rank(0.4, 0.6)
    work = [computed + kept for computed, kept in zip(core, waited, strict=True)]
    report = Job().windows(4, work, waited, core=core)[-1]
    (verdict,) = report.stragglers()
    assert (verdict.because, verdict.beside) == ("", "it also waited for a core 12 % of the time")
    assert str(verdict).endswith("% sure; it also waited for a core 12 % of the time")
    assert as_record(report)["verdicts"][0]["beside"] == verdict.beside


def test_it_is_named_with_that_reason_where_the_wait_lasts():
    reports = Job().windows(30, per_rank(0.4, 0.65), per_rank(0.2, 0.45))
    first = next(number for number, ranks in enumerate(named(reports)) if ranks)
    assert first == 2 + MOST_EXPLAINED - 1  # the third window is the first in which it is slow
    assert all(ranks == [VICTIM] for ranks in named(reports[first:]))
    assert "because: it waited for a core 45 % of the time" in str(reports[-1].stragglers()[0])


@pytest.mark.long
def test_frequent_reports_do_not_make_a_wait_last():
    """Five periods of 15 s, in which it is explained, and then twelve."""
    job = Job()
    period = round(PERIOD_SECONDS / 0.5)
    assert named(job.windows(5 * period, per_rank(0.4, 0.65), per_rank(0.2, 0.45), elapsed=0.5)) == [[]] * 5 * period
    reports = job.windows(8 * period, per_rank(0.4, 0.65), per_rank(0.2, 0.45), elapsed=0.5)
    first = next(number for number, ranks in enumerate(named(reports)) if ranks)
    assert 6 * period < first < 8 * period
    assert all(ranks == [VICTIM] for ranks in named(reports[first:]))


@pytest.mark.long
def test_what_is_explained_in_few_windows_of_a_period_does_not_last():
    job = Job()
    for _ in range(28):
        reports = job.windows(3, per_rank(0.4, 0.65), per_rank(0.2, 0.45), elapsed=1.0)
        reports += job.windows(12, [0.4] * RANKS, [0.2] * RANKS, elapsed=1.0)
        assert named(reports) == [[]] * 15


def test_the_reason_of_a_lasting_wait_is_told_in_a_window_without_it():
    job = Job()
    job.windows(20, per_rank(0.4, 0.65), per_rank(0.2, 0.45))
    report = job.window([0.4] * RANKS, [0.2] * RANKS)
    assert report.stragglers()[0].because == "it waited for a core 42 % of the time"


@pytest.mark.parametrize(
    ("work", "waited", "throttled"),
    [
        ((0.4, 0.65), (np.nan, np.nan), None),  # this kernel does not tell
        ((0.4, 0.65), (0.2, 0.2), None),
        ((0.4, 0.65), (0.2, 0.3), None),  # two fifths of it: what a rank that has more to do waits
        ((0.4, 0.8), (0.2, 0.42), None),  # most of it, and the rest alone is slow
        ((0.4, 0.65), (0.2, 0.45), (0.0, 0.25)),  # its own quota
        ((0.1, 0.12), (0.0, 0.02), None),  # too short to tell
    ],
)
def test_a_rank_that_is_slow_by_itself_is_named_as_ever(work, waited, throttled):
    quota = None if throttled is None else per_rank(*throttled)
    reports = Job().windows(4, per_rank(*work), per_rank(*waited), throttled=quota)
    assert named(reports) == [[], [], [VICTIM], [VICTIM]]


def test_a_wait_that_all_ranks_share_excuses_nobody():
    assert named(Job().windows(3, per_rank(0.5, 0.75), [0.45] * RANKS))[-1] == [VICTIM]


def test_the_row_of_the_gpu_is_not_explained():
    reports = Job().windows(3, per_rank(0.4, 0.65), per_rank(0.2, 0.45), family=Family.KERNEL)
    assert named(reports)[-1] == [VICTIM]


def test_a_slow_rank_stays_named_when_it_also_waits_for_once():
    job = Job()
    assert named(job.windows(3, per_rank(0.2, 0.3), [0.0] * RANKS))[-1] == [VICTIM]
    # In the second of these the waits are 84 % of all that it took longer.
    assert named(job.windows(2, per_rank(0.2, 0.98), per_rank(0.0, 0.78))) == [[VICTIM]] * 2


def test_a_rank_that_is_slow_by_itself_later_is_named():
    job = Job()
    assert named(job.windows(4, per_rank(0.4, 0.65), per_rank(0.2, 0.45)))[-1] == []
    assert named(job.windows(8, per_rank(0.4, 0.75), [0.2] * RANKS))[-1] == [VICTIM]


def test_what_is_left_of_a_wait_that_has_ended_names_nobody():
    job = Job()
    reports = job.windows(4, per_rank(0.4, 0.65), per_rank(0.2, 0.45)) + job.windows(8, [0.4] * RANKS, [0.2] * RANKS)
    assert named(reports) == [[]] * 12


def test_a_rank_that_gets_its_own_report_knows_why():
    job = Job()
    job.windows(4, per_rank(0.4, 0.65), per_rank(0.2, 0.45))
    message = encode_for_ranks(job.scores, {}, np.ones(RANKS, bool), details=True)[VICTIM]
    scores = decode_for_rank(message, VICTIM, RANKS).scores
    assert scores.kept_waiting[VICTIM] == pytest.approx(0.45)
    assert np.isnan(scores.kept_waiting[0])


# What follows is of kernels that tell of each sample what was waited for a core.


def test_what_is_slow_only_with_its_waits_is_unknown_and_named_where_that_lasts():
    """Whatever the other ranks waited: of one that waited less than they, too, there is nothing to explain."""
    job = Job()
    reports = job.windows(30, per_rank(0.4, 0.65), per_rank(0.2, 0.45), core=[0.2] * RANKS)
    first = next(number for number, ranks in enumerate(named(reports)) if ranks)
    assert first == 2 + MOST_EXPLAINED - 1
    assert all(ranks == [VICTIM] for ranks in named(reports[first:]))
    (verdict,) = reports[first - 1].verdicts()
    assert (verdict.rank, verdict.state) == (VICTIM, State.UNKNOWN)
    (slow,) = reports[-1].stragglers()
    assert (slow.slowdown, slow.because) == (pytest.approx(0.625), "it waited for a core 45 % of the time")


def test_equal_ranks_are_equal_however_they_wait():
    job, random = Job(), np.random.default_rng(1)
    for _ in range(250):
        waits = random.choice([0.0, 0.1, 0.3], RANKS)
        core = 0.2 * np.exp(0.02 * random.standard_normal(RANKS))
        reports = job.windows(1, 0.2 + waits, waits, core=core, elapsed=1.0)
        assert named(reports) == [[]]


def test_a_rank_that_runs_longer_is_found_in_whatever_all_wait():
    job, random, found = Job(), np.random.default_rng(2), []
    for _ in range(20):
        waits = random.choice([0.0, 0.1, 0.3], RANKS)
        run = np.array(per_rank(0.2, 0.3)) * np.exp(0.02 * random.standard_normal(RANKS))
        found += named(job.windows(1, run + waits, waits, core=run))
    assert found[:3] == [[], [], [VICTIM]]
    assert found[3:].count([VICTIM]) == len(found[3:])


def test_a_core_that_others_have_used_is_slower():
    """By 15 % of what the rank waited: it is not named at once, and after half a minute it is."""
    job = Job()
    work = (per_rank(0.5, 0.545), per_rank(0.3, 0.3))
    reports = job.windows(45, *work, core=per_rank(0.2, 0.245), elapsed=1.0)
    first = next(number for number, ranks in enumerate(named(reports)) if ranks)
    assert 30 <= first <= 36
    assert named(Job().windows(12, *work, core=per_rank(0.2, 0.245)))[-1] == [VICTIM]
    assert named(Job().windows(12, *work, core=per_rank(0.2, 0.23))) == [[]] * 12  # by 10 %


def test_a_section_is_not_slow_where_the_iteration_is_none_without_the_waits():
    waits = per_rank(0.2, 0.3)  # two fifths of what the section takes longer
    is_named = Job().windows(6, per_rank(0.4, 0.65), waits, core=[0.3] * RANKS, family=Family.SECTION)
    assert named(is_named) == [[]] * 6
    truly = Job().windows(6, per_rank(0.4, 0.65), waits, core=per_rank(0.3, 0.45), family=Family.SECTION)
    assert named(truly)[-1] == [VICTIM]


def test_all_the_own_work_counts_of_a_rank_that_its_quota_throttled():
    quota = per_rank(0.0, 0.25)
    reports = Job().windows(4, per_rank(0.4, 0.65), per_rank(0.2, 0.45), core=[0.2] * RANKS, throttled=quota)
    assert named(reports)[-1] == [VICTIM]


def test_ranks_are_compared_alike_where_the_kernel_of_one_does_not_tell():
    core = [0.2, np.nan, 0.2, 0.2]
    assert named(Job().windows(6, [0.4] * RANKS, [0.2] * RANKS, core=core)) == [[]] * 6


LOADING = {"waited": [0.0] * RANKS, "core": [0.2] * RANKS, "loading": per_rank(0.0, 0.5)}
"""One rank waits half of its time for workers of its data loader, and the others for that rank."""


@pytest.mark.parametrize(
    ("batches", "why"),
    [
        ([0.69] * RANKS, "and these are as fast as those of the others: which rank waits for them is chance"),
        (per_rank(0.68, 0.7), "and these take 3 % longer for a batch than those of the others, which is no proof"),
        (None, "and whether these are slow is not known: they are no forks that were started after the detector"),
        (
            per_rank(0.69, None),
            "and whether these are slow is not known: they are no forks that were started after the",
        ),
    ],
)
def test_a_rank_that_waits_for_workers_as_fast_as_others_is_never_named(batches, why):
    reports = Job().windows(40, per_rank(0.2, 0.7), **LOADING, batches=batches)
    assert named(reports) == [[]] * 40
    for report in (reports[3], reports[-1]):
        (verdict,) = report.verdicts()
        assert (verdict.rank, verdict.state) == (VICTIM, State.UNKNOWN)
        start = f"it is slower, and it waited for its data loader's workers about 50 % of the time, {why}"
        assert verdict.because.startswith(start)


def test_a_rank_whose_workers_are_slow_is_named_by_them():
    reports = Job().windows(6, per_rank(0.2, 0.7), **LOADING, batches=per_rank(0.4, 0.7))
    assert named(reports) == [[], [], *[[VICTIM]] * 4]
    said = str(reports[-1].stragglers()[0])
    assert "75.0 % slower in 'batches made by data loader workers'" in said
    assert "because: it waited for its data loader's workers 50 % of the time" in said


def test_slow_workers_for_which_nobody_waits_make_nobody_slow():
    reports = Job().windows(6, [0.2] * RANKS, [0.0] * RANKS, core=[0.2] * RANKS, batches=per_rank(0.1, 0.18))
    assert named(reports) == [[]] * 6


def test_a_section_round_a_wait_for_workers_makes_nobody_slow():
    reports = Job().windows(40, per_rank(0.05, 0.55), **LOADING, batches=[0.69] * RANKS, family=Family.SECTION)
    assert named(reports) == [[]] * 40


def test_a_rank_that_waits_for_workers_and_works_longer_is_named_for_the_work():
    reports = Job().windows(6, per_rank(0.2, 0.74), **LOADING | {"core": per_rank(0.2, 0.24)}, batches=[0.69] * RANKS)
    assert named(reports)[-1] == [VICTIM]
    assert "in 'own work of each iteration'" in str(reports[-1].stragglers()[0])


@pytest.mark.parametrize(("neighbour", "expected"), [(0.1, []), (0.0, [VICTIM])])
def test_on_a_busy_machine_caches_are_cold_after_a_wait_for_workers_too(neighbour, expected):
    waited = [neighbour, 0.0, 0.0, 0.0]
    work = [0.2 + neighbour, 0.2, 0.745, 0.2]
    settings = {"core": per_rank(0.2, 0.245), "loading": per_rank(0.0, 0.5), "batches": [0.69] * RANKS}
    assert named(Job().windows(8, work, waited, **settings))[-1] == expected


@pytest.mark.parametrize(("runs", "expected"), [(0.4, []), (0.43, []), (0.55, [VICTIM])])
def test_workers_that_others_keep_from_running_are_not_slow_and_those_that_work_longer_are(runs, expected):
    """They wait for a core half of the time, in which others use their caches; the rank itself waits for them."""
    settings = {"batches": per_rank(0.4, runs + 0.5), "kept": per_rank(0.0, 0.5)}
    reports = Job().windows(8, per_rank(0.2, 0.7), **LOADING, **settings)
    assert named(reports)[-1] == expected


def burn(seconds):
    """Use so much processor time; return how long that took."""
    began, end = time.perf_counter(), time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return time.perf_counter() - began


@pytest.fixture
def beside_a_busy_process():
    """Share one core with a process that is always busy."""
    probe = HostCpuProbe()
    if reason := probe.unavailable_because():
        pytest.skip(reason)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    pid = os.fork()
    if pid == 0:
        while True:
            pass
    try:
        yield probe
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.sched_setaffinity(0, cores)


def test_a_real_thread_beside_a_busy_process_is_not_named_at_once_and_then_with_the_reason(beside_a_busy_process):
    probe, job, reports = beside_a_busy_process, Job(), []
    probe.start()
    while len(reports) < 16:
        began = time.perf_counter()
        walls = [burn(0.004) for _ in range(10)]
        elapsed = time.perf_counter() - began
        waited = probe.collect().device[FIELD["cpu_waited"]]
        work = per_rank(0.04 / elapsed, statistics.fmean(walls) * 10 / elapsed)
        reports.append(job.window(work, per_rank(0.0, waited)))  # shares of the time, as if it had been a minute
    assert named(reports[:8]) == [[]] * 8
    assert [verdict.rank for verdict in reports[7].verdicts()] == [VICTIM]
    assert named(reports)[-1] == [VICTIM]
    assert "it waited for a core" in str(reports[-1].stragglers()[0])
