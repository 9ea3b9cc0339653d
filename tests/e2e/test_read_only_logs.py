"""A log folder that turns read-only under a running job, as ext4 does after a disk error, costs no restart."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.long]

NO_WAIT = {"max_no_progress_cycles": 0, "restart_backoff_after": 0}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, which ``mount -o remount,abort`` turns read-only whoever has a file open there."""
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with open(image, "wb") as file:
        file.truncate(32 << 20)
    if os.getuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("a file system that turns read-only needs root and mkfs.ext4")
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    mounted = subprocess.run(
        ["mount", "-o", "loop", str(image), str(place)], check=False, capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no loop device can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def turn_read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,abort", str(disk)], check=True)
    with pytest.raises(OSError, match="Read-only"):
        (disk / "probe").touch()


def whole(disk: Path, text: str, count: int) -> str:
    """Return what ranks have written to their files, as soon as a text is there as often as that."""
    said = "".join(path.read_text() for path in disk.rglob("stdout.log") if "latest" not in path.parts)
    return said if said.count(text) == count else ""


def pid_of(said: str, rank: int, generation: int) -> int:
    (pid,) = re.findall(rf"rank {rank} runs in generation {generation} \(pid (\d+)\)", said)
    return int(pid)


@pytest.mark.parametrize("how", ["kill", "hang"])
def test_a_log_folder_that_turns_read_only_costs_lines_and_no_restart(
    disk: Path, launch: Callable[..., Any], how: str
) -> None:
    seconds = 1 if how == "hang" else 60
    options = ["--max-restarts", 2, "--log-dir", disk, "--redirects", 3]
    job = launch(
        "loop.py",
        "--until-file",
        "stop",
        "--with-pid",
        options=options,
        rank_section_timeouts=f"setup:60,checkpointing:60,step:{seconds}",
        rank_out_of_section_timeout=seconds,  # a rank may be stopped between two steps
        **NO_WAIT,
    )
    fault = signal.SIGKILL if how == "kill" else signal.SIGSTOP
    # Generation 0 writes to files in the folder.
    said = job.until(lambda: whole(disk, "runs in generation 0", 2), "ranks")
    turn_read_only(disk)

    os.kill(pid_of(said, 0, 0), fault)
    # The ranks' own files cannot be made any more: they write where the launcher does.
    job.wait_for_output("runs in generation 1", count=2)
    os.kill(pid_of(job.stdout, 1, 1), fault)
    job.wait_for_output("runs in generation 2", count=2)
    (job.work / "stop").touch()

    assert job.wait() == 0
    said = job.stderr
    assert said.count("events.jsonl: Read-only file system; no events are logged until it can be written again") == 1
    assert said.count("no folders for the workers' logs can be made") == 1
    assert said.count("the incident could not be written under") == 2
    assert said.count("restart 1 of 2 follows") == said.count("restart 2 of 2 follows") == 1
