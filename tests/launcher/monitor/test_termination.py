"""From verdict to signal: who is signalled, and who is spared because it, or the rank it waited for, came back.

Ranks are real processes with real cells; their stacks are recorded ones.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.agent import incident_log, monitor_reports
from launcher.agent.announcements import near_miss
from launcher.agent.job_limits import JobLimits
from launcher.agent.job_stories import JobStories
from launcher.incidents.accounts import account_text, parse_account
from launcher.incidents.attributed import Attribution
from launcher.incidents.children import children_of
from launcher.incidents.frames import Frame, Thread
from launcher.incidents.group_numbers import Questions
from launcher.incidents.incident import Incident
from launcher.incidents.incident_files import read_incident
from launcher.incidents.incident_writer import IncidentWriter
from launcher.incidents.rank_report import RankReport
from launcher.incidents.source_lines import SourceReader
from launcher.monitor import deadline_rules, hang_incident, rank_evidence, termination
from launcher.monitor.comebacks import Comeback, Comebacks
from launcher.monitor.deadline_rules import DeadlineRules
from launcher.monitor.hang_incident import trimmed
from launcher.monitor.messages import MonitorConfig, MonitorReport, MonitorSettings, Spared, WatchOrder
from launcher.monitor.near_miss import NearMiss
from launcher.monitor.rank_monitor import RankMonitor
from launcher.monitor.termination import Reporter, terminate
from launcher.monitor.waiters import waited_for
from launcher.processes.evidence import Evidence, ProcessLook, look_at
from launcher.processes.handles import wait_for_exit
from launcher.records.console import ERROR, WARNING
from resilience_core import FaultToleranceConfig
from resilience_core.monitoring import group_numbers
from resilience_core.monitoring.group_numbers import start_answering
from resilience_core.monitoring.learned_limits import LearnedLimits, Seen
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import (
    CLOSED,
    FIRST_CLOSED,
    FIRST_SECTION,
    LAST_HEARTBEAT,
    LEFT_SECTION,
    LIMITS_TEXT,
    OUT_OF_SECTION,
    PID,
    SHUT_DOWN,
    START_TIME,
    STATE,
    WATCHED,
)
from resilience_core.protocol.error_record import ErrorRecord
from resilience_core.protocol.group_numbers import GroupNumber, GroupNumbers
from resilience_core.protocol.limits_text import write_limits
from resilience_core.system.proc import process_start_time

S = 1_000_000_000
WAITS = "print('ready', flush=True); input()"
IN_COLLECTIVE = (Frame("all_reduce", "torch/distributed/distributed_c10d.py", 3000), Frame("main", "train.py", 20))
IN_C = (Frame("stuck", "train.py", 7), Frame("main", "train.py", 12))


def settings_of(config: FaultToleranceConfig, owns_ranks: bool = True) -> MonitorSettings:
    """A monitor's settings where there is no monitor."""
    return MonitorSettings(
        -1, -1, -1, "", MonitorConfig.from_document(json.loads(config.to_json())), (), (), owns_ranks
    )


class Group:
    """Two ranks that are late in section 'step'."""

    def __init__(self, folder: Path, spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch):
        self.folder = folder
        self.processes = [spawn(WAITS) for _ in range(2)]
        for process in self.processes:  # one that still runs would be blamed for it
            _until_asleep(process.pid)
        self.cells = [Cell.create(str(folder / str(number)), rank=number, generation=0) for number in range(2)]
        now_ns = time.monotonic_ns()
        self.ranks = []
        for number, (cell, process) in enumerate(zip(self.cells, self.processes, strict=True)):
            cell.words[PID], cell.words[START_TIME] = process.pid, process_start_time(process.pid) or 0
            cell.words[STATE] = WATCHED
            word = cell.add_section("step")
            cell.words[word + 1], cell.words[word] = now_ns - 3 * S, now_ns - S
            theirs = Cell.from_descriptor(os.dup(cell.descriptor))
            order = WatchOrder(0, number, number, cell.path)
            self.ranks.append(RankMonitor(order, theirs, None, now_ns - 60 * S))
        self.rules: DeadlineRules[RankMonitor] = DeadlineRules(
            time.monotonic_ns, lambda ns: time.sleep(ns / S), lambda _: [], 0
        )
        self.stacks: dict[int, tuple[Frame, ...]] = {0: IN_C, 1: IN_COLLECTIVE}
        self.meanwhile: Callable[[], Any] = lambda: None
        self.is_being_ended: Callable[[], bool] = lambda: False
        self.when_told: Callable[[], Any] = lambda: None
        self.when_awaited: Callable[[], Any] = lambda: None
        self.comebacks = Comebacks()
        self.number = "SIGKILL"
        self.owns_ranks = True
        self.incidents: list[tuple[Incident, Sequence[int], str | None]] = []
        self.spared: list[NearMiss] = []
        self.asked: list[int] = []
        self.interruptible: set[int] = set()
        self.threads: list[Thread] = []
        monkeypatch.setattr(rank_evidence, "take_stacks", self._recorded_stacks)
        monkeypatch.setattr(hang_incident, "_LONGEST_LOOK_AT_CHILDREN_SECONDS", 180)
        monkeypatch.setattr("launcher.incidents.incident_writer.SLOWEST_WRITE_SECONDS", 180)

    def _recorded_stacks(
        self, pids: dict[int, int], *, interruptible: Collection[int], **_: Any
    ) -> dict[int, tuple[Thread, ...]]:
        self.asked, self.interruptible = list(pids), set(interruptible)
        self.meanwhile()
        return {
            n: (Thread("MainThread", True, False, frames, was_asked=True), *self.threads)
            for n, frames in self.stacks.items()
        }

    def limit_ns(self, number: int) -> int:
        return int(self.cells[number].words[FIRST_SECTION] - self.cells[number].words[FIRST_SECTION + 1])

    def close(self, number: int) -> None:
        self.cells[number].words[FIRST_SECTION] = CLOSED

    def have_due(self, number: int, seconds: float) -> None:
        """Let only the others be overdue, this one in so many seconds, on a clock that stands still until set."""
        self.now_ns = time.monotonic_ns()
        self.rules = DeadlineRules(lambda: self.now_ns, lambda _: None, lambda _: [], 0)
        self.cells[number].words[FIRST_SECTION] = self.now_ns + int(seconds * S)

    def condemn(self) -> list[int]:
        """Look, condemn whoever is late, and return who was signalled."""
        findings = self.rules.look(self.ranks)
        assert findings is not None
        config = FaultToleranceConfig(rank_termination_signal=self.number, stack_capture_timeout=180)
        settings = settings_of(config, self.owns_ranks)
        writer = IncidentWriter(str(self.folder))
        reporter = Reporter(
            self._hear,
            self.spared.extend,
            lambda: self.is_being_ended(),
            await_others=lambda: self.when_awaited() or (),
        )
        signalled = terminate(
            findings, self.ranks, self.rules, settings, writer, SourceReader(), reporter, self.comebacks
        )
        writer.finish(180)
        return [rank.order.local_rank for rank in signalled]

    def _hear(self, *told: Any) -> None:
        self.incidents.append(told)
        self.when_told()

    def has_ended(self, number: int) -> bool:
        pidfd = os.pidfd_open(self.processes[number].pid)
        try:
            return bool(wait_for_exit([pidfd], 0.5))
        finally:
            os.close(pidfd)


class Number:
    """A rank of which only the number is known."""

    def __init__(self, number: int) -> None:
        self.order = WatchOrder(0, number, number, "")


def _until_asleep(pid: int) -> None:
    end = time.monotonic() + 180
    while (look := look_at(pid)) is not None and look.state != "S":
        assert time.monotonic() < end, f"process {pid} is still in state {look.state}"
        threading.Event().wait(0.001)


@pytest.fixture
def group(
    tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Group]:
    group = Group(tmp_path, spawn, monkeypatch)
    yield group
    for cell in group.cells:
        cell.close()


def test_other_nodes_are_waited_for_after_the_verdict_was_told_and_before_the_signal(group: Group) -> None:
    seen: list[tuple[int, list[int | None]]] = []
    group.when_awaited = lambda: seen.append((len(group.incidents), [each.poll() for each in group.processes]))
    assert group.condemn() == [0, 1]
    assert seen == [(1, [None, None])]


def test_who_comes_back_while_other_nodes_are_waited_for_is_spared(group: Group) -> None:
    group.when_awaited = lambda: group.close(0)
    assert group.condemn() == []  # the other one only waits for it
    assert sorted(miss.local_rank for miss in group.spared) == [0, 1]


def test_who_is_late_is_told_of_and_signalled_and_the_one_outside_a_collective_is_blamed(group: Group) -> None:
    assert group.condemn() == [0, 1]
    assert [process.wait(60) for process in group.processes] == [-signal.SIGKILL] * 2
    ((incident, condemned, problem),) = group.incidents
    assert (list(condemned), problem, group.spared) == ([0, 1], None, [])
    assert [rank.rank for rank in read_incident(str(incident.folder)).culprits] == [0]


@pytest.mark.parametrize("looks", [0, 1], ids=["before it is written", "while it is written"])
def test_a_verdict_is_no_incident_where_the_launcher_ends_the_generation_meanwhile(group: Group, looks: int) -> None:
    """What the ranks look like then may be the launcher's own doing, and it has told of its own reason."""
    answers = iter([False] * looks + [True])
    group.is_being_ended = lambda: next(answers)

    assert group.condemn() == []

    assert (group.incidents, group.spared) == ([], [])
    assert not [path for path in group.folder.rglob("*") if path.name in ("incident.json", "0001")]
    assert not any(group.has_ended(number) for number in range(2))
    group.is_being_ended = lambda: False
    assert group.condemn() == [0, 1]  # nobody is left condemned


def test_what_a_hung_rank_may_wait_for_is_named_with_its_stack(
    group: Group, spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """A worker of a DataLoader, say: the rank itself only shows that it waits."""
    parent = spawn(
        "import subprocess; helper = subprocess.Popen(['sleep', '600']); print('ready', flush=True); helper.wait()"
    )
    (child,) = (each.pid for each in children_of(parent.pid, time.monotonic() + 60))
    group.cells[0].words[PID], group.cells[0].words[START_TIME] = parent.pid, process_start_time(parent.pid) or 0
    group.stacks[-child] = (Frame("load", "data.py", 7), Frame("main", "train.py", 12))

    assert group.condemn() == [0, 1]
    os.kill(child, signal.SIGKILL)

    assert group.asked == [0, 1, -child]  # the ranks' stacks first
    ((told, _, _),) = group.incidents
    written = read_incident(str(told.folder))
    for incident in (told, written):
        assert [(each.pid, each.name, str(each.place)) for each in incident.ranks[0].children] == [
            (child, "sleep", "load (data.py:7)")
        ]
    assert len(written.ranks[0].children[0].stack[0].frames) == 2
    assert f"  child   pid {child} (sleep): state " in "\n".join(told.summary())


def test_where_ranks_and_children_without_a_stack_are_in_the_kernel_is_told(
    group: Group, spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_incident, "_LONGEST_LOOK_AT_CALLS_SECONDS", 180)
    parent = spawn("import subprocess; helper = subprocess.Popen(['cat']); print('ready', flush=True); helper.wait()")
    (child,) = (each.pid for each in children_of(parent.pid, time.monotonic() + 60))
    group.cells[0].words[PID], group.cells[0].words[START_TIME] = parent.pid, process_start_time(parent.pid) or 0
    group.stacks = {}
    for pid in (parent.pid, child):
        _until_asleep(pid)

    assert group.condemn() == [0, 1]
    os.kill(child, signal.SIGKILL)

    ((told, _, _),) = group.incidents
    for incident in (told, read_incident(str(told.folder))):
        assert [rank.system_call for rank in incident.ranks] == ["wait4", "read"]
        assert "  stack   no Python frame known: sleeps in the kernel (state S) in wait4" in "\n".join(
            incident.summary()
        )
    assert "(cat): state S in read" in "\n".join(incident.report())


def test_who_answers_tells_how_far_it_is_and_nobody_else_is_waited_for(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked before stacks are taken, read after them; a stopped rank is not asked."""
    monkeypatch.setattr(hang_incident, "_LONGEST_ANSWER_SECONDS", 180)
    threads = [start_answering(cell.path) for cell in group.cells]
    numbers = GroupNumbers((GroupNumber("0", 5, 2, "gloo", "", "", 5),), False)
    monkeypatch.setattr(group_numbers, "answers_to", lambda question: [numbers.to_line(question, is_last=True)])
    os.kill(group.processes[0].pid, signal.SIGSTOP)
    end = time.monotonic() + 180
    while (look := look_at(group.processes[0].pid)) is not None and look.state != "T":
        assert time.monotonic() < end
    assert group.condemn() == [0, 1]
    for thread in threads:
        assert thread is not None
        thread.stop()
    ((told, _, _),) = group.incidents
    for incident in (told, read_incident(str(told.folder))):
        stopped, waits = (rank.evidence for rank in incident.ranks)
        assert stopped is not None
        assert waits is not None
        assert (stopped.groups, stopped.is_idle) == ((), None)
        assert (waits.groups, waits.is_idle) == (numbers.groups, False)


@pytest.mark.parametrize(("ago_seconds", "is_lively"), [(60, False), (1, True)])
def test_a_rank_is_lively_that_has_reported_shortly_before(group: Group, ago_seconds: int, is_lively: bool) -> None:
    """What it does in the moment of a look then says nothing about a hang."""
    group.cells[0].words[LAST_HEARTBEAT] = time.monotonic_ns() - ago_seconds * S
    view = group.ranks[0].view()
    assert view is not None
    known = rank_evidence.evidence_of_rank(group.ranks[0], view, None, (), {}, GroupNumbers(), time.monotonic_ns())
    assert known.is_lively is is_lively


def test_all_evidence_together_has_one_end(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of one part after another added up, and the signal came after twice the time and more."""
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr(hang_incident, "time", clock)
    monkeypatch.setattr(hang_incident, "_LONGEST_LOOK_AT_CHILDREN_SECONDS", 0.05)
    given: list[float] = []

    def uses_up(seconds: float) -> float:
        given.append(seconds)
        now[0] += seconds
        return seconds

    original = hang_incident.stacks_of_ranks
    monkeypatch.setattr(hang_incident, "families_of", lambda _, seconds: uses_up(seconds) and {})
    monkeypatch.setattr(hang_incident._system_calls, "calls", lambda _, seconds: uses_up(seconds) and {})
    monkeypatch.setattr(hang_incident, "stacks_of_ranks", lambda *told: uses_up(told[4]) and original(*told))
    monkeypatch.setattr(SourceReader, "lines", lambda _, frames, seconds, began: uses_up(seconds) and {})
    ends: list[float] = []
    monkeypatch.setattr(Questions, "answered", lambda _, end, without: ends.append(end) or {})
    monkeypatch.setattr(hang_incident, "native_stacks_of", lambda *told: ends.append(told[3]) or ({}, {}))
    assert group.condemn() == [0, 1]
    assert len(given) == 4
    assert given[3] >= 1  # the source of lines has a share of its own
    assert now[0] == pytest.approx(1180)  # and nothing is given twice
    assert ends == [pytest.approx(1180)] * 2


def test_a_child_of_a_culprit_that_is_not_overdue_is_named(
    group: Group, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    """``for batch in loader: with section("step")``: it hangs between sections, without a limit, its victims in one."""
    parent = spawn(
        "import subprocess; helper = subprocess.Popen(['sleep', '600']); print('ready', flush=True); helper.wait()"
    )
    (child,) = (each.pid for each in children_of(parent.pid, time.monotonic() + 60))
    group.have_due(0, 600)
    group.cells[0].words[PID], group.cells[0].words[START_TIME] = parent.pid, process_start_time(parent.pid) or 0
    group.stacks[0] = (Frame("_try_wait", "subprocess.py", 1990, "python"), *IN_C)

    assert group.condemn() == [1]
    os.kill(child, signal.SIGKILL)

    ((told, _, _),) = group.incidents
    assert [rank.rank for rank in told.culprits] == [0]
    for incident in (told, read_incident(str(told.folder))):
        assert [(each.pid, each.is_awaited) for each in incident.ranks[0].children] == [(child, True)]
    assert f"  child   pid {child} (sleep): state " in "\n".join(told.summary())


def test_a_wait_that_only_the_source_tells_of_is_one(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``work.wait()`` is a C function: its stack ends in the script, as that of a rank that hangs there does."""
    script = tmp_path / "train.py"
    script.write_text("work = dist.all_reduce(t, async_op=True)\nwork.wait()\nread(batch)\n")
    group.stacks = {n: (Frame("step", "train.py", line, path=str(script)),) for n, line in ((0, 2), (1, 3))}
    began = time.time()
    monkeypatch.setattr(
        "launcher.monitor.hang_incident.started_at", lambda _: began
    )  # as if the ranks came after the script

    assert group.condemn() == [0, 1]
    ((incident, _, _),) = group.incidents
    assert [rank.rank for rank in incident.culprits] == [1]
    assert [rank.waits_in for rank in incident.ranks] == ["step (train.py:2)", None]


@pytest.mark.parametrize(("line", "state", "hedge"), [(1, "S", True), (3, "S", False), (1, "D", False)])
def test_who_may_wait_in_a_way_that_no_line_shows_is_named_with_a_hedge(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: int, state: str, hedge: bool
) -> None:
    for module in (hang_incident, rank_evidence):
        monkeypatch.setattr(module, "look_at", lambda _: ProcessLook(state))
    script = tmp_path / "train.py"
    script.write_text("wait_for_it()\n\ntime.sleep(1000)\n")
    group.stacks = {0: (Frame("step", "train.py", line, path=str(script)),), 1: IN_COLLECTIVE}
    began = time.time()
    monkeypatch.setattr(
        "launcher.monitor.hang_incident.started_at", lambda _: began
    )  # as if the ranks came after the script

    group.condemn()
    ((incident, _, _),) = group.incidents
    assert [rank.rank for rank in incident.culprits] == [0]
    assert incident.why.startswith("likely: ") is hedge


@pytest.mark.parametrize(
    ("line", "waits", "may_wait"),
    [
        ("work.wait()", True, False),
        ("f(work.wait())", None, True),
        ("f()", False, True),
        ("while True: pass", False, False),
    ],
)
def test_what_may_wait_by_its_line_may_wait_unseen_as_well(
    group: Group,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    waits: bool | None,
    may_wait: bool,
) -> None:
    """One that spins on a property which asks for a wait's end was named as the only one that uses the processor."""
    known: list[Evidence] = []
    monkeypatch.setattr(hang_incident, "attribute", lambda found, **_: (known.extend(found), Attribution((), ""))[1])
    script = tmp_path / "train.py"
    script.write_text(f"{line}\n")
    group.stacks = {0: (Frame("step", "train.py", 1, path=str(script)),)}
    began = time.time()
    monkeypatch.setattr("launcher.monitor.hang_incident.started_at", lambda _: began)

    group.condemn()
    assert [(each.waits, each.may_wait) for each in known] == [(waits, may_wait), (None, False)]


def test_evidence_tells_how_long_a_rank_was_silent_whether_it_hangs_in_the_kernel_and_for_whom_it_waits(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[Evidence] = []
    monkeypatch.setattr(hang_incident, "attribute", lambda found, **_: (known.extend(found), Attribution((), ""))[1])
    states = {each.pid: iter(states) for each, states in zip(group.processes, ("DD", "DS"), strict=True)}
    for module in (hang_incident, rank_evidence):
        monkeypatch.setattr(module, "look_at", lambda pid: ProcessLook(next(states[pid])))
    group.stacks[0] = (Frame("recv", *IN_COLLECTIVE[0][1:]), *IN_COLLECTIVE[1:])
    group.have_due(1, 0.05)  # on a clock that stands still
    opened_ns = [cell.words[FIRST_SECTION + 1] for cell in group.cells]

    group.condemn()
    assert [each.silent_ns for each in known] == [group.now_ns - at_ns for at_ns in opened_ns]
    assert [each.hangs_in_kernel for each in known] == [True, False]
    assert [(each.waits_for_one, each.waits_for_all) for each in known] == [(True, False), (False, True)]


@pytest.mark.parametrize("line", ["work.wait()", "read(batch)"])
def test_who_waits_for_a_thread_that_waits_for_others_is_not_named(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    script = tmp_path / "saver.py"
    script.write_text(f"{line}\n")
    group.stacks = {0: (Frame("join", "threading.py", 1119, "python"), *IN_C), 1: IN_COLLECTIVE}
    group.threads = [Thread("saver", False, False, (Frame("save", "saver.py", 1, path=str(script)),))]
    began = time.time()
    monkeypatch.setattr("launcher.monitor.hang_incident.started_at", lambda _: began)

    group.condemn()
    ((incident, _, _),) = group.incidents
    assert [rank.rank for rank in incident.culprits] == ([] if line == "work.wait()" else [0])


def test_source_that_was_changed_since_the_ranks_were_started_leaves_open_who_waits(
    group: Group, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("read(batch)\nwork.wait()\nread(batch)\n")
    group.stacks = {n: (Frame("step", "train.py", line, path=str(script)),) for n, line in ((0, 2), (1, 3))}
    later = time.time() + 10
    os.utime(script, (later, later))

    group.condemn()

    ((incident, _, _),) = group.incidents
    assert [rank.waits_in for rank in incident.ranks] == [None, None]
    assert incident.culprits == ()


def test_source_that_does_not_answer_leaves_open_who_waits(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SourceReader, "lines", lambda *_: {})

    assert group.condemn() == [0, 1]
    assert group.incidents[0][0].culprits == ()


def test_native_frames_are_for_the_report_and_in_no_message(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    native = (Thread("MainThread", True, False, (Frame("poll", "libc.so.6", 0, "native"), *IN_C)),)
    asked: list[list[int]] = []

    def look(pids: dict[int, int], *_: Any) -> Any:
        asked.append(list(pids))
        return {0: native}, {1: "not taken"}

    monkeypatch.setattr(hang_incident, "native_stacks_of", look)
    assert group.condemn() == [0, 1]
    assert asked == [[0, 1]]  # the culprit first
    ((told, _, _),) = group.incidents
    assert [rank.native for rank in trimmed(told).ranks] == [(), ()]
    written = read_incident(str(told.folder))
    assert [(rank.native, rank.no_native) for rank in written.ranks] == [(native, None), ((), "not taken")]
    account = parse_account(account_text(written, was_told=True)).incident
    assert [rank.native for rank in account.ranks] == [(), ()]


@pytest.mark.parametrize(("back", "asked_of"), [((), [0, 1]), ((1,), [0]), ((0, 1), [])])
def test_no_rank_that_came_back_is_halted_for_its_native_frames(
    group: Group, monkeypatch: pytest.MonkeyPatch, back: Sequence[int], asked_of: list[int]
) -> None:
    """py-spy halts it while it reads symbols, and the report counts that time as its own."""
    asked: list[list[int]] = []
    monkeypatch.setattr(hang_incident, "native_stacks_of", lambda pids, *_: asked.append(list(pids)) or ({}, {}))
    group.meanwhile = lambda: [group.close(number) for number in back]
    group.condemn()
    assert asked == [asked_of]


def test_a_peer_that_was_only_due_is_not_halted_where_who_was_late_came_back(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []
    monkeypatch.setattr(hang_incident, "native_stacks_of", lambda pids, *_: asked.append(list(pids)) or ({}, {}))
    group.have_due(1, 0.05)
    group.meanwhile = lambda: group.close(0)
    group.condemn()
    assert asked == [[]]


def test_a_thread_in_code_of_its_own_is_told_with_the_line_alone(group: Group) -> None:
    group.threads = [Thread("saver", False, False, IN_C), Thread("pool", False, False, IN_COLLECTIVE[:0])]

    group.condemn()

    ((told, _, _),) = group.incidents
    assert [(thread.name, len(thread.frames)) for thread in told.ranks[0].stack] == [("saver", 1), ("MainThread", 2)]
    assert len(read_incident(str(told.folder)).ranks[0].stack) == 3


def test_a_peer_that_has_shut_monitoring_down_is_said_to_have(group: Group) -> None:
    group.cells[1].words[STATE] = SHUT_DOWN

    assert group.condemn() == [0]
    ((incident, _, _),) = group.incidents
    assert [rank.unmonitored for rank in incident.ranks] == [None, "has shut monitoring down"]


def test_how_often_each_has_closed_its_section_tells_who_is_ahead(group: Group) -> None:
    group.stacks = {0: IN_COLLECTIVE, 1: IN_COLLECTIVE}
    group.cells[0].words[FIRST_CLOSED], group.cells[1].words[FIRST_CLOSED] = 11, 12

    assert group.condemn() == [0, 1]
    ((incident, _, _),) = group.incidents
    assert [rank.rank for rank in incident.culprits] == [1]
    assert incident.why.startswith("likely: it has closed section 'step' 12 times, the other 11 times")


@pytest.mark.parametrize(
    ("heartbeat_s", "closed", "is_told"),
    [(1, 0, False), (1, 3, True), (9, 0, True)],
    ids=["heartbeats", "both", "none"],
)
def test_a_rank_that_is_monitored_by_heartbeats_alone_is_not_between_sections(
    group: Group, heartbeat_s: int, closed: int, is_told: bool
) -> None:
    """It was said to have been there since it had initialised monitoring, and had sent a heartbeat right before."""
    now_ns, words = time.monotonic_ns(), group.cells[1].words
    words[FIRST_SECTION], words[FIRST_CLOSED] = CLOSED, closed
    words[LEFT_SECTION], words[LAST_HEARTBEAT] = now_ns - 5 * S, now_ns - heartbeat_s * S
    assert group.condemn() == [0]
    ((incident, _, _),) = group.incidents
    assert (incident.ranks[1].open_seconds is not None) is is_told


def test_of_ranks_that_wait_for_the_store_nobody_has_skipped_a_collective(group: Group) -> None:
    frames = (Frame("_create_c10d_store", "torch/distributed/rendezvous.py", 190), Frame("main", "train.py", 9))
    group.stacks = {0: frames, 1: frames}

    assert group.condemn() == [0, 1]
    ((incident, _, _),) = group.incidents
    assert incident.culprits == ()
    assert incident.why.startswith("every rank waits for the store of the process group")


def test_who_waits_for_a_culprit_that_comes_back_is_spared_with_it(group: Group) -> None:
    """It closes its own section a moment later; killing it meanwhile would cost a restart for nothing."""
    group.meanwhile = lambda: group.close(0)

    assert group.condemn() == []
    assert group.incidents == []
    assert [(miss.rank, miss.waited_for) for miss in group.spared] == [(0, None), (1, 0)]
    assert not group.has_ended(1)
    assert (group.folder / "near_misses" / "0001" / "incident.json").exists()
    assert not any((group.folder / "incidents").iterdir())


def test_the_limit_of_who_waited_runs_anew_and_no_longer(group: Group) -> None:
    """A look twelve milliseconds later found it overdue again, and killed it before the collective could go on."""
    group.have_due(1, -1.0)
    group.meanwhile = lambda: group.close(0)
    assert group.condemn() == []
    group.meanwhile = lambda: None

    group.now_ns += group.limit_ns(1) - 1
    assert group.rules.look(group.ranks) is None
    group.now_ns += 1
    assert group.condemn() == [1]  # it did not follow
    ((incident, _, _),) = group.incidents
    assert (incident.ranks[1].was_withheld, incident.deadline_ns) == (True, None)
    (overdue,) = [line for line in incident.summary() if line.startswith("  overdue rank 1")]
    assert "no verdict while another rank was within its limits" in overdue


@pytest.mark.parametrize("seconds", [-0.05, 0.05], ids=["overdue itself", "due together"])
def test_who_waits_for_one_that_came_back_before_its_stack_was_taken_is_spared(group: Group, seconds: float) -> None:
    """All of them stand in the collective by then, and nobody is to blame."""
    group.have_due(1, seconds)
    group.stacks = {0: IN_COLLECTIVE, 1: IN_COLLECTIVE}
    group.meanwhile = lambda: group.close(0)

    assert group.condemn() == []
    assert [(miss.rank, miss.waited_for, miss.was_late) for miss in group.spared] == [
        (0, None, True),
        (1, 0, seconds < 0),
    ]
    group.now_ns += S
    assert group.rules.look(group.ranks) is None


def test_who_is_only_due_and_does_not_wait_has_no_limit_anew(group: Group) -> None:
    group.have_due(1, 0.05)
    group.stacks = {0: IN_COLLECTIVE, 1: IN_C}
    group.meanwhile = lambda: group.close(0)

    assert group.condemn() == []
    assert [(miss.rank, miss.waited_for) for miss in group.spared] == [(0, None), (1, None)]
    group.meanwhile = lambda: None
    group.now_ns += S // 20
    assert group.condemn() == [1]


@pytest.mark.parametrize("stack", [IN_C, IN_COLLECTIVE], ids=["blamed", "nobody blamed"])
@pytest.mark.parametrize(("share", "is_spared"), [(0.5, True), (0.49, False)])
def test_who_waits_for_one_without_a_limit_that_was_silent_and_comes_back_is_spared(
    group: Group, stack: tuple[Frame, ...], share: float, is_spared: bool
) -> None:
    """One that gives signs all the time would keep a hang of the others from being found. Half of the limit counts."""
    group.have_due(1, -1.0)
    group.close(0)
    words = group.cells[0].words
    words[LEFT_SECTION] = group.now_ns - math.ceil(share * group.limit_ns(1))

    def come_back() -> None:
        words[LEFT_SECTION] = group.now_ns

    group.stacks[0] = stack
    group.meanwhile = come_back
    assert group.condemn() == ([] if is_spared else [1])
    assert [(miss.rank, miss.waited_for) for miss in group.spared] == ([(1, 0)] if is_spared else [])


@pytest.mark.parametrize("silent", [60, 2], ids=["before the wait", "since"])
def test_who_waits_for_one_that_has_given_no_sign_since_is_signalled(group: Group, silent: int) -> None:
    group.have_due(1, -1.0)
    group.close(0)
    group.cells[0].words[LEFT_SECTION] = group.now_ns - silent * S
    assert group.condemn() == [1]


def test_a_culprit_that_came_back_before_who_did_not_wait_counts(group: Group) -> None:
    """The one that did not wait comes back at the next look, when only those are left that waited for both."""
    ranks, cases = group.ranks, group.rules.look(group.ranks)
    assert cases is not None
    group.close(0)
    incident = Incident("hang", 0, "", "", (RankReport(0, 0, 7, is_culprit=True), RankReport(1, 1, 8)))
    standing, withdrawn = termination._still_standing(incident, cases, ranks, group.rules, cases.cases, ())
    assert ([case.rank for case in standing], [each.case.rank for each in withdrawn]) == ([ranks[1]], [ranks[0]])
    waits = incident._replace(ranks=(incident.ranks[0], incident.ranks[1]._replace(waits_in="all_reduce")))
    standing, back = termination._still_standing(waits, cases, ranks, group.rules, standing, (), withdrawn)
    assert (standing, [(each.case.rank, each.waited_for) for each in back]) == ([], [(ranks[1], 0)])


@pytest.mark.parametrize(("patience_ns", "condemned"), [(S + 1, []), (S, [1])])
def test_who_waits_for_one_that_is_late_again_and_again_is_found_at_last(
    group: Group, monkeypatch: pytest.MonkeyPatch, patience_ns: int, condemned: list[int]
) -> None:
    """A rank that retries something whose own timeout is its limit, say, while another one is stuck."""
    group.have_due(1, -1.0)
    monkeypatch.setattr(deadline_rules, "PATIENCE_NS", patience_ns)
    group.meanwhile = lambda: group.close(0)
    assert group.condemn() == condemned


@pytest.mark.parametrize(
    ("ago", "silent", "stack", "is_spared"),
    [
        (0.1, 1.6, IN_COLLECTIVE, True),
        (0.1, 1.4, IN_COLLECTIVE, False),  # less than half of the limit
        (9.0, 1.6, IN_COLLECTIVE, False),  # before its section was opened
        (0.1, 1.6, IN_C, False),
    ],
)
def test_who_waits_for_a_rank_of_another_node_that_came_back_is_spared(
    group: Group, ago: float, silent: float, stack: tuple[Frame, ...], is_spared: bool
) -> None:
    group.have_due(1, -1.0)
    group.close(0)
    group.stacks = {0: IN_COLLECTIVE, 1: stack}
    group.cells[1].words[FIRST_SECTION + 1] = group.now_ns - 4 * S
    group.when_awaited = lambda: (7, int(ago * S), int(silent * S))
    assert group.condemn() == ([] if is_spared else [1])
    assert [(miss.rank, miss.waited_for) for miss in group.spared] == ([(1, 7)] if is_spared else [])
    assert group.has_ended(1) is not is_spared


def test_a_rank_of_another_node_explains_a_wait_once(group: Group) -> None:
    """The limit has run anew since it came back."""
    group.have_due(1, -1.0)
    group.close(0)
    group.stacks = {0: IN_COLLECTIVE, 1: IN_COLLECTIVE}
    came_back_ns = group.now_ns - S // 10
    group.when_awaited = lambda: (7, group.now_ns - came_back_ns, 60 * S)
    assert group.condemn() == []
    group.now_ns += group.limit_ns(1)
    assert group.condemn() == [1]


def test_where_one_of_our_own_is_to_blame_it_does_not_matter_who_came_back_elsewhere(group: Group) -> None:
    group.when_awaited = lambda: (7, 1, 60 * S)
    assert group.condemn() == [0, 1]
    ((incident, _, _),) = group.incidents
    assert [rank.rank for rank in incident.culprits] == [0]


@pytest.mark.parametrize(("rank", "is_spared"), [(0, True), (1, False)], ids=["another", "itself"])
def test_a_rank_that_came_back_before_the_verdict_explains_the_wait_of_others(
    group: Group, rank: int, is_spared: bool
) -> None:
    """Its own limit was shorter, and it works outside of any section when that of the others has passed."""
    group.have_due(1, -1.0)
    group.close(0)
    group.cells[0].words[LEFT_SECTION] = group.now_ns - S // 10
    group.comebacks.note(0, [Comeback(rank, group.now_ns - S // 10, 60 * S)])
    group.stacks = {0: IN_C if rank == 0 else IN_COLLECTIVE, 1: IN_COLLECTIVE}
    assert group.condemn() == ([] if is_spared else [1])
    assert [(miss.rank, miss.waited_for) for miss in group.spared] == ([(1, 0)] if is_spared else [])


def test_who_comes_back_is_remembered_with_how_long_it_was_silent(group: Group) -> None:
    """Also one that was not overdue itself, and not one that only waited for it."""
    group.have_due(1, 0.05)
    opened_ns = group.cells[0].words[FIRST_SECTION + 1]
    group.meanwhile = lambda: group.close(0)
    assert group.condemn() == []
    assert group.comebacks.of(0) == (Comeback(0, group.now_ns, group.now_ns - opened_ns),)


@pytest.mark.parametrize(
    ("back", "waiting", "is_spared"),
    [
        ((0, 1), (0, 1, 2, 3), True),
        ((0,), (0, 1, 2, 3), False),
        ((0, 1), (0, 1), False),
        ((0, 1), (0, 1, 2), False),
        ((), (0, 1, 2, 3), False),
        ((0, 1, 2, 3), (0, 1, 2, 3), False),
    ],
)
def test_only_where_every_culprit_is_back_are_those_spared_that_waited(
    back: tuple[int, ...], waiting: tuple[int, ...], is_spared: bool
) -> None:
    reports = [RankReport(n, n, 7, is_culprit=n < 2, waits_in="all_reduce" if n in waiting else None) for n in range(4)]
    ranks: list[Any] = [Number(n) for n in range(4)]
    verdict = SimpleNamespace(since_ns=0, deadline_ns=S)
    cases: list[Any] = [
        SimpleNamespace(rank=rank, was_late=True, is_late=True, verdict=verdict, answered_by_ns=S) for rank in ranks
    ]
    findings: Any = SimpleNamespace(cases=cases)
    standing = [case for n, case in enumerate(cases) if n not in back]

    came_back = waited_for(
        Incident("hang", 0, "", "", tuple(reports)), findings, ranks, standing, [cases[n] for n in back]
    )

    assert (came_back is not None) is is_spared


@pytest.mark.parametrize("waiting", [{1, 2}, {0, 2}, {0, 1, 2}])
def test_of_those_that_came_back_one_that_waited_itself_is_not_waited_for(waiting: set[int]) -> None:
    """The collective has let it go just before it let the others go."""
    reports = [RankReport(n, n, 7, waits_in="all_reduce" if n in waiting else None) for n in range(3)]
    verdict = SimpleNamespace(since_ns=0, deadline_ns=S)
    cases: list[Any] = [
        SimpleNamespace(rank=Number(n), was_late=True, is_late=True, verdict=verdict, answered_by_ns=S)
        for n in range(3)
    ]
    findings: Any = SimpleNamespace(cases=cases)
    incident = Incident("hang", 0, "", "", tuple(reports))
    came_back = waited_for(incident, findings, [case.rank for case in cases], cases[2:], cases[:2])
    assert came_back == min({0, 1} - waiting, default=0)


@pytest.mark.parametrize(
    ("owns_ranks", "end"),
    [
        (True, "ends with the whole group"),
        (
            False,
            "is not signalled: whoever started it has to end it; restarting it is up to whoever started it",
        ),
    ],
)
def test_what_happens_to_a_culprit_that_was_not_overdue_is_said(group: Group, owns_ranks: bool, end: str) -> None:
    group.owns_ranks = owns_ranks
    group.stacks = {0: IN_COLLECTIVE, 1: IN_C}
    group.cells[1].words[FIRST_SECTION] += 60 * S

    assert group.condemn() == [0]
    ((incident, _, _),) = group.incidents
    assert [rank.rank for rank in incident.culprits] == [1]
    assert incident.action == f"SIGKILL to rank 0; rank 1, not overdue by itself, {end}"
    (overdue,) = incident.overdue
    assert (overdue.rank, overdue.section) == (0, "step")


def test_several_culprits_that_were_not_overdue_are_spoken_of_as_several() -> None:
    reports = [RankReport(number, number, 7, is_culprit=number > 0) for number in range(3)]
    condemned: Any = [SimpleNamespace(order=SimpleNamespace(rank=0))]
    config = FaultToleranceConfig(rank_termination_signal="SIGKILL")
    ours = hang_incident.action_on(condemned, reports, settings_of(config, owns_ranks=True))
    assert ours == "SIGKILL to rank 0; rank 1, 2, not overdue by themselves, end with the whole group"
    theirs = hang_incident.action_on(condemned, reports, settings_of(config, owns_ranks=False))
    assert "rank 1, 2, not overdue by themselves, are not signalled: whoever started them has to end them" in theirs


@pytest.mark.parametrize(("seconds", "was_withheld"), [(0.009, False), (0.2, True)])
def test_a_rank_that_was_a_few_milliseconds_late_was_not_left_any_time(
    group: Group, seconds: float, was_withheld: bool
) -> None:
    """A limit that was met anew milliseconds later is condemned together with the other's."""
    group.have_due(0, -seconds)
    findings = DeadlineRules(lambda: group.now_ns, lambda _: None, lambda _: [], 0).look(group.ranks)
    assert findings is not None
    for case in findings.cases:
        case.held = case.deadlines
    findings.cases = findings.cases[:1]
    incident = hang_incident._incident(findings, group.ranks, settings_of(FaultToleranceConfig()), SourceReader())
    assert incident.ranks[0].was_withheld is was_withheld


def test_a_learned_limit_that_was_withheld_has_led_to_no_verdict(group: Group) -> None:
    """It was said to have, and was four times as long in the next generation."""
    limits = LearnedLimits(FaultToleranceConfig(rank_section_timeouts={"step": 180}, thin_evidence_floor=1))
    limits.learn_sections({}, Seen(S // 10, 9, S), False)
    for cell in group.cells:
        cell.write_text(LIMITS_TEXT, write_limits(limits.document(), LIMITS_TEXT.size))
    group.have_due(0, 1.0)
    group.close(1)
    left_ns = group.now_ns - 2 * S
    group.cells[1].words[LEFT_SECTION], group.cells[1].words[OUT_OF_SECTION] = left_ns, left_ns + S
    assert group.rules.look(group.ranks) is None

    group.now_ns += S
    assert group.condemn() == [0, 1]

    incident = read_incident(str(group.incidents[0][0].folder))
    assert [(r.rank, r.is_condemned, r.was_withheld, r.limit_learned) for r in incident.ranks] == [
        (0, True, False, None),
        (1, True, True, None),
    ]
    assert JobLimits(FaultToleranceConfig()).note_verdict(incident) == []
    (overdue,) = [line for line in incident.summary() if line.startswith("  overdue rank 1")]
    assert overdue.endswith(
        "switches it off), no verdict while another rank was within its limits, "
        "waits in all_reduce (torch/distributed/distributed_c10d.py:3000)"
    )


def test_a_learned_limit_that_has_passed_has_led_to_the_verdict(group: Group) -> None:
    limits = LearnedLimits(FaultToleranceConfig(thin_evidence_floor=1))
    limits.learn_sections({"step": Seen(S // 10, 9, S)}, None, False)
    group.have_due(1, 0.05)
    for cell in group.cells:
        cell.write_text(LIMITS_TEXT, write_limits(limits.document(), LIMITS_TEXT.size))

    assert group.condemn() == [0, 1]

    ranks = group.incidents[0][0].ranks
    assert [(rank.was_withheld, rank.limit_learned) for rank in ranks] == [(False, "section step"), (False, None)]


def test_who_does_not_wait_is_signalled_whoever_comes_back(group: Group) -> None:
    group.stacks = {0: IN_COLLECTIVE, 1: IN_C}
    group.meanwhile = lambda: group.close(0)

    assert group.condemn() == [1]
    assert not group.has_ended(0)
    assert [(miss.rank, miss.waited_for) for miss in group.spared] == [(0, None)]


def test_only_who_is_overdue_is_asked_by_a_signal(group: Group) -> None:
    """It may end a call in C with an error, and the verdict on the other may be taken back."""
    group.have_due(0, 600)
    group.condemn()
    assert set(group.asked) == {0, 1}
    assert group.interruptible == {1}


def test_near_misses_say_what_may_have_brought_a_rank_back(group: Group) -> None:
    group.meanwhile = lambda: group.close(0)
    group.condemn()
    first, second = (near_miss(miss, count) for count, miss in enumerate(group.spared, 1))
    assert "when a signal asked for stacks" in first
    assert "waits for rank 0, which came back" in second
    by_itself = near_miss(group.spared[0]._replace(was_asked=False), 3)
    assert by_itself.endswith("it was spared. The limit is too close to what is normal")


def test_who_comes_back_while_the_launcher_is_told_is_spared(group: Group) -> None:
    """The last look is right before the signal: whatever comes between takes time."""
    group.when_told = lambda: group.close(0)
    group.stacks = {0: IN_COLLECTIVE, 1: IN_C}

    assert group.condemn() == [1]
    assert [list(condemned) for _, condemned, _ in group.incidents] == [[0, 1]]
    assert [miss.rank for miss in group.spared] == [0]
    assert not group.has_ended(0)
    assert group.processes[1].wait(60) == -signal.SIGKILL


def test_nothing_is_said_of_a_peer_that_was_not_overdue_and_comes_back_before_it_is_told_of(group: Group) -> None:
    group.have_due(1, 0.05)
    group.meanwhile = lambda: group.close(1)

    assert group.condemn() == [0]
    ((incident, condemned, _),) = group.incidents
    assert (list(condemned), [rank.rank for rank in incident.condemned]) == ([0], [0])
    assert incident.action == "SIGKILL to rank 0"
    assert [(miss.rank, miss.was_late, miss.was_announced) for miss in group.spared] == [(1, False, False)]
    written = read_incident(str(incident.folder))
    assert (written.action, written.ranks[1].message) == ("SIGKILL to rank 0", None)
    assert not group.has_ended(1)
    view = group.ranks[1].view()
    assert view is not None
    assert group.ranks[1].is_watched(view)


def test_a_peer_that_was_not_overdue_is_taken_back_in_words_where_its_end_was_announced(group: Group) -> None:
    group.have_due(1, 0.05)
    group.when_told = lambda: group.close(1)

    assert group.condemn() == [0]
    ((incident, condemned, _),) = group.incidents
    assert (list(condemned), incident.action) == ([0, 1], "SIGKILL to rank 0, 1")
    assert [(miss.rank, miss.was_late, miss.was_announced) for miss in group.spared] == [(1, False, True)]
    written = read_incident(str(incident.folder))
    assert written.action == "SIGKILL to rank 0; not to rank 1, which was spared"
    assert "was not overdue itself" in (written.ranks[1].message or "")
    assert not group.has_ended(1)


def test_a_peer_that_is_spared_with_the_one_that_was_overdue_is_no_near_miss(group: Group) -> None:
    group.have_due(1, 0.05)
    group.meanwhile = lambda: group.close(0)

    assert (group.condemn(), group.incidents) == ([], [])
    assert [(miss.rank, miss.was_late) for miss in group.spared] == [(0, True), (1, False)]
    (written,) = (read_incident(str(folder)) for folder in (group.folder / "near_misses").iterdir())
    assert "rank 0" in written.why
    assert "rank 1" not in written.why
    assert not group.has_ended(1)


def test_a_peer_that_has_become_overdue_meanwhile_is_a_near_miss_when_it_comes_back(group: Group) -> None:
    def wait() -> None:
        group.now_ns += S

    group.have_due(1, 0.05)
    group.meanwhile, group.when_told = wait, lambda: group.close(1)

    assert group.condemn() == [0]
    assert [(miss.rank, miss.was_late) for miss in group.spared] == [(1, True)]


def test_who_is_blamed_and_comes_back_is_not_the_reason_why_another_is_signalled(group: Group) -> None:
    group.stacks = {1: IN_C}
    group.processes[0].send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, group.processes[0].pid, os.WSTOPPED | os.WNOWAIT)
    group.meanwhile = lambda: group.close(0)

    assert group.condemn() == [1]
    ((incident, condemned, _),) = group.incidents
    assert (list(condemned), incident.culprits) == ([1], ())
    assert incident.why.startswith("nobody is named: rank 0 was to blame (")
    assert incident.action == "SIGKILL to rank 1; not to rank 0, which was spared"


def test_only_ranks_that_were_overdue_are_counted_and_all_are_acquitted(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, int]] = []
    events: list[tuple[str, dict[str, Any]]] = []
    withdrawn: list[int] = []
    for module in (incident_log, monitor_reports):
        monkeypatch.setattr(module, "announce", lambda line, level, **_: said.append((line.split(":")[0], level)))
    processes = SimpleNamespace(collect_exits=lambda: None, workers={})
    current: Any = SimpleNamespace(number=0, withdraw=withdrawn.append, condemned={9}, processes=processes, errors=dict)
    events_of: Any = SimpleNamespace(write=lambda name, **facts: events.append((name, facts)))
    reports: list[MonitorReport] = []
    resources: Any = SimpleNamespace(events=events_of, monitor=SimpleNamespace(read_reports=lambda: reports))
    late = NearMiss(0, 0, 7, "section", "step", 1.0, 0.5)
    peer = NearMiss(1, 1, 8, "section", "step", 1.0, None, was_late=False)
    told_of = peer._replace(rank=2, local_rank=2, was_announced=True)

    reports.append(Spared(0, (peer, late, told_of)))
    stories = JobStories(resources, None)
    log = incident_log.IncidentLog(resources, stories)
    monitor_reports.take_reports(resources, current, log, stories, restarts_are_left=True)

    assert withdrawn == [1, 0, 2]
    assert [(name, facts["rank"]) for name, facts in events] == [("near_miss", 0), ("withdrawn", 2)]
    assert said == [("near miss 1", WARNING), ("withdrawn", ERROR)], "a verdict is taken back where it was told"


def _make_a_mistake(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a mistake")


def test_a_mistake_of_ours_keeps_no_stuck_rank_alive(group: Group) -> None:
    group.when_told = _make_a_mistake
    with pytest.raises(RuntimeError):
        group.condemn()
    assert [process.wait(60) for process in group.processes] == [-signal.SIGKILL] * 2


def test_a_mistake_of_ours_in_who_waits_for_whom_keeps_no_stuck_rank_alive(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(termination, "waited_for", _make_a_mistake)
    assert group.condemn() == [0, 1]
    assert [process.wait(60) for process in group.processes] == [-signal.SIGKILL] * 2


def test_a_mistake_of_ours_while_stacks_are_taken_costs_the_stacks_alone(group: Group) -> None:
    group.meanwhile = _make_a_mistake
    assert group.condemn() == [0, 1]
    assert [process.wait(60) for process in group.processes] == [-signal.SIGKILL] * 2
    ((incident, _, problem),) = group.incidents
    assert problem is None
    assert all(rank.process_state in ("S", "R") for rank in incident.ranks)
    report = (group.folder / "incidents" / "0001" / "report.txt").read_text()
    assert report.count("no stack: no stack could be taken (RuntimeError: a mistake, at test_termination.py:") == 2


@pytest.mark.parametrize("what", ["attribute", "look_at", "rank_report"])
def test_a_mistake_of_ours_while_evidence_is_collected_costs_no_verdict(
    group: Group, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Who, which limit, and what is missing and why: all that is told and carried out."""
    group.have_due(1, seconds=0.001)
    monkeypatch.setattr(hang_incident, what, _make_a_mistake)
    assert group.condemn() == [0, 1]
    assert [process.wait(60) for process in group.processes] == [-signal.SIGKILL] * 2
    ((incident, condemned, problem),) = group.incidents
    assert (list(condemned), problem, incident.culprits, incident.deadline_ns is None) == ([0, 1], None, (), False)
    told = "\n".join(incident.summary())
    assert "rank 0 (pid" in told
    assert "section 'step' open for 3." in told
    assert "; limit 2 s" in told
    assert "who is to blame cannot be told: evidence could not be collected (RuntimeError: a mistake, at " in told
    assert read_incident(str(incident.folder)).why == incident.why


def test_a_mistake_of_ours_in_the_report_costs_the_file_and_not_the_next_one(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Incident, "report", _make_a_mistake)
        assert group.condemn() == [0, 1]
    ((incident, _, problem),) = group.incidents
    assert problem is not None
    assert "the incident could not be written under" in problem
    assert "RuntimeError('a mistake')" in problem
    writer = IncidentWriter(str(group.folder))
    assert writer.write(incident)[1] is None


@pytest.mark.parametrize("is_asked", [True, False])
def test_an_error_that_came_after_our_signal_is_told_as_one(
    group: Group, monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    """Recorded: the exception of a rank whose wait in C the question for its stack has interrupted."""
    error = ErrorRecord("InterruptedError", "[Errno 4]", noted_ns=1 << 62, at_ns=1 << 62)
    monkeypatch.setattr(RankMonitor, "error", lambda rank: error if rank is group.ranks[0] else None)
    if not is_asked:  # by py-spy, which sends none
        threads = {n: (Thread("MainThread", True, False, frames),) for n, frames in group.stacks.items()}
        monkeypatch.setattr(rank_evidence, "take_stacks", lambda *_, **__: threads)

    assert group.condemn() == [0, 1]
    ((incident, _, _),) = group.incidents
    assert [culprit.rank for culprit in incident.culprits] == [0]
    assert incident.why.startswith("raised InterruptedError")
    assert ("after a signal had asked for the stack" in incident.why) == is_asked


def test_what_becomes_of_an_incident_that_is_not_written_yet(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow file system a verdict may be withdrawn, in whole or in part, before there is a folder."""
    _write_late(monkeypatch)
    group.have_due(1, 0.05)
    group.when_told = lambda: group.close(1)

    assert group.condemn() == [0]
    assert [(incident.folder, "takes longer" in str(problem)) for incident, _, problem in group.incidents] == [
        (None, True)
    ]
    written = read_incident(str(group.folder / "incidents" / "0001"))
    assert written.action == "SIGKILL to rank 0; not to rank 1, which was spared"
    assert written.wall_time
    assert written.node == os.uname().nodename


def test_an_incident_that_is_withdrawn_before_it_is_written_is_not_left(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_late(monkeypatch)
    group.meanwhile = lambda: group.close(0)

    assert group.condemn() == []
    assert os.listdir(group.folder / "near_misses") == ["0001"]
    assert os.listdir(group.folder / "incidents") == []


def test_what_could_not_be_written_is_not_taken_for_the_one_before(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert group.condemn() == [0, 1]
    ((incident, _, _),) = group.incidents
    writer = IncidentWriter(str(group.folder))
    first, _ = writer.write(incident._replace(folder=None))
    monkeypatch.setattr(Incident, "report", _make_a_mistake)
    assert "a mistake" in str(writer.write(incident._replace(folder=None))[1])
    writer.discard()
    writer.finish(180)
    assert Path(str(first.folder), "incident.json").exists()


def _write_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be written before all has been told."""
    gate = threading.Event()
    write, finish = Incident.write, IncidentWriter.finish
    monkeypatch.setattr("launcher.incidents.incident_writer.SLOWEST_WRITE_SECONDS", 0)
    monkeypatch.setattr(Incident, "write", lambda incident, parent: gate.wait(180) and write(incident, parent))
    monkeypatch.setattr(IncidentWriter, "finish", lambda writer, seconds: (gate.set(), finish(writer, seconds)))


def test_a_rank_that_is_stopped_takes_its_signal(group: Group) -> None:
    group.number = "SIGTERM"
    for process in group.processes:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)

    assert group.condemn() == [0, 1]
    assert [process.wait(60) for process in group.processes] == [-signal.SIGTERM] * 2
