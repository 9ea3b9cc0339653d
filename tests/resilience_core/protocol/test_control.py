"""Control requests: one bounded datagram from a rank to its launcher."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_core import RankMonitorClientError, WorkloadAction, WorkloadControlRequest
from resilience_core.monitoring.client import RankMonitorClient
from resilience_core.protocol.control import MAX_BYTES, ControlMessageError, receive, send


class Launcher:
    """The launcher's end of the socket."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(60)

    def receive(self) -> tuple[int, WorkloadControlRequest]:
        return receive(self.socket.recv(MAX_BYTES + 1))


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path / "control")
    yield launcher
    launcher.socket.close()


requests = st.builds(WorkloadControlRequest, st.sampled_from(WorkloadAction), st.text(max_size=80))


@given(requests)
def test_json_gives_back_what_it_was_given(request_: WorkloadControlRequest):
    assert WorkloadControlRequest.from_json(request_.to_json()) == request_


@pytest.mark.parametrize("action", WorkloadAction)
def test_the_launcher_gets_what_a_rank_sends(launcher: Launcher, action: WorkloadAction):
    request = WorkloadControlRequest(action, "GPU 3 \N{SNOWMAN} fell off the bus")
    send(request, launcher.path, rank=7)
    assert launcher.receive() == (7, request)


@given(st.text(st.characters(), min_size=MAX_BYTES // 12))
def test_a_long_reason_is_shortened_and_says_so(description: str):
    """Whatever is in it (a character may take twelve bytes of JSON), it fits, and most of it is kept."""
    from resilience_core.protocol.control import _datagram

    datagram = _datagram(WorkloadControlRequest(WorkloadAction.Continue, description), 10**6)
    _, request = receive(datagram)
    assert len(datagram) <= MAX_BYTES
    if request.description != description:
        assert request.description.endswith(" ... (shortened)")
        assert description.startswith(request.description.removesuffix(" ... (shortened)"))
        assert len(datagram) > MAX_BYTES - 400


@pytest.mark.parametrize("text", ["x" * 100_000, "\N{SNOWMAN}" * 5_000, "\N{GRINNING FACE}" * 9_000, "\0" * 5_000])
def test_a_very_long_reason_still_arrives(launcher: Launcher, text: str):
    send(WorkloadControlRequest(WorkloadAction.ShutdownWorkload, text), launcher.path, rank=0)
    rank, request = launcher.receive()
    assert (rank, request.action) == (0, WorkloadAction.ShutdownWorkload)
    assert request.description.endswith(" ... (shortened)")


def test_an_action_may_be_given_by_name():
    assert WorkloadControlRequest("ExcludeThisNode", "x").action is WorkloadAction.ExcludeThisNode  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("action", "description", "message"),
    [
        ("Shutdown", "", r"action is 'Shutdown', not a WorkloadAction; did you mean 'ShutdownWorkload'"),
        (None, "", r"action is None"),
        (WorkloadAction.Continue, None, r"description is None; give a sentence"),
        (WorkloadAction.Continue, 7, r"description is 7"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(action: Any, description: Any, message: str):
    with pytest.raises(ControlMessageError, match=message):
        WorkloadControlRequest(action, description)


GOOD = {"version": 1, "rank": 1, "action": "Continue", "description": ""}


@pytest.mark.parametrize(
    ("datagram", "message"),
    [
        (b"", r"is JSON, not ''"),
        (b"\x80\x04\x95", r"is ASCII JSON"),
        (b"[]", r"has exactly action, description, rank, version"),
        (json.dumps({**GOOD, "more": 1}).encode(), r"has exactly"),
        (json.dumps({"rank": 1}).encode(), r"has exactly"),
        (
            json.dumps({**GOOD, "version": 2, "urgency": 1}).encode(),
            r"version 2, and version 1 is read .* start the job",
        ),
        (json.dumps({k: v for k, v in GOOD.items() if k != "version"}).encode(), r"has exactly"),
        (json.dumps({**GOOD, "rank": -1}).encode(), r"rank is -1"),
        (json.dumps({**GOOD, "rank": True}).encode(), r"rank is True"),
        (json.dumps({**GOOD, "rank": "1"}).encode(), r"rank is '1'"),
        (json.dumps({**GOOD, "action": "Contniue"}).encode(), r"did you mean 'Continue'"),
        (json.dumps({**GOOD, "description": []}).encode(), r"description is \[\]"),
        (b"[" * 4000, r"is JSON"),
        (b" " * (MAX_BYTES + 1), r"at most 4096 bytes"),
    ],
)
def test_what_is_no_request_is_refused(datagram: bytes, message: str):
    with pytest.raises(ControlMessageError, match=message):
        receive(datagram)


@given(st.binary(max_size=64))
def test_no_datagram_does_more_than_be_refused(datagram: bytes):
    with pytest.raises(ControlMessageError):
        receive(datagram)


def test_no_launcher_is_one_clear_error(tmp_path: Path):
    for wrong in ("ShutdownWorkload", None):
        with pytest.raises(ControlMessageError, match=rf"not {wrong!r} .*pass WorkloadControlRequest\("):
            send(wrong, str(tmp_path / "none"), rank=0)  # type: ignore[arg-type]
    with pytest.raises(RankMonitorClientError, match=r"no launcher listens at .*\(No such file"):
        send(WorkloadControlRequest(WorkloadAction.Continue), str(tmp_path / "none"), rank=0)


def test_a_launcher_that_is_gone_is_one_clear_error(launcher: Launcher):
    launcher.socket.close()
    with pytest.raises(RankMonitorClientError, match=r"no launcher listens at .*\(Connection refused"):
        send(WorkloadControlRequest(WorkloadAction.Continue), launcher.path, rank=0)


def test_a_path_that_is_too_long_is_one_clear_error(tmp_path: Path):
    with pytest.raises(RankMonitorClientError, match=r"too long"):
        send(WorkloadControlRequest(WorkloadAction.Continue), str(tmp_path / ("x" * 200)), rank=0)


def test_a_launcher_that_does_not_read_delays_a_rank_by_the_bound_only(launcher: Launcher):
    """A stopped launcher's queue fills up; then the sender gives up instead of waiting for ever."""

    def flood() -> None:
        for _ in range(100_000):
            send(WorkloadControlRequest(WorkloadAction.Continue), launcher.path, rank=0, timeout_seconds=0.05)

    with pytest.raises(RankMonitorClientError, match=r"not taken within 0.05 s"):
        flood()


def test_the_client_sends_through_the_environment(
    launcher: Launcher, rank_environment: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    rank_environment()
    monkeypatch.setenv("FT_CONTROL_SOCKET", launcher.path)
    monkeypatch.setenv("RANK", "5")
    client = RankMonitorClient()
    client.init_workload_monitoring()
    try:
        client.send_workload_control_request(WorkloadControlRequest(WorkloadAction.ShutdownWorkload, "enough"))
    finally:
        client.shutdown_workload_monitoring()
    assert launcher.receive() == (5, WorkloadControlRequest(WorkloadAction.ShutdownWorkload, "enough"))
