"""The last message of a node: kept in a file, read by somebody else, sent to all who can be reached."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.nodes import one_shot
from launcher.nodes.farewell import FAREWELL_FILE, DamagedError, Farewell, LastMessage, read_farewell

MESSAGE = LastMessage((("127.0.0.1", 1), ("::1", 2)), "run", bytes(range(32)), "node \u00e9", b"\0payload\xff")


@pytest.fixture
def farewell(tmp_path: Path) -> Farewell:
    return Farewell(lambda: str(tmp_path))


def test_what_was_written_is_read(farewell: Farewell, tmp_path: Path) -> None:
    assert read_farewell(str(tmp_path)) is None
    assert farewell.write(*MESSAGE)
    assert read_farewell(str(tmp_path)) == MESSAGE
    assert farewell.write(*MESSAGE._replace(addresses=()))
    assert read_farewell(str(tmp_path)) == MESSAGE._replace(addresses=())
    farewell.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_secret_is_for_its_owner_only_and_nothing_else_is_left(farewell: Farewell, tmp_path: Path) -> None:
    farewell.write(*MESSAGE)
    (file,) = tmp_path.iterdir()
    assert (file.name, file.stat().st_mode & 0o777) == (FAREWELL_FILE, 0o600)


def test_the_same_again_is_written_only_where_it_is_not_there(farewell: Farewell, tmp_path: Path) -> None:
    file = tmp_path / FAREWELL_FILE
    farewell.write(*MESSAGE)
    before = file.stat().st_ino
    keep = os.open(file, os.O_RDONLY)  # else its number may be given to the next file
    farewell.write(*MESSAGE)
    assert file.stat().st_ino == before
    file.unlink()
    assert farewell.write(*MESSAGE)
    assert read_farewell(str(tmp_path)) == MESSAGE
    os.close(keep)


def test_it_follows_the_run_folder(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    farewell = Farewell(lambda: str(folders[-1]))
    assert not farewell.write(*MESSAGE)  # there is no such folder
    folders[1].mkdir()
    assert farewell.write(*MESSAGE)
    assert read_farewell(str(folders[1])) == MESSAGE


@pytest.mark.parametrize("kept", range(0, 200, 9))
def test_a_torn_file_is_damaged(farewell: Farewell, tmp_path: Path, kept: int) -> None:
    farewell.write(*MESSAGE)
    os.truncate(tmp_path / FAREWELL_FILE, kept)
    with pytest.raises(DamagedError):
        read_farewell(str(tmp_path))
    assert farewell.write(*MESSAGE)
    assert read_farewell(str(tmp_path)) == MESSAGE


def test_a_changed_byte_is_damage(farewell: Farewell, tmp_path: Path) -> None:
    farewell.write(*MESSAGE)
    file = tmp_path / FAREWELL_FILE
    raw = file.read_bytes()
    file.write_bytes(raw.replace(b"127.0.0.1", b"127.0.0.2"))
    with pytest.raises(DamagedError):
        read_farewell(str(tmp_path))


def test_a_pipe_a_link_or_a_folder_in_its_place_is_damage_and_never_waited_for(tmp_path: Path) -> None:
    file = tmp_path / FAREWELL_FILE
    os.mkfifo(file)
    with pytest.raises(DamagedError):
        read_farewell(str(tmp_path))
    file.unlink()
    file.symlink_to("/etc/hostname")
    with pytest.raises(DamagedError):
        read_farewell(str(tmp_path))
    file.unlink()
    file.mkdir()
    with pytest.raises(DamagedError):
        read_farewell(str(tmp_path))


# ---- sending --------------------------------------------------------------------------------------------


class Sent:
    """Takes the place of ``send_once``; addresses with port 0 do not answer until the end of the test."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.end = threading.Event()

    def __call__(self, address: tuple[str, int], *rest: Any) -> bool:
        self.calls.append((address, *rest))
        if address[1] == 0:
            self.end.wait(60)
        if address[1] == 9:
            raise ValueError("no such address")
        return address[1] > 1


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sent]:
    sent = Sent()
    monkeypatch.setattr(one_shot, "send_once", sent)
    yield sent
    sent.end.set()


def test_everybody_is_told_and_those_who_confirm_are_counted(sent: Sent) -> None:
    addresses = tuple(("host", port) for port in (9, 1, 2, 3))
    assert MESSAGE._replace(addresses=addresses).send(60) == 2
    assert sorted(call[0] for call in sent.calls) == sorted(addresses)
    assert {call[1:5] for call in sent.calls} == {MESSAGE[1:]}
    assert all(0 < call[5] <= 60 for call in sent.calls)


def test_one_that_does_not_answer_keeps_nobody_else_from_being_told(sent: Sent) -> None:
    assert MESSAGE._replace(addresses=(("host", 0), ("host", 2))).send(0.5) == 1


def test_without_threads_it_is_sent_one_after_another(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert MESSAGE._replace(addresses=(("host", 2), ("host", 3))).send(60) == 2
