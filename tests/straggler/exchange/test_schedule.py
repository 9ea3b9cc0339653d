"""When a window ends: at the same iteration on all ranks, at any length of a step, and for a rank that is behind."""

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

from straggler.errors import WireError
from straggler.exchange.board import Board, Plan, Proposal
from straggler.exchange.schedule import ReportSchedule


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Job:
    """Ranks in lockstep, each with its own clock's speed, that learn of a plan some steps after it was announced."""

    def __init__(self, speeds, interval, heard_after=0.0, heard_within=0.0, least_steps=1):
        self.plans = []
        self.clocks = [Clock() for _ in speeds]
        self.speeds = speeds
        self.heard_after = heard_after
        self.now = 0.0
        self.ranks = [
            ReportSchedule(
                interval,
                decides=rank == 0,
                announce=lambda plan: self.plans.append((self.now, plan)),
                heard_within=heard_within,
                least_steps=least_steps,
                clock=clock,
            )
            for rank, clock in enumerate(self.clocks)
        ]

    def step(self, seconds):
        """Take one step and return the report whose window each rank has ended with it."""
        self.now += seconds
        for clock, speed in zip(self.clocks, self.speeds, strict=True):
            clock.now += seconds * speed
        for announced, plan in self.plans:
            if self.now >= announced + self.heard_after:
                for rank in self.ranks[1:]:
                    if rank.wants_plan:
                        rank.learn(plan)
        return [rank.tick() for rank in self.ranks]


@given(
    st.sampled_from([0.1, 1.0, 30.0, 400.0]),
    st.lists(st.floats(0.9, 1.1), min_size=1, max_size=3),
    st.floats(0.0, 1.5),
)
def test_all_ranks_end_a_window_at_the_same_iteration_at_any_length_of_a_step(step, others, jitter):
    interval = 60.0
    job = Job([1.0, *others], interval, heard_after=6.0, heard_within=6.0)
    ended, times = [], []
    for number in range(3000):
        found = job.step(step * (1.0 + jitter * (number % 2)))
        if any(f is not None for f in found):
            ended.append(found)
            times.append(job.now)
        if len(ended) == 3:
            break
    assert [found[0] for found in ended] == [0, 1, 2]
    assert all(len(set(found)) == 1 for found in ended)
    for earlier, later in itertools.pairwise(times):
        assert 0.5 * interval < later - earlier < 2.0 * interval + 8 * step * (1 + jitter)


@pytest.mark.parametrize("least", [3, 5])
def test_a_window_has_enough_steps_however_long_one_takes(least):
    """With fewer samples than a score needs all ranks were UNKNOWN in every report."""
    job, ended = Job([1.0, 1.0], 10.0, heard_after=1.0, heard_within=1.0, least_steps=least), []
    for iteration in range(40):
        if set(job.step(30.0)) != {None}:
            ended.append(iteration)
    assert len(ended) >= 6
    assert min(later - earlier for earlier, later in itertools.pairwise(ended)) == least


def test_the_plan_is_announced_most_of_an_interval_ahead():
    """So that ranks need to ask once or twice in an interval, however short a step is."""
    job = Job([1.0], 60.0)
    ended = {}
    for _ in range(200_000):
        (number,) = job.step(0.001)
        if number is not None:
            ended[number] = job.now
    assert set(ended) == {0, 1, 2}
    ahead = [ended[plan.number] - announced for announced, plan in job.plans if plan.number in ended]
    assert min(ahead) > 40.0
    assert len(job.plans) == 4


def test_a_rank_that_is_behind_ends_its_window_by_time():
    """Ranks that do not wait for each other: it would else be heard later and later."""
    job = Job([1.0, 1.0], 10.0)
    first, other = job.ranks
    ended = []
    for number in range(200):
        job.now += 0.25
        for clock in job.clocks:
            clock.now += 0.25
        first.tick()
        if other.wants_plan:
            for _, plan in job.plans:
                other.learn(plan)
        if number % 4 == 0 and (found := other.tick()) is not None:  # a quarter of the speed
            ended.append((found, job.now))
    assert [found for found, _ in ended][:2] == [0, 1]
    assert ended[1][1] - ended[0][1] <= 20.0


def test_steps_that_become_longer_do_not_put_a_report_off_for_long():
    job = Job([1.0, 1.0], 10.0)
    while job.step(0.01) == [None, None]:
        pass
    at = job.now
    while (found := job.step(1.0)) == [None, None]:
        pass
    assert job.now - at <= 17.0
    assert found[0] == 1


def test_a_rank_that_learns_of_a_plan_too_late_ends_its_window_at_once():
    other = ReportSchedule(60.0, decides=False, announce=lambda plan: None, clock=Clock())
    for _ in range(100):
        assert other.tick() is None
    assert other.wants_plan
    other.learn(Plan(3, 50, 10.0))
    assert not other.wants_plan
    assert other.tick() == 3


def test_a_plan_of_a_report_that_this_rank_has_made_is_passed_over():
    other = ReportSchedule(60.0, decides=False, announce=lambda plan: None, clock=Clock())
    other.learn(Plan(3, 1, 10.0))
    assert other.tick() == 3
    other.learn(Plan(3, 1, 10.0))
    other.learn(Plan(2, 1, 10.0))
    assert other.wants_plan
    other.learn(Plan(4, 1, 10.0))
    assert other.tick() == 4


def test_a_plan_leaves_the_others_time_to_learn_of_it_however_short_the_interval():
    job = Job([1.0], 0.001, heard_within=1.0)
    ended = {}
    for _ in range(10_000):
        (number,) = job.step(0.001)
        if number is not None:
            ended[number] = job.now
    assert len(ended) > 1
    assert min(ended[plan.number] - announced for announced, plan in job.plans if plan.number in ended) > 2.5


def test_the_rate_is_that_of_the_latest_window():
    job = Job([1.0], 10.0)
    for step in (0.01, 0.1):
        while job.step(step) == [None]:
            pass
    announced, plan = job.plans[-1]
    assert announced == job.now
    assert 90 <= plan.iteration - job.ranks[0].iteration <= 110


def test_the_first_step_which_holds_what_a_start_takes_tells_nothing_of_a_rate():
    job = Job([1.0], 100.0)
    job.step(90.0)  # a compiler, say
    assert job.plans == []
    for _ in range(10_000):
        job.step(0.01)
        if job.plans:
            break
    (_, plan) = job.plans[0]
    assert plan.iteration > 5_000


@pytest.mark.parametrize(
    "board",
    [
        Board(),
        Board(plan=Plan(3, 100, 12.5)),
        Board(Plan(0, 1, 0.5), Proposal(2, 40, {"stop": "rank 3", "ranks": [3]})),
        Board(proposal=Proposal(2, 40, {}, is_final=False)),
    ],
)
def test_what_is_shown_is_read_as_it_was_written(board):
    assert Board.decode(board.encode()) == board


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"plan": 3, "proposal": null}',
        b'{"plan": {"number": 1}, "proposal": null}',
        b'{"plan": null, "proposal": {"number": 1, "iteration": 2, "decision": [], "is_final": null}}',
        b'{"plan": null, "proposal": {"number": 1, "iteration": 2, "decision": {}, "is_final": 1}}',
        b"\xff",
    ],
)
def test_what_cannot_be_read_is_said_with_its_words(text):
    with pytest.raises(WireError, match=r"rank 0 announced .* which this rank cannot read"):
        Board.decode(text)
