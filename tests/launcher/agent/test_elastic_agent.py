"""What the agent believes, counts and tells: late reports, restarts of all nodes, rows of early deaths, progress.

Torch's agent, its worker group and the rendezvous are real; the generation and what it would touch are made up.
"""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec, WorkerState

from launcher.agent import crash_loop, failure_incident, incident_log, worker_exits
from launcher.agent import elastic_agent as agent_module
from launcher.agent.elastic_agent import FaultTolerantAgent
from launcher.agent.local_rendezvous import LocalRendezvous
from launcher.agent.notices import Notices
from launcher.incidents.incident import Incident
from launcher.incidents.rank_report import RankReport
from launcher.monitor.messages import HangReport, MonitorReport, Spared
from launcher.monitor.near_miss import NearMiss
from launcher.workers.worker_processes import WorkerProcess
from resilience_core import FaultToleranceConfig
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import ITERATION
from resilience_core.protocol.cell_view import CellView

S = 1_000_000_000


class Made:
    """An agent in generation 3, and what was made up around it."""

    def __init__(self, max_restarts: int = 5) -> None:
        self.reports: list[MonitorReport] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.condemned: set[int] = {7}
        self.verdicts_ns: tuple[int, ...] = (1 << 62,)
        self.exit_codes: dict[int, int] = {}
        self.rendezvous = LocalRendezvous("job", "localhost", 0, 60.0)
        self.rendezvous.generation = 3
        self.ended: list[str] = []
        self.rendezvous.end = self.ended.append  # type: ignore[method-assign]
        resources: Any = SimpleNamespace(
            config=FaultToleranceConfig(restart_backoff_after=2, capture_stacks=False),
            monitor=SimpleNamespace(read_reports=self.read_reports, forget=lambda *_, **__: None),
            events=SimpleNamespace(
                write=lambda name, **facts: self.events.append((name, facts)), gathering=contextlib.nullcontext
            ),
            limits=SimpleNamespace(note_verdict=lambda incident: []),
            notices=Notices(),
            signals=SimpleNamespace(deferred=contextlib.nullcontext, raise_pending=lambda: None, first=None),
            on_disk=lambda what, call, otherwise: otherwise,
            log_folder="",
            run_folder_keeper=SimpleNamespace(folder=SimpleNamespace(cell=lambda generation, local_rank: "")),
            machine=SimpleNamespace(memory_kill=lambda *_, **__: None, facts=lambda *_: (), gpu_users=set()),
        )
        spec = WorkerSpec(
            role="trainer",
            local_world_size=1,
            rdzv_handler=self.rendezvous,
            entrypoint="true",
            max_restarts=max_restarts,
        )
        self.agent = FaultTolerantAgent(spec, resources, 30.0)
        self.generation: Any = SimpleNamespace(
            number=3,
            started_ns=0,
            condemned=self.condemned,
            condemn=lambda ranks, seen_ns: self.condemned.update(ranks),
            is_being_ended=False,
            is_fenced=False,
            stop_judging=self.stop_judging,
            withdraw=self.condemned.discard,
            processes=SimpleNamespace(
                failed=[],
                running=[],
                workers={},
                collect_exits=lambda: None,
                pids=dict,
                stderrs={},
                condemned=self.condemned,
                failed_ns=lambda now_ns: min(now_ns, *self.verdicts_ns),
            ),
            views=dict,
            errors=dict,
            asked_ns=dict,
            request_stop=lambda number: None,
            overstayed={},
            stop=lambda *_, **__: None,
        )
        self.agent._current = self.generation

    def stop_judging(self) -> None:
        self.generation.is_being_ended = True

    def read_reports(self) -> list[MonitorReport]:
        reports, self.reports = self.reports, []
        return reports

    def verdict(self, generation: int, local_rank: int, folder: str | None = None) -> None:
        """Have the monitor tell of a verdict."""
        rank = RankReport(local_rank, local_rank, 9, is_condemned=True, cause="section", section="step")
        incident = Incident(
            "hang", generation, "its section has passed its limit", "terminated", (rank,), folder=folder
        )
        self.reports.append(HangReport(generation, incident, (local_rank,), None))


def view(iteration: int) -> CellView:
    cell = Cell.detached()
    cell.words[ITERATION] = iteration
    return cell.view()


def near_miss(local_rank: int) -> NearMiss:
    return NearMiss(local_rank, local_rank, 9, "section", "step", 1.0, 0.1, 0.1)


# ---- reports --------------------------------------------------------------------------------------------


def test_a_verdict_counts_for_the_generation_that_it_was_found_in() -> None:
    """The monitor's words may arrive when the group has been started anew: its ranks have done nothing."""
    made = Made()
    made.verdict(2, 0)
    made.agent._read_reports()
    assert made.condemned == {7}

    made.verdict(3, 0)
    made.agent._read_reports()
    assert made.condemned == {0, 7}


def test_a_verdict_is_withdrawn_from_the_generation_that_it_was_found_in(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made()
    made.reports.append(Spared(2, (near_miss(7),)))
    made.agent._read_reports()
    assert made.condemned == {7}
    made.reports.append(Spared(3, (near_miss(7),)))
    made.agent._read_reports()
    assert made.condemned == set()


def test_a_verdict_is_read_before_an_exit_with_0_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that heeds SIGTERM and ends with 0 looks like one that has finished."""
    made = Made()
    made.condemned.clear()
    made.verdict(3, 0)
    worker = SimpleNamespace(local_rank=0, exit_code=0)

    class Processes:
        running: tuple[()] = ()
        collect_exits = staticmethod(lambda: None)

        @property
        def failed(self) -> list[Any]:
            return [worker] if worker.local_rank in made.condemned else []

    made.generation.processes = Processes()
    monkeypatch.setattr(made.agent, "_wait", lambda current: None)
    monkeypatch.setattr(made.agent, "_failed", lambda current, group: RunResult(state=WorkerState.FAILED))

    assert made.agent._monitor_workers(made.agent._worker_group).state is WorkerState.FAILED


@pytest.mark.parametrize("why", ["another verdict stands", "it is being ended"])
def test_a_verdict_that_comes_too_late_is_no_second_incident(why: str, tmp_path: Path) -> None:
    """As from a monitor that was told a moment too late that the generation ends, or replaced in between."""
    made = Made()
    made.agent._resources.on_disk = lambda what, call, otherwise: call()  # type: ignore[misc]
    folders = [tmp_path / "0001", tmp_path / "0002"]
    for folder in folders:
        folder.mkdir()
    made.condemned.clear()
    if why == "another verdict stands":
        made.verdict(3, 0, str(folders[0]))
    else:
        made.generation.is_being_ended = True
    made.verdict(3, 1, str(folders[1]))

    made.agent._read_reports()

    assert 1 in made.condemned  # it is signalled all the same
    told = [facts["folder"] for name, facts in made.events if name == "hang"]
    assert told == ([str(folders[0])] if why == "another verdict stands" else [])
    assert [folder.exists() for folder in folders] == [True, False]


def test_a_verdict_that_was_told_before_the_nodes_change_is_read_before_it_would_be_too_late() -> None:
    made = Made()
    made.condemned.clear()
    made.verdict(3, 0)
    made.agent._stop_workers(made.agent._worker_group)
    assert [name for name, _ in made.events] == ["hang", "asked"]


# ---- restarts -------------------------------------------------------------------------------------------


def test_what_is_left_of_the_restarts_is_what_the_nodes_agree_on() -> None:
    """Torch's agent counts only the restarts that it has ordered itself, and not those for failures elsewhere."""
    made = Made(max_restarts=5)
    made.rendezvous.failures = 3
    made.agent._rendezvous(made.agent._worker_group)
    made.rendezvous.shutdown()
    assert made.agent._remaining_restarts == 2


@pytest.mark.parametrize("restarts_left", [1, 0])
def test_the_other_nodes_are_told_of_the_last_failure_alone(
    monkeypatch: pytest.MonkeyPatch, restarts_left: int
) -> None:
    """They would wait in the rendezvous for a node that never comes back."""
    made = Made()
    made.agent._remaining_restarts = restarts_left
    incident = Incident("failure", 3, "it ended with 1", "nothing", ())
    monkeypatch.setattr(failure_incident, "look", lambda *_: {})
    monkeypatch.setattr(failure_incident, "failure_incident", lambda *_: incident)

    made.agent._failed(made.generation, made.agent._worker_group)

    assert made.rendezvous.failures == 1
    assert len(made.ended) == (0 if restarts_left else 1)


def test_the_other_nodes_are_told_why_a_node_gives_up_and_not_that_no_restart_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Made()
    incident = Incident("failure", 3, "it ended with 1", "nothing", ())
    monkeypatch.setattr(failure_incident, "look", lambda *_: {})
    monkeypatch.setattr(failure_incident, "failure_incident", lambda *_: incident)
    monkeypatch.setattr(made.agent._policy, "why_not_again", lambda *_: "rank 0 has stopped the training: enough")

    made.agent._failed(made.generation, made.agent._worker_group)

    assert made.ended == ["rank 0 has stopped the training: enough"]


def test_after_a_failure_ranks_are_looked_at_then_asked_to_end_and_only_then_is_a_disk_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who is asked looks like one that ends by itself, and a disk may take its time."""
    made = Made()
    order: list[str] = []
    resources: Any = made.agent._resources
    resources.on_disk = lambda what, call, otherwise: order.append("disk") or otherwise
    made.generation.request_stop = lambda number: order.append("ask")
    incident = Incident("failure", 3, "it ended with 1", "nothing", ())
    monkeypatch.setattr(failure_incident, "look", lambda *_: order.append("look") or {})
    monkeypatch.setattr(failure_incident, "failure_incident", lambda *_: incident)

    made.agent._failed(made.generation, made.agent._worker_group)

    assert order[:3] == ["look", "ask", "disk"]


def test_a_row_of_early_deaths_is_broken_by_a_generation_that_lived_or_showed_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crash_loop, "_LONGEST_BACK_OFF_SECONDS", 0.0)
    made = Made()

    def dies(after_seconds: float, showed_life: bool = False) -> bool:
        made.events.clear()
        failed_ns = time.monotonic_ns()
        made.generation.started_ns = failed_ns - int(after_seconds * S)
        views = {0: view(iteration=5)} if showed_life else {}
        made.agent._policy.wait_in_crash_loop(made.generation, failed_ns, views, lambda *_: set())
        return any(name == "backing_off" for name, _ in made.events)

    assert [dies(1), dies(1), dies(1)] == [False, True, True]
    assert [dies(3600), dies(1), dies(1)] == [False, False, True]
    assert [dies(1, showed_life=True), dies(1), dies(1)] == [False, False, True]


@pytest.mark.parametrize("how", ["shutdown", "stop"])
def test_what_ranks_do_after_they_were_asked_to_end_is_progress(how: str) -> None:
    """The step that was running, and the save. After a failure it is none: the next generation starts before it."""
    made = Made()
    made.agent._resources = SimpleNamespace(  # type: ignore[assignment]
        **{**vars(made.agent._resources), "on_disk": lambda what, call, otherwise: call()}
    )
    said: dict[int, Any] = {0: view(iteration=-1)}
    made.generation.views = lambda: said
    made.generation.processes.running = [SimpleNamespace(local_rank=0)]
    made.generation.stop = lambda *_, **__: said.update({0: view(iteration=65)})

    if how == "shutdown":
        made.agent._shutdown()
    else:
        made.agent._stop_workers(made.agent._worker_group)
    assert made.agent.furthest.iteration == 65

    said[0] = view(iteration=66)
    made.generation.processes.failed = [SimpleNamespace(local_rank=0)]
    made.generation.stop = lambda *_, **__: None
    made.agent._stop_workers(made.agent._worker_group)
    assert made.agent.furthest.iteration == 65


def test_a_membership_change_gives_ranks_as_long_as_the_scheduler_would(monkeypatch: pytest.MonkeyPatch) -> None:
    made, ends = Made(), []
    monkeypatch.setattr(made.generation, "stop", lambda number, seconds, wait: ends.append((number, seconds)))
    made.agent._stop_workers(made.agent._worker_group)
    made.rendezvous.failed_elsewhere = lambda: True  # type: ignore[method-assign]
    made.agent._stop_workers(made.agent._worker_group)
    short = made.agent._resources.config.failure_stop_timeout
    assert ends == [(signal.SIGTERM, 30.0), (signal.SIGTERM, short)]


# ---- notes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("captures", "times"), [(True, 1), (False, 0)])
def test_the_absence_of_py_spy_is_said_once(monkeypatch: pytest.MonkeyPatch, captures: bool, times: int) -> None:
    said: list[str] = []
    monkeypatch.setattr(incident_log, "announce", lambda *lines, **_: said.extend(lines))
    monkeypatch.setattr(failure_incident, "misses_py_spy", lambda incident: incident.kind == "hang")
    made = Made()
    made.agent._resources.config = FaultToleranceConfig(capture_stacks=captures)  # type: ignore[misc]
    for local_rank in range(3):
        made.condemned.clear()
        made.verdict(3, local_rank)
        made.agent._read_reports()
    assert said.count(failure_incident.NO_PY_SPY) == times


def test_a_name_server_is_asked_nothing_at_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch makes an event of each phase and worker, with this machine's full name, and then drops it."""
    asked: list[str] = []
    monkeypatch.setattr("socket.getfqdn", lambda name="": asked.append(name) or "node")
    made = Made()
    pids = {0: SimpleNamespace(pid=4711)}
    processes = SimpleNamespace(workers=pids, pids=lambda: {0: 4711})
    generation = SimpleNamespace(number=0, processes=processes, tell_restart=lambda reason: None)
    monkeypatch.setattr(agent_module, "Generation", lambda *_: generation)

    made.agent._initialize_workers(made.agent._worker_group)

    assert asked == []
    assert [worker.id for worker in made.agent._worker_group.workers] == [4711]

    made.agent._worker_group.spec.event_log_handler = "console"
    made.agent._initialize_workers(made.agent._worker_group)
    made.rendezvous.shutdown()
    assert asked, "whoever has chosen an event log gets torch's events"


def test_what_a_failure_was_seen_at_is_what_the_log_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written down after the peers were asked to end."""
    made = Made()
    asked_ns: list[int] = []
    made.generation.request_stop = lambda number: asked_ns.append(time.monotonic_ns())
    incident = Incident("failure", 3, "it ended with 1", "nothing", ())
    monkeypatch.setattr(failure_incident, "look", lambda *_: {})
    monkeypatch.setattr(failure_incident, "failure_incident", lambda *_: incident)

    made.agent._failed(made.generation, made.agent._worker_group)

    at_ns = {name: facts.get("at_ns") for name, facts in made.events}
    assert list(at_ns)[:2] == ["seen", "asked"]
    assert at_ns["seen"] == made.agent._failure_seen_ns <= asked_ns[0] <= at_ns["asked"]


def test_a_restart_is_timed_from_what_this_node_has_seen_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not from its own last failure, generations ago, where another node has failed since."""
    made = Made()
    reasons: list[Any] = []
    workers = {0: SimpleNamespace(pid=4711)}
    of_ranks = {**vars(made.generation.processes), "workers": workers}
    started = SimpleNamespace(**{**vars(made.generation), "processes": SimpleNamespace(**of_ranks)})
    monkeypatch.setattr(agent_module, "Generation", lambda *_: started)
    started.tell_restart = reasons.append
    incident = Incident("failure", 3, "it ended with 1", "nothing", ())
    monkeypatch.setattr(failure_incident, "look", lambda *_: {})
    monkeypatch.setattr(failure_incident, "failure_incident", lambda *_: incident)

    def restart() -> None:
        made.agent._stop_workers(made.agent._worker_group)
        made.agent._start_workers(made.agent._worker_group)

    made.agent._failed(made.generation, made.agent._worker_group)
    restart()
    made.condemned.clear()
    stopped_ns = time.monotonic_ns()
    restart()
    made.rendezvous.failed_elsewhere = lambda: True  # type: ignore[method-assign]
    restart()
    made.condemned.add(0)  # a rank here is what the other node has waited for
    made.verdicts_ns = (7,)
    restart()
    made.rendezvous.shutdown()

    change, elsewhere = "the change of nodes", "the failure of another node"
    assert [what for what, _ in reasons] == ["the failure", change, elsewhere, "the failure"]
    assert reasons[0][1] == made.agent._failure_seen_ns < stopped_ns <= reasons[1][1] <= reasons[2][1]
    assert reasons[3][1] == 7, "not when it was condemned"


# ---- the end --------------------------------------------------------------------------------------------


def test_a_node_that_another_one_has_ended_says_last_who_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """That one may have ended the job before or after this node came to its next rendezvous."""
    made, said = Made(), list[tuple[str, ...]]()
    monkeypatch.setattr(incident_log, "announce", lambda *lines, **_: said.append(lines))
    made.agent.incidents.last = Incident("failure", 3, "?", "?", (RankReport(1, 1, 9, is_culprit=True, exit_code=3),))
    made.agent.incidents.tell_ended_elsewhere(3, "the job has ended: no restart is left")
    made.agent.incidents.tell_ended_elsewhere(4, "the job has ended: no restart is left")
    assert said == [
        ("the job has ended: no restart is left", "  rank 1 (pid 9) exited with code 3"),
        ("the job has ended: no restart is left",),
    ]


# ---- chores ---------------------------------------------------------------------------------------------


class PeriodicTasks:
    """A generation that notes its chores, and how soon it wants to be looked at again."""

    condemned: tuple[int, ...] = ()
    overstayed: tuple[int, ...] = ()

    def __init__(self, next_look: float | None, has_logged_phases: bool = True) -> None:
        self.done: list[str] = []
        self.next_look_seconds = lambda: next_look
        self.has_logged_phases = has_logged_phases

    def reap_orphans(self) -> None:
        self.done.append("orphans")

    def look_at_machine(self) -> None:
        self.done.append("machine")

    def log_phases(self) -> None:
        self.done.append("phases")

    def note_figures(self) -> None:
        self.done.append("figures")

    def look_after_the_unmonitored(self) -> list[str]:
        self.done.append("look")
        return []


@pytest.mark.parametrize(
    ("next_look", "has_logged_phases", "seconds"),
    [(None, True, 1.0), (None, False, 0.25), (0.5, True, 0.5), (5.0, True, 1.0), (0.0, True, 0.01)],
)
def test_chores_are_done_when_they_are_due_and_not_at_every_wake_up(
    next_look: float | None, has_logged_phases: bool, seconds: float
) -> None:
    """What wakes the launcher most is a restart, when there is no time for them."""
    made, generation = Made(), PeriodicTasks(next_look, has_logged_phases)
    agent: Any = made.agent
    agent._periodic_tasks.due_ns = time.monotonic_ns() + 3600 * S
    assert agent._periodic_tasks.do(generation) > 3500
    assert generation.done == []

    agent._periodic_tasks.due_ns = 0
    assert agent._periodic_tasks.do(generation) == seconds
    assert generation.done == ["orphans", "machine", "phases", "figures", "look"]
    assert 0 < agent._periodic_tasks.due_ns - time.monotonic_ns() <= seconds * S


def test_an_error_file_that_cannot_be_read_costs_no_other_rank_its_record() -> None:
    class Processes:
        def failure(self, worker: WorkerProcess) -> str:
            if worker.local_rank == 1:
                raise ValueError("not what torch writes")
            return f"the record of {worker.local_rank}"

    processes: Any = Processes()
    failed = [WorkerProcess(local_rank, pid=9, pidfd=-1) for local_rank in range(3)]
    assert worker_exits._records(processes, failed) == {0: "the record of 0", 2: "the record of 2"}


def test_a_signal_that_came_while_ranks_were_stopped_is_heard_before_the_next_rendezvous() -> None:
    """The wait for a generation may last for minutes."""
    made = Made()
    order: list[str] = []

    def raise_pending() -> None:
        order.append("signal")
        raise KeyboardInterrupt

    made.agent._resources.signals.raise_pending = raise_pending  # type: ignore[method-assign]
    made.rendezvous.next_rendezvous = lambda: order.append("rendezvous")  # type: ignore[method-assign,assign,return-value]

    with pytest.raises(KeyboardInterrupt):
        made.agent._rendezvous(made.agent._worker_group)
    assert order == ["signal"]
