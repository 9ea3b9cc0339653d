"""What the agent says about failures: what follows, whether a restart can help, and the last words."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.agent.after_shutdown import Overstayed
from launcher.agent.announcements import about, closing, failed, level_of, monitor_changed, what_failed, what_follows
from launcher.agent.failure_incident import (
    NO_PY_SPY,
    beyond_mending,
    failure_incident,
    is_in_a_step,
    is_same_again,
    look,
    misses_py_spy,
    stopped_on_purpose,
)
from launcher.incidents.frames import Frame, Thread
from launcher.incidents.incident import Incident
from launcher.incidents.rank_report import RankReport
from launcher.processes.evidence import Evidence
from launcher.records import console
from launcher.workers.worker_processes import WorkerProcess
from resilience_core.plugins.section_monitor import CHECKPOINTING, SETUP
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import FIRST_CLOSED, LAST_HEARTBEAT, PID, STATE, WATCHED
from resilience_core.protocol.cell_view import CellView
from resilience_core.protocol.error_record import ErrorRecord

OWN = ErrorRecord("ValueError", "bad batch\nmore of it")
MISTAKE = ErrorRecord("resilience_core.errors.ConfigError", "no such option", is_permanent=True)


def failure(error: ErrorRecord | None = OWN, generation: int = 0, **facts: Any) -> Incident:
    said = error.first_line() if error is not None else None
    culprit = RankReport(1, 1, 9, is_culprit=True, cause="exit", exit_code=1, error=error, message=said)
    victim = RankReport(0, 0, 8, cause="exit", exit_code=1, message="RuntimeError: Connection closed by peer")
    ranks = (victim, culprit._replace(**facts))
    return Incident("failure", generation, "raised ValueError", "1 peer(s) asked to end", ranks, folder="/logs/0001")


@pytest.mark.parametrize(
    ("taken", "allowed", "said"),
    [
        (0, 3, "restart 1 of 3 follows"),
        (2, 3, "restart 3 of 3 follows"),
        (3, 3, "no restart is left (--max-restarts 3)"),
        (0, 0, "no restart follows (--max-restarts 0)"),
    ],
)
def test_a_restart_is_announced_only_when_there_is_one(taken: int, allowed: int, said: str) -> None:
    assert what_follows(taken, allowed) == said


def test_an_error_in_the_configuration_is_beyond_mending_where_a_culprit_has_raised_it() -> None:
    why = beyond_mending(failure(MISTAKE))
    assert why == ("rank 1 raised resilience_core.errors.ConfigError: no such option. No restart can mend that")
    assert beyond_mending(failure()) is None
    assert beyond_mending(failure(None)) is None
    assert beyond_mending(failure(MISTAKE, is_culprit=False)) is None


def test_a_training_that_was_stopped_on_purpose_says_who_and_why_in_one_line() -> None:
    stop = ErrorRecord("resilience_core.errors.StopTraining", " the loss\n is low\n", is_deliberate=True)
    assert stopped_on_purpose(failure(stop)) == "rank 1 has stopped the training: the loss is low"
    assert stopped_on_purpose(failure(stop, exit_code=0)) is None, "it was caught"
    assert stopped_on_purpose(failure(stop, is_culprit=False)) is not None, (
        "where no culprit is known, anybody's counts"
    )
    assert stopped_on_purpose(failure(MISTAKE)) is None
    assert stopped_on_purpose(failure(None)) is None


def test_a_failure_is_in_a_step_where_a_culprit_was_inside_a_section_of_one() -> None:
    none: dict[int, CellView] = {}
    assert is_in_a_step(failure(section="step"), none)
    assert is_in_a_step(failure(section="forward"), none)
    assert not is_in_a_step(failure(section="step", is_culprit=False), none)
    assert not any(is_in_a_step(failure(section=each), none) for each in (None, SETUP, CHECKPOINTING))


def test_a_failure_before_any_section_but_the_setup_was_closed_is_in_a_step() -> None:
    """The first steps have no section of their own."""
    cell = Cell.detached()
    for closed, is_in_one in ((0, False), (1, True), (2, False)):
        cell.words[FIRST_CLOSED] = closed
        assert is_in_a_step(failure(), {1: cell.view()}) == is_in_one
        assert not is_in_a_step(failure(), {0: cell.view()}), "that is no culprit"


def test_the_same_error_at_the_same_place_is_noticed_in_the_next_generation_only() -> None:
    first, again = failure(iteration=7), failure(generation=1, iteration=7)

    assert is_same_again(first, again)
    assert not is_same_again(None, first)
    assert not is_same_again(first, again._replace(generation=2))
    assert not is_same_again(first, failure(generation=1, iteration=8))
    assert not is_same_again(first, failure(OWN._replace(type="KeyError"), generation=1, iteration=7))
    assert not is_same_again(failure(None), failure(None, generation=1))  # who knows


def test_the_last_words_are_about_the_culprit_and_not_about_whom_we_killed() -> None:
    assert closing(failed(what_follows(1, 1)), failure(iteration=7, section="step")) == [
        "the job has failed: no restart is left (--max-restarts 1)",
        "  rank 1 (pid 9) exited with code 1, iteration 7, in section 'step': ValueError: bad batch",
        "  report  /logs/0001/report.txt",
    ]
    hang = RankReport(1, 1, 9, True, True, "section", "step", open_seconds=3.0, limit_seconds=2.0)
    said = closing(failed(None), Incident("hang", 0, "outside", "SIGKILL to rank 1, 0", (hang,)))
    assert said == [
        "the job has failed",
        "  rank 1 (pid 9): section 'step' open for 3.000 s; limit 2 s",
    ]
    assert closing(failed("rank 0 requests the end"), None) == ["the job has failed: rank 0 requests the end"]


def test_the_last_words_stay_few_in_a_large_group() -> None:
    ranks = tuple(RankReport(n, n, 100 + n, cause="exit", exit_code=1) for n in range(64))
    said = closing(failed(None), Incident("failure", 0, "it cannot be told", "stop", ranks))
    assert said[-2:] == ["  and 60 more", "  why     it cannot be told"]
    assert len(said) == 7


def test_the_last_words_say_what_is_not_certain() -> None:
    """At the level CRITICAL they are the only ones."""
    rank = RankReport(0, 0, 9, is_culprit=True, cause="exit", exit_code=3)
    for incident in (
        Incident("failure", 0, "likely: ended by itself", "stop", (rank,)),
        Incident("failure", 0, "the cause is on another node", "stop", (rank._replace(is_culprit=False),)),
    ):
        said = closing(failed(None), incident)
        assert said == ["the job has failed", "  rank 0 (pid 9) exited with code 3", f"  why     {incident.why}"]


@pytest.mark.parametrize(("change", "is_heard"), [("monitor_lost", True), ("monitor_replaced", False)])
def test_that_nobody_is_protected_is_heard_at_log_level_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], change: str, is_heard: bool
) -> None:
    monkeypatch.setattr(console._console, "threshold", console.ERROR)
    console.announce(monitor_changed(change, "was killed by SIGKILL"), level=level_of(change))
    assert ("PROTECTION IS OFF" in capfd.readouterr().err) == is_heard


def test_the_absence_of_py_spy_matters_in_a_hang_and_not_where_it_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = Incident("hang", 0, "outside", "SIGKILL to rank 1", ())
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("FT_PY_SPY", raising=False)
    assert misses_py_spy(hang)
    assert not misses_py_spy(failure())
    assert "pip install py-spy (said once)" in NO_PY_SPY
    monkeypatch.setenv("FT_PY_SPY", "none")
    assert not misses_py_spy(hang)
    monkeypatch.delenv("FT_PY_SPY")
    (tmp_path / "py-spy").touch(0o755)
    assert not misses_py_spy(hang)


@pytest.mark.parametrize(("exit_code", "looks"), [(-6, [8]), (1, [])])
def test_whether_a_survivor_uses_a_gpu_is_asked_where_an_abort_has_to_be_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exit_code: int, looks: list[int]
) -> None:
    """It means a look at every descriptor of every rank, before any is asked to end."""
    asked: list[int] = []
    monkeypatch.setattr("launcher.agent.failure_incident.uses_a_gpu", lambda pid: asked.append(pid) or True)
    monkeypatch.setattr("launcher.agent.failure_incident.look_at", lambda pid: None)
    views = {n: Cell.create(str(tmp_path / str(n)), rank=n, generation=0).view() for n in range(2)}
    workers = {0: WorkerProcess(0, 9, -1, exit_code, ended_ns=5), 1: WorkerProcess(1, 8, -1)}
    group: Any = SimpleNamespace(workers=[SimpleNamespace(global_rank=n + 4, local_rank=n) for n in range(2)])

    known = look(group, SimpleNamespace(workers=workers), views, {}, {})  # type: ignore[arg-type]

    assert asked == looks
    assert {rank: (each.exit_code, each.has_gpu) for rank, each in known.items()} == {
        4: (exit_code, False),
        5: (None, bool(looks)),
    }


@pytest.mark.parametrize(
    ("exit_code", "of_peer", "culprits"), [(-9, None, [0]), (17, None, [0]), (1, None, [1]), (None, 1, [1])]
)
def test_an_exception_that_a_rank_has_caught_is_no_cause_unless_it_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exit_code: int | None, of_peer: int | None, culprits: list[int]
) -> None:
    """Rank 1 has skipped a batch and waits for rank 0, which fails by itself; or it ends with 1 after all."""
    monkeypatch.setattr("launcher.agent.failure_incident.look_at", lambda pid: None)
    cells = [Cell.create(str(tmp_path / str(n)), rank=n, generation=0) for n in range(2)]
    for cell in cells:
        cell.words[PID], cell.words[STATE], cell.words[LAST_HEARTBEAT] = 9, WATCHED, 3
    views = {n: cell.view() for n, cell in enumerate(cells)}
    own = ErrorRecord("RuntimeError", "x", at_ns=8, noted_ns=8)
    errors = {1: ErrorRecord("ValueError", "skipped", at_ns=5, noted_ns=5, is_caught=True)}
    if exit_code == 1:  # the other one's own exception has ended it; without the record it could have lost its peer
        errors[0] = own
        culprits = [0]
    workers = {
        0: WorkerProcess(0, 9, -1, exit_code, ended_ns=9 if exit_code is not None else 0),
        1: WorkerProcess(1, 8, -1, of_peer, ended_ns=9 if of_peer is not None else 0),
    }
    group: Any = SimpleNamespace(
        workers=[SimpleNamespace(global_rank=n, local_rank=n) for n in range(2)], group_world_size=1
    )

    known = look(group, SimpleNamespace(workers=workers), views, errors, {})  # type: ignore[arg-type]

    incident = failure_incident(group, {0: 9, 1: 8}, known, views, {}, {}, 0, 7, {})
    assert [rank.rank for rank in incident.culprits] == culprits
    assert ("ValueError" in incident.why) == (of_peer == 1)


@pytest.mark.parametrize(("sign_ns", "asked_ns", "hint"), [(5, 7, True), (7, 5, False), (5, 0, False)])
def test_an_end_after_our_question_is_told_as_one_where_the_rank_did_nothing_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sign_ns: int, asked_ns: int, hint: bool
) -> None:
    """The launcher may see the rank end before the monitor has told of the hang that it asked for."""
    monkeypatch.setattr("launcher.agent.failure_incident.look_at", lambda pid: None)
    cells = [Cell.create(str(tmp_path / str(n)), rank=n, generation=0) for n in range(2)]
    for cell in cells:
        cell.words[PID], cell.words[STATE], cell.words[LAST_HEARTBEAT] = 9, WATCHED, sign_ns
    views = {n: cell.view() for n, cell in enumerate(cells)}
    workers = {0: WorkerProcess(0, 9, -1, 9, ended_ns=9), 1: WorkerProcess(1, 8, -1)}
    group: Any = SimpleNamespace(
        workers=[SimpleNamespace(global_rank=n, local_rank=n) for n in range(2)], group_world_size=1
    )

    known = look(group, SimpleNamespace(workers=workers), views, {}, {0: asked_ns} if asked_ns else {})  # type: ignore[arg-type]

    incident = failure_incident(group, {0: 9, 1: 8}, known, views, {}, {}, 0, 7, {})
    assert [rank.rank for rank in incident.culprits] == [0]
    assert ("after a signal had asked for the stack" in incident.why) is hint


@pytest.mark.parametrize(("condemned", "what"), [(set(), "failed"), ({0}, "has passed its limit")])
def test_other_nodes_are_told_whether_a_rank_failed_or_was_late(condemned: set[int], what: str) -> None:
    """One that waits for another node's rank is late, too, and may be the first that is ended."""
    assert what_failed(condemned) == f"a rank {what} on {os.uname().nodename}"


def test_who_was_killed_because_it_did_not_end_is_said_to_be_that(tmp_path: Path) -> None:
    """Not to have died of a SIGKILL of unknown origin."""
    views = {n: Cell.create(str(tmp_path / str(n)), rank=n, generation=0).view() for n in range(2)}
    group: Any = SimpleNamespace(
        workers=[SimpleNamespace(global_rank=n, local_rank=n) for n in range(2)], group_world_size=1
    )
    known = {0: Evidence(0), 1: Evidence(1, exit_code=-9, ended_ns=5)}
    stack = (Thread("MainThread", False, False, (Frame("join", "threading.py", 9),)),)
    overstayed = {1: Overstayed("it had shut monitoring down", stack)}

    incident = failure_incident(group, {0: 8, 1: 9}, known, views, {}, {}, 0, 7, overstayed)

    assert (incident.why, [rank.rank for rank in incident.culprits]) == ("it had shut monitoring down", [1])
    assert [rank.stack for rank in incident.ranks] == [(), stack]
    assert [rank.unmonitored for rank in incident.ranks] == ["has not initialised monitoring"] * 2


def test_programs_are_told_who_is_to_blame_and_that_nobody_is() -> None:
    ranks = tuple(RankReport(rank, rank, 9 + rank, is_condemned=True, cause="section") for rank in range(3))
    nobody = Incident("hang", 0, "every rank waits for the others", "SIGKILL to 3 ranks", ranks)
    told = about(nobody)
    assert (told["ranks"], told["facts"]) == ([0, 1, 2], {"culprits": []})
    found = nobody._replace(ranks=(ranks[0], ranks[1]._replace(is_culprit=True), ranks[2]))
    told = about(found)
    assert (told["ranks"], told["facts"]) == ([1], {"culprits": [1]})
