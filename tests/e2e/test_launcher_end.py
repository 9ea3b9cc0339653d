"""However the launcher ends, its ranks, what they started, its monitor and its folder are gone with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e


def test_a_monitor_that_is_stopped_wakes_to_clean_up_after_a_killed_launcher(launch: Callable[..., Any]) -> None:
    """The kernel continues it when its parent dies; nothing is left, as the fixture checks.

    Nor where the limit by which it finds most is not set: not everybody may set it.
    """
    job = launch("family_loop.py", "--unmonitored", "--lifts-limits")
    job.wait_for_output("family of rank", count=2)

    os.kill(job.monitor_pid, signal.SIGSTOP)
    job.signal(signal.SIGKILL)

    assert job.wait() == -signal.SIGKILL


@pytest.mark.parametrize("what", ["launcher", "launcher and monitor"])
def test_sigkill_of_the_launcher_leaves_nothing(launch: Callable[..., Any], what: str) -> None:
    """Ranks deaf to SIGTERM, with families all over the process tree, programs with an emptied environment too."""
    job = launch("family_loop.py")
    job.wait_for_output("family of rank", count=2)
    assert len(job.processes()) >= 2 + 2 * 7

    if what == "launcher":
        job.signal(signal.SIGKILL)
        assert job.wait() == -signal.SIGKILL
        return
    # The second belt: nobody is left to kill the ranks but the kernel; the folder is swept by the next launcher.
    job.signal(signal.SIGSTOP)  # so that it cannot replace the monitor
    os.kill(job.monitor_pid, signal.SIGKILL)
    job.signal(signal.SIGKILL)
    workers = set(job.workers(0).values())
    assert job.wait() == -signal.SIGKILL
    job.until_gone(workers)
    next_job = launch("dies_at_once.py", nproc=1, run_dir=job.run_parent)
    assert next_job.wait() == 1
    assert list(job.run_parent.iterdir()) == []
    job.kill_all()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_forwarded_and_waited_for(launch: Callable[..., Any], number: signal.Signals) -> None:
    job = launch("loop.py", "--until-stopped", "--on-sigterm", 0)
    job.wait_for_output("runs in generation 0", count=2)

    job.signal(number)

    assert job.wait() == 0
    assert job.stdout.count("has saved its work") == 2
    assert "Traceback" not in job.stderr
    assert f"ended by {number.name}; every worker ended with 0" in job.stderr
    assert job.incidents() == []


def test_a_rank_that_does_not_end_with_0_makes_it_1(launch: Callable[..., Any]) -> None:
    job = launch("loop.py", "--until-stopped", "--on-sigterm", 3)
    job.wait_for_output("runs in generation 0", count=2)

    job.signal(signal.SIGTERM)

    assert job.wait() == 1
    assert job.stdout.count("has saved its work") == 2
    assert "Traceback" not in job.stderr


def test_a_rank_that_ignores_the_scheduler_is_killed_after_the_shutdown_timeout(launch: Callable[..., Any]) -> None:
    job = launch("loop.py", "--until-stopped", "--ignore-sigterm", options=["--shutdown-timeout", 1])
    job.wait_for_output("runs in generation 0", count=2)

    job.signal(signal.SIGTERM)

    assert job.wait() == 1
    assert "waiting up to 1 s" in job.stderr
    assert "Traceback" not in job.stderr


def test_a_second_ctrl_c_does_not_wait(launch: Callable[..., Any]) -> None:
    job = launch("loop.py", "--until-stopped", "--ignore-sigint", options=["--shutdown-timeout", 600])
    job.wait_for_output("runs in generation 0", count=2)

    job.signal(signal.SIGINT)
    job.wait_for_error_output("waiting up to 600 s")
    job.signal(signal.SIGINT)

    assert job.wait() == 1
    assert "Traceback" not in job.stderr


def test_a_signal_while_the_group_is_being_restarted_ends_the_job(launch: Callable[..., Any]) -> None:
    """In the wait before a restart no rank runs, and there is nobody to forward it to: the job has failed, and ends."""
    job = launch("dies_at_once.py", options=["--max-restarts", 99], restart_backoff_after=1)
    job.wait_for_event("backing_off", count=3)  # of 4 s, long enough for a signal to come in time on most machines

    signalled_ns = time.monotonic_ns()
    job.signal(signal.SIGTERM)

    assert job.wait() == 1
    assert "ended by SIGTERM; not every worker ended with 0" in job.stderr
    assert all(each["t_ns"] < signalled_ns for each in job.events("started")), "started after the signal"
    assert "Traceback" not in job.stderr


def test_a_stopped_rank_does_not_hold_up_the_scheduler(launch: Callable[..., Any]) -> None:
    job = launch("loop.py", "--until-stopped", "--on-sigterm", 0, options=["--shutdown-timeout", 600])
    job.wait_for_output("runs in generation 0", count=2)
    stopped = job.workers(0)[1]
    os.kill(stopped, signal.SIGSTOP)
    job.until_state(stopped, "T")

    job.signal(signal.SIGTERM)

    assert job.wait() == 1
    assert job.stdout.count("has saved its work") == 1


def test_a_finished_job_leaves_nothing_and_says_nothing(launch: Callable[..., Any]) -> None:
    job = launch("loop.py", fresh=True, rank_section_timeouts="setup:90,step:20,checkpointing:90")

    assert job.wait() == 0
    assert job.stderr == ""
    assert job.events()[-1]["event"] == "ended"
    assert job.events()[0]["event"] == "began"
    assert len(job.events("started")) == 1


def test_the_default_run_folder_is_gone_too(launch: Callable[..., Any]) -> None:
    job = launch("loop.py", run_dir=None)
    assert job.wait() == 0
    folder = job.events("began")[0]["run_folder"]
    assert folder.startswith("/dev/shm/")
    assert not os.path.exists(folder)


def test_the_run_folder_is_private_while_it_lives(launch: Callable[..., Any]) -> None:
    job = launch("loop.py", "--until-file", "stop")
    job.wait_for_output("runs in generation 0", count=2)
    folder = job.events("began")[0]["run_folder"]

    modes = {oct(os.lstat(path).st_mode & 0o777) for path, _, _ in os.walk(folder)}
    files = [os.path.join(path, name) for path, _, names in os.walk(folder) for name in names]
    (job.work / "stop").touch()

    assert job.wait() == 0
    assert modes == {"0o700"}
    assert len(files) >= 5


FORKS = """
import os, signal
from launcher.cli import _collect
from launcher.processes.handles import become_subreaper

become_subreaper()
reader, writer = os.pipe()
if (leader := os.fork()) == 0:
    os.setsid()
    os.fork()
    os.write(writer, b".")
    signal.sigwait([signal.SIGUSR1])
for _ in range(2):
    os.read(reader, 1)
os.killpg(leader, signal.SIGKILL)
os.waitpid(leader, 0)
_collect(leader)
print("children:", open(f"/proc/self/task/{os.getpid()}/children").read())
"""


def test_what_a_zygote_has_forked_is_collected_after_it() -> None:
    """A fork that ends together with the zygote is adopted as a zombie."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=300)
    assert (done.stdout.split(), done.stderr) == (["children:"], "")


@pytest.mark.long
def test_a_run_that_is_refused_leaves_no_zombie_to_whoever_adopts_it(tmp_path: Path) -> None:
    """As the first process of a container that waits for nobody else would keep it."""
    (tmp_path / "a_file").touch()
    (tmp_path / "script.py").touch()
    launcher = str(Path(sys.executable).with_name("ft_launcher"))
    program = (
        "import os, subprocess, sys; from launcher.processes.handles import become_subreaper\n"
        "become_subreaper()\n"
        "print(subprocess.run(sys.argv[1:]).returncode, open(f'/proc/self/task/{os.getpid()}/children').read())\n"
    )
    command = [launcher, "--ft-run-dir", str(tmp_path), "--log-dir", str(tmp_path / "a_file"), "script.py"]
    done = subprocess.run(
        [sys.executable, "-c", program, *command], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert "cannot make the log folder" in done.stderr
    assert done.stdout.split() == ["2"], "and no children"
