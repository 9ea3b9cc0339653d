"""The jobs of `python -m benchmarks.fleet`: summaries, seeds, and the moments that noise and faults state."""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs
import numpy as np
import pytest

from benchmarks.fleet.faults import Drift, Fault, Healthy, Intermittent, Steady, Victims
from benchmarks.fleet.jobs import SYNC, Job, Row, Spec, Window, generator
from benchmarks.fleet.lasting import Ar1, Experts, HealthyDrift, Natural, Nodes, Pink
from benchmarks.fleet.noise import (
    Bursts,
    Checkpoints,
    Floats,
    Lengths,
    Lognormal,
    Noise,
    Pareto,
    Shape,
    StudentT,
    White,
)
from benchmarks.fleet.ours import gathered
from benchmarks.fleet.scenarios import clean, faulty, remembers
from benchmarks.fleet.summaries import summaries
from straggler.exchange.gathered import assemble
from straggler.exchange.wire import encode
from straggler.measurement.measured import STATE_FIELDS, Family, measured
from straggler.measurement.name_table import hash_name
from straggler.measurement.standard_errors import standard_errors
from straggler.measurement.summary import Statistic, summarise

pytestmark = pytest.mark.benchmark_guard

ROWS = (Row("forward", 0.1), Row("backward", 0.2))


def factors(noise: Noise, ranks: int = 64, windows: int = 60, steps: int = 50, seed: int = 3) -> Floats:
    """The factors of one job, shape ``(ranks, windows, steps)``."""
    shape = Shape(ranks, steps, windows)
    process = noise.begin(shape, generator(seed, "noise"))
    full = [np.broadcast_to(process.window(number), (ranks, steps)) for number in range(windows)]
    return np.stack(full, axis=1)


def struck(fault: Fault, ranks: int = 64, windows: int = 40, steps: int = 50) -> tuple[np.ndarray, Floats]:
    """The slow ranks, and all factors of one job, shape ``(ranks, windows, steps)``."""
    one = fault.strike(Shape(ranks, steps, windows), generator(5, "fault"))
    return one.slow, np.stack([one.window(number, steps) for number in range(windows)], axis=1)


def correlation(values: Floats, lag: int) -> float:
    """The autocorrelation along the last axis of values that are 0 in the mean."""
    return float((values[..., lag:] * values[..., :-lag]).mean() / (values**2).mean())


@pytest.mark.parametrize("steps", [1, 2, 7, 60])
def test_summaries_are_those_of_the_project(steps: int) -> None:
    seconds = np.random.default_rng(1).lognormal(size=(2, 9, steps))
    ours = summaries(seconds)
    for row, rank in np.ndindex(2, 9):
        samples = seconds[row, rank]
        theirs = summarise(samples)
        assert ours.med[row, rank] == theirs[Statistic.MED]
        assert ours.num[row, rank] == theirs[Statistic.NUM]
        assert ours.avg[row, rank] == pytest.approx(theirs[Statistic.AVG], rel=1e-12)
        assert ours.total[row, rank] == pytest.approx(theirs[Statistic.AVG] * theirs[Statistic.NUM], rel=1e-12)
        errors = [ours.med_error[row, rank], ours.avg_error[row, rank]]
        assert errors == pytest.approx([float(error) for error in standard_errors(samples)], rel=1e-9)


def test_a_rank_that_is_missing_has_no_summary() -> None:
    seconds = np.ones((1, 3, 4))
    seconds[:, 1] = np.nan
    found = summaries(seconds)
    assert all(np.isnan(values[0]).tolist() == [False, True, False] for values in attrs.astuple(found))


def test_a_window_is_what_the_project_makes_of_the_same_samples() -> None:
    """Through its own summaries, its own bytes and its own assembly."""
    spec = Spec(name="wire", ranks=5, windows=1, steps=9, rows=ROWS, view="both", noise=(White(step=0.1),), missing=0.3)
    seen: list[Floats] = []

    class Watched(Job):
        def _seen(self, work: Floats) -> tuple:
            kinds, seconds = super()._seen(work)
            seen.append(seconds.copy())
            return kinds, seconds

    (window,) = Watched(spec, 4).windows()
    assert 0 < window.present.sum() < 5
    payloads: list[bytes | None] = []
    for rank in range(5):
        rows = []
        for kind, seconds in zip(window.kinds, seen[0], strict=True):
            family = Family.ARRIVAL if kind.family == "arrival" else Family.SECTION
            row = measured(family, kind.name, seconds[rank], synchronous=kind.synchronous)
            if row is not None:
                rows.append((hash_name(kind.name), row))
        head = {
            "sequence": 0,
            "rank": rank,
            "world_size": 5,
            "elapsed": 1.0,
            "dropped": 0,
            "peer_group": 1,
            "node": b"node0",
            "device": np.full(len(STATE_FIELDS), np.nan),
        }
        payloads.append(encode(head, rows) if window.present[rank] else None)
    ours, theirs = gathered(window), assemble(payloads, 0)
    assert ours.present.tolist() == theirs.present.tolist()
    for family in Family:
        mine, other = ours.blocks[family], theirs.blocks[family]
        for field in attrs.fields(type(mine)):
            tolerance = 1e-6 if "error" in field.name else 1e-12  # they are sent in single precision
            np.testing.assert_allclose(
                getattr(mine, field.name).astype(float), getattr(other, field.name).astype(float), rtol=tolerance
            )


def same(first: Window, second: Window) -> bool:
    """Whether two windows hold the same numbers."""
    pairs = zip(attrs.astuple(first.statistics), attrs.astuple(second.statistics), strict=True)
    return all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)


def specs() -> Iterator[Spec]:
    """One small job of each scenario of the tables."""
    for spec in (*faulty((16,)), *clean((16,))):
        yield attrs.evolve(spec, windows=16, steps=5)


@pytest.mark.long
def test_the_same_seed_gives_the_same_job_and_another_seed_another() -> None:
    for spec in specs():
        first, again, other = (list(Job(spec, seed).windows()) for seed in (1, 1, 2))
        assert all(map(same, first, again)), spec.name
        assert not any(map(same, first, other)), spec.name
        assert all((window.statistics.med[:, window.present] > 0).all() for window in first), spec.name


def test_names_of_scenarios_are_unique() -> None:
    for quick in (False, True):
        names = [spec.name for spec in (*faulty(quick=quick), *clean(quick=quick))]
        assert len(names) == len(set(names))
        assert len(names) > 80
    assert {spec.ranks for spec in faulty()} == {8, 64, 512, 4096}
    assert {spec.ranks for spec in faulty((24,))} == {24}
    assert all(isinstance(spec.fault, Healthy) for spec in clean())
    assert not any(isinstance(spec.fault, Healthy) for spec in faulty())


def test_a_view_is_known() -> None:
    with pytest.raises(ValueError, match="the view is 'wait'; expected one of work, arrival, both"):
        Job(Spec(name="x", view="wait"), 1)


@pytest.mark.parametrize(("step", "window"), [(0.05, 0.0), (0.2, 0.0), (0.0, 0.05), (0.02, 0.1)])
def test_white_noise_has_its_deviations(step: float, window: float) -> None:
    found = factors(White(step=step, window=window), windows=200)
    assert found.mean() == pytest.approx(1.0, abs=0.01)
    assert found.std(axis=2).mean() == pytest.approx(step, rel=0.1, abs=1e-6)
    expected = math.hypot(window, step / math.sqrt(50))
    assert found.mean(axis=2).std() == pytest.approx(expected, rel=0.1)


def test_lognormal_steps_have_mean_one_and_their_sigma() -> None:
    found = factors(Lognormal(0.3))
    assert found.mean() == pytest.approx(1.0, abs=0.01)
    assert np.log(found).std() == pytest.approx(0.3, rel=0.02)


def hill(tail: Floats, share: float) -> float:
    """The tail index, estimated by Hill from the largest values."""
    ordered = np.sort(tail.ravel())[::-1]
    count = int(share * len(ordered))
    return 1.0 / float(np.log(ordered[:count] / ordered[count]).mean())


def test_tails_have_their_index() -> None:
    student = factors(StudentT(1.5, 0.05), windows=200) - 1.0
    assert hill(student[student > 0], 0.01) == pytest.approx(1.5, rel=0.1)
    pareto = factors(Pareto(1.5, share=0.02, scale=0.2, most=1e9), windows=300) - 1.0
    assert (pareto > 0).mean() == pytest.approx(0.02, rel=0.05)
    assert pareto[pareto > 0].min() == pytest.approx(0.2, rel=0.01)
    assert hill(pareto[pareto > 0], 0.2) == pytest.approx(1.5, rel=0.1)
    assert factors(Pareto(0.3)).max() == 51.0


@pytest.mark.parametrize("tau", [3.0, 10.0])
def test_windows_remember_for_their_time(tau: float) -> None:
    logs = np.log(factors(Ar1(0.02, tau), ranks=400, windows=100, steps=1))[..., 0]
    assert logs.std() == pytest.approx(0.02, rel=0.05)
    assert correlation(logs, 1) == pytest.approx(math.exp(-1 / tau), abs=0.03)
    assert correlation(logs, 6) == pytest.approx(math.exp(-6 / tau), abs=0.05)
    assert logs[:, 0].std() == pytest.approx(0.02, rel=0.15)


def test_steps_remember_from_one_window_to_the_next() -> None:
    logs = np.log(factors(Ar1(0.1, 10.0, "steps"), ranks=300, windows=10, steps=30)).reshape(300, -1)
    assert correlation(logs, 10) == pytest.approx(math.exp(-1), abs=0.04)
    over_the_edge = (logs[:, 29] * logs[:, 30]).mean() / (logs**2).mean()
    assert over_the_edge == pytest.approx(math.exp(-0.1), abs=0.1)


def test_pink_noise_falls_slowly() -> None:
    logs = np.log(factors(Pink(0.02), ranks=400, windows=128, steps=1))[..., 0]
    assert logs.std() == pytest.approx(0.02, rel=0.1)
    power = (np.abs(np.fft.rfft(logs, axis=1)) ** 2).mean(axis=0)
    frequency = np.arange(len(power))
    slope = np.polyfit(np.log(frequency[2:33]), np.log(power[2:33]), 1)[0]
    assert -1.4 < slope < -0.7


def test_bursts_and_checkpoints_hit_the_steps_that_they_say() -> None:
    bursts = factors(Bursts(0.01, 2.0), windows=200) - 1.0
    assert (bursts > 0).mean() == pytest.approx(0.01, rel=0.05)
    assert bursts[bursts > 0].mean() == pytest.approx(2.0, rel=0.05)
    equal = factors(Checkpoints(every=5, steps=4, longer=3.0), windows=10)
    assert np.argwhere((equal > 1).any(axis=(0, 2))).ravel().tolist() == [4, 9]
    assert (equal[:, 4, :4] == 4.0).all()
    assert (equal[:, 4, 4:] == 1.0).all()
    unequal = factors(Checkpoints(every=1, steps=50, unequal=0.5), ranks=400)[:, :, 0] - 1.0
    assert np.log(unequal).std() == pytest.approx(0.5, rel=0.05)


def test_lengths_are_shared_or_not() -> None:
    shared = np.log(factors(Lengths(0.3, 0.0)))
    assert (shared == shared[:1]).all()
    assert shared.std() == pytest.approx(0.3, rel=0.05)
    own = np.log(factors(Lengths(0.0, 0.2)))
    assert own.mean(axis=0).std() == pytest.approx(0.2 / 8, rel=0.1)


def test_what_lasts_lasts() -> None:
    loads = factors(Experts(0.1, 4.0, 0.5), ranks=200, steps=1)[..., 0]
    np.testing.assert_allclose(loads.mean(axis=0), 1.0)
    assert loads.std() == pytest.approx(0.05, rel=0.15)
    assert correlation(loads - 1.0, 4) == pytest.approx(math.exp(-1), abs=0.1)
    nodes = factors(Nodes(0.02), ranks=1600, windows=2, steps=1)[..., 0].reshape(200, 8, 2)
    assert (nodes == nodes[:, :1, :1]).all()
    assert nodes.std() == pytest.approx(0.02, rel=0.15)
    natural = factors(Natural(0.02), ranks=1600, windows=2, steps=1)[..., 0]
    assert (natural[:, 0] == natural[:, 1]).all()
    assert natural.std() == pytest.approx(0.02, rel=0.1)
    assert len(np.unique(natural)) == 1600
    drift = factors(HealthyDrift(0.02), ranks=400, windows=150, steps=1)[..., 0]
    assert 0.019 < np.abs(drift - 1.0).max() <= 0.02
    assert np.abs(np.diff(drift, axis=1)).max() < 0.02 * 2 * math.pi / 40


def test_faults_slow_whom_when_and_by_what_they_say() -> None:
    slow, found = struck(Steady(by=0.1, onset=12, victims=Victims(count=3)))
    assert slow.sum() == 3
    assert (found[~slow] == 1.0).all()
    assert (found[slow][:, :12] == 1.0).all()
    assert (found[slow][:, 12:] == 1.1).all()
    slow, found = struck(Steady(by=0.2, onset=12, lasts=10))
    assert np.argwhere(found[slow][0, :, 0] > 1).ravel().tolist() == list(range(12, 22))
    assert struck(Steady(by=0.1, victims=Victims(share=0.4)))[0].sum() == 26
    node = np.flatnonzero(struck(Steady(by=0.1, victims=Victims(node=True)))[0])
    assert node.tolist() == list(range(node[0], node[0] + 8))
    assert node[0] % 8 == 0
    slow, found = struck(Intermittent(by=0.5, share=0.3, onset=0), windows=400)
    assert (found[slow] == 1.5).mean() == pytest.approx(0.3, abs=0.01)
    assert set(np.unique(found)) == {1.0, 1.5}
    slow, found = struck(Drift(to=0.15, over=20, onset=5))
    assert found[slow][0, [4, 5, 14, 24, 39], 0].tolist() == pytest.approx([1.0, 1.0075, 1.075, 1.15, 1.15])
    assert not struck(Healthy())[0].any()


def test_only_the_rows_of_the_fault_are_slowed() -> None:
    spec = Spec(name="x", ranks=8, rows=ROWS, fault=Steady(by=0.5, onset=0), fault_rows=("backward",))
    job = Job(spec, 1)
    seconds, slow = job.durations(0), job.fault.slow
    assert (seconds[0] == 0.1).all()
    np.testing.assert_allclose(seconds[1, slow], 0.3)
    assert (seconds[1, ~slow] == 0.2).all()


def test_stages_do_other_work_and_tell_it_only_if_declared() -> None:
    spec = Spec(name="x", ranks=8, windows=1, stages=(1.0, 1.5))
    (window,) = Job(spec, 1).windows()
    assert window.statistics.med[0].tolist() == pytest.approx([0.3] * 4 + [0.45] * 4)
    assert window.groups.tolist() == [0] * 8
    (declared,) = Job(attrs.evolve(spec, declared=True), 1).windows()
    assert declared.groups.tolist() == [0] * 4 + [1] * 4


def test_ranks_wait_for_the_slowest() -> None:
    spec = Spec(name="x", ranks=8, windows=1, view="both", rows=ROWS, fault=Steady(by=0.5, onset=0))
    job = Job(spec, 1)
    (window,) = job.windows()
    assert [(kind.name, kind.family, kind.synchronous) for kind in window.kinds] == [
        ("forward", "section", False),
        ("backward", "section", False),
        (SYNC, "section", True),
        (SYNC, "arrival", False),
    ]
    wait, gap = window.statistics.med[2:]
    slow = job.fault.slow
    assert gap[slow].tolist() == pytest.approx([0.45])
    assert gap[~slow].tolist() == pytest.approx([0.3] * 7)
    assert wait[slow].tolist() == pytest.approx([0.009], rel=0.1)
    assert wait[~slow].tolist() == pytest.approx([0.159] * 7, rel=0.01)
    assert window.work == [0, 1, 3]
    (arrival,) = Job(attrs.evolve(spec, view="arrival"), 1).windows()
    assert arrival.work == [1]


def test_windows_are_missing_in_their_share() -> None:
    windows = list(Job(Spec(name="x", missing=0.3, windows=200, steps=2), 1).windows())
    assert np.mean([window.present for window in windows]) == pytest.approx(0.7, abs=0.02)
    for window in windows:
        assert (np.isnan(window.statistics.med[0]) == ~window.present).all()


def test_which_noises_last() -> None:
    assert remembers(Spec(name="x", noise=(White(step=0.1), Pink(0.1))))
    assert not remembers(Spec(name="x", noise=(White(step=0.1), Natural(0.02))))
