"""What tells that a process was started by a rank: its environment, a cell that it has mapped, a limit."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.processes.process_marks import carries_limit, is_marked
from launcher.workers.spawn import Launch, spawn_worker
from resilience_core.environment import CELL_VARIABLE

WAITS = "print('ready', flush=True); input()"

# In a process of its own: pytest's may not be marked.
RANK = """
import resource, subprocess, sys
from launcher.processes.process_marks import carries_limit, leave_mark
before = resource.getrlimit(10)
leave_mark(sys.argv[1])
after = resource.getrlimit(10)
program = subprocess.Popen(
    [sys.executable, "-c", "print(flush=True); input()"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env={},
)
program.stdout.readline()
print(after[1] == before[1], after[0] == before[0], *(carries_limit(program.pid, [mark]) for mark in sys.argv[2:]))
program.communicate()
"""


def rank_says(cell: str, *marks: str, hard_limit: int | None = None) -> str:
    limits = [] if hard_limit is None else ["prlimit", f"--locks={hard_limit}"]
    command = [*limits, sys.executable, "-c", RANK, cell, *marks]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=180, check=True).stdout.strip()


def test_the_limit_is_kept_by_a_program_with_an_emptied_environment_in_a_session_of_its_own() -> None:
    """Whatever path leads to the run folder; and everybody may raise it again."""
    marks = ("/dev/shm/ft_launcher-0-abc", "/elsewhere/ft_launcher-0-abc", "/dev/shm/ft_launcher-0-abd")
    assert rank_says("/dev/shm/ft_launcher-0-abc/cells/3-1", *marks) == "True False True True False"


@pytest.mark.parametrize(("cell", "hard_limit"), [("/dev/shm/ft_launcher-0-abc/cells/3-1", 1000), ("", None)])
def test_where_it_may_not_be_set_and_without_a_cell_limits_stay_as_they_were(cell: str, hard_limit: int | None) -> None:
    assert rank_says(cell, "/dev/shm/ft_launcher-0-abc", hard_limit=hard_limit) == "True True False"


def test_a_spawned_worker_carries_it() -> None:
    folder = "/dev/shm/ft_launcher-0-abc"
    pid = spawn_worker(Launch(command=("sleep", "600"), environment={CELL_VARIABLE: f"{folder}/cells/0-0"}))
    try:
        assert carries_limit(pid, [folder])
        assert not carries_limit(os.getpid(), [folder])
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_a_mark_is_a_variable_of_ours_that_names_the_run_folder(tmp_path: Path) -> None:
    folder = str(tmp_path / "ft_launcher-0-abc")

    def marked(**environment: str) -> bool:
        with subprocess.Popen(
            [sys.executable, "-c", WAITS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            return is_marked(process.pid, [folder])

    assert marked(FT_CONFIG_FILE=f"{folder}/config.json")
    assert marked(FT_CELL=f"{folder}/cells/0-1")
    assert not marked(FT_CONFIG_FILE=f"{folder}d/config.json")
    assert not marked(PWD=f"{folder}/cells")
    assert not marked()


def test_a_mark_is_a_mapped_cell(tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    """As a fork of a warm worker has it, also when the folder is gone."""
    folder = tmp_path / "ft_launcher-0-abc"
    cell = folder / "cells" / "0-0"
    cell.parent.mkdir(parents=True)
    cell.write_bytes(bytes(mmap.PAGESIZE))
    maps = f"import mmap; file = open({str(cell)!r}, 'r+b'); m = mmap.mmap(file.fileno(), {mmap.PAGESIZE}); "
    fork, other = spawn(maps + WAITS), spawn(WAITS)
    cell.unlink()

    assert is_marked(fork.pid, [str(folder)])
    assert not is_marked(other.pid, [str(folder)])


def test_nobody_is_marked() -> None:
    assert not is_marked(2**22 + 1, ["/dev/shm/here"])
