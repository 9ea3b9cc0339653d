"""The word that holds the lease: what the monitor reads after whatever has happened to the file."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.nodes.fence import LeaseWord, read_lease


@pytest.fixture
def word(tmp_path: Path) -> Iterator[LeaseWord]:
    made = LeaseWord(str(tmp_path / "lease"))
    yield made
    made.close()


def test_what_was_granted_last_is_read_until_it_is_lifted(word: LeaseWord) -> None:
    assert read_lease(word.descriptor) == 0
    for until_ns in (1, 7 << 40, 5):
        assert word.grant(until_ns)
        assert read_lease(word.descriptor) == until_ns
    assert word.lift()
    assert read_lease(word.descriptor) == 0


def test_no_time_is_not_taken_for_no_fence(word: LeaseWord) -> None:
    for until_ns in (0, -1):
        with pytest.raises(ValueError, match="no time of a lease"):
            word.grant(until_ns)


def test_only_its_owner_may_read_it_and_an_existing_file_is_not_taken(word: LeaseWord, tmp_path: Path) -> None:
    assert (tmp_path / "lease").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        LeaseWord(str(tmp_path / "lease"))


@pytest.mark.parametrize("offset", range(24))
def test_any_damaged_byte_is_noticed_and_the_next_grant_mends_it(word: LeaseWord, offset: int) -> None:
    word.grant(123_456_789)
    byte = os.pread(word.descriptor, 1, offset)[0]
    os.pwrite(word.descriptor, bytes([byte ^ 0x55]), offset)
    assert read_lease(word.descriptor) is None
    word.grant(987)
    assert read_lease(word.descriptor) == 987


@pytest.mark.parametrize("size", [0, 8, 23])
def test_a_file_that_was_shortened_is_noticed_and_the_next_grant_mends_it(word: LeaseWord, size: int) -> None:
    word.grant(123)
    os.ftruncate(word.descriptor, size)
    assert read_lease(word.descriptor) is None
    assert word.grant(987)
    assert read_lease(word.descriptor) == 987


def test_a_file_that_was_emptied_in_place_is_no_lifted_fence(word: LeaseWord) -> None:
    word.grant(123)
    os.pwrite(word.descriptor, bytes(24), 0)
    assert read_lease(word.descriptor) is None


def test_a_removed_file_goes_on_being_the_word(word: LeaseWord, tmp_path: Path) -> None:
    (tmp_path / "lease").unlink()
    assert word.grant(5)
    assert read_lease(word.descriptor) == 5


def test_one_that_is_being_written_is_read_again(word: LeaseWord, monkeypatch: pytest.MonkeyPatch) -> None:
    word.grant(5)
    os.pwrite(word.descriptor, b"\xff", 8)
    monkeypatch.setattr("launcher.nodes.fence.time.sleep", lambda _: word.grant(6))
    assert read_lease(word.descriptor) == 6


def test_where_nothing_can_be_written_the_former_time_stays(word: LeaseWord, tmp_path: Path) -> None:
    word.grant(5)
    writable, word.descriptor = word.descriptor, os.open(tmp_path / "lease", os.O_RDONLY)
    assert not word.grant(6)
    assert not word.lift()
    assert read_lease(word.descriptor) == 5
    os.close(writable)


def test_two_threads_that_grant_leave_one_of_their_times(word: LeaseWord) -> None:
    def grant(first: int) -> None:
        for until_ns in range(first, first + 1000):
            word.grant(until_ns)

    threads = [threading.Thread(target=grant, args=(first,)) for first in (1, 1 << 33)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert read_lease(word.descriptor) is not None
    for thread in threads:
        thread.join()
    assert read_lease(word.descriptor) in (1000, (1 << 33) + 999)


def test_a_node_without_a_lease_loads_none_of_it() -> None:
    program = """
import sys, launcher.monitor.monitor
print([name for name in sys.modules if "launcher.nodes" in name or "fencing" in name])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=True)
    assert ran.stdout == "[]\n"
