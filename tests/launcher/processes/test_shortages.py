"""What the system refuses is told in one line: where, how much there is, and how to get more."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import cli
from launcher.agent.worker_cells import Cells
from launcher.monitor.lost_time import LostTime
from launcher.processes.shortages import explained, shortage, too_few_descriptors
from launcher.records.console import DEBUG, ERROR
from launcher.records.log_folders import FolderError
from launcher.records.run_folders import RunFolder
from resilience_core.protocol.cell import CellError


@pytest.fixture
def descriptors() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_descriptors_that_are_used_up_are_told_with_place_limit_and_command(descriptors: None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    with pytest.raises(OSError, match="Too many open files") as caught:
        LostTime.create()
    said = shortage(caught.value)
    assert said is not None
    assert "in create (launcher/monitor/lost_time.py line " in said
    assert "Too many open files; this process may open 3 files; allow more before the start: ulimit -n 1024" in said
    assert "hard limit" not in said


def test_a_hard_limit_that_is_too_low_is_said(descriptors: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (32, 64))
    assert "raise the hard limit, 64, first" in (shortage(OSError(errno.EMFILE, "x")) or "")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (32, resource.RLIM_INFINITY))
    assert "hard limit" not in (shortage(OSError(errno.EMFILE, "x")) or "")


@pytest.mark.parametrize(
    ("soft", "workers", "is_enough"),
    [(33, 2, False), (34, 2, True), (24, 1, False), (1024, 128, True), (300, 128, False), (-1, 9999, True)],
)
def test_a_job_that_has_too_few_descriptors_is_refused_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, soft: int, workers: int, is_enough: bool
) -> None:
    """Of what failed first, some was torch's: with 24, two workers waited for ever."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, resource.RLIM_INFINITY))
    said = too_few_descriptors(workers, open_now=3)
    assert (said is None) == is_enough
    if said is not None:
        assert said == (
            f"3 files are open, and {workers} worker(s) need {23 + 4 * workers} more; this process may open {soft} "
            "files; allow more before the start: ulimit -n 1024"
        )


def test_without_a_descriptor_no_other_folder_is_advised(descriptors: None, tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(CellError) as of_a_cell:
            Cells(folder, 0, {0: 0})
        with pytest.raises(FolderError) as of_a_file:
            folder.write("config.json", "{}")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        folder.remove()
    for error in (of_a_cell.value, of_a_file.value):
        assert "--ft-run-dir" not in explained(error)
        assert "Too many open files; this process may open" in explained(error)
        assert "ulimit -n 1024" in explained(error)
    assert explained(FolderError("it is full; name another")) == "it is full; name another"


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (errno.ENFILE, "file-max"),
        (errno.EAGAIN, "pids.max"),
        (errno.ENOMEM, "free memory"),
        (errno.ENOSPC, "(/full/disk); make room there"),
        (errno.EDQUOT, "quota"),
    ],
)
def test_every_shortage_comes_with_its_fix(code: int, fix: str) -> None:
    assert fix in (shortage(OSError(code, os.strerror(code), "/full/disk")) or "")


def test_a_thread_that_cannot_be_started_is_a_shortage() -> None:
    said = shortage(RuntimeError("can't start new thread")) or ""
    assert "can't start new thread; this user may have" in said
    assert "ulimit -u unlimited" in said


def test_everything_else_is_no_shortage() -> None:
    assert shortage(RuntimeError("x")) is None
    assert shortage(KeyError("rank")) is None
    assert shortage(OSError(errno.ENOENT, "No such file or directory")) is None


@pytest.mark.parametrize(("is_shortage", "level"), [(True, ERROR), (True, DEBUG), (False, ERROR)])
def test_a_traceback_is_only_for_mistakes_of_ours(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], is_shortage: bool, level: int
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) if is_shortage else KeyError("rank")

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["--ft-log-level", str(level)]) == 1
    said = capfd.readouterr().err
    assert ("Traceback" in said) is (not is_shortage or level == DEBUG)
    assert ("please report it" in said) is not is_shortage
    assert ("ulimit -n 1024" in said) is is_shortage


@pytest.mark.e2e
def test_a_launcher_with_few_descriptors_ends_with_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    command = f"ulimit -n 24; exec {sys.executable} -m launcher --nproc-per-node 4 --ft-worker-start spawn train.py"
    ended = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 2
    (line,) = [line for line in ended.stderr.splitlines() if "OMP_NUM_THREADS" not in line]
    assert "4 worker(s) need 39 more; this process may open 24 files" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]
