"""The HTTP server: bounded in connections and time, and silent."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from launcher.metrics import server as servers
from launcher.metrics.server import Answer, MetricsServer, Reused

PATIENCE = 60.0


class Served:
    """A server in a thread."""

    def __init__(self) -> None:
        self.asked: list[bool] = []
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.errors: list[Exception] = []
        self.raises: Exception | None = None
        self.server = MetricsServer(listener, self.answer, self.errors.append)
        self.thread = threading.Thread(target=self.server.serve, daemon=True)
        self.thread.start()

    def answer(self, is_openmetrics: bool) -> Answer:
        self.asked.append(is_openmetrics)
        if self.raises is not None:
            raise self.raises
        return Answer("text/plain", b"ft_up 1\n")

    def get(self, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        found = response.status, response.read()
        connection.close()
        return found

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(servers, "_LOOK_SECONDS", 0.02)
    made = Served()
    yield made
    made.server.shutdown()
    made.thread.join(PATIENCE)
    made.server.server_close()


def test_metrics_are_where_prometheus_looks_for_them(served: Served) -> None:
    assert served.get() == (200, b"ft_up 1\n")
    assert served.get("/metrics?name=x") == (200, b"ft_up 1\n")
    assert served.get(method="HEAD") == (200, b"")
    assert served.get("/")[0] == 200
    status, body = served.get("/elsewhere")
    assert status == 404
    assert b"/metrics" in body
    assert served.get(method="POST")[0] == 501


def test_whoever_asks_for_openmetrics_gets_it(served: Served) -> None:
    served.get()
    served.get(Accept="application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.1")
    assert served.asked == [False, True]


def test_a_client_that_sends_one_byte_after_the_other_is_cut_off_and_others_are_served(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_LONGEST_CONNECTION_SECONDS", 0.2)
    with served.connect() as slow:
        slow.sendall(b"GET /metrics HTTP/1.0\r\nAccept: ")
        slow.settimeout(0.05)
        assert served.get()[0] == 200
        end = time.monotonic() + PATIENCE
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < end:
                slow.sendall(b"x")
                with contextlib.suppress(TimeoutError):
                    assert slow.recv(1) == b""
                    break
        assert time.monotonic() < end


def test_connections_beyond_the_bound_are_closed_unanswered(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_MOST_CONNECTIONS", 2)
    held = [served.connect() for _ in range(2)]
    for each in held:
        each.sendall(b"GET ")
    with served.connect() as refused:
        assert refused.recv(1) == b""
    for each in held:
        each.sendall(b"/metrics HTTP/1.0\r\n\r\n")
        assert each.recv(15) == b"HTTP/1.0 200 OK"
        each.close()
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:  # the two are closed by threads of their own
        try:
            assert served.get()[0] == 200
            break
        except http.client.RemoteDisconnected:
            continue


def test_a_client_that_goes_away_is_no_message(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        gone = served.connect()
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        gone.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        gone.close()
    assert served.get()[0] == 200
    end = time.monotonic() + PATIENCE
    while served.server._open:  # until their threads have ended
        assert time.monotonic() < end
        select.select([], [], [], 0.01)
    assert capfd.readouterr() == ("", "")
    assert served.errors == []


@pytest.mark.parametrize("error", [RuntimeError("a label too many"), OSError("the disk is gone")])
def test_a_page_that_cannot_be_made_is_told_once_and_answered(served: Served, error: Exception) -> None:
    served.raises = error
    for _ in range(3):
        status, body = served.get()
        assert status == 500
        assert str(error).encode() in body
    assert served.errors == [error]
    served.raises = None
    assert served.get() == (200, b"ft_up 1\n")


def test_a_mistake_of_the_server_itself_is_told_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("a mistake")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(servers._Handler, "do_GET", fail)
    for _ in range(2):
        with pytest.raises(http.client.RemoteDisconnected):
            served.get()
    assert served.errors == [error]


def test_a_page_is_made_as_seldom_as_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now, used, made = [0.0], [0.0], list[float]()
    monkeypatch.setattr(
        servers, "time", SimpleNamespace(monotonic=lambda: now[0], process_time=lambda: used[0], sleep=time.sleep)
    )

    def make(_: bool) -> Answer:
        made.append(now[0])
        used[0] += 1.0
        now[0] += 3.0  # the processors are busy
        return Answer("", str(len(made)).encode())

    page, said = Reused(make), []
    for _ in range(200):
        said.append(page(True).body)
        now[0] += 0.1
    assert made == pytest.approx([0.0, 12.0, 24.0], abs=0.2)
    assert (said[0], said[-1]) == (b"1", b"3")


def test_pages_of_two_kinds_share_their_part_of_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    now, used = [0.0], [0.0]
    monkeypatch.setattr(
        servers, "time", SimpleNamespace(monotonic=lambda: now[0], process_time=lambda: used[0], sleep=time.sleep)
    )

    def make(_: bool) -> Answer:
        used[0] += 1.0
        now[0] += 1.0
        return Answer("", b"")

    page = Reused(make)
    while now[0] < 1000:
        page(True)
        page(False)
        now[0] += 0.1
    assert 80 <= used[0] <= 101  # a tenth, and a page of each kind at the beginning
