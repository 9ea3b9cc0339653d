"""One rank as its monitor sees it: freezes, a fresh monitor's doubt, a damaged cell, and who is to be signalled."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.monitor.lost_time import Freeze
from launcher.monitor.messages import WatchOrder
from launcher.monitor.rank_monitor import RankMonitor
from launcher.monitor.verdict import FRESH_MONITOR_DOUBT_NS, Deadline, HangVerdict
from launcher.processes.handles import wait_for_exit
from resilience_core import FaultToleranceConfig
from resilience_core.monitoring.learned_limits import LearnedLimits, Seen
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import (
    FIRST_SECTION,
    HEARTBEAT,
    INITIALISED,
    LAST_HEARTBEAT,
    LIMITS_TEXT,
    NO_LIMIT,
    PID,
    PID_NAMESPACE,
    SHUT_DOWN,
    START_TIME,
    STATE,
    UNUSED,
    WATCHED,
)
from resilience_core.protocol.cell_view import CellView
from resilience_core.protocol.limit_messages import origin_of
from resilience_core.protocol.limits_text import write_limits
from resilience_core.system.proc import process_start_time

S = 1_000_000_000
T = 1_000 * S

WAITS = "print('ready', flush=True); input()"


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the monitor's clock show more than what the tests store; that of a machine just started shows less than T."""
    clock = SimpleNamespace(monotonic_ns=lambda: T + 60 * S, sleep=time.sleep)
    monkeypatch.setattr("launcher.monitor.rank_monitor.time", clock)


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    cell = Cell.create(str(tmp_path / "cell"))
    own(cell, os.getpid())
    yield cell
    cell.close()


def own(cell: Cell, pid: int) -> None:
    cell.words[PID], cell.words[START_TIME] = pid, process_start_time(pid) or 0
    cell.words[STATE] = WATCHED


def monitor(cell: Cell, now_ns: int = T, worker_pidfd: int | None = None, **order: Any) -> RankMonitor:
    theirs = Cell.from_descriptor(os.dup(cell.descriptor))
    return RankMonitor(WatchOrder(0, 0, 0, cell.path, **order), theirs, worker_pidfd, now_ns)


def seen(rank: RankMonitor) -> CellView:
    view = rank.view()
    assert view is not None
    return view


def is_late(rank: RankMonitor, now_ns: int, *freezes: Freeze) -> bool:
    return bool(rank.sight(seen(rank), now_ns, freezes).late)


def due_ns(rank: RankMonitor, now_ns: int = T, *freezes: Freeze) -> int:
    return rank.sight(seen(rank), now_ns, freezes).next_ns


def test_a_deadline_that_passed_before_anybody_watched_is_doubted_for_a_second(cell: Cell) -> None:
    """The rank may be about to move it: nobody knows why the monitor before has died."""
    cell.words[HEARTBEAT] = T - 60 * S
    rank = monitor(cell)

    assert not is_late(rank, T + FRESH_MONITOR_DOUBT_NS - 1)
    assert is_late(rank, T + FRESH_MONITOR_DOUBT_NS)
    assert due_ns(rank) == T + FRESH_MONITOR_DOUBT_NS


def test_a_deadline_that_passes_under_its_eyes_is_not_doubted(cell: Cell) -> None:
    cell.words[HEARTBEAT] = T
    rank = monitor(cell)

    assert is_late(rank, T)


def test_a_freeze_moves_every_deadline_that_was_running(cell: Cell) -> None:
    cell.words[HEARTBEAT], cell.words[LAST_HEARTBEAT] = T + 5 * S, T - S
    step = cell.add_section("step")
    cell.words[step], cell.words[step + 1] = T + 2 * S, T
    rank, freeze = monitor(cell), Freeze(T + 1 * S, T + 11 * S)

    assert not is_late(rank, T + 12 * S - 1, freeze)
    assert is_late(rank, T + 12 * S, freeze)
    cell.words[step] = 0
    assert not is_late(rank, T + 15 * S - 1, freeze)
    assert is_late(rank, T + 15 * S, freeze)


def test_a_freeze_does_not_move_what_began_after_it(cell: Cell) -> None:
    cell.words[HEARTBEAT], cell.words[LAST_HEARTBEAT] = T + 20 * S, T + 16 * S
    assert due_ns(monitor(cell), T + 16 * S, Freeze(T, T + 15 * S)) == T + 20 * S


def test_a_new_monitor_heeds_the_freezes_that_its_predecessor_saw(cell: Cell) -> None:
    """Stopped for 7 s, continued, the monitor killed 0.6 s later: the limit of 6 s is not over."""
    cell.words[HEARTBEAT], cell.words[LAST_HEARTBEAT] = T + 6 * S, T
    successor = monitor(cell, now_ns=T + 8 * S)
    assert not is_late(successor, T + 12 * S, Freeze(T + S, T + 8 * S))
    assert is_late(successor, T + 13 * S, Freeze(T + S, T + 8 * S))


def test_the_startup_limit_gets_lost_time_back_too(cell: Cell) -> None:
    cell.words[PID], cell.words[STATE] = 0, UNUSED
    rank = monitor(cell, startup_at_ns=T + 3 * S, started_ns=T)

    assert not is_late(rank, T + 5 * S - 1, Freeze(T, T + 2 * S))
    assert is_late(rank, T + 5 * S, Freeze(T, T + 2 * S))


def test_an_open_end_needs_no_look(cell: Cell) -> None:
    cell.words[HEARTBEAT] = NO_LIMIT
    rank = monitor(cell)
    assert due_ns(rank) == NO_LIMIT
    cell.words[STATE] = SHUT_DOWN
    assert due_ns(rank) == NO_LIMIT


def test_a_condemned_process_is_not_watched_but_its_successor_is(
    cell: Cell, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    rank = monitor(cell)
    rank.condemn(seen(rank))
    assert rank.is_condemned(seen(rank))

    own(cell, spawn(WAITS).pid)
    assert not rank.is_condemned(seen(rank))


def test_the_process_that_claimed_the_cell_is_the_one_to_signal(
    cell: Cell, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    """Not the wrapper (a shell, numactl) around it that was started."""
    training = spawn(WAITS)
    own(cell, training.pid)
    rank = monitor(cell, worker_pidfd=os.pidfd_open(os.getpid()), pid=os.getpid())

    pidfd = rank.pidfd(seen(rank))
    assert pidfd is not None
    assert rank.pidfd(seen(rank)) == pidfd
    assert not rank.is_gone(seen(rank))
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    assert training.wait(timeout=180) == -signal.SIGKILL
    assert rank.is_gone(seen(rank))
    rank.close()


def test_a_pid_that_belongs_to_somebody_else_by_now_is_never_hit(
    cell: Cell, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    own(cell, spawn(WAITS).pid)
    cell.words[START_TIME] -= 1
    rank = monitor(cell)

    assert rank.pidfd(seen(rank)) is None
    assert rank.is_gone(seen(rank))


def test_before_a_claim_the_worker_itself_is_the_one_to_signal(
    cell: Cell, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    worker = spawn(WAITS)
    cell.words[PID], cell.words[STATE] = 0, UNUSED
    pidfd = os.pidfd_open(worker.pid)
    rank = monitor(cell, worker_pidfd=pidfd, pid=worker.pid)

    assert rank.pidfd(seen(rank)) == pidfd
    assert rank.pid(seen(rank)) == worker.pid
    worker.kill()
    assert wait_for_exit([pidfd], 10) == {pidfd}
    assert rank.is_gone(seen(rank))
    rank.close()


def test_without_a_worker_and_a_claim_there_is_nobody_and_nobody_is_gone(cell: Cell) -> None:
    cell.words[PID], cell.words[STATE] = 0, UNUSED
    rank = monitor(cell)

    assert rank.pidfd(seen(rank)) is None
    assert not rank.is_gone(seen(rank))
    assert not rank.is_stopped(seen(rank))


def test_a_stopped_process_is_seen(cell: Cell, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    training = spawn(WAITS)
    own(cell, training.pid)
    rank = monitor(cell)
    assert not rank.is_stopped(seen(rank))

    training.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, training.pid, os.WSTOPPED | os.WNOWAIT)
    assert rank.is_stopped(seen(rank))


def test_a_rank_that_is_done_owes_no_start(cell: Cell, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    """It never used the client, and has ended with 0; its startup limit passes later."""
    worker = spawn(WAITS)
    cell.words[PID] = cell.words[START_TIME] = cell.words[STATE] = 0
    rank = monitor(cell, worker_pidfd=os.pidfd_open(worker.pid), startup_at_ns=T + S, started_ns=T)
    assert is_late(rank, T + S)
    assert rank.is_watched(seen(rank))
    worker.communicate("end\n", timeout=180)
    assert not rank.is_watched(seen(rank))
    rank.close()


def test_an_order_survives_json_and_names_its_startup_limit() -> None:
    order = WatchOrder(1, 2, 3, "cell", 4, startup_at_ns=9, started_ns=5)
    assert WatchOrder(**order._asdict()) == order
    assert order.startup is not None
    assert (order.startup.at_ns, order.startup.since_ns) == (9, 5)
    assert WatchOrder(1, 2, 3, "cell").startup is None


@pytest.fixture
def step(cell: Cell) -> int:
    """A rank that is watched in an open section, and has been looked at; the section's word."""
    word = cell.add_section("step")
    cell.words[word + 1], cell.words[word] = T, T + 60 * S
    return word


def damage_words(cell: Cell) -> None:
    random_words = random.Random(8)
    for word in range(len(cell.words)):
        cell.words[word] = random_words.randrange(-(2**63), 2**63)


def damage_size(cell: Cell) -> None:
    os.truncate(cell.path, 100)


def damage_a_deadline(cell: Cell) -> None:
    cell.words[FIRST_SECTION + 2 * 40] = 1


def damage_pid(cell: Cell) -> None:
    cell.words[PID] = 2**60


def damage_owner(cell: Cell) -> None:
    """Taken for a process that has ended, the rank would not be watched, and nobody would say so."""
    cell.words[START_TIME] += 1


def damage_text(cell: Cell) -> None:
    """Nothing is decided by it, so it is not put in order."""
    os.pwrite(cell.descriptor, b"rubbish", LIMITS_TEXT.offset)


def damage_namespace(cell: Cell) -> None:
    cell.words[PID_NAMESPACE] = 4711


@pytest.mark.parametrize(
    "damage", [damage_words, damage_size, damage_a_deadline, damage_pid, damage_owner, damage_namespace]
)
def test_a_damaged_cell_is_put_in_order_and_protects_from_the_next_section_on(
    cell: Cell, step: int, damage: Callable[[Cell], None]
) -> None:
    rank = monitor(cell)
    assert rank.is_watched(seen(rank))
    rank.condemn(seen(rank)._replace(pid=1))  # somebody else
    damage(cell)

    assert rank.view() is None
    assert rank.view() is not None
    assert is_late(rank, T) is False
    (note,) = rank.notes
    assert "rank 0 was damaged" in note
    assert "watched again" in note
    cell.words[step + 1], cell.words[step] = T, T + S
    (section,) = seen(rank).sections
    assert section.name == "step"
    assert is_late(rank, T + S)
    pidfd = rank.pidfd(seen(rank))
    assert pidfd is not None


@pytest.mark.parametrize("damage", [damage_words, damage_size, damage_text])
def test_where_a_limit_comes_from_is_known_after_its_cell_was_damaged(
    cell: Cell, step: int, damage: Callable[[Cell], None]
) -> None:
    limits = LearnedLimits(FaultToleranceConfig(rank_section_timeouts={"step": 180}))
    cell.write_text(LIMITS_TEXT, write_limits(limits.document(), LIMITS_TEXT.size))
    with contextlib.closing(monitor(cell)) as rank:
        seen(rank)
        damage(cell)
        rank.view()
        origin = rank.limit_origin(HangVerdict("section", "step", 0, 180 * S, iteration=7))
        assert origin is not None
        assert origin.phrase == "configured: --ft-rank-section-timeouts"
        if damage is not damage_text:  # the rank stores it only when limits change, and a successor reads it
            assert origin == origin_of(cell.read_text(LIMITS_TEXT), "section", "step", 180)


def test_what_a_deadlines_limit_rests_on_is_read_from_the_cell(cell: Cell) -> None:
    step, gap = Deadline("section", "step", 0, 180 * S, 0), Deadline("out of section", None, -1, 60 * S, 0)
    limits = LearnedLimits(FaultToleranceConfig(rank_section_timeouts={"step": 180}))
    limits.learn_sections({}, Seen(S, 9, S), False)
    with contextlib.closing(monitor(cell)) as rank:
        seen(rank)
        assert rank.basis(step) is None
        cell.write_text(LIMITS_TEXT, write_limits(limits.document(), LIMITS_TEXT.size))
        seen(rank)
        assert (rank.basis(step), rank.basis(gap)) == ("configured", "learned")


@pytest.mark.parametrize("has_beaten", [False, True])
def test_the_limit_of_heartbeats_is_the_first_one_until_one_was_sent(cell: Cell, step: int, has_beaten: bool) -> None:
    """Their lengths may be equal, as two that were learned from little evidence are."""
    limits = LearnedLimits(FaultToleranceConfig(initial_rank_heartbeat_timeout=60, rank_heartbeat_timeout=60))
    cell.write_text(LIMITS_TEXT, write_limits(limits.document(), LIMITS_TEXT.size))
    cell.words[INITIALISED] = 5 * S
    with contextlib.closing(monitor(cell)) as rank:
        seen(rank)
        origin = rank.limit_origin(HangVerdict("heartbeat", None, (7 if has_beaten else 5) * S, 67 * S, iteration=7))
        assert origin is not None
        assert origin.kind == ("heartbeat" if has_beaten else "first heartbeat")


@pytest.mark.parametrize(("is_learned", "basis"), [(True, None), (False, "configured")])
def test_what_a_startup_limit_rests_on(cell: Cell, is_learned: bool, basis: str | None) -> None:
    with contextlib.closing(monitor(cell, startup_at_ns=9, startup_is_learned=is_learned)) as rank:
        assert rank.order.startup is not None
        assert rank.basis(rank.order.startup) == basis


def test_a_process_that_takes_over_while_its_predecessor_ends_is_no_damage(
    cell: Cell, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    rank = monitor(cell)
    assert rank.is_watched(seen(rank))
    own(cell, spawn(WAITS).pid)
    assert rank.is_watched(seen(rank))
    assert rank.notes == []


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_anywhere_neither_end_the_monitor_nor_condemn_the_rank(cell: Cell, step: int, seed: int) -> None:
    chance = random.Random(seed)
    whole = cell.copy().words.tobytes()
    rank = monitor(cell)
    for _ in range(40):
        rank.withdraw()
        os.pwrite(cell.descriptor, whole, 0)
        cell.words[step + 1], cell.words[step] = T, T + 60 * S
        assert rank.is_watched(seen(rank))
        size = chance.choice((1, 8, 64, len(whole)))
        os.pwrite(cell.descriptor, chance.randbytes(size), chance.randrange(max(1, 1200 - size)) if size < 1200 else 0)
        for _ in range(2):
            view = rank.view()
            if view is not None and rank.is_watched(view):
                # A single bit may turn a deadline into an earlier one that a rank could have set; no other harm.
                assert not rank.sight(view, T).late or size <= 64


def test_damage_is_told_once(cell: Cell, step: int) -> None:
    rank = monitor(cell)
    for _ in range(3):
        seen(rank)
        damage_words(cell)
        assert rank.view() is None
    assert len(rank.notes) == 1


def test_a_cell_that_was_damaged_before_the_first_look_is_not_watched_and_that_is_said(cell: Cell) -> None:
    rank = monitor(cell)
    damage_words(cell)
    for _ in range(3):
        assert rank.view() is None
    (note,) = rank.notes
    assert note.startswith("rank 0 is not watched: ")
