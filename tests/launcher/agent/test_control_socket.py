"""The launcher's ear: requests of its own user's ranks, and of nobody else; nothing that is sent can hurt it."""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent.control_socket import ControlSocket
from launcher.records.log_folders import FolderError
from resilience_core.protocol.control import MAX_BYTES, WorkloadAction, WorkloadControlRequest, send


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[ControlSocket]:
    ear = ControlSocket(str(tmp_path / "control.sock"))
    yield ear
    ear.close()


def test_requests_are_read_in_order_with_who_sent_them(ear: ControlSocket) -> None:
    sent = [(rank, WorkloadControlRequest(action, f"because {rank}")) for rank, action in enumerate(WorkloadAction)]
    for rank, request in sent:
        send(request, ear.path, rank)

    assert ear.read() == sent
    assert ear.read() == []


JUNK = (b"", b"junk", b"{}", b"[1]", b"\xff" * 9, b"{" * 4000, b"x" * (MAX_BYTES + 1), b'{"rank": -1}')


@pytest.mark.parametrize("junk", JUNK)
def test_what_is_no_request_is_dropped_with_a_word(
    ear: ControlSocket, junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    _send_raw(ear, junk)
    send(WorkloadControlRequest(WorkloadAction.Continue), ear.path, 0)

    assert len(ear.read()) == 1
    assert ["was dropped" in record.getMessage() for record in caplog.records] == [True]


def test_words_about_what_is_dropped_are_few_and_the_rest_is_counted(
    ear: ControlSocket, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("launcher.agent.control_socket.time.monotonic", lambda: now)
    for _ in range(100):
        _send_raw(ear, b"junk")
        assert ear.read() == []
    assert len(caplog.records) == 5
    assert "only counted" in caplog.records[-1].getMessage()

    now += 61
    _send_raw(ear, b"junk")
    assert ear.read() == []
    assert [record.getMessage().partition(":")[0] for record in caplog.records[5:]] == [
        "95 more control requests were dropped",
        "a control request was dropped",
    ]


def test_nobody_who_sends_without_end_keeps_the_launcher_from_its_other_duties(ear: ControlSocket) -> None:
    """Each read ends, however fast the sender is."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.connect(ear.path)
        taken = FakeEndlessSocket(ear._socket)
        ear._socket = taken  # type: ignore[assignment]
        assert ear.read() == []
    assert 0 < taken.count <= 1000


class FakeEndlessSocket:
    """There is always one more."""

    def __init__(self, inner: socket.socket) -> None:
        self.close = inner.close
        self.count = 0

    def recvmsg(self, *arguments: object) -> tuple[bytes, list[tuple[int, int, bytes]], int, None]:
        self.count += 1
        return b"junk", [(1, 2, struct.pack("iII", 1, os.getuid(), 0))], 0, None


def test_one_whose_socket_was_removed_listens_anew_and_loses_nothing(ear: ControlSocket) -> None:
    send(WorkloadControlRequest(WorkloadAction.Continue, "before"), ear.path, 0)
    os.unlink(ear.path)
    ear.move(ear.path)
    send(WorkloadControlRequest(WorkloadAction.Continue, "after"), ear.path, 0)
    assert [request.description for _, request in ear.read()] == ["before", "after"]


def _send_raw(ear: ControlSocket, raw: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.connect(ear.path)
        client.send(raw)


AS_ANOTHER_USER = """
import os, socket, sys
ours = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
if sys.argv[2] == "inside":
    ours.connect(sys.argv[1])        # a descriptor that leaked before the user changed
os.setgid(12345); os.setuid(12345)
try:
    if sys.argv[2] == "outside":
        ours.connect(sys.argv[1])
    ours.send(b'{"version": 1, "rank": 0, "action": "ShutdownWorkload", "description": "evil"}')
except PermissionError:
    sys.exit(13)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_can_neither_connect_nor_be_heard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    ear = ControlSocket(str(folder / "control.sock"))

    codes = [
        subprocess.run([sys.executable, "-c", AS_ANOTHER_USER, ear.path, where], check=False).returncode
        for where in ("outside", "inside")
    ]

    assert codes == [13, 0]
    assert ear.read() == []
    assert [record.getMessage() for record in caplog.records] == ["a control request from uid 12345 was dropped"]
    ear.close()


def test_it_goes_with_its_owner(ear: ControlSocket) -> None:
    assert stat.S_ISSOCK(os.stat(ear.path).st_mode)
    ear.close()
    assert not os.path.exists(ear.path)


def test_a_place_where_it_cannot_listen_is_one_clear_error(tmp_path: Path, ear: ControlSocket) -> None:
    for path in (str(tmp_path / "gone" / "c"), str(tmp_path / ("deep" * 40)), ear.path):
        with pytest.raises(FolderError, match=r"cannot listen at .*--ft-run-dir"):
            ControlSocket(path)
