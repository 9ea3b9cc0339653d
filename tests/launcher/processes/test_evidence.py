"""What processes and cells tell of a rank: real processes, running, stopped and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.agent.worker_cells import Cells
from launcher.processes import evidence
from launcher.processes.evidence import Evidence, ProcessLook, look_at, unmonitored, uses_a_gpu
from launcher.processes.proc import ProcessStatus
from launcher.records.run_folders import RunFolder
from resilience_core.protocol.cell_layout import CLOSED, SHUT_DOWN, UNUSED, WATCHED
from resilience_core.protocol.cell_view import CellView, OpenSection
from resilience_core.protocol.error_record import ErrorRecord

WAITS = "print('ready', flush=True); input()"


def view(**words: object) -> CellView:
    return CellView(
        **{
            "pid": 4711, "start_time": 1, "state": WATCHED, "smallest_limit_ns": 0, "iteration": 7,
            "heartbeat_ns": CLOSED, "out_of_section_ns": CLOSED, "last_heartbeat_ns": 3, "left_section_ns": 4,
            "rank": 1, "sections": (), **words,
        }
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> None:
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_a_process_that_lives_has_no_exit_code(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    look = look_at(spawn(WAITS).pid)
    assert look is not None
    assert look.state in "RSD"
    assert (look.exit_code, look.is_stopped, look.is_dumping_core) == (None, False, False)


def test_a_stopped_process_is_seen_to_be_stopped(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    process = spawn(WAITS)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    look = look_at(process.pid)
    assert look is not None
    assert (look.state, look.is_stopped, look.exit_code) == ("T", True, None)


@pytest.mark.parametrize(("how", "code"), [("sys.exit(0)", 0), ("sys.exit(17)", 17), ("os.kill(os.getpid(), 9)", -9)])
def test_how_it_has_ended_is_known_before_it_is_collected(
    spawn: Callable[..., subprocess.Popen[str]], how: str, code: int
) -> None:
    process = spawn(f"import os, sys; print('ready', flush=True); {how}")
    ended(process)
    look = look_at(process.pid)
    assert look is not None
    assert (look.state, look.exit_code) == ("Z", code)


def test_a_process_that_crashes_between_two_reads_has_not_ended_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    def status_of(pid: int) -> dict[str, str]:
        reads.append("status")
        return {"CoreDumping": "1" if len(reads) > 1 else "0"}

    def process_status(pid: int) -> ProcessStatus:
        reads.append("stat")
        return ProcessStatus("R", 1, flags=0, exit_status=signal.SIGSEGV if len(reads) > 1 else 0)

    monkeypatch.setattr(evidence, "status_of", status_of)
    monkeypatch.setattr(evidence, "process_status", process_status)
    look = look_at(os.getpid())
    assert look is not None
    assert len(reads) == 2
    assert look.exit_code in (None, -signal.SIGSEGV)


def test_of_a_process_that_is_gone_nothing_is_known(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    process = spawn("print('ready', flush=True)")
    process.wait(60)
    assert look_at(process.pid) is None


def test_a_process_that_dumps_core_is_ending_although_it_looks_alive() -> None:
    assert ProcessLook("D", exit_status=0x80 | 11, is_dumping_core=True).exit_code == -11
    assert ProcessLook("R", exit_status=3 << 8, is_exiting=True).exit_code == 3
    assert ProcessLook("D", exit_status=0).exit_code is None


@pytest.mark.parametrize(
    ("code", "fatal"),
    [
        *((-number, number) for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE)),
        *((-number, None) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT)),
        *((code, None) for code in (None, 0, 1, -99)),
    ],
)
def test_only_what_no_peer_can_cause_is_a_fatal_signal(code: int | None, fatal: int | None) -> None:
    assert Evidence(0, exit_code=code).fatal_signal == fatal


def test_what_the_cell_says_becomes_evidence() -> None:
    error = ErrorRecord("ValueError", "x", iteration=7, at_ns=5, noted_ns=6)
    known = Evidence.of_cell(1, view(), ProcessLook("S"), error)
    assert (known.iteration, known.state, known.error, known.last_sign_ns) == (7, "S", error, 4)
    assert (known.has_begun, known.is_monitored, known.has_left) == (True, True, False)

    shut_down = Evidence.of_cell(1, view(state=SHUT_DOWN), ProcessLook("S"), None)
    assert (shut_down.has_left, shut_down.is_monitored) == (True, False)
    assert Evidence.of_cell(1, view(), ProcessLook("Z", exit_status=0), None).has_left
    assert not Evidence.of_cell(1, view(), ProcessLook("Z", exit_status=1 << 8), None).has_left
    never = Evidence.of_cell(1, view(state=UNUSED, pid=0), None, None)
    assert (never.has_begun, never.is_monitored, never.state) == (False, False, "")

    # One that has begun a section since has a group again, or goes on without.
    left = {at_ns: Evidence.of_cell(1, view(left_group_ns=at_ns), ProcessLook("S"), None) for at_ns in (0, 3, 4, 9)}
    assert [each.left_group_ns for each in left.values()] == [0, 0, 4, 9]
    assert [each.has_gone_out for each in left.values()] == [False, False, True, True]


def test_a_cell_that_does_not_tell_where_its_rank_is_says_why(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    cells = Cells(folder, 0, {0: 0})
    assert unmonitored(cells.view(0)) == "has not initialised monitoring"
    os.truncate(cells[0].path, 8)
    assert unmonitored(cells.view(0)) == "its monitor cell cannot be read"
    cells.drop()
    folder.remove()
    assert unmonitored(view(state=SHUT_DOWN)) == "has shut monitoring down"
    assert unmonitored(view()) is None


def test_an_exception_that_was_caught_before_the_rank_went_on_is_no_evidence() -> None:
    error = ErrorRecord("ValueError", "x", iteration=7, at_ns=5, noted_ns=6)
    later = (OpenSection("step", 0, 99, 7),)
    assert Evidence.of_cell(1, view(sections=later), ProcessLook("S"), error).error is None
    assert Evidence.of_cell(1, view(iteration=8), ProcessLook("S"), error).error is None
    caught = error._replace(is_caught=True)
    assert Evidence.of_cell(1, view(), ProcessLook("S"), caught).error is None, "it may wait for others since"
    assert Evidence.of_cell(1, view(), ProcessLook("Z", exit_status=9), caught).error is None
    assert Evidence.of_cell(1, view(), ProcessLook("Z", exit_status=1 << 8), caught).error == caught, "it has given up"


def test_the_last_sign_of_life_is_the_latest_of_all() -> None:
    assert view().last_sign_ns == 4
    assert view(sections=(OpenSection("step", 0, 99, 9),)).last_sign_ns == 9
    assert view(last_heartbeat_ns=12).last_sign_ns == 12


def test_when_a_rank_has_answered_for_its_stack_is_known_from_its_file(tmp_path: Path) -> None:
    cells = Cells(RunFolder(str(tmp_path)), 0, {0: 0, 1: 1, 2: 2})
    before_ns = time.monotonic_ns() - 10**8  # files are dated by a coarser clock
    Path(cells[0].path + ".stack").write_text("Current thread 0x1 (most recent call first):\n")
    Path(cells[1].path + ".stack").touch()
    (asked,) = cells.asked_ns().items()
    assert asked[0] == 0
    assert before_ns < asked[1] <= time.monotonic_ns()


@pytest.mark.parametrize(
    ("there", "in_use", "used"), [("null", "null", True), ("null", "zero", False), ("no-such", "null", False)]
)
def test_a_gpu_is_used_by_whoever_has_its_device_open(
    spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch, there: str, in_use: str, used: bool
) -> None:
    """With /dev/null in the place of a GPU, which this machine need not have."""
    monkeypatch.setattr("launcher.processes.evidence._GPU_DEVICES", (there,))
    monkeypatch.setattr("launcher.processes.evidence._GPU_PATHS", ("/dev/null",))
    opens = f"import os; os.dup2(os.open('/dev/{in_use}', os.O_RDWR), 2); "
    assert uses_a_gpu(spawn(opens + WAITS).pid) is used
