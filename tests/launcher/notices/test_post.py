"""POST to servers of this test's own: what they get, and what is said of those that refuse, redirect or hang."""

from __future__ import annotations

import http.server
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from launcher.notices.handle import CallerHandle
from launcher.notices.post import post

PATIENCE = 60.0


class Server:
    """Answers each POST as it is told, and keeps what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, dict[str, str], bytes]] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.got.append((self.command, self.path, dict(self.headers), body))
                code, headers = outer.answers.pop(0) if outer.answers else (204, {})
                self.send_response(code, headers.get("reason"))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

            do_GET = do_POST = answer

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = Server()
    yield made
    made.close()


def until(probe: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := probe()):
        assert time.monotonic() < end
        select.select([], [], [], 0.01)
    return found


def test_a_document_is_posted_as_json(server: Server) -> None:
    assert post(f"{server.url}/hook?x=1", b'{"a": 1}', "incident", PATIENCE) is None
    ((method, path, headers, body),) = server.got
    assert (method, path, body) == ("POST", "/hook?x=1", b'{"a": 1}')
    assert headers["Content-Type"] == "application/json"
    assert headers["X-Ft-Event".title()] == "incident"


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(server: Server, code: int) -> None:
    server.answers.append((code, {"Location": f"{server.url}/elsewhere"}))
    problem = post(f"{server.url}/hook", b"{}", "incident", PATIENCE)
    assert problem is not None
    assert problem.startswith(f"the server redirects ({code}) to {server.url}/***, which is not followed; give the URL")
    assert [path for _, path, _, _ in server.got] == ["/hook"]


@pytest.mark.parametrize(
    ("location", "told"),
    [
        ("https://hooks.example.org/services/SECRET?token=SECRET", "https://hooks.example.org/***"),
        ("https://bot:SECRET@hooks.example.org", "https://hooks.example.org/***"),
        ("/services/SECRET?token=SECRET", "HERE/***"),
        ("//hooks.example.org/SECRET", "http://hooks.example.org/***"),
        ("http://[::1/SECRET", "something that is no URL"),
        ("", "nowhere"),
    ],
)
def test_a_redirect_is_told_without_its_path(server: Server, location: str, told: str) -> None:
    server.answers.append((302, {"Location": location}))
    problem = post(f"{server.url}/hook", b"{}", "incident", PATIENCE) or ""
    assert f"redirects (302) to {told.replace('HERE', server.url)}, which" in problem
    assert "SECRET" not in problem


def test_a_server_that_repeats_what_it_was_asked_for_is_told_without_it(server: Server) -> None:
    reason = "no /services/SECRET?token=SECRET, /services/SECRET, token=SECRET, http://bot:SECRET@h"
    server.answers.append((404, {"reason": reason}))
    problem = post(f"{server.url}/services/SECRET?token=SECRET", b"{}", "incident", PATIENCE)
    assert problem == "the server answers 404 no ***, ***, ***, http://h/***"


def test_it_says_what_the_server_answers(server: Server) -> None:
    server.answers.append((503, {}))
    assert post(server.url, b"{}", "incident", PATIENCE) == "the server answers 503 Service Unavailable"


def test_a_scheme_that_only_the_standard_library_knows_is_not_used(tmp_path: Any) -> None:
    problem = post(f"file://{tmp_path}", b"{}", "incident", PATIENCE)
    assert problem is not None
    assert "unknown url type: file" in problem


def test_nobody_there_and_nonsense_are_said(unused_port: Callable[[], int]) -> None:
    assert "Connection refused" in str(post(f"http://127.0.0.1:{unused_port()}/", b"{}", "incident", PATIENCE))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"SSH-2.0-nonsense\r\n")

        threading.Thread(target=talk, daemon=True).start()
        problem = post(f"http://127.0.0.1:{listener.getsockname()[1]}/", b"{}", "incident", PATIENCE)
    assert problem is not None
    assert problem.startswith("no answer: ")


def test_the_process_posts_and_says_once_what_goes_wrong(server: Server) -> None:
    problems: list[str] = []
    server.answers += [(204, {}), (500, {}), (500, {})]
    handle = CallerHandle(f"{server.url}/SECRET", PATIENCE, problems.append)
    for number in (1, 2, 3):
        handle.tell({"event": "incident", "number": number})
    until(lambda: len(server.got) == 3)
    handle.close()
    assert [json.loads(body)["number"] for *_, body in server.got] == [1, 2, 3]
    assert problems == [
        f"--ft-on-event {server.url}/***: the server answers 500 Internal Server Error (event 'incident') (said once)"
    ]


def test_a_server_that_drips_its_answer_is_bounded_as_a_whole() -> None:
    """Each wait is short, so the time limit of a socket would never pass."""
    problems: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        is_over = threading.Event()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                while not is_over.wait(0.05):
                    try:
                        connection.sendall(b"x")
                    except OSError:
                        return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        handle = CallerHandle(f"http://127.0.0.1:{listener.getsockname()[1]}/", 1.0, problems.append)
        handle.tell({"event": "incident", "number": 1})
        until(lambda: problems)
        is_over.set()
        handle.close()
        thread.join(PATIENCE)
    assert "has not answered within 1 s and was killed (event 'incident')" in problems[0]
    assert not os.path.exists(f"/proc/{handle.pid}")
