"""One generation: whom it does not wait for, whom it kills, and what becomes of a verdict that was withdrawn.

Workers and cells are real; what a generation only passes things to (monitor, event log, control socket) is made up.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import Worker, WorkerGroup, WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from launcher.agent import after_shutdown
from launcher.agent import generation as generation_module
from launcher.agent.generation import Generation
from launcher.agent.resources import AgentResources
from launcher.agent.worker_cells import Cells
from launcher.monitor.rank_monitor import WatchOrder
from launcher.processes.handles import wait_for_exit
from launcher.records.run_folders import RunFolder
from launcher.workers.starters import SpawnStarter
from resilience_core import FaultToleranceConfig
from resilience_core.protocol import cell_layout
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import PID, SHUT_DOWN, START_TIME, STATE, WATCHED
from resilience_core.system.proc import own_pid_namespace
from resilience_core.system.proc import process_start_time as start_time

S = 1_000_000_000
FOREVER = 600.0
HEARS = (
    "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); "
    "open('ready' + os.environ['RANK'], 'w').close(); signal.sigwait({signal.SIGTERM})"
)
"""No handler and signal.pause(): the signal may come in the moment between the two, and the pause lasts for ever."""


class Made:
    """A generation of two workers that end with 0 when they are asked to, and what was made up around it."""

    def __init__(
        self, folder: Path, max_restarts: int = 3, start_seconds: int | None = None, **configured: Any
    ) -> None:
        self.folder = folder
        self.orders: list[WatchOrder] = []
        self.forgotten: list[int] = []
        self.mended: list[int] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.run_folder = RunFolder(str(folder))
        monitor = SimpleNamespace(
            pids={os.getpid(), 4_194_305},  # the second was left behind: no pid is as large
            watch=lambda order, *_, **__: self.orders.append(order),
            forget=lambda number, **_: self.forgotten.append(number),
            freezes=lambda _: [],
        )
        rendezvous = SimpleNamespace(get_run_id=lambda: "test", use_agent_store=True)
        resources: Any = AgentResources(
            config=FaultToleranceConfig(**{"failure_stop_timeout": 0.1, **configured}),
            run_folder_keeper=SimpleNamespace(  # type: ignore[arg-type]
                control=SimpleNamespace(path=None),
                config_file="",
                make_cells=lambda number, ranks: Cells(self.run_folder, number, ranks),
                mend=lambda _: self.mended,
            ),
            log_folder=str(folder),
            monitor=monitor,  # type: ignore[arg-type]
            signals=SimpleNamespace(is_forced=False, first=None),  # type: ignore[arg-type]
            events=SimpleNamespace(  # type: ignore[arg-type]
                write=lambda name, **facts: self.events.append((name, facts)), look_after=lambda: None
            ),
            disk=SimpleNamespace(),  # type: ignore[arg-type]
            starter=SpawnStarter(),
            logs_specs=DefaultLogsSpecs(log_dir=str(folder)),
        )
        spec = WorkerSpec(
            role="trainer",
            local_world_size=2,
            rdzv_handler=rendezvous,  # type: ignore[arg-type]
            max_restarts=max_restarts,
            entrypoint=sys.executable,
            args=("-c", f"import os; os.chdir({str(folder)!r}); {HEARS}"),
        )
        group = WorkerGroup(spec)
        group.workers = [Worker(local_rank=n, global_rank=n, world_size=2) for n in range(2)]
        group.group_rank, group.group_world_size = 0, 1
        if start_seconds is not None:
            resources.limits.note_starts(0, dict.fromkeys(range(2), start_seconds * S))
        self.generation = Generation(0, group, resources, 0)
        while not all((folder / f"ready{n}").exists() for n in range(2)):
            assert len(self.generation.processes.running) == 2
            select.select([], [], [], 0.005)

    def open_section(self, local_rank: int, since_ns: int, deadline_ns: int) -> None:
        """Have a worker's rank be in a section."""
        opened, pid = Cell(self.run_folder.cell(0, local_rank)), self.generation.processes.workers[local_rank].pid
        opened.words[PID], opened.words[START_TIME], opened.words[STATE] = pid, start_time(pid) or 0, WATCHED
        word = opened.add_section("step")
        opened.words[word + 1], opened.words[word] = since_ns, deadline_ns
        opened.close()

    def claim(self, local_rank: int, **words: int) -> None:
        """Have somebody report for a local rank; words of its cell, by their names in
        ``resilience_core.protocol.cell_layout``."""
        opened = Cell(self.run_folder.cell(0, local_rank))
        for name, value in words.items():
            opened.words[getattr(cell_layout, name)] = value
        opened.close()

    def end(self) -> list[int | None]:
        """End it; the exit codes."""
        self.generation.stop(signal.SIGTERM, FOREVER, wait_for_exit)
        return [worker.exit_code for worker in self.generation.processes.workers.values()]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Made]]:
    made: list[Made] = []

    def make(**configured: Any) -> Made:
        made.append(Made(tmp_path, **configured))
        return made[-1]

    yield make
    for each in made:
        each.generation.stop(signal.SIGKILL, 0.0, wait_for_exit)
        each.run_folder.remove()


def test_who_is_condemned_is_not_waited_for_at_the_end(make: Callable[..., Made]) -> None:
    made = make()
    made.generation.condemn([0], time.monotonic_ns())
    assert made.end() == [-signal.SIGKILL, 0]


def test_who_is_late_but_not_condemned_is_asked_and_may_save(make: Callable[..., Made]) -> None:
    # The monitor withholds verdicts: on a learned limit while a peer has a configured one left, or on lost time.
    made, now_ns = make(), time.monotonic_ns()
    made.open_section(0, now_ns - 2 * S, now_ns - S)
    made.open_section(1, now_ns, now_ns + 600 * S)
    assert made.end() == [0, 0]


def test_a_failure_is_seen_at_the_first_verdict_that_stands(make: Callable[..., Made]) -> None:
    """And not when what the rank did has been read, and it was killed."""
    generation = make().generation
    assert generation.processes.failed_ns(50) == 50
    generation.condemn([1], 30)
    generation.condemn([0], 20)
    assert generation.processes.failed_ns(50) == 20
    generation.withdraw(0)
    assert generation.processes.failed_ns(50) == 30


def test_who_is_condemned_is_killed_when_the_stop_is_only_requested(make: Callable[..., Made]) -> None:
    made, now_ns = make(), time.monotonic_ns()
    made.generation.condemn([0], time.monotonic_ns())
    made.open_section(1, now_ns - 2 * S, now_ns - S)
    made.generation.request_stop(signal.SIGTERM)
    assert made.end() == [-signal.SIGKILL, 0]


def test_a_worker_that_lives_on_around_a_condemned_rank_is_killed_in_time(make: Callable[..., Made]) -> None:
    made = make()
    made.generation.condemn([1], time.monotonic_ns())
    said, seconds = made.generation.kill_lingering()
    assert said == []
    assert seconds is not None
    assert seconds <= 0.2
    select.select([], [], [], seconds)
    (line,) = made.generation.kill_lingering()[0]
    pid = made.generation.processes.workers[1].pid
    assert line.startswith(f"the worker around rank 1 (pid {pid}) lives on although it was terminated")
    assert wait_for_exit([made.generation.processes.workers[1].pidfd], 30)


def test_a_condemned_worker_that_has_ended_and_is_not_collected_yet_does_not_live_on(make: Callable[..., Made]) -> None:
    made = make(failure_stop_timeout=0.001)
    worker = made.generation.processes.workers[1]
    made.generation.condemn([1], time.monotonic_ns())
    os.kill(worker.pid, signal.SIGKILL)
    assert wait_for_exit([worker.pidfd], 30)
    select.select([], [], [], 0.01)
    assert made.generation.kill_lingering() == ([], None)
    assert worker in made.generation.processes.running


def test_a_condemned_worker_that_is_not_gone_when_it_was_killed_has_failed(
    make: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded: its signals are not sent, as if it were in uninterruptible sleep (tests/e2e/test_unkillable.py)."""
    made, sent = make(), []
    monkeypatch.setattr("launcher.agent.generation.send_signal", lambda _, number: sent.append(number) or True)
    made.generation.condemn([1], time.monotonic_ns())
    processes, said = made.generation.processes, []
    while not processes.failed:
        lines, seconds = made.generation.kill_lingering()
        said += lines
        assert seconds is not None, "nobody would come back"
        select.select([], [], [], seconds)
    assert sent == [signal.SIGKILL]
    assert "was killed and is not gone (state " in said[-1]
    assert [worker.local_rank for worker in processes.running] == [0]
    assert processes.failure(processes.failed[0]).exitcode == -signal.SIGKILL


def test_a_verdict_that_was_withdrawn_is_none(make: Callable[..., Made]) -> None:
    made = make()
    made.generation.condemn([0, 1], time.monotonic_ns())
    made.generation.withdraw(1)
    assert made.generation.condemned == {0}
    assert made.end() == [-signal.SIGKILL, 0]
    assert [worker.local_rank for worker in made.generation.processes.failed] == [0]


def test_the_monitor_no_longer_judges_whoever_has_been_asked_to_end(make: Callable[..., Made]) -> None:
    made = make()
    made.generation.request_stop(signal.SIGTERM)
    assert made.forgotten == [0]
    assert made.generation.is_being_ended


def test_the_monitor_is_told_before_a_worker_is_signalled(make: Callable[..., Made]) -> None:
    """Also where the job is shut down: whom we have killed must not look like one that was killed by others."""
    made = make()
    processes: Any = made.generation.processes
    told: list[list[int]] = []
    stop = processes.stop
    processes.stop = lambda *arguments, **named: (told.append(list(made.forgotten)), stop(*arguments, **named))
    assert made.end() == [0, 0]
    assert told == [[0]]


def test_a_cell_that_was_made_anew_is_watched(make: Callable[..., Made]) -> None:
    made = make()
    made.orders.clear()
    made.mended = [1]
    made.generation.mend()
    assert [order.local_rank for order in made.orders] == [1]
    made.orders.clear()
    made.generation.stop_judging()
    made.generation.mend()
    assert made.orders == []


# ---- who reports for a local rank -----------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [{"START_TIME": 1}, {"PID_NAMESPACE": 1}], ids=["another process", "a container"])
def test_a_number_that_is_not_the_ranks_here_is_not_signalled(
    make: Callable[..., Made], spawn: Callable[..., Any], elsewhere: dict[str, int]
) -> None:
    """A cell names its rank by number: given to somebody else by now, or counted in another namespace."""
    made, bystander = make(), spawn("print('ready', flush=True); input()")
    namespace = own_pid_namespace()
    words = {"PID": bystander.pid, "START_TIME": start_time(bystander.pid) or 0, "PID_NAMESPACE": namespace}
    made.claim(0, **{**words, **elsewhere})
    assert made.end() == [0, 0]
    assert bystander.poll() is None


def test_workers_are_not_collected_with_the_orphans(make: Callable[..., Made], monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded: to adopt is a property of a whole process. Who collects a worker takes its exit code."""
    own: list[set[int]] = []

    class RecordedOrphans:
        def __init__(self, marks: object) -> None:
            pass

        def reap(self, children: set[int]) -> None:
            own.append(set(children))

        def sessions(self, children: set[int]) -> set[int]:
            own.append(set(children))
            return set()

    monkeypatch.setattr("launcher.agent.resources.is_subreaper", lambda: True)
    monkeypatch.setattr("launcher.agent.resources.Orphans", RecordedOrphans)
    made = make()
    workers = {worker.pid for worker in made.generation.processes.workers.values()}
    made.generation.reap_orphans()
    made.end()
    assert len(own) >= 3
    assert all({os.getpid(), 4_194_305} <= each for each in own)
    assert all(workers < each for each in own[:-1])  # in the end they have been collected


def test_what_ranks_say_while_they_end_can_be_read_when_they_have_ended(make: Callable[..., Made]) -> None:
    """The steps and the save between the request and the end count."""
    made = make()
    made.claim(0, ITERATION=65)
    made.end()
    assert made.generation.views()[0].iteration == 65


# ---- startup limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_restarts", "seconds"), [(1, 60), (0, 3600)])
def test_a_learned_startup_limit_is_longer_where_no_restart_is_left(
    make: Callable[..., Made], max_restarts: int, seconds: int
) -> None:
    made = make(max_restarts=max_restarts, start_seconds=1)
    assert [order.startup_at_ns - made.generation.started_ns for order in made.orders] == [seconds * S] * 2


def test_a_startup_limit_counts_from_the_moment_in_which_a_rank_has_initialised_monitoring(
    make: Callable[..., Made],
) -> None:
    """It has passed by then; the other rank gets all of it, and the one that has initialised is held to nothing."""
    made = make(rank_startup_timeout=0.001)
    generation = made.generation
    assert [order.startup_at_ns for order in made.orders] == [0, 0]
    made.orders.clear()
    made.claim(0, INITIALISED=generation.started_ns + 1)

    before_ns = time.monotonic_ns()
    generation.look_after_the_unmonitored()
    generation.look_after_the_unmonitored()

    (order,) = made.orders
    assert order.local_rank == 1
    assert order.startup_at_ns >= before_ns + S // 1000
    assert order.started_ns >= before_ns


def test_whether_a_startup_limit_has_come_to_count_is_looked_at_often(make: Callable[..., Made]) -> None:
    """Nothing wakes the launcher when a rank initialises monitoring."""
    generation = make(rank_startup_timeout=FOREVER).generation
    assert (generation.next_look_seconds() or FOREVER) <= 0.25


@pytest.mark.parametrize(
    ("initialised", "said"),
    [
        (0, "no rank has reported anything for 1e-06 s"),
        (1, "rank 1 has not called init_workload_monitoring() for 1e-06 s, while others have"),
    ],
)
def test_that_others_have_initialised_monitoring_is_told_only_where_one_has(
    make: Callable[..., Made], initialised: int, said: str
) -> None:
    """One that has ended may have, or not."""
    made = make(unmonitored_notice_after=1e-6)
    made.claim(0, INITIALISED=initialised)
    ended = made.generation.processes.workers[0]
    os.kill(ended.pid, signal.SIGKILL)
    wait_for_exit({ended.pidfd}, FOREVER)
    made.generation.processes.collect_exits()
    assert made.generation.look_after_the_unmonitored()[0].startswith(said)


# ---- after shutdown -------------------------------------------------------------------------------------


def test_a_worker_whose_exit_hangs_is_killed_where_that_is_limited(make: Callable[..., Made]) -> None:
    made = make(rank_exit_timeout=1e-6, capture_stacks=False)
    generation = made.generation
    assert generation.next_look_seconds() is not None
    made.claim(1, STATE=SHUT_DOWN)
    generation.look_after_the_unmonitored()
    generation._watch._after_shutdown._next_look_ns = 0

    said = generation.look_after_the_unmonitored()

    assert "rank 1 (pid" in said[0]
    assert "limit 1e-06 s (configured: --ft-rank-exit-timeout)" in said[0]
    assert made.end() == [0, -signal.SIGKILL]


def test_a_rank_that_has_shut_down_may_take_as_long_as_it_likes(
    make: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make()
    made.claim(1, STATE=SHUT_DOWN)
    monkeypatch.setattr(after_shutdown, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(after_shutdown, "NOTICE_SECONDS", 0.0)

    said = [*made.generation.look_after_the_unmonitored(), *made.generation.look_after_the_unmonitored()]

    assert [line.partition(" has shut")[0] for line in said] == ["rank 1"]  # once
    assert made.end() == [0, 0]


# ---- what is told ---------------------------------------------------------------------------------------


def test_the_seconds_of_a_restart_are_written_as_they_are_said(
    make: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make()
    said: list[str] = []
    monkeypatch.setattr(generation_module, "announce", lambda line, **_: said.append(line))
    made.generation.tell_restart(("the failure", time.monotonic_ns() - 7 * S))
    made.generation.tell_restart(None)

    (_, timed), (_, newcomer) = [event for event in made.events if event[0] == "restarted"]
    assert said[0] == f"generation 0 started: 2 worker(s) here, {timed['seconds']:.2f} s after the failure was seen"
    assert (timed["cause"], timed["workers"], timed["generation"]) == ("the failure", 2, 0)
    assert said[1] == "generation 0 started: 2 worker(s) here"
    assert (newcomer["cause"], newcomer["seconds"]) == (None, None)
    (started,) = [facts for name, facts in made.events if name == "started"]
    assert (started["nodes"], started["node_rank"], started["restarts_left"]) == (1, 0, 3)


def test_the_process_that_tells_events_is_no_orphan_of_a_rank(make: Callable[..., Made]) -> None:
    made = make()
    made.generation._resources.notices._handle = SimpleNamespace(pids={4_194_302})  # type: ignore[assignment]
    assert 4_194_302 in made.generation._own_children()
