"""What workers have left: adopted, told from the launcher's own children, or found by its marks."""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from launcher.processes.handles import is_subreaper
from launcher.processes.leftovers import end_marked
from launcher.processes.proc import process_status
from launcher.processes.process_marks import is_marked

HOME = Path(__file__).parents[3]
WAITS = "print('ready', flush=True); input()"
NAMED = "open('/proc/self/comm', 'w').write('ft_monitor'); " + WAITS

# In a process of its own: pytest's must adopt nobody.
LAUNCHER = """
import json, os, subprocess, sys
from launcher.processes.leftovers import Orphans
from launcher.processes.process_marks import leave_mark
from launcher.processes.handles import become_subreaper, end_sessions

become_subreaper()
SLEEPS = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]
NAMED = [sys.executable, "-c", "open('/proc/self/comm', 'w').write('ft_monitor'); " + SLEEPS[2]]

def started(command=SLEEPS, **arguments):
    child = subprocess.Popen(command, stdout=subprocess.PIPE, **arguments)
    child.stdout.readline()
    return child.pid

def orphan(make):
    reader, writer = os.pipe()
    if (middle := os.fork()) == 0:
        os.write(writer, str(make()).encode())
        os._exit(0)
    os.waitpid(middle, 0)
    pid = int(os.read(reader, 20))
    os.close(reader), os.close(writer)
    return pid

def ended():
    if (pid := os.fork()) == 0:
        os.setsid()
        os._exit(7)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid

def state(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except OSError:
        return None
"""


def run_launcher(program: str, *wrapper: str) -> str:
    command = [*wrapper, sys.executable, "-c", LAUNCHER + program]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=180, start_new_session=True, check=False)
    if wrapper and done.returncode == 1 and not done.stdout:
        pytest.skip("no PID namespace may be made here")
    assert done.returncode == 0
    return done.stdout.strip()


def test_only_orphans_are_collected_and_only_those_that_have_ended() -> None:
    """The exit code of a worker stays for whoever waits for it."""
    said = run_launcher("""
worker, gone, alive = ended(), orphan(ended), orphan(lambda: started(start_new_session=True))
Orphans(lambda: []).reap({worker})
print(state(worker), os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]), state(gone), state(alive) in "RS")
os.kill(alive, 9)
""")
    assert said == "Z 7 None True"


def test_orphans_alone_are_ended_whatever_session_they_are_in() -> None:
    """Neither children of ours, nor what is in our own session, nor a monitor, which tidies up and goes by itself."""
    said = run_launcher("""
worker = started(start_new_session=True)
ours = started()
monitor = orphan(lambda: started(NAMED, start_new_session=True))
first = orphan(lambda: started(start_new_session=True))
second = orphan(lambda: started(preexec_fn=lambda: (os.setsid(), os.fork() and os._exit(0))))
orphans = Orphans(lambda: [])
left = end_sessions([], 30, more=lambda: orphans.sessions({worker}))
print(left, [state(pid) in "RS" for pid in (worker, ours, monitor)], state(first))
print(orphans.sessions({worker}))
for pid in (worker, ours, monitor):
    os.kill(pid, 9)
""")
    assert said == "set() [True, True, True] Z\nset()"


def test_what_was_given_up_is_waited_for_no_more_and_is_collected_when_it_has_ended() -> None:
    """As a rank in uninterruptible sleep: each further restart would wait for it anew."""
    said = run_launcher("""
stuck = orphan(lambda: started(start_new_session=True))
orphans = Orphans(lambda: [])
before = orphans.sessions(set())
orphans.give_up([stuck])
print(before == {stuck}, orphans.sessions(set()), state(stuck) in "RS")
os.kill(stuck, 9)
os.waitid(os.P_PID, stuck, os.WEXITED | os.WNOWAIT)
orphans.reap(set())
print(state(stuck))
""")
    assert said == "True set() True\nNone"


def test_as_the_first_process_of_a_container_only_what_is_marked_is_ended() -> None:
    """There everybody's orphans come to it: a command that somebody has run in the container is none of ours."""
    said = run_launcher(
        """
assert os.getpid() == 1
bystander = orphan(lambda: started(start_new_session=True))
marked = {**os.environ, "FT_CONFIG_FILE": "/dev/shm/here/config.json"}
helper = orphan(lambda: started(start_new_session=True, env=marked))
leave_mark("/dev/shm/here/cells/0-0")
washed = orphan(lambda: started(start_new_session=True, env={}))
print(Orphans(lambda: ["/dev/shm/other", "/dev/shm/here"]).sessions(set()) == {helper, washed}, state(bystander))
""",
        *("unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"),
    )
    assert said == "True S"


def test_a_process_that_adopts_nobody_collects_nothing_here() -> None:
    assert not is_subreaper()


def test_what_is_marked_is_ended_wherever_it_is(
    tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a cell that is mapped, also when the folder is gone, or by the limit. A monitor is left to itself."""
    folder = tmp_path / "ft_launcher-0-leftovers"  # of this test alone: others mark theirs at the same time
    cell = folder / "cells" / "0-0"
    cell.parent.mkdir(parents=True)
    cell.write_bytes(bytes(mmap.PAGESIZE))
    maps = f"import mmap; file = open({str(cell)!r}, 'r+b'); m = mmap.mmap(file.fileno(), {mmap.PAGESIZE}); "
    limit = f"import sys; sys.path.insert(0, {str(HOME)!r}); from launcher.processes.process_marks import leave_mark; "
    limit += f"leave_mark({str(cell)!r}); "
    mapped, limited = spawn(maps + WAITS, session=True), spawn(limit + WAITS, session=True)
    monitor, other = spawn(maps + limit + NAMED), spawn(WAITS)
    cell.unlink()
    states = set()

    def looked_at(pid: int, marks: Collection[str]) -> bool:
        status = process_status(limited.pid)
        states.add(status.state if status is not None else "gone")
        return is_marked(pid, marks)

    monkeypatch.setattr("launcher.processes.leftovers.is_marked", looked_at)

    assert end_marked([str(folder)], 30) == set()

    assert (mapped.wait(), limited.wait()) == (-9, -9)
    assert states <= {"Z", "X", "gone"}, "memory of others was looked at before what is found without was ended"
    for process in (monitor, other):
        status = process_status(process.pid)
        assert status is not None
        assert status.state in "RS"
