"""``--ft-on-event`` in real jobs: who is told what, how often, and that nobody waits for it."""

from __future__ import annotations

import http.server
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

LIMITS = "setup:60,step:20,checkpointing:60"
FAULT = "sigkill:rank=1,step=3"


@pytest.fixture
def teller(tmp_path: Path) -> tuple[str, Callable[[], list[dict[str, Any]]]]:
    """A command that appends each document to a file, and what it holds."""
    path, program = tmp_path / "told", tmp_path / "tell.py"
    program.write_text(f"import sys\nwith open({str(path)!r}, 'a') as file:\n    file.write(sys.stdin.read())\n")

    def told() -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return f"{sys.executable} -S {program}", told


@pytest.fixture
def broken_server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that answers each POST with an error, and what it got."""
    got: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_error(503)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/SECRET", got
    server.shutdown()
    server.server_close()


def test_a_failure_a_restart_and_the_end_are_told(launch: Any, teller: Any) -> None:
    command, told = teller
    job = launch(
        *("loop.py", "--until-stopped"),
        options=("--max-restarts", 2),
        faults=FAULT,
        rank_section_timeouts=LIMITS,
        on_event=command,
    )
    assert job.wait() == 0, job.stderr
    incident, restarted, finished = told()
    assert [each["event"] for each in (incident, restarted, finished)] == ["incident", "restarted", "finished"]
    (culprit,) = incident["culprits"]
    assert (culprit["rank"], culprit["exit_code"]) == (1, -9)
    assert Path(incident["report"]).is_file()
    assert (incident["restarts_left"], restarted["restarts_left"]) == (2, 1)
    (event,) = job.events("restarted")
    assert restarted["seconds"] == event["seconds"]
    assert f"{event['seconds']:.2f} s after the failure was seen" in job.stderr
    assert (finished["exit_code"], finished["run"]) == (0, job.log_folder.name)


def test_one_that_hangs_is_said_once_and_costs_no_restart(launch: Any, tmp_path: Path) -> None:
    """It hangs through two restarts, in sessions of its own, and nothing of it is left; the exit code stays."""
    job = launch(
        *("loop.py", "--until-file", tmp_path / "never"),
        options=("--max-restarts", 1),
        faults="exit:rank=1,step=3,generation=0;exit:rank=1,step=3,generation=1",
        rank_section_timeouts=LIMITS,
        on_event="sh -c 'setsid sleep 1000 & sleep 1000'",
        max_no_progress_cycles=0,
    )
    assert job.wait() == 1, job.stderr
    assert [event["generation"] for event in job.events("started")] == [0, 1]
    said = [line for line in job.stderr.splitlines() if "--ft-on-event" in line]
    assert len(said) == 1
    assert "could not be told within 2 s of the end of the job: incident, restarted, incident, given_up" in said[0]
    assert said[0].partition(": ")[2] in [event["text"] for event in job.events("note")]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_process_that_tells_events_may_be_killed_and_stopped(
    launch: Any, teller: Any, number: signal.Signals
) -> None:
    command, told = teller
    job = launch(
        *("loop.py", "--until-file", "stop"),
        options=("--max-restarts", 1),
        rank_section_timeouts=LIMITS,
        on_event=command,
    )
    job.wait_for_output("runs in generation 0", count=2)

    def teller_of(former: int = 0) -> int | None:
        pids = [pid for pid, line in job.processes().items() if "launcher.notices.caller" in line and pid != former]
        return pids[0] if len(pids) == 1 else None

    first = job.until(teller_of, "a process that tells events")
    os.kill(first, number)
    job.until(lambda: teller_of(first), "another one")
    os.kill(job.workers(0)[1], signal.SIGKILL)
    job.wait_for_output("runs in generation 1", count=2)
    job.until(lambda: len(told()) == 2, "two events that were told")  # at the end it would be waited for 2 s alone
    (job.work / "stop").touch()

    assert job.wait() == 0, job.stderr
    assert [each["event"] for each in told()] == ["incident", "restarted", "finished"], job.stderr


def test_a_server_that_fails_is_said_once_without_its_path(
    launch: Any, broken_server: tuple[str, list[dict[str, Any]]]
) -> None:
    url, got = broken_server
    job = launch(
        *("loop.py", "--until-stopped"),
        nproc=1,
        options=("--max-restarts", 1),
        faults="exit:rank=0,step=3",
        rank_section_timeouts=LIMITS,
        on_event=url,
        env={"no_proxy": "127.0.0.1"},
    )
    assert job.wait() == 0, job.stderr
    assert [each["event"] for each in got] == ["incident", "restarted", "finished"]
    said = [line for line in job.stderr.splitlines() if "--ft-on-event" in line]
    assert len(said) == 1
    assert "the server answers 503 Service Unavailable" in said[0]
    assert "SECRET" not in job.stderr
    written = (job.log_folder / "events.jsonl").read_text()
    assert "/***" in written
    assert "SECRET" not in written


@pytest.mark.parametrize("membership", ["elastic", pytest.param("torch", marks=pytest.mark.long)])
def test_of_two_nodes_one_tells_each_event(
    launch: Any, unused_port: Callable[[], int], teller: Any, membership: str
) -> None:
    command, told = teller
    options = ("--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-id", "job", "--local-addr", "127.0.0.1")
    options += ("--rdzv-endpoint", f"localhost:{unused_port()}", "--max-restarts", 1)
    faults = "sigkill:rank=0,step=3,generation=0;sigkill:rank=1,step=3,generation=1"
    nodes = [
        launch(
            *("loop.py", "--until-file", "never"),
            nproc=1,
            options=options,
            faults=faults,
            rank_section_timeouts=LIMITS,
            membership=membership,
            max_no_progress_cycles=0,
            on_event=command,
        )
        for _ in range(2)
    ]
    assert [node.wait() for node in nodes] == [1, 1]
    documents = told()
    assert [each["event"] for each in documents] == ["incident", "restarted", "incident", "given_up"]
    assert [each["generation"] for each in documents] == [0, 1, 1, 1]
    assert [[culprit["rank"] for culprit in each["culprits"]] for each in documents] == [[0], [], [1], []]


def test_what_cannot_be_called_is_refused_before_anything_is_started(launch: Any) -> None:
    job = launch("loop.py", on_event="no-such-command --now")
    assert job.wait() == 2
    assert "error: --ft-on-event 'no-such-command ...': there is no command 'no-such-command' in PATH" in job.stderr
    assert not job.logs.exists()
