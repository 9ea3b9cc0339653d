"""The benchmark of metrics: what it makes of an event log, and that it asks as often as it says."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from benchmarks.metrics import WHAT, Asked, Measured, show, times

MS = 1_000_000


def event(name: str, ms: float, **facts: Any) -> dict[str, Any]:
    return {"event": name, "t_ns": int(ms * MS), "generation": 0, **facts}


def test_times_are_those_of_the_event_log() -> None:
    ranks = {"0": {"first_sign_ns": 900 * MS}, "1": {"first_sign_ns": 950 * MS}}
    events = [
        event("started", 0),
        event("hang", 540, deadline_ns=500 * MS, seen_ns=502 * MS),
        event("signalled", 545, signalled_ns=544 * MS),
        event("seen", 550),
        event("started", 580, generation=1),
        event("phases", 1000, generation=1, ranks=ranks),
    ]
    assert times(events) == {"detection": [2.0], "signal": [44.0], "restart": [30.0], "recovery": [400.0]}


@pytest.mark.benchmark_guard
def test_it_asks_without_waiting_for_answers(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        host, port = server.getsockname()
        line = json.dumps({"event": "metrics", "t_ns": 1, "host": host, "port": port}) + "\n"
        (tmp_path / "latest" / "events.jsonl").write_text(line)
        answered = threading.Event()

        def answer() -> None:
            held = [server.accept()[0] for _ in range(5)]  # five have come, and none has an answer
            for each in held:
                each.recv(1 << 16)
                each.sendall(b"HTTP/1.0 200 OK\r\n\r\n# EOF\n")
                each.close()
            answered.set()

        threading.Thread(target=answer, daemon=True).start()
        with Asked(tmp_path, 0.01) as asked:
            assert answered.wait(60)
            assert all(asked.answered.acquire(timeout=60) for _ in range(5))
    assert asked.pages == 5
    assert asked.sent >= 5


def test_medians_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    plain = Measured({what: [1.0, 2.0, 3.0] for what in WHAT}, 0, 0, 0.0)
    scraped = plain._replace(times={**plain.times, "restart": [4.0, 5.0, 6.0]}, sent=9, pages=7, slowest_seconds=0.5)
    show([plain], [scraped])
    said = capsys.readouterr().out
    assert "9 scrapes, 7 answered with a whole page, the slowest after 0.50 s" in said
    (line,) = [line for line in said.splitlines() if line.startswith("restart")]
    assert line.split() == ["restart", "2.0", "(p90", "3.0)", "5.0", "(p90", "6.0)", "+3.0", "ms"]
