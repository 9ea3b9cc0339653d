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
        ("SECRET:x", "something that is no URL"),
        ("mailto:SECRET", "something that is no URL"),
        ("//SECRET/", "a part of its own path"),
        ("", "nowhere"),
    ],
)
def test_a_redirect_is_told_without_its_path(server: Server, location: str, told: str) -> None:
    server.answers.append((302, {"Location": location}))
    problem = post(f"{server.url}//SECRET", b"{}", "incident", PATIENCE) or ""
    assert f"redirects (302) to {told.replace('HERE', server.url)}, which" in problem
    assert "SECRET" not in problem


@pytest.mark.parametrize(
    ("code", "reason", "told"),
    [
        (404, "no /services/SECRET?token=SECRET, http://bot:SECRET@h", "404 Not Found"),
        (404, "no hook 'SECRET'", "404 Not Found"),
        (403, "SECRET", "403 Forbidden"),
        (418, "SE%43RET", "418 I'm a Teapot"),
        (599, "SECRET", "599"),
    ],
)
def test_no_word_of_the_server_is_told(server: Server, code: int, reason: str, told: str) -> None:
    server.answers.append((code, {"reason": reason}))
    problem = post(f"{server.url}/services/SECRET?token=SECRET", b"{}", "incident", PATIENCE)
    assert problem == f"the server answers {told}"


def test_it_says_what_the_server_answers(server: Server) -> None:
    server.answers.append((503, {}))
    assert post(server.url, b"{}", "incident", PATIENCE) == "the server answers 503 Service Unavailable"


def test_a_scheme_that_only_the_standard_library_knows_is_not_used(tmp_path: Any) -> None:
    problem = post(f"file://{tmp_path}", b"{}", "incident", PATIENCE)
    assert problem is not None
    assert "unknown url type: file" in problem


def test_a_path_that_the_library_refuses_is_not_told() -> None:
    problem = str(post("http://127.0.0.1:1/a SECRET?SECRET", b"{}", "incident", PATIENCE))
    assert problem.startswith("no answer: InvalidURL: ")
    assert "SECRET" not in problem


def test_nobody_there_is_said(unused_port: Callable[[], int]) -> None:
    assert "Connection refused" in str(post(f"http://127.0.0.1:{unused_port()}/", b"{}", "incident", PATIENCE))


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"SSH-2.0-nonsense\r\n", "what the server has sent is no HTTP"),
        (b"no hook SECRET\r\n", "what the server has sent is no HTTP"),
        (b"HTTP/1.1 SECRET x\r\n\r\n", "what the server has sent is no HTTP"),
        (b"", "the server has closed the connection without one"),
    ],
)
def test_an_answer_that_is_none_is_said_without_its_words(sent: bytes, told: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(sent)

        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        problem = post(f"http://127.0.0.1:{listener.getsockname()[1]}/SECRET", b"", "incident", PATIENCE)
        thread.join(PATIENCE)
    assert problem == f"no answer: {told}"


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
