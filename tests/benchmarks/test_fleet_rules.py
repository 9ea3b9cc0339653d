"""The rules of `python -m benchmarks.fleet`: each finds what is blatant, and what sets it apart from the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.fleet.faults import Fault, Healthy, Steady
from benchmarks.fleet.jobs import Job, Kind, Spec, Window
from benchmarks.fleet.noise import Floats, White
from benchmarks.fleet.ours import Ours
from benchmarks.fleet.play import OURS, STOPPING, play, to_hold
from benchmarks.fleet.rules import FACTORS, RULES, Cusum, Mad, Minimum, Pooled, Rule, ZScore, modified_z
from benchmarks.fleet.summaries import Statistics

pytestmark = pytest.mark.benchmark_guard

NAMES = (OURS, STOPPING, *RULES)


def spec(fault: Fault = Healthy(), **more: object) -> Spec:  # noqa: B008 - it is frozen
    """A job that is almost without noise."""
    return Spec(name="plain", **{"ranks": 32, "windows": 20, "noise": (White(step=0.02),), "fault": fault, **more})


def window(values: Floats, groups: list[int] | None = None, number: int = 0, synchronous: bool = False) -> Window:
    """A window in which all statistics of each rank are one value, shape ``(rows, ranks)``."""
    ranks = values.shape[1]
    kinds = tuple(Kind(str(row), synchronous=synchronous) for row in range(len(values)))
    present = ~np.isnan(values[0])
    statistics = Statistics(*([values] * 4), 0.0 * values, 0.0 * values)
    return Window(number, kinds, present, np.array(groups or [0] * ranks), np.zeros(ranks, int), statistics)


def around(*extremes: float, ranks: int = 20) -> Floats:
    """One row: small and regular differences between ranks, and then these."""
    return np.array([[*np.linspace(0.99, 1.01, ranks), *extremes]])


def last_named(rule: Rule, values: Floats, windows: int = 1, **more: object) -> list[int]:
    """Who is named after some equal windows."""
    for number in range(windows):
        found = rule.see(window(values, number=number, **more))[0]  # type: ignore[arg-type]
    return np.flatnonzero(found).tolist()


@pytest.mark.parametrize("view", ["work", "arrival", "both"])
def test_every_rule_finds_what_is_blatant(view: str) -> None:
    tallies = play(spec(Steady(by=1.0, onset=5), view=view), range(3)).tallies
    assert list(tallies) == list(NAMES)
    for name, tally in tallies.items():
        assert (tally.found, tally.missed, tally.jobs, tally.reports) == (3, 0, 3, 60), name
        assert max(tally.delays) <= 3, name


def test_nobody_is_named_where_all_are_equal() -> None:
    tallies = play(spec(noise=()), range(2)).tallies
    assert {name: tally.false for name, tally in tallies.items()} == dict.fromkeys(NAMES, 0)


def test_only_the_rules_without_a_floor_name_somebody_in_little_noise() -> None:
    tallies = play(spec(), range(3)).tallies
    assert {name for name, tally in tallies.items() if tally.false} == {"z>3", "MAD 3.5"}


def test_ours_says_how_sure_it_is() -> None:
    job = Job(spec(Steady(by=0.5, onset=0)), 1)
    ours = Ours(32, (Kind("step"),))
    for each in job.windows():
        named = ours.see(each)
    (rank,) = np.flatnonzero(job.fault.slow)
    assert np.flatnonzero(named).tolist() == [rank]
    assert np.flatnonzero(ours.stopping).tolist() == [rank]
    assert list(ours.confidence) == [rank]
    assert ours.confidence[rank] == 0.99


@pytest.mark.parametrize("rule", [Minimum, ZScore, Mad, lambda: Pooled(by_spread=True), Cusum])
def test_a_rule_judges_each_declared_group_by_itself(rule: type[Rule]) -> None:
    values = np.concatenate([around(), 2 * around(5.0)], axis=1)
    assert last_named(rule(), values, 4, groups=[0] * 20 + [1] * 21) == [40]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_leaves_out_waits_and_ranks_that_are_missing(name: str) -> None:
    values = around(5.0)
    assert last_named(RULES[name](), values, 4, synchronous=True) == []
    values[0, :7] = np.nan
    assert last_named(RULES[name](), values, 4) == [20]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_names_whom_any_row_names(name: str) -> None:
    values = np.concatenate([around(1.0, 5.0), around(5.0, 1.0)])
    assert last_named(RULES[name](), values, 4) == [20, 21]


def test_the_minimum_rule_is_strictly_below_three_quarters_of_the_fastest() -> None:
    assert last_named(Minimum(), np.array([[0.75, 1.0, 1.0001]])) == [2]


def test_three_deviations_are_three() -> None:
    values = np.array([[0.0] * 10 + [1.0]])
    z = (1.0 - values.mean()) / values.std()
    assert z == pytest.approx(math_sqrt_10 := 10**0.5)
    assert math_sqrt_10 > 3.0
    assert last_named(ZScore(), 1.0 + values) == [10]
    assert last_named(ZScore(), 1.0 + values[:, 1:]) == []


def test_the_modified_z_score_is_that_of_iglewicz_and_hoaglin() -> None:
    values = np.array([[1.0, 2.0, 3.0, 4.0, 15.0]])
    assert modified_z(values)[0].tolist() == pytest.approx([-1.349, -0.6745, 0.0, 0.6745, 8.094])
    assert last_named(Mad(), np.array([[1.0, 2.0, 3.0, 4.0, 3.0 + 3.6 / 0.6745]])) == [4]
    assert last_named(Mad(), np.array([[1.0, 2.0, 3.0, 4.0, 3.0 + 3.4 / 0.6745]])) == []


def test_pooling_averages_eight_windows_and_needs_three() -> None:
    rule = Pooled(by_spread=False)
    assert last_named(rule, around(1.06), 2) == []
    assert last_named(rule, around(1.06)) == [20]
    assert last_named(rule, around(1.0), 1) == []
    assert last_named(rule, around(1.2), 1) == [20]
    assert last_named(rule, around(1.0), 8) == []
    assert last_named(rule, around(1.41)) == [20]  # an eighth of 0.41 is over 0.05
    assert last_named(rule, around(1.0), 7) == [20]
    assert last_named(rule, around(1.0)) == []
    assert last_named(rule, around(1.39)) == []
    assert last_named(Pooled(by_spread=False), around(1.04), 8) == []
    wide = np.array([[*np.linspace(0.9, 1.1, 20), 1.15]])
    assert last_named(Pooled(by_spread=True), wide, 8) == []
    assert last_named(Pooled(by_spread=False), wide, 8) == [15, 16, 17, 18, 19, 20]


def test_cusum_adds_up_what_is_over_half_the_shift_and_forgets() -> None:
    rule = Cusum()
    alarms = [last_named(rule, around(1.0 + 0.06)) for _ in range(6)]
    assert alarms == [[], [], [20], [20], [20], [20]]  # 0.025 a window, until 0.07
    assert last_named(Cusum(), around(1.03), 100) == []
    assert last_named(rule, around(1.5), 50) == [20]
    assert last_named(rule, around(1.0), 6) == []


def test_cusum_waits_longer_in_wider_noise() -> None:
    narrow, wide = np.linspace(0.99, 1.01, 20), np.linspace(0.8, 1.2, 20)
    counts = []
    for spread in (narrow, wide):
        rule, count = Cusum(), 0
        for number in range(200):
            random = np.random.default_rng(number)
            count += not rule.see(window(np.array([[*random.permutation(spread), 1.1]])))[0, 20]
        counts.append(count)
    assert counts[0] <= 2
    assert 5 <= counts[1] < 60


@pytest.mark.parametrize(("rule", "expected"), [(Cusum(of="med"), []), (Cusum(), [4])])
def test_a_rule_of_medians_does_not_see_the_mean(rule: Rule, expected: list[int]) -> None:
    one = np.ones((1, 8))
    mean = one.copy()
    mean[0, 4] = 2.0
    each = Window(
        0,
        (Kind("x"),),
        one[0] > 0,
        np.zeros(8, int),
        np.zeros(8, int),
        Statistics(one, mean, one, one, 0 * one, 0 * one),
    )
    assert np.flatnonzero(rule.see(each)[0]).tolist() == expected


@pytest.mark.parametrize(
    ("make", "others", "just_over"),
    [
        (Minimum, [1.0], lambda factor: factor / 0.75),
        (Mad, [1.0, 2.0, 3.0, 4.0], lambda factor: 3.0 + factor * 3.5 / 0.6745),  # around 3, with a MAD of 1
        (lambda: Pooled(by_spread=False), [1.0, 1.0], lambda factor: 1.0 + factor * 0.05),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 20, 40])
def test_a_factor_is_times_what_a_rule_compares_with(
    make: Callable[[], Rule], others: list[float], just_over: Callable[[float], float], place: int
) -> None:
    rule = make()
    values = np.array([[*others, just_over(float(FACTORS[place]) * 1.001)]])
    for number in range(4):
        masks = rule.see(window(values, number=number))
    assert np.flatnonzero(masks[:, -1]).tolist() == list(range(place + 1))


@pytest.mark.parametrize("name", RULES)
def test_what_is_blatant_is_named_with_fewer_factors_and_with_infinity_never(name: str) -> None:
    rule = RULES[name]()
    for number in range(4):
        masks = rule.see(window(around(2.0), number=number))
    counts = masks[:, 20].astype(int)
    assert masks.shape == (len(FACTORS), 21)
    assert (counts[0], counts[-1]) == (1, 0)
    assert (np.diff(counts) <= 0).all()


def test_rules_are_made_so_strict_that_they_name_nobody_in_healthy_jobs() -> None:
    healthy = spec()
    first = play(healthy, range(3))
    places = to_hold([first])
    assert all(first.tallies[name].false == 0 for name in RULES if places[name] == 0)
    assert min(places["z>3"], places["MAD 3.5"]) > 0
    (held,) = play(healthy, range(3), [places]).held
    assert {name: tally.false for name, tally in held.items()} == dict.fromkeys((OURS, *RULES), 0)
    looser = {name: max(place - 1, 0) for name, place in places.items()}
    (too_loose,) = play(healthy, range(3), [looser]).held
    assert all(bool(too_loose[name].false) == (places[name] > 0) for name in RULES)


def test_each_setting_is_counted_and_what_is_as_published_stays_so() -> None:
    job = spec(Steady(by=1.0, onset=5))
    settings = [dict.fromkeys(RULES, 0), dict.fromkeys(RULES, len(FACTORS) - 1)]
    played = play(job, range(2), settings)
    as_published, silent = played.held
    for name in RULES:
        assert (as_published[name].found, as_published[name].false) == (
            played.tallies[name].found,
            played.tallies[name].false,
        )
        assert (silent[name].found, silent[name].missed, silent[name].false) == (0, 2, 0)
    assert as_published[OURS].found == silent[OURS].found == played.tallies[OURS].found == 2


@pytest.mark.long
def test_a_missing_rank_keeps_what_was_said_of_it() -> None:
    job = spec(Steady(by=1.0, onset=0), missing=0.5)
    last = [list(Job(job, seed).windows())[-1].present[Job(job, seed).fault.slow].all() for seed in range(6)]
    assert 0 < sum(last) < 6
    for name, tally in play(job, range(6)).tallies.items():
        assert (tally.found, tally.missed) == (6, 0), name
