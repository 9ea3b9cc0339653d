"""The control socket: requests of its own user's ranks, and of nobody else; nothing that is sent can hurt it."""

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
def control(tmp_path: Path) -> Iterator[ControlSocket]:
    control = ControlSocket(str(tmp_path / "control.sock"))
    yield control
    control.close()


def test_requests_are_read_in_order_with_who_sent_them(control: ControlSocket) -> None:
    sent = [(rank, WorkloadControlRequest(action, f"because {rank}")) for rank, action in enumerate(WorkloadAction)]
    for rank, request in sent:
        send(request, control.path, rank)

    assert control.read() == sent
    assert control.read() == []


JUNK = (b"", b"junk", b"{}", b"[1]", b"\xff" * 9, b"{" * 4000, b"x" * (MAX_BYTES + 1), b'{"rank": -1}')


@pytest.mark.parametrize("junk", JUNK)
def test_what_is_no_request_is_dropped_with_a_word(
    control: ControlSocket, junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    _send_raw(control, junk)
    send(WorkloadControlRequest(WorkloadAction.Continue), control.path, 0)

    assert len(control.read()) == 1
    assert ["was dropped" in record.getMessage() for record in caplog.records] == [True]


def test_words_about_what_is_dropped_are_few_and_the_rest_is_counted(
    control: ControlSocket, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("launcher.agent.control_socket.time.monotonic", lambda: now)
    for _ in range(100):
        _send_raw(control, b"junk")
        assert control.read() == []
    assert len(caplog.records) == 5
    assert "only counted" in caplog.records[-1].getMessage()

    now += 61
    _send_raw(control, b"junk")
    assert control.read() == []
    assert [record.getMessage().partition(":")[0] for record in caplog.records[5:]] == [
        "95 more control requests were dropped",
        "a control request was dropped",
    ]


def test_nobody_who_sends_without_end_keeps_the_launcher_from_its_other_duties(control: ControlSocket) -> None:
    """Each read ends, however fast the sender is."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.connect(control.path)
        taken = FakeEndlessSocket(control._socket)
        control._socket = taken  # type: ignore[assignment]
        assert control.read() == []
    assert 0 < taken.count <= 1000


class FakeEndlessSocket:
    """There is always one more."""

    def __init__(self, inner: socket.socket) -> None:
        self.close = inner.close
        self.count = 0

    def recvmsg(self, *arguments: object) -> tuple[bytes, list[tuple[int, int, bytes]], int, None]:
        self.count += 1
        return b"junk", [(1, 2, struct.pack("iII", 1, os.getuid(), 0))], 0, None


def test_one_whose_socket_was_removed_listens_anew_and_loses_nothing(control: ControlSocket) -> None:
    send(WorkloadControlRequest(WorkloadAction.Continue, "before"), control.path, 0)
    os.unlink(control.path)
    control.move(control.path)
    send(WorkloadControlRequest(WorkloadAction.Continue, "after"), control.path, 0)
    assert [request.description for _, request in control.read()] == ["before", "after"]


def _send_raw(control: ControlSocket, raw: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.connect(control.path)
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
    control = ControlSocket(str(folder / "control.sock"))

    codes = [
        subprocess.run([sys.executable, "-c", AS_ANOTHER_USER, control.path, where], check=False).returncode
        for where in ("outside", "inside")
    ]

    assert codes == [13, 0]
    assert control.read() == []
    assert [record.getMessage() for record in caplog.records] == ["a control request from uid 12345 was dropped"]
    control.close()


def test_it_goes_with_its_owner(control: ControlSocket) -> None:
    assert stat.S_ISSOCK(os.stat(control.path).st_mode)
    control.close()
    assert not os.path.exists(control.path)


def test_a_place_where_it_cannot_listen_is_one_clear_error(tmp_path: Path, control: ControlSocket) -> None:
    for path in (str(tmp_path / "gone" / "c"), str(tmp_path / ("deep" * 40)), control.path):
        with pytest.raises(FolderError, match=r"cannot listen at .*--ft-run-dir"):
            ControlSocket(path)
