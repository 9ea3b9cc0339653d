"""What the agent is told of a job on several nodes, from what its control plane shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous.api import RendezvousGracefulExitError, RendezvousTimeoutError

from launcher.agent import plane_rendezvous
from launcher.agent.plane_rendezvous import JobEndedError, PlaneRendezvous, UnhealthyNodeError
from launcher.health.check import Unhealthy
from launcher.nodes.membership import Phase
from launcher.nodes.session_messages import Doing, Status, View

BASE = View(1, 0, Phase.RUNNING, 1, 3, 2, 6, "10.0.0.1", 1234, 0, "", False, None)


class FakePlane:
    """Shows views in turn, the last one for good, and keeps what is said."""

    def __init__(self) -> None:
        self.views: list[View | None] = [BASE]
        self.said: list[Status] = []
        self.holds_lease = True
        self.changed_ns = 17
        self.is_closed = False
        self.refusal = ("", False)
        self.descriptor = os.eventfd(1, os.EFD_NONBLOCK)

    def start(self, status: Status) -> None:
        self.said.append(status)

    say = start

    def take_view(self) -> View | None:
        return self.views.pop(0) if len(self.views) > 1 else self.views[0]

    def close(self, longest_seconds: float) -> None:
        self.is_closed = True

    def wake_agent(self) -> None:
        os.eventfd_write(self.descriptor, 1)


@pytest.fixture
def plane() -> Iterator[FakePlane]:
    made = FakePlane()
    yield made
    os.close(made.descriptor)


def rendezvous_of(
    plane: Any, finding: str | None = None, join_seconds: float = 30.0, tend: Callable[[], object] = lambda: None
) -> PlaneRendezvous:
    health: Any = SimpleNamespace(
        before_joining=lambda: finding, start=lambda told, is_waiting=False: None, stop=lambda: None
    )
    return PlaneRendezvous(plane, "run", "head:29400", 0, 60.0, join_seconds, health, lambda: None, tend=tend)


def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Stop the module's clock from here on; its time is the one element that is returned."""
    now = [0.0]
    monkeypatch.setattr("launcher.agent.plane_rendezvous.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_node_says_that_it_is_idle_and_takes_its_place(plane: FakePlane) -> None:
    rendezvous = rendezvous_of(plane)
    plane.views = [None, BASE._replace(phase=Phase.WAITING, generation=-1, group_rank=None), BASE]

    info = rendezvous.next_rendezvous()

    assert (info.rank, info.world_size, rendezvous.place, rendezvous.generation) == (1, 3, (2, 6), 0)
    assert info.bootstrap_store_info.master_addr == "10.0.0.1"
    assert [status.doing for status in plane.said] == [Doing.IDLE, Doing.RUNNING]
    assert plane.said[0].store_port > 0


def test_while_a_node_waits_what_serves_its_metrics_is_looked_after(plane: FakePlane) -> None:
    """A spare may wait for hours."""
    calls: list[int] = []
    rendezvous = rendezvous_of(plane, tend=lambda: calls.append(len(plane.views)))
    plane.views = [None, BASE._replace(phase=Phase.WAITING, generation=-1, group_rank=None), BASE]

    rendezvous.next_rendezvous()

    assert len(calls) == 2  # once for each look at which there was no generation yet


@pytest.mark.parametrize(("generation", "runs"), [(None, False), (-1, False), (0, True), (3, True)])
def test_a_job_runs_once_it_has_made_a_generation(plane: FakePlane, generation: int | None, runs: bool) -> None:
    rendezvous = rendezvous_of(plane)
    plane.views = [None if generation is None else BASE._replace(generation=generation, group_rank=None)]
    assert rendezvous.job_has_begun() is runs


def test_no_rank_is_started_without_a_lease_or_a_place(plane: FakePlane) -> None:
    """A view may have been on its way for long, and a spare is no member."""
    rendezvous = rendezvous_of(plane, join_seconds=0.0)
    plane.holds_lease = False

    with pytest.raises(RendezvousTimeoutError, match="nobody has led the job for 0 s: most of the nodes that vote"):
        rendezvous.next_rendezvous()
    plane.views = [None]
    with pytest.raises(
        RendezvousTimeoutError, match=r"no node of the job .run. has answered at head:29400 .--rdzv-endpoint. for 0 s"
    ):
        rendezvous_of(plane, join_seconds=0.0).next_rendezvous()
    assert {status.doing for status in plane.said} == {Doing.IDLE}


@pytest.mark.parametrize(
    ("view", "holds_lease", "said"),
    [
        (None, False, "no node of the job 'run' has answered at head:29400 (--rdzv-endpoint) yet"),
        (BASE._replace(phase=Phase.WAITING, group_rank=None), False, "nobody leads the job now"),
        (BASE._replace(group_rank=None), True, "generation 0 runs without it"),
        (BASE._replace(phase=Phase.STOPPING), True, "have not ended in generation 0 yet"),
        (BASE._replace(phase=Phase.WAITING, generation=-1), True, "--nnodes asks for more than are here"),
    ],
)
def test_a_node_that_waits_for_long_says_once_what_for(
    plane: FakePlane, monkeypatch: pytest.MonkeyPatch, view: View | None, holds_lease: bool, said: str
) -> None:
    told: list[str] = []
    monkeypatch.setattr(plane_rendezvous, "announce", lambda line, event: told.append(line))
    monkeypatch.setattr(plane_rendezvous, "_LONGEST_SILENT_WAIT_SECONDS", 0.0)
    plane.views, plane.holds_lease = [view, view, view, BASE], holds_lease
    monkeypatch.setattr(plane, "take_view", lambda: shown(plane))

    rendezvous_of(plane).next_rendezvous()

    assert len(told) == 1
    assert said in told[0]


def shown(plane: FakePlane) -> View | None:
    """Show the next view; with the last one comes a lease."""
    view = FakePlane.take_view(plane)
    plane.holds_lease |= len(plane.views) == 1 and view is plane.views[0]
    return view


def test_a_spare_that_becomes_unhealthy_leaves_before_it_takes_a_place_and_may_come_back(plane: FakePlane) -> None:
    """It was looked at before it joined, and then not until its ranks ran."""
    rendezvous = rendezvous_of(plane)
    plane.views = [BASE._replace(group_rank=None), BASE._replace(group_rank=None), BASE]
    health: Any = rendezvous._health
    health.start = lambda told, is_waiting: told("the fan stands still")

    with pytest.raises(UnhealthyNodeError, match="the fan stands still"):
        rendezvous.next_rendezvous()
    rendezvous.leave("the fan stands still", is_excluded=True)

    assert [status.doing for status in plane.said] == [Doing.IDLE, Doing.LEFT]
    assert (plane.said[-1].is_excluded, plane.said[-1].is_unhealthy) == (False, True)


def test_a_node_may_come_back_although_two_checks_have_failed(plane: FakePlane) -> None:
    rendezvous = rendezvous_of(plane)
    rendezvous.next_rendezvous()
    for check in ("nvml", "command"):
        rendezvous._note_finding(Unhealthy(check, "GPU 0 is lost"))
    why = rendezvous.unhealthy()
    assert why is not None
    assert "nvml" in why
    rendezvous.leave(why, is_excluded=True)
    assert (plane.said[-1].is_excluded, plane.said[-1].is_unhealthy) == (False, True)


def test_a_rank_that_excludes_its_node_does_so_although_a_check_fails_meanwhile(plane: FakePlane) -> None:
    rendezvous = rendezvous_of(plane)
    rendezvous.next_rendezvous()
    rendezvous._note_finding(Unhealthy("nvml", "GPU 0 is lost"))
    rendezvous.leave("rank 0 asks for ExcludeThisNode", is_excluded=True)
    assert (plane.said[-1].is_excluded, plane.said[-1].is_unhealthy) == (True, False)


def test_a_job_that_has_ended_is_told_by_its_code(plane: FakePlane, capfd: pytest.CaptureFixture[str]) -> None:
    rendezvous = rendezvous_of(plane)
    plane.views = [BASE._replace(phase=Phase.ENDED, exit_code=0, why="done")]
    with pytest.raises(RendezvousGracefulExitError):
        rendezvous.next_rendezvous()
    assert "the job has ended: done" in capfd.readouterr().err

    plane.views = [BASE._replace(phase=Phase.ENDED, exit_code=7, why="no restart is left")]
    with pytest.raises(JobEndedError, match="the job has ended: no restart is left") as ended:
        rendezvous.next_rendezvous()
    assert ended.value.exit_code == 7


def test_an_unhealthy_node_does_not_join(plane: FakePlane) -> None:
    with pytest.raises(UnhealthyNodeError, match="the fan stands still"):
        rendezvous_of(plane, finding="the fan stands still").next_rendezvous()
    assert plane.said == []


@pytest.mark.parametrize(
    ("view", "waiting", "failed"),
    [
        (BASE, 0, False),
        (BASE._replace(phase=Phase.STOPPING), 1, True),
        (BASE._replace(phase=Phase.STOPPING, may_save=True), 1, False),
        (BASE._replace(generation=1), 1, True),
        (BASE._replace(phase=Phase.ENDED, exit_code=1), 0, True),
        (BASE._replace(phase=Phase.ENDED, exit_code=1, may_save=True), 0, False),
        (BASE._replace(phase=Phase.ENDED, exit_code=0), 0, False),
    ],
)
def test_a_generation_is_over_when_the_nodes_agree_so(plane: FakePlane, view: View, waiting: int, failed: bool) -> None:
    rendezvous = rendezvous_of(plane)
    rendezvous.next_rendezvous()
    plane.views = [view]

    assert rendezvous.num_nodes_waiting() == waiting
    assert rendezvous.failed_elsewhere() is failed
    assert rendezvous.told_of_failure_ns() == (17 if failed or view.exit_code else 0)


@pytest.mark.parametrize("may_save", [False, True])
def test_a_job_that_ends_while_it_is_asked_has_failed_elsewhere_all_the_same(plane: FakePlane, may_save: bool) -> None:
    """The generation is over first, and a moment later the job, as no restart is left."""
    rendezvous = rendezvous_of(plane)
    rendezvous.next_rendezvous()
    over = BASE._replace(phase=Phase.STOPPING, may_save=may_save)
    plane.views = [over, over._replace(phase=Phase.ENDED, exit_code=1)]

    assert rendezvous.failed_elsewhere() is not may_save


def test_a_node_that_was_cut_off_starts_over_and_blames_no_rank(plane: FakePlane) -> None:
    rendezvous = rendezvous_of(plane)
    rendezvous.next_rendezvous()
    assert not rendezvous.is_cut_off()
    plane.holds_lease = False
    assert rendezvous.is_cut_off()

    rendezvous.note_cut_off()

    assert (plane.said[-1].doing, "was cut off" in plane.said[-1].why) == (Doing.FAILED, True)
    assert rendezvous.num_nodes_waiting() == 1
    assert rendezvous.failures == 0


def test_ranks_that_have_finished_wait_for_those_of_other_nodes(plane: FakePlane) -> None:
    rendezvous = rendezvous_of(plane)
    rendezvous.next_rendezvous()

    assert not rendezvous.finished()
    plane.views = [BASE._replace(phase=Phase.ENDED, exit_code=0)]
    assert rendezvous.finished()
    assert rendezvous.ended_by_peer() is None


def test_a_node_that_has_finished_and_is_cut_off_says_so_once_each_time(
    plane: FakePlane, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rendezvous = rendezvous_of(plane, join_seconds=600.0)
    rendezvous.next_rendezvous()
    now = stopped_clock(monkeypatch)

    for now[0], plane.holds_lease in ((0, True), (10, False), (16, False), (90, False), (91, True), (92, False)):
        assert not rendezvous.finished()
    words = "it waits for at most 600 s to learn how the job ends"
    assert capfd.readouterr().err.count(words) == 1
    now[0] = 120.0
    assert not rendezvous.finished()
    assert capfd.readouterr().err.count(words) == 1


def test_a_node_that_has_finished_and_is_cut_off_does_not_wait_for_ever(
    plane: FakePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others may have gone on without it, and ended."""
    rendezvous = rendezvous_of(plane, join_seconds=10.0)
    rendezvous.next_rendezvous()
    now = stopped_clock(monkeypatch)

    for now[0], plane.holds_lease in ((0.0, True), (50.0, True), (59.0, False), (60.5, True), (70.0, False)):
        assert not rendezvous.finished()
    now[0] = 70.6
    with pytest.raises(RendezvousTimeoutError, match="nobody has led the job for 10 s"):
        rendezvous.finished()


def test_how_long_a_node_was_alone_in_one_generation_does_not_count_in_the_next(
    plane: FakePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendezvous = rendezvous_of(plane, join_seconds=10.0)
    rendezvous.next_rendezvous()
    now = stopped_clock(monkeypatch)
    assert not rendezvous.finished()
    plane.views = [BASE._replace(generation=1, version=BASE.version + 1)]
    rendezvous.next_rendezvous()

    now[0], plane.holds_lease = 3600.0, False
    assert not rendezvous.finished()
    assert not rendezvous.finished()


def test_a_job_that_another_node_has_ended_is_told_with_the_reason(plane: FakePlane) -> None:
    rendezvous = rendezvous_of(plane)
    rendezvous.next_rendezvous()
    plane.views = [BASE._replace(phase=Phase.ENDED, exit_code=1, why="a rank asked for it")]

    assert rendezvous.ended_by_peer() == "a rank asked for it"


@pytest.mark.parametrize("has_failed", [False, True])
def test_whoever_ends_the_job_says_whether_ranks_elsewhere_may_save(plane: FakePlane, has_failed: bool) -> None:
    rendezvous = rendezvous_of(plane)
    rendezvous.next_rendezvous()
    if has_failed:
        rendezvous.note_failure("a rank failed")

    rendezvous.end("no restart is left" if has_failed else "a rank asked for it")

    assert (plane.said[-1].doing, plane.said[-1].may_save) == (Doing.ENDING, not has_failed)


def test_a_node_leaves_only_when_its_ranks_have(plane: FakePlane) -> None:
    rendezvous = rendezvous_of(plane)
    rendezvous.next_rendezvous()

    rendezvous.leaving("SIGTERM")
    assert (plane.said[-1].doing, plane.is_closed) == (Doing.LEAVING, False)
    rendezvous.leave("SIGTERM", is_excluded=True)
    assert (plane.said[-1].doing, plane.said[-1].is_excluded, plane.is_closed) == (Doing.LEFT, True, True)


def test_a_node_whose_ranks_have_ended_with_0_leaves_without_a_new_generation(plane: FakePlane) -> None:
    rendezvous = rendezvous_of(plane)
    rendezvous.next_rendezvous()
    rendezvous.finished()

    rendezvous.leaving("SIGTERM")
    assert plane.said[-1].doing == Doing.FINISHED
    rendezvous.leave("SIGTERM", is_excluded=False)
    assert (plane.said[-1].doing, plane.said[-1].has_finished) == (Doing.LEFT, True)


def test_a_node_that_was_excluded_before_is_told_and_does_not_wait(plane: FakePlane) -> None:
    """It was told that nobody answers, for as long as it waits for others."""
    plane.views = [None]
    plane.refusal = ("node x was excluded from this job before: its GPU is broken", True)
    with pytest.raises(UnhealthyNodeError, match="excluded from this job before: its GPU is broken"):
        rendezvous_of(plane).next_rendezvous()


def test_a_node_for_which_there_is_no_room_waits_and_says_so(
    plane: FakePlane, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.agent.plane_rendezvous._LONGEST_SILENT_WAIT_SECONDS", -1.0)
    plane.views = [None, BASE]
    plane.refusal = ("the job has 3 nodes, as many as --nnodes lets in", False)
    rendezvous_of(plane).next_rendezvous()
    assert (
        "this node waits, since it cannot take part now: the job has 3 nodes, as many as --nnodes lets in"
        in capfd.readouterr().err
    )


def test_a_node_for_which_there_was_no_room_until_the_end_says_so(plane: FakePlane) -> None:
    """It said that no node had answered."""
    plane.views, plane.holds_lease = [None], False
    plane.refusal = ("the job has 3 nodes, as many as --nnodes lets in", False)
    with pytest.raises(RendezvousTimeoutError, match=r"could not take part in the job .* as many as --nnodes lets in"):
        rendezvous_of(plane, join_seconds=0.0).next_rendezvous()


def test_a_spare_waits_from_when_it_has_lost_contact(plane: FakePlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from when it began to wait, which may be hours ago."""
    rendezvous = rendezvous_of(plane, join_seconds=10.0)
    spare = BASE._replace(group_rank=None)
    now = [0.0]

    def take_view() -> View:
        now[0] += 4.0
        plane.holds_lease = now[0] < 50 or now[0] > 56  # lost for six seconds, long after ten have passed
        return BASE if now[0] > 80 else spare

    monkeypatch.setattr(plane, "take_view", take_view)
    monkeypatch.setattr("launcher.agent.plane_rendezvous.time", SimpleNamespace(monotonic=lambda: now[0]))

    assert rendezvous.next_rendezvous().rank == 1


@pytest.mark.parametrize("tells", [True, False])
def test_a_checkpoint_of_all_ranks_is_told_where_newcomers_wait_for_one(plane: FakePlane, tells: bool) -> None:
    health: Any = SimpleNamespace(
        before_joining=lambda: None, start=lambda told, is_waiting=False: None, stop=lambda: None
    )
    rendezvous = PlaneRendezvous(
        *(plane, "run", "head:29400", 0, 60.0, 30.0, health, lambda: None),  # type: ignore[arg-type]
        tells_saves=tells,
    )
    cells: Any = {0: SimpleNamespace(saved=-1), 1: SimpleNamespace(saved=-1)}
    rendezvous.note_saves(lambda: cells)  # it runs no rank yet
    rendezvous.next_rendezvous()
    del plane.said[:]

    for saved in ((-1, -1), (5, -1), (5, 5), (5, 5), (10, 5)):
        cells[0].saved, cells[1].saved = saved
        rendezvous.note_saves(lambda: cells)

    assert [(status.doing, status.generation, status.saved) for status in plane.said] == (
        [(Doing.RUNNING, 0, 5)] if tells else []
    )
    rendezvous.note_failure("it broke")
    rendezvous.note_saves(lambda: cells)
    assert [status.doing for status in plane.said][-1] == Doing.FAILED
