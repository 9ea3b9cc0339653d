"""A monitor for ranks that something else starts: real processes, a real monitor, no launcher."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher import RankMonitors, start_monitor
from launcher.records import console
from resilience_core import FaultToleranceConfig

HANGS = """
import time
from resilience_core import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
with client.section("step"):
    print("open", flush=True)
    time.sleep(600)
"""
WELL = """
from resilience_core import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
print("open", flush=True)
input()
client.shutdown_workload_monitoring()
"""
PARENT_THAT_DIES = """
import os, signal, sys
from launcher import start_monitor
from resilience_core import FaultToleranceConfig
monitors = start_monitor(FaultToleranceConfig(), 1, log_dir=sys.argv[1], run_dir=sys.argv[2])
print(monitors.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def monitors(tmp_path: Path) -> Iterator[RankMonitors]:
    config = FaultToleranceConfig(rank_section_timeouts={"step": 0.3}, rank_heartbeat_timeout=None)
    with start_monitor(config, 2, log_dir=str(tmp_path / "logs"), run_dir="/dev/shm") as monitors:
        yield monitors


CONFIG = FaultToleranceConfig()


@pytest.mark.parametrize(
    ("arguments", "paths", "said"),
    [
        (({"rank_section_timeouts": {"step": 60}}, 1), {}, "config is .* .dict.; give a FaultToleranceConfig"),
        ((None, 1), {}, "config is None .NoneType.; give a FaultToleranceConfig"),
        ((CONFIG, "1"), {}, "num_ranks is '1' .str.; give a whole number"),
        ((CONFIG, 1.0), {}, "num_ranks is 1.0 .float.; give a whole number"),
        ((CONFIG, True), {}, "num_ranks is True .bool.; give a whole number"),
        ((CONFIG, 1), {"log_dir": 5}, "log_dir is 5 .int.; give a path"),
        ((CONFIG, 1), {"run_dir": b"x"}, "run_dir is b'x' .bytes.; give a path"),
    ],
)
def test_an_argument_of_the_wrong_type_is_named(arguments: Any, paths: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        start_monitor(*arguments, **paths)


def test_folders_may_be_path_objects(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with start_monitor(CONFIG, 1, log_dir=tmp_path / "logs", run_dir=tmp_path / "run") as monitors:
        assert os.path.dirname(monitors.log_folder) == str(tmp_path / "logs")
        assert monitors.environment(0)["FT_CELL"].startswith(f"{tmp_path}/run/")
        assert monitors.incidents() == []


def start_rank(
    monitors: RankMonitors, local_rank: int, program: str, wrapper: Sequence[str] = ()
) -> subprocess.Popen[str]:
    environment = {**os.environ, **monitors.environment(local_rank)}
    process = subprocess.Popen(
        [*wrapper, sys.executable, "-c", program],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def test_a_hung_rank_is_terminated_and_its_neighbour_is_not(monitors: RankMonitors) -> None:
    with start_rank(monitors, 0, HANGS) as hung, start_rank(monitors, 1, WELL) as well:
        incident = monitors.wait_for_incident(timeout=180)

        assert hung.wait(timeout=180) == -signal.SIGKILL
        (rank,) = incident.condemned
        assert (rank.rank, rank.pid, rank.cause, rank.section) == (0, hung.pid, "section", "step")
        assert rank.stack
        # Where py-spy has told that the other stands outside any collective, too, it may be what this one waits for.
        assert incident.culprits in ((), (rank,))
        assert "whoever started it" in incident.action
        assert monitors.incidents() == [incident]
        well.communicate("\n", timeout=180)
        assert well.returncode == 0


def test_a_program_with_more_than_1024_open_descriptors_is_served(tmp_path: Path) -> None:
    config = FaultToleranceConfig(rank_section_timeouts={"step": 0.3}, rank_heartbeat_timeout=None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.enter_context(open(os.devnull))
        monitors = stack.enter_context(start_monitor(config, 1, log_dir=tmp_path / "logs", run_dir="/dev/shm"))
        with pytest.raises(TimeoutError, match=r"no incident within 0\.01 s"):
            monitors.wait_for_incident(timeout=0.01)
        with start_rank(monitors, 0, HANGS) as hung:
            assert monitors.wait_for_incident(timeout=180).condemned[0].pid == hung.pid
            assert hung.wait(timeout=180) == -signal.SIGKILL


def test_a_rank_that_is_started_again_takes_over_and_is_watched_anew(monitors: RankMonitors) -> None:
    pids = []
    for _ in range(3):
        with start_rank(monitors, 0, HANGS) as rank:
            incident = monitors.wait_for_incident(timeout=180)
            assert rank.wait(timeout=180) == -signal.SIGKILL
            assert incident.culprit is not None
            assert incident.culprit.pid == rank.pid
            pids.append(rank.pid)

    assert len(monitors.incidents()) == len(set(pids)) == 3


def test_a_monitor_that_is_killed_is_replaced_and_carries_on(monitors: RankMonitors) -> None:
    """The hang began before; its deadline passed while nobody looked, or just after."""
    with start_rank(monitors, 1, HANGS) as rank:
        first = monitors.pid
        os.kill(first, signal.SIGKILL)

        incident = monitors.wait_for_incident(timeout=180)

        assert rank.wait(timeout=180) == -signal.SIGKILL
        assert [rank.rank for rank in incident.culprits] == [1]
    assert monitors.pid != first


IN_A_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.mark.skipif(
    subprocess.run([*IN_A_NAMESPACE, "true"], check=False, capture_output=True).returncode != 0,
    reason="a PID namespace cannot be made here",
)
def test_a_rank_in_a_pid_namespace_of_its_own_is_found_under_its_number_here(monitors: RankMonitors) -> None:
    """In there it is pid 1, which here is somebody else."""
    with start_rank(monitors, 0, HANGS, IN_A_NAMESPACE) as shell:
        incident = monitors.wait_for_incident(timeout=180)

        assert shell.wait(timeout=180) != 0
        (rank,) = incident.condemned
        assert rank.rank == 0
        assert rank.pid not in (0, 1, shell.pid)


@pytest.mark.parametrize(
    ("level", "says"), [("ERROR", []), ("WARNING", ["replaced"]), ("DEBUG", ["watched", "replaced"])]
)
def test_it_says_as_much_as_log_level_allows(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], level: str, says: list[str]
) -> None:
    config = FaultToleranceConfig(log_level=level)
    lines = {"replaced": "ended (signal 9); a new one has taken over"}
    try:
        with (
            start_monitor(config, 1, log_dir=str(tmp_path / "logs"), run_dir="/dev/shm") as monitors,
            start_rank(monitors, 0, WELL) as rank,
        ):
            lines = {"watched": f"DEBUG monitor: rank 0, pid {rank.pid}, is watched", **lines}
            heard = _wait_for(capfd, [lines[word] for word in says if word == "watched"])
            first = monitors.pid
            os.kill(first, signal.SIGKILL)
            while monitors.pid == first:
                time.sleep(0.01)
            heard += _wait_for(capfd, [lines[word] for word in says if word == "replaced"])
            rank.communicate("\n", timeout=180)
        heard += capfd.readouterr().err
    finally:
        console.set_level(console.INFO)
    assert [word for word, line in lines.items() if line in heard] == says


def _wait_for(capfd: pytest.CaptureFixture[str], lines: list[str]) -> str:
    """Return what is said until all of the lines were."""
    heard, end = "", time.monotonic() + 60
    while not all(line in heard for line in lines) and time.monotonic() < end:
        time.sleep(0.01)
        heard += capfd.readouterr().err
    return heard


def test_no_incident_is_a_timeout(monitors: RankMonitors) -> None:
    with pytest.raises(TimeoutError, match=r"0\.05 s"):
        monitors.wait_for_incident(timeout=0.05)
    assert monitors.incidents() == []


def test_close_removes_what_was_made_and_leaves_ranks_alone(monitors: RankMonitors) -> None:
    cell = monitors.environment(0)["FT_CELL"]
    pid = monitors.pid
    with start_rank(monitors, 0, WELL) as rank:
        monitors.close()
        monitors.close()

        assert not os.path.exists(os.path.dirname(os.path.dirname(cell)))
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        rank.communicate("\n", timeout=180)
        assert rank.returncode == 0


def test_the_monitor_goes_when_its_parent_dies(tmp_path: Path) -> None:
    """Nothing is left in memory, and nobody waits for a process that nobody knows."""
    run_dir = Path("/dev/shm") / f"ft_test-{os.getpid()}"
    run_dir.mkdir()
    try:
        parent = subprocess.run(
            [sys.executable, "-c", PARENT_THAT_DIES, str(tmp_path / "logs"), str(run_dir)],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert parent.returncode == -signal.SIGKILL
        try:
            pidfd = os.pidfd_open(int(parent.stdout))
        except ProcessLookupError:
            pass
        else:
            import select

            with os.fdopen(pidfd):
                assert select.select([pidfd], [], [], 60)[0]
        assert list(run_dir.iterdir()) == []
    finally:
        run_dir.rmdir()


def test_what_cannot_be_asked_for_is_refused(monitors: RankMonitors, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="num_ranks is 0"):
        start_monitor(FaultToleranceConfig(), 0)
    for local_rank in (-1, 2):
        with pytest.raises(ValueError, match=f"local_rank is {local_rank}; there are 2"):
            monitors.environment(local_rank)


@pytest.mark.parametrize("load_plugins", [True, False])
def test_the_environment_carries_the_switch_of_installed_plugins(tmp_path: Path, load_plugins: bool) -> None:
    config = FaultToleranceConfig(load_plugins=load_plugins)
    with start_monitor(config, 1, log_dir=str(tmp_path / "logs"), run_dir=str(tmp_path)) as monitors:
        assert monitors.environment(0).get("FT_LOAD_PLUGINS") == (None if load_plugins else "0")
