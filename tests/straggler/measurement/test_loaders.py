"""Waits for workers of data loaders, and what these take for a batch. Real loaders with real worker processes."""

import time
from types import SimpleNamespace

import pytest

from straggler.measurement import loaders
from straggler.measurement.loaders import batches_made, counted
from straggler.measurement.measured import BATCHES_OF_WORKERS, OWN_WORK_OF_AN_ITERATION, STATE_FIELDS, Family
from straggler.measurement.section import Section, SectionClock
from straggler.measurement.summary import Statistic
from straggler.measurement.waits import WaitClock, watch
from straggler.probes.own_work import OwnWorkProbe

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")

SECONDS = 0.05
"""What a batch takes."""


class Slow(data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        time.sleep(SECONDS)
        return index


class SlowStream(data.IterableDataset):
    def __iter__(self):
        for index in range(3):
            time.sleep(SECONDS)
            yield index


class Broken(data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        raise ValueError("no such sample")


class NoWaits:
    """A kernel that does not tell of waits for a core."""

    def read_ns(self):
        return None


class Cores:
    """How long the thread has waited for a core, as the test says."""

    def __init__(self):
        self.now = 0

    def read_ns(self):
        return self.now


@pytest.fixture
def clock():
    made = WaitClock(NoWaits())
    stop = watch(made)
    yield made
    stop()


def loaded(dataset, workers, **options):
    return data.DataLoader(dataset, num_workers=workers, **options)


def test_waiting_for_workers_is_no_work_and_no_wait_for_others(clock):
    before, began = clock.apart(), time.perf_counter_ns()
    assert [int(batch) for batch in loaded(Slow(), 1)] == list(range(6))
    lasted = time.perf_counter_ns() - began
    assert 5 * SECONDS * 1e9 < clock.loader_ns < lasted
    assert clock.apart_since(before) == clock.loader_ns
    assert (clock.waited_ns, clock.seen) == (0, 0)


def test_a_loader_without_workers_is_work(clock):
    made = batches_made().so_far()
    assert len(list(loaded(Slow(), 0))) == 6
    assert clock.loader_ns == 0
    assert batches_made().so_far() == made


@pytest.mark.parametrize("dataset", [Slow(), SlowStream()])
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_tell_what_a_batch_takes_all_of_them_together(clock, dataset, workers):
    before = batches_made().so_far()
    count = len(list(loaded(dataset, workers)))
    made = batches_made().so_far().since(before)
    assert made.number == count
    assert made.took_ns / count >= SECONDS / workers * 1e9
    assert 0 <= made.waited_ns <= made.took_ns


def test_the_time_of_a_batch_is_shared_by_the_workers_with_and_without_waits_for_a_core(monkeypatch):
    cores = Cores()

    def make():
        time.sleep(0.01)
        cores.now += 4_000_000

    monkeypatch.setattr(data, "get_worker_info", lambda: SimpleNamespace(num_workers=4))
    monkeypatch.setattr(loaders, "_cores_of", lambda process: cores)
    before, began = batches_made().so_far(), time.perf_counter_ns()
    counted(make)()
    lasted = time.perf_counter_ns() - began
    made = batches_made().so_far().since(before)
    assert 0 < 4 * made.took_ns <= lasted
    assert (made.waited_ns, made.number) == (1_000_000, 1)


def test_batches_are_told_with_and_without_waits_for_a_core(clock):
    probe = OwnWorkProbe(clock, None)
    probe.start()
    batches_made().add(40_000_000, 10_000_000)
    batches_made().add(60_000_000, 0)
    found = {row.family: row.summary[Statistic.AVG] for row in probe.collect().rows}
    assert found == {Family.OWN_WORK: pytest.approx(0.05), Family.ON_CORE: pytest.approx(0.045)}


def test_workers_from_before_the_detector_tell_no_batches_but_are_waited_for():
    iterator = iter(loaded(Slow(), 1, prefetch_factor=1))
    made = batches_made().so_far()
    clock = WaitClock(NoWaits())
    stop = watch(clock)
    try:
        list(iterator)
    finally:
        stop()
    assert clock.loader_ns > 3 * SECONDS * 1e9
    assert batches_made().so_far() == made


def test_an_error_of_a_worker_reaches_the_script_as_ever(clock):
    with pytest.raises(ValueError, match="no such sample"):
        list(loaded(Broken(), 1))


def test_everything_is_put_back():
    from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as Iterator

    def found():
        return _MapDatasetFetcher.fetch, _IterableDatasetFetcher.fetch, Iterator._get_data

    before = found()
    stop = watch(WaitClock(NoWaits()))
    assert all(now is not then for now, then in zip(found(), before, strict=True))
    stop()
    assert found() == before


def test_a_core_that_is_waited_for_meanwhile_counts_once():
    cores = Cores()
    clock = WaitClock(cores)
    before = clock.apart()
    cores.now = 300
    clock.add_loader(1000, before[0])
    assert clock.loader_ns == 700
    assert clock.apart_since(before) == 1000


def test_own_work_on_a_core_is_without_waits_for_workers(clock):
    probe = OwnWorkProbe(clock, None)
    probe.start()
    probe.tick()
    time.sleep(0.01)
    clock.add_loader(8_000_000, None)
    probe.tick()
    collected = probe.collect()
    own, on_core = (row.summary[Statistic.MED] for row in collected.rows)
    assert own - on_core == pytest.approx(0.008)
    assert 0.0 < collected.device[STATE_FIELDS.index("loader_waited")] <= 1.0
    assert probe.collect().device[STATE_FIELDS.index("loader_waited")] == 0.0


def test_batches_of_workers_are_a_row(clock):
    probe = OwnWorkProbe(clock, None)
    probe.start()
    list(loaded(Slow(), 2))
    rows = {row.family: row for row in probe.collect().rows if row.name == BATCHES_OF_WORKERS}
    assert set(rows) == {Family.OWN_WORK, Family.ON_CORE}
    for row in rows.values():
        assert row.summary[Statistic.NUM] == 6
        assert row.summary[Statistic.MED] >= SECONDS / 2
    probe.tick()
    probe.tick()
    assert {row.name for row in probe.collect().rows} == {OWN_WORK_OF_AN_ITERATION}


def test_a_section_with_a_collective_is_without_waits_for_workers():
    clock = WaitClock(Cores())
    section = Section("step", SectionClock(None, clock), kind="wait")
    with section:
        time.sleep(0.01)
        clock.waited_ns += 1_000_000
        clock.add_loader(5_000_000, None)
    samples = section.drain()
    assert samples.own()[0] - samples.on_core()[0] == pytest.approx(0.005)
