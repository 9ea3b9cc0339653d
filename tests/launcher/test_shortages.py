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
from launcher.console import DEBUG, ERROR
from launcher.lost_time import LostTime
from launcher.shortages import shortage


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
    assert "in create (launcher/lost_time.py line " in said
    assert "Too many open files; this process may open 3 files; allow more before the start: ulimit -n 1024" in said
    assert "hard limit" not in said


def test_a_hard_limit_that_is_too_low_is_said(descriptors: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (32, 64))
    assert "raise the hard limit, 64, first" in (shortage(OSError(errno.EMFILE, "x")) or "")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (32, resource.RLIM_INFINITY))
    assert "hard limit" not in (shortage(OSError(errno.EMFILE, "x")) or "")


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


def test_everything_else_is_no_shortage() -> None:
    assert shortage(KeyError("rank")) is None
    assert shortage(OSError(errno.ENOENT, "No such file or directory")) is None


@pytest.mark.parametrize(("is_shortage", "level"), [(True, ERROR), (True, DEBUG), (False, ERROR)])
def test_a_traceback_is_only_for_mistakes_of_ours(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], is_shortage: bool, level: int
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) if is_shortage else KeyError("rank")

    monkeypatch.setattr(cli, "_run", fail)
    monkeypatch.setattr("launcher.console._console.threshold", level)
    assert cli.main([]) == 1
    said = capfd.readouterr().err
    assert ("Traceback" in said) is (not is_shortage or level == DEBUG)
    assert ("please report it" in said) is not is_shortage
    assert ("ulimit -n 1024" in said) is is_shortage


@pytest.mark.e2e
def test_a_launcher_with_few_descriptors_ends_with_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    command = f"ulimit -n 32; exec {sys.executable} -m launcher --nproc-per-node 4 --ft-worker-start spawn train.py"
    ended = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert ended.stderr.count("the system has refused what ft_launcher needs") == 1
    assert "this process may open 32 files" in ended.stderr
