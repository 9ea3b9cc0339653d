"""Folders that can be written, and real ones that cannot: full, read-only, without inodes, gone."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.health.paths import FolderCheck, shared_memory_check
from tests.launcher.health.conftest import asked

PROGRAM = """
from launcher.health.check import Context
from launcher.health.paths import FolderCheck
print(FolderCheck("p", "/mnt", 60, {least}).check(Context()))
import os
print(os.listdir("/mnt"))
"""


def check(path: Path | str, least: int = 1) -> str | None:
    return asked(FolderCheck("p", str(path), 60, least))


def test_a_folder_that_can_be_written_is_fine_and_is_left_as_it_was(tmp_path: Path):
    assert check(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_written_synced_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced = []

    def fsync(descriptor: int) -> None:
        (file,) = tmp_path.iterdir()
        synced.append((file.name.startswith(".ft-health-"), os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    assert check(tmp_path) is None
    assert synced == [(True, 4096)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["write", "fsync", "unlink"])
def test_an_error_at_any_step_is_told_with_what_to_do(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = getattr(os, call)
    failures = [OSError(errno.EDQUOT, "Disk quota exceeded")]

    def fail(*args: object) -> object:
        if failures:
            raise failures.pop()
        return real(*args)

    monkeypatch.setattr(os, call, fail)
    assert check(tmp_path) == (
        f"{tmp_path} cannot be used, at writing a file: Disk quota exceeded; make room in the quota there (quota)"
    )
    monkeypatch.undo()
    assert [each for each in tmp_path.iterdir() if call != "unlink"] == []


def test_too_little_room_is_told_with_both_numbers(tmp_path: Path):
    answer = check(tmp_path, 1 << 60)
    assert answer is not None
    assert answer.startswith(f"{tmp_path} has ")
    assert " free for this user, and 1048576 TiB must be; make room there (df)" in answer


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: None, "No such file or directory; create it, or mount what it belongs to"),
        (lambda path: path.write_text(""), "Not a directory; name a folder"),
        (os.mkfifo, "Not a directory; name a folder"),
    ],
)
def test_what_is_no_folder_is_told(make: Callable[[Path], object], expected: str, tmp_path: Path):
    make(tmp_path / "x")
    assert check(tmp_path / "x") == f"{tmp_path / 'x'} cannot be used, at looking at it: {expected}"


def test_a_folder_of_somebody_else_is_told(in_namespaces: Callable[..., str]):
    program = PROGRAM.format(least=1).replace(
        "print(F", "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)\nprint(F"
    )
    answer = in_namespaces("-m", "mount -t tmpfs -o mode=755 none /mnt", program)
    assert "/mnt cannot be used, at writing a file: Permission denied; let the user of ft_launcher write" in answer


@pytest.mark.parametrize(
    ("setup", "least", "expected"),
    [
        ("head -c 1m /dev/zero >/mnt/full 2>/dev/null || true", 1, "/mnt has 0 B free for this user, and 1 B must be"),
        (
            "head -c 1m /dev/zero >/mnt/full 2>/dev/null || true",
            0,
            "/mnt cannot be used, at writing a file: No space left on device; make room there (df, df -i)",
        ),
        ("mount -o remount,ro /mnt", 1, "/mnt cannot be used, at writing a file: Read-only file system; it is mounted"),
        ("mount -o remount,nr_inodes=40 /mnt", 1, "/mnt has room for 39 more files (inodes), and 64 must be free"),
        ("true", 1, "None\n[]"),
        ("true", 1 << 20, "/mnt has 256 KiB free for this user, and 1 MiB must be"),
    ],
)
def test_real_file_systems(setup: str, least: int, expected: str, in_namespaces: Callable[..., str]):
    mount = "mount -t tmpfs -o size=256k none /mnt"
    answer = in_namespaces("-m", f"{mount}\n{setup}", PROGRAM.format(least=least))
    assert answer.startswith(expected)
    assert "ft-health" not in answer.splitlines()[1]


def test_a_file_system_that_has_no_fixed_number_of_inodes_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = list(os.statvfs(tmp_path))
    real[5:8] = [0, 0, 0]  # f_files, f_ffree, f_favail
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(real))
    assert check(tmp_path) is None


def test_shared_memory_is_a_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: pytest.fail("there is no device to wait for"))
    (tmp_path / "shm").mkdir()
    assert asked(shared_memory_check(str(tmp_path), 60)) is None
    answer = asked(shared_memory_check(str(tmp_path), 60, 1 << 60))
    assert answer is not None
    assert answer.startswith(f"{tmp_path}/shm has ")
    assert asked(shared_memory_check("/dev", 60)) is None


def test_a_full_shared_memory_is_told(in_namespaces: Callable[..., str]):
    program = """
from launcher.health.check import Context
from launcher.health.paths import shared_memory_check
print(shared_memory_check("/dev", 60).check(Context()))
"""
    answer = in_namespaces("-m", "mount -t tmpfs -o size=1m none /dev/shm", program)
    assert answer.startswith("/dev/shm has 1 MiB free for this user, and 16 MiB must be")
