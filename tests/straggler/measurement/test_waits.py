"""Which time counts as waiting for other ranks. A real process group of one rank: what is watched is torch itself."""

import os
import threading
import time

import pytest

from straggler.measurement.collectives import collective_counter
from straggler.measurement.core_waits import CoreWaits
from straggler.measurement.measured import OWN_WORK_OF_AN_ITERATION, Family
from straggler.measurement.section import Section, SectionClock
from straggler.measurement.summary import Statistic
from straggler.measurement.waits import WaitClock, watch
from straggler.probes.cpu_wall import CpuWallProbe
from straggler.probes.own_work import OwnWorkProbe, WatchedWaits

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def clock(group):
    made = WaitClock()
    stop = watch(made)
    yield made
    stop()


def ones():
    return torch.ones(2)


def model():
    return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))


CALLS = {
    "all_reduce": lambda: dist.all_reduce(ones()),
    "all_gather": lambda: dist.all_gather([ones()], ones()),
    "broadcast": lambda: dist.broadcast(ones(), 0),
    "barrier": lambda: dist.barrier(),
    "monitored_barrier": lambda: dist.monitored_barrier(),
    "all_gather_object": lambda: dist.all_gather_object([None], "x"),
    "by the module it is defined in": lambda: dist.distributed_c10d.all_reduce(ones()),
    "in a group of its own": lambda: dist.all_reduce(ones(), group=dist.new_group([0])),
    "buffers of DDP": lambda: torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(2))(torch.ones(3, 2)),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_collective_is_a_wait(clock, call):
    CALLS[call]()
    assert clock.seen >= 1
    assert clock.waited_ns > 0


def test_waiting_for_an_asynchronous_collective_is_a_wait_too(clock):
    work = dist.all_reduce(ones(), async_op=True)
    before = clock.seen
    work.wait()
    assert clock.seen == before + 1


def test_waiting_for_a_functional_collective_is_a_wait(clock):
    functional = pytest.importorskip("torch.distributed._functional_collectives")
    reduced = functional.all_reduce(ones(), "sum", dist.group.WORLD)
    before = clock.seen
    assert (reduced + 0).tolist() == [1.0, 1.0]
    assert clock.seen > before


def test_what_another_thread_waits_for_does_not_count(clock):
    other = threading.Thread(target=lambda: dist.all_reduce(ones()))
    other.start()
    other.join()
    assert clock.seen == 0


def test_the_end_of_a_backward_pass_of_ddp_is_a_wait_and_gradients_are_right(clock):
    made, given = model(), torch.ones(1, 2)
    output = made(given)
    before = clock.seen
    output.sum().backward()
    assert clock.seen == before + 1
    assert made.module.weight.grad.tolist() == [[1.0, 1.0]] * 2


@pytest.mark.parametrize(
    "shape",
    [lambda out: (out, None), lambda out: {"logits": out, "n": 3}, lambda out: [[out]]],
    ids=["tuple", "dict", "list"],
)
def test_the_output_of_a_model_may_hold_tensors_anywhere(clock, shape):
    class Shaped(torch.nn.Linear):
        def forward(self, given):
            return shape(super().forward(given))

    made = torch.nn.parallel.DistributedDataParallel(Shaped(2, 2))
    found = made(torch.ones(1, 2))
    tensor = found["logits"] if isinstance(found, dict) else found[0]
    before = clock.seen
    (tensor[0] if isinstance(tensor, list) else tensor).sum().backward()
    assert clock.seen == before + 1


def test_nothing_is_followed_where_no_gradients_are_exchanged(clock):
    made, given = model(), torch.ones(1, 2)
    with torch.no_grad():
        made(given)
    with made.no_sync():
        output = made(given)
        before = clock.seen
        output.sum().backward()
    assert clock.seen == before


def test_everything_is_as_it_was_when_the_last_clock_stops(group):
    was = {name: getattr(dist, name) for name in ("monitored_barrier", "_broadcast_coalesced")}
    wait, forward = dist.Work.wait, torch.nn.parallel.DistributedDataParallel.forward
    stops = [watch(WaitClock()), watch(WaitClock())]
    assert dist.Work.wait is not wait
    stops[0]()
    stops[0]()
    assert dist.Work.wait is not wait
    stops[1]()
    assert {name: getattr(dist, name) for name in was} == was
    assert (dist.Work.wait, torch.nn.parallel.DistributedDataParallel.forward) == (wait, forward)


def test_what_somebody_else_has_replaced_since_is_left_alone(group, monkeypatch):
    stop = watch(WaitClock())
    mine = dist.monitored_barrier
    monkeypatch.setattr(dist, "monitored_barrier", lambda *a, **k: mine(*a, **k))
    theirs = dist.monitored_barrier
    stop()
    assert dist.monitored_barrier is theirs
    dist.monitored_barrier()


def test_a_wait_that_fails_has_ended_too(clock):
    with pytest.raises(TypeError):
        dist.all_reduce(ones(), async_op=True).wait("no time")
    dist.barrier()
    assert clock.seen == 2


def test_a_compiled_function_sees_the_collective_itself(clock):
    """The compiler knows torch's functions by identity, and would break the graph at any other."""
    seen = []

    def backend(graph, inputs):
        seen.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    def step(tensor):
        dist.all_reduce(tensor)
        return tensor * 2

    compiled = torch.compile(step, backend=backend, fullgraph=True)
    assert compiled(ones()).tolist() == [2.0, 2.0]
    assert len(seen) == 1


class Cores:
    """How long the thread has waited for a core, as the test says."""

    def __init__(self):
        self.now = 0

    def read_ns(self):
        return self.now


class Waits(WaitClock):
    """A clock that the test moves."""

    tells_cores = False

    def __init__(self):
        super().__init__(Cores())
        self.core = None

    def core_ns(self):
        return self.core

    def end_window(self):
        pass


def only_row(collected):
    (row,) = collected.rows
    return row


def test_waits_for_a_core_within_waits_for_others_are_not_the_ranks_own(group):
    cores = Cores()
    clock = WaitClock(cores)
    before = clock.core_ns()
    cores.now = 500
    clock.add(1000, before)
    assert clock.core_ns() == before == 0
    cores.now = 900
    assert clock.core_ns() == 400


def test_a_core_that_is_waited_for_in_a_collective_is_not_the_ranks_own(group, monkeypatch):
    cores = Cores()
    clock = WaitClock(cores)
    wait = dist.Work.wait

    def late(*arguments):  # the collective is over, and it takes the thread 70 ns to get a core again
        cores.now += 70
        return wait(*arguments)

    monkeypatch.setattr(dist.Work, "wait", late)
    stop = watch(clock)
    dist.all_reduce(ones())
    cores.now += 30
    stop()
    assert (clock.seen, cores.now, clock.core_ns()) == (1, 100, 30)


def test_a_core_that_is_waited_for_at_the_end_of_a_backward_pass_is_not_the_ranks_own(group):
    cores = Cores()
    clock = WaitClock(cores)

    def wait():
        cores.now += 70

    class Late(torch.autograd.Function):
        @staticmethod
        def forward(ctx, given):
            return given * 1

        @staticmethod
        def backward(ctx, gradient):
            cores.now += 30  # its own work
            torch.autograd.Variable._execution_engine.queue_callback(wait)  # as DDP queues its wait
            return gradient

    stop = watch(clock)
    model()(Late.apply(torch.ones(1, 2, requires_grad=True))).sum().backward()
    stop()
    assert (cores.now, clock.core_ns()) == (100, 30)


def test_a_clock_that_is_stopped_holds_no_descriptor(group):
    before = len(os.listdir("/proc/self/fd"))
    waits = WatchedWaits(2)
    assert len(os.listdir("/proc/self/fd")) == before + waits.clock.tells_cores
    waits.stop()
    assert len(os.listdir("/proc/self/fd")) == before
    assert waits.clock.core_ns() is None


def test_nobody_looks_at_cores_that_are_not_waited_for():
    cores = Cores()
    clock = WaitClock(cores)
    assert clock.core_ns() == 0
    time.sleep(0.01)
    clock.end_window()
    assert clock.core_ns() is None
    cores.now += 10**9
    clock.end_window()
    assert clock.core_ns() == 10**9


def test_a_kernel_that_does_not_tell_of_cores(tmp_path):
    clock = WaitClock(CoreWaits(tmp_path))
    assert not clock.tells_cores
    assert clock.core_ns() is None
    clock.add(5, clock.core_ns())
    clock.end_window()
    assert (clock.core_ns(), clock.waited_ns) == (None, 5)


def test_a_number_that_cannot_be_read_is_none(tmp_path):
    file = tmp_path / "thread-self" / "schedstat"
    file.parent.mkdir()
    file.write_text("what\n")
    assert CoreWaits(tmp_path).read_ns() is None
    file.write_text("5 7 9\n")
    cores = CoreWaits(tmp_path)
    assert cores.read_ns() == 7
    cores.close()
    assert cores.read_ns() is None


def test_the_own_work_on_a_core_is_without_the_waits_for_one():
    waits = Waits()
    waits.tells_cores, waits.core = True, 1_000_000
    probe = OwnWorkProbe(waits, lambda: waits.seen)
    probe.start()
    probe.tick()
    time.sleep(0.02)
    waits.core = 16_000_000
    probe.tick()
    own, on_core = probe.collect().rows
    assert (own.family, on_core.family) == (Family.OWN_WORK, Family.ON_CORE)
    assert on_core.name == own.name
    assert own.summary[Statistic.MED] - on_core.summary[Statistic.MED] == pytest.approx(0.015)
    for core in (None, 50_000_000):  # nobody looked at one end of the iteration
        waits.core = core
        probe.tick()
        own, on_core = probe.collect().rows
        assert own.summary[Statistic.MED] == on_core.summary[Statistic.MED]


def test_a_section_with_a_collective_has_own_work_on_a_core():
    waits = Waits()
    waits.tells_cores, waits.core = True, 0
    section = Section("sync", SectionClock(None, waits), kind="wait")
    with section:
        time.sleep(0.01)
        waits.waited_ns += 1_000_000
        waits.core += 5_000_000
    samples = section.drain()
    assert samples.own()[0] - samples.on_core()[0] == pytest.approx(0.005)
    assert len(section.drain().on_core()) == 0


def test_the_own_work_of_an_iteration_is_its_time_without_the_waits():
    waits = Waits()
    probe = OwnWorkProbe(waits, lambda: waits.seen)
    probe.start()
    probe.tick()
    began = time.perf_counter()
    time.sleep(0.02)
    waits.waited_ns, waits.seen = 15_000_000, 1
    probe.tick()
    lasted = time.perf_counter() - began
    row = only_row(probe.collect())
    assert (row.family, row.name, row.synchronous) == (Family.OWN_WORK, OWN_WORK_OF_AN_ITERATION, False)
    own = row.summary[Statistic.MED]
    assert row.summary[Statistic.NUM] == 1
    assert 0.005 <= own <= lasted - 0.014
    assert probe.collect().rows == []


def test_an_iteration_that_holds_more_than_a_step_is_left_out():
    probe = OwnWorkProbe(Waits(), None)
    probe.start()
    for number in range(4):
        probe.tick()
        if number == 1:
            probe.leave_out()
    assert only_row(probe.collect()).summary[Statistic.NUM] == 2


def test_collectives_that_were_made_where_they_are_not_seen_are_told():
    waits, made = Waits(), [0]
    probe = OwnWorkProbe(waits, lambda: made[0] + waits.seen)
    probe.start()
    probe.tick()
    made[0] = 7
    probe.tick()
    assert only_row(probe.collect()).synchronous
    waits.seen += 1
    probe.tick()
    assert not only_row(probe.collect()).synchronous
    probe.tick()
    assert not only_row(probe.collect()).synchronous


def test_a_section_with_a_collective_tells_its_own_work_and_arrivals_without_waits():
    waits = Waits()
    section = Section("backward", SectionClock(lambda: waits.seen, waits), kind="wait")
    for _ in range(2):
        waits.waited_ns += 10**12  # before the section: part of no arrival
        with section:
            waits.waited_ns += 10**12
    samples = section.drain()
    own, arrivals = samples.own(), samples.arrivals()
    assert len(own) == 2
    assert (own < 0).all(), "a clock of the test runs ahead of the real one"
    assert (abs(own + 1000.0) < 60.0).all()
    assert abs(arrivals[0] + 1000.0) < 60.0


def test_what_a_section_does_beside_its_collective_is_told_only_where_it_matters():
    waits = Waits()
    probe = CpuWallProbe()
    only_waits = Section("sync", SectionClock(None, waits), kind="wait")
    works = Section("step", SectionClock(None, waits), kind="wait")
    probe.watch(only_waits, False)
    probe.watch(works, False)
    probe.cut()
    with only_waits:
        began = time.perf_counter_ns()
        time.sleep(0.02)
        waits.waited_ns += time.perf_counter_ns() - began
    with works:
        time.sleep(0.02)
        waits.waited_ns += 1
    names = [row.name for row in probe.collect().rows if row.family is Family.OWN_WORK]
    assert names == ["own work in step"]


def test_a_rank_that_is_alone_has_nobody_to_wait_for(group):
    was = dist.Work.wait
    alone = WatchedWaits(1)
    alone.tick()
    alone.leave_out()
    assert (alone.clock, alone.own_work, alone.collectives) == (None, None, None)
    assert dist.Work.wait is was
    alone.stop()


def test_ranks_that_are_compared_without_a_process_group_are_not_watched():
    assert WatchedWaits(4).clock is None


def test_the_count_of_collectives_is_that_of_all_groups(group):
    count, other = collective_counter(), dist.new_group([0])
    before = count()
    dist.all_reduce(ones(), group=other)
    between = count()
    dist.all_reduce(ones())
    assert before < between < count()


def test_what_goes_between_two_ranks_counts_though_it_has_no_sequence_number(group):
    waits = WaitClock()
    count = collective_counter(waits)
    before = count()
    waits.add(1)
    assert count() == before + 1
