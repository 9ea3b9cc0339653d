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
from launcher.processes.shortages import explained, needed_descriptors, shortage, too_few_descriptors
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
    ("soft", "hard", "becomes"),
    [
        (102, 102, None),
        (103, 103, 103),
        (24, 102, None),
        (24, 103, 103),
        (24, 4096, 103),
        (24, resource.RLIM_INFINITY, 103),
        (1024, 4096, 1024),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    ],
)
def test_descriptors_are_raised_as_far_as_a_job_needs_and_it_is_refused_where_that_is_forbidden(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, becomes: int | None
) -> None:
    """Of what failed first, some was torch's: with 24, two workers waited for ever."""
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, wanted: limits.append(wanted))
    said = too_few_descriptors(100, open_now=3)
    if becomes is not None:
        assert said is None
        assert limits[-1] == (becomes, hard)
        return
    assert len(limits) == 1
    assert said == (
        f"the job needs 103 open files in this process, of which 3 are open; this process may open {soft} files; "
        f"allow more before the start: ulimit -n 103 (an administrator has to raise the hard limit, {hard}, first)"
    )


def test_a_sandbox_that_lets_nobody_raise_a_limit_refuses_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (24, 4096))
    monkeypatch.setattr(resource, "setrlimit", forbid)
    said = too_few_descriptors(100, open_now=3) or ""
    assert said.endswith("may open 24 files; allow more before the start: ulimit -n 103")


def test_every_worker_every_copy_and_every_node_needs_descriptors() -> None:
    """As measured in restarts after failures and hangs: 31 and 8 for each worker, 10 with ``--tee 3``, 9 for others."""
    for workers in (1, 2, 4, 8, 64):
        assert needed_descriptors(workers) >= 40 + 8 * workers
        assert needed_descriptors(workers, are_copied=True) >= 40 + 12 * workers
        assert needed_descriptors(workers, 16) >= needed_descriptors(workers) + 16 + 4 * 16


def test_advice_on_descriptors_is_more_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (4096, resource.RLIM_INFINITY))
    assert (shortage(OSError(errno.EMFILE, "x")) or "").endswith("ulimit -n 8192")


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
        assert "ulimit -n " in explained(error)
    assert explained(FolderError("it is full; name another")) == "it is full; name another"


def test_a_limit_of_the_size_of_files_is_named_in_place_of_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    error = CellError("cannot make cell x: File too large; name another folder in memory with --ft-run-dir")
    error.__cause__ = OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    said = explained(error)
    assert said == (
        "cannot make cell x: File too large; this process may write files of 1024 bytes; allow more before the start: "
        "ulimit -f unlimited"
    )
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert explained(error).endswith("takes no file of that size; name a folder on another one")


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
    assert ("ulimit -n " in said) is is_shortage


@pytest.mark.e2e
def test_a_launcher_with_few_descriptors_ends_with_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    command = f"ulimit -n 24; exec {sys.executable} -m launcher --nproc-per-node 4 --ft-worker-start spawn train.py"
    ended = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 2
    (line,) = [line for line in ended.stderr.splitlines() if "OMP_NUM_THREADS" not in line]
    needed = int(line.partition("the job needs ")[2].split()[0])
    assert needed > 80
    assert f"may open 24 files; allow more before the start: ulimit -n {needed} (an administrator has to" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize(
    ("workers", "options"), [(1, ""), (2, "--tee 3 --ft-metrics-port 0 --ft-on-event cat"), (8, "")]
)
def test_the_lowest_limit_that_is_accepted_is_enough_for_a_failure_and_a_hang(
    tmp_path: Path, workers: int, options: str
) -> None:
    loop = Path(__file__).parents[2] / "e2e" / "scripts" / "loop.py"
    faults = f"exit:rank=0,step=3,generation=0;hang:rank={workers - 1},step=3,generation=1"
    command = (
        f"{sys.executable} -m launcher --nproc-per-node {workers} --max-restarts 2 {options} "
        f"--ft-rank-section-timeouts setup:60,step:2,checkpointing:60 {loop} --until-stopped"
    )

    def started_with(limit: int) -> subprocess.CompletedProcess[str]:
        limited = ["bash", "-c", f"ulimit -n {limit}; exec {command}"]
        environment = {**os.environ, "FT_SIMULATED_FAULTS": faults}
        return subprocess.run(limited, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)

    refused = started_with(24)
    assert refused.returncode == 2, refused.stderr
    ended = started_with(int(refused.stderr.partition("the job needs ")[2].split()[0]))
    assert ended.returncode == 0, ended.stderr
    assert "Too many open files" not in ended.stderr
    assert "generation 2 started" in ended.stderr
