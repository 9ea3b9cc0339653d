"""The mistakes of others that must not be ours, each reproduced there, each with a test here by its number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher import RankMonitors, start_monitor
from resilience_core import FaultToleranceConfig

pytestmark = pytest.mark.e2e

PROLOGUE = """
import os, sys, time
from resilience_core import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
"""


@pytest.fixture
def monitored(tmp_path: Path) -> Iterator[Callable[..., RankMonitors]]:
    """A monitor for one rank, with its settings."""
    started: list[RankMonitors] = []

    def start(**settings: Any) -> RankMonitors:
        started.append(start_monitor(FaultToleranceConfig(**settings), 1, log_dir=str(tmp_path), run_dir="/dev/shm"))
        return started[-1]

    yield start
    for monitors in started:
        monitors.close()


@pytest.fixture
def rank() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the rank; killed at the end whatever a test has left it in."""
    started: list[subprocess.Popen[str]] = []

    def start(monitors: RankMonitors, program: str, *arguments: str) -> subprocess.Popen[str]:
        environment = {**os.environ, **monitors.environment(0)}
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", PROLOGUE + program, *arguments],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()


def test_mistake_01_an_expired_outer_section_counts_while_an_inner_one_has_time(
    monitored: Callable[..., RankMonitors], rank: Callable[..., subprocess.Popen[str]]
) -> None:
    monitors = monitored(rank_section_timeouts={"outer": 0.5, "inner": 600})
    hung = rank(monitors, "client.start_section('outer'); client.start_section('inner'); input()")

    assert hung.wait(timeout=180) == -signal.SIGKILL
    assert monitors.incidents()[0].culprits[0].section == "outer"


def test_mistake_02_a_rank_that_dies_as_it_arrives_poisons_nothing(
    monitored: Callable[..., RankMonitors], rank: Callable[..., subprocess.Popen[str]]
) -> None:
    monitors = monitored(rank_section_timeouts={"step": 0.5})
    for _ in range(3):
        died = rank(monitors, "os.kill(os.getpid(), 9)")
        assert died.wait(timeout=180) == -signal.SIGKILL

    well = rank(
        monitors, "[(client.start_section('step'), client.end_section('step')) for _ in range(1000)]; print('ok')"
    )
    assert well.communicate(timeout=180)[0] == "ok\n"
    hung = rank(monitors, "client.start_section('step'); input()")
    assert hung.wait(timeout=180) == -signal.SIGKILL
    assert len(monitors.incidents()) == 1


def test_mistake_03_end_all_sections_ends_all_sections(
    monitored: Callable[..., RankMonitors], rank: Callable[..., subprocess.Popen[str]]
) -> None:
    monitors = monitored(rank_section_timeouts={"a": 1, "b": 1})
    program = (
        "client.start_section('a'); client.start_section('b'); client.end_all_sections(); time.sleep(2.5); print('ok')"
    )

    assert rank(monitors, program).communicate(timeout=180)[0] == "ok\n"
    assert monitors.incidents() == []


def test_mistake_04_out_of_section_time_counts_whatever_the_sections_are_called(
    monitored: Callable[..., RankMonitors], rank: Callable[..., subprocess.Popen[str]]
) -> None:
    monitors = monitored(rank_section_timeouts={"epoch": 600}, rank_out_of_section_timeout=0.5)
    hung = rank(monitors, "client.start_section('epoch'); client.end_section('epoch'); input()")

    assert hung.wait(timeout=180) == -signal.SIGKILL
    assert monitors.incidents()[0].culprits[0].cause == "out of section"


@pytest.mark.parametrize(
    ("line", "nearest"),
    [
        ("rank_heartbeat_timout: 5", "rank_heartbeat_timeout"),
        ("rank_termination_signal: SIGTREM", "SIGTERM"),
        ("rank_section_timeouts: {step: x}", "step"),
    ],
)
def test_mistake_05_a_misspelt_configuration_is_refused_and_never_ignored(
    launch: Callable[..., Any], tmp_path: Path, line: str, nearest: str
) -> None:
    path = tmp_path / "ft.yaml"
    path.write_text(f"fault_tolerance:\n  {line}\n")
    job = launch("loop.py", cfg_path=path)

    assert job.wait() == 2
    assert nearest in job.stderr
    assert f"{path} line 2" in job.stderr


def test_mistake_06_nobody_outlives_a_launcher_or_a_used_up_budget(launch: Callable[..., Any], tmp_path: Path) -> None:
    """The two endings that leave processes behind elsewhere; the fixture looks for what is left."""
    killed = launch("family_loop.py")
    killed.wait_for_output("family of rank", count=2)
    killed.signal(signal.SIGKILL)
    used_up = launch(
        *("loop.py", "--until-stopped", "--ignore-sigterm", "--meet", tmp_path),
        faults="sigkill:rank=0,step=3",
        failure_stop_timeout=0.2,
    )

    assert killed.wait() == -signal.SIGKILL
    assert used_up.wait() == 1


def test_mistake_07_timeouts_are_learned_whatever_the_backends_name(launch: Callable[..., Any]) -> None:
    job = launch("learns.py", rank_section_timeouts="step:60", safety_factor=10_000)

    assert job.wait(60) == 0
    states = [line for line in job.stdout.splitlines() if line.startswith("{")]
    assert len(states) == 6
    assert len(set(states)) == 3, states


def test_mistake_08_every_line_of_the_user_arrives(launch: Callable[..., Any]) -> None:
    job = launch("dump_environment.py", "{work}", nproc=2)

    assert job.wait() == 0
    assert sorted(job.stdout.splitlines()) == ["out of rank 0: 12 done", "out of rank 1: 12 done"]
    assert sorted(job.stderr.splitlines()) == ["err of rank 0", "err of rank 1"]


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_mistake_09_training_never_waits_for_its_monitor(
    monitored: Callable[..., RankMonitors], rank: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    """Ten thousand words to a monitor that is stopped or dead, none refused and none waiting."""
    monitors = monitored(rank_section_timeouts={"step": 600})
    program = """
print("ready", flush=True)
input()
for _ in range(10_000):
    client.send_heartbeat()
    client.start_section("step")
    client.end_section("step")
print("ok", flush=True)
input()
client.start_section("step")
"""
    talker = rank(monitors, program)
    assert talker.stdin is not None
    assert talker.stdout is not None
    assert talker.stdout.readline() == "ready\n"
    first = monitors.pid
    os.kill(first, number)
    talker.stdin.write("\n")
    talker.stdin.flush()
    assert talker.stdout.readline() == "ok\n"
    assert os.path.exists(monitors.environment(0)["FT_CELL"])
    talker.communicate("\n", timeout=180)
    assert talker.returncode == 0
    assert monitors.incidents() == []


def test_mistake_10_one_slow_step_does_not_inflate_a_timeout_for_ever(
    monitored: Callable[..., RankMonitors], rank: Callable[..., subprocess.Popen[str]]
) -> None:
    monitors = monitored(
        rank_section_timeouts={"step": 600}, learned_timeout_floor=0, safety_factor=5, learned_limits="replace"
    )
    program = """
def step(seconds):
    with client.section("step"):
        time.sleep(seconds)
step(1.0)
for _ in range(12):
    client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False)
    step(0.001)
print(client.section_timeouts.section["step"])
"""
    timeout = float(rank(monitors, program).communicate(timeout=180)[0])
    assert timeout < 2.5  # 5 x 1.0 s, had the slow one stayed; a step of the others may take a moment on a busy machine
