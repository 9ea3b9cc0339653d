"""The launcher's ear: requests of its own user's ranks, and of nobody else; nothing that is sent can hurt it."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.control_socket import ControlSocket
from launcher.folders import FolderError
from resilience_core.control import MAX_BYTES, WorkloadAction, WorkloadControlRequest, send


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


def test_what_is_no_request_is_dropped_with_a_word(ear: ControlSocket, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.connect(ear.path)
        for junk in (b"", b"junk", b"{}", b"[1]", b"\xff" * 9, b"{" * 4000, b"x" * (MAX_BYTES + 1), b'{"rank": -1}'):
            client.send(junk)
    send(WorkloadControlRequest(WorkloadAction.Continue), ear.path, 0)

    assert len(ear.read()) == 1
    assert sum("was dropped" in record.getMessage() for record in caplog.records) == 8


AS_ANOTHER_USER = """
import os, socket, sys
ours = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
if sys.argv[2] == "inside":
    ours.connect(sys.argv[1])        # a descriptor that leaked before the user changed
os.setgid(12345); os.setuid(12345)
try:
    if sys.argv[2] == "outside":
        ours.connect(sys.argv[1])
    ours.send(b'{"rank": 0, "action": "ShutdownWorkload", "description": "evil"}')
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
