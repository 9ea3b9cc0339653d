"""The exporter's process: refused where it cannot serve, replaced when it ends, given up in the end."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.agent import metrics_exporter
from launcher.agent.exporter_settings import ExporterSettings
from launcher.agent.metrics_exporter import CannotListenError, MetricsExporter, address_of, listen, serve
from launcher.agent.shared_history import SharedHistory
from launcher.processes.handles import wait_for_exit
from launcher.records.console import State
from resilience_core import ConfigError, FaultToleranceConfig

PATIENCE = 180.0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "::", "0.0.0.0"])
def test_a_free_port_is_taken_at_the_address_that_was_named(host: str) -> None:
    if ":" in host and not socket.has_ipv6:
        pytest.skip("there is no IPv6 here")
    try:
        listener = listen(FaultToleranceConfig(metrics_port=0, metrics_host=host))
    except ConfigError as error:
        if ":" in host and "ssign" in str(error):
            pytest.skip(f"there is no IPv6 here: {error}")
        raise
    assert listener is not None
    with listener:
        assert address_of(listener)[1] > 0
        assert not os.get_inheritable(listener.fileno())


def test_nothing_listens_where_no_metrics_are_asked_for() -> None:
    assert listen(FaultToleranceConfig()) is None


def test_a_port_in_use_is_named_and_refuses_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_exporter, "_PREDECESSOR_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListenError, match=rf"^127\.0\.0\.1 port {port}: .*in use$"):
            listen(FaultToleranceConfig(metrics_port=port))


def test_a_port_that_a_killed_launcher_has_left_a_moment_ago_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        waited: list[float] = []
        monkeypatch.setattr(time, "sleep", lambda seconds: (waited.append(seconds), taken.close()))
        listener = listen(FaultToleranceConfig(metrics_port=port))
    assert listener is not None
    with listener:
        assert address_of(listener)[1] == port
    assert len(waited) == 1


@pytest.mark.parametrize(
    ("error", "refuses"),
    [
        (OSError(errno.EMFILE, "too many"), False),
        (OSError(errno.ENOBUFS, "no room"), False),
        (socket.gaierror(socket.EAI_AGAIN, "later"), False),
        (socket.gaierror(socket.EAI_NONAME, "unknown"), True),
        (OSError(errno.EACCES, "a low port"), True),
        (UnicodeError("a label is too long"), True),
    ],
)
def test_only_what_can_never_be_meant_refuses_a_job(
    error: Exception, refuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(socket, "create_server", fail)
    with pytest.raises(
        ConfigError if refuses else CannotListenError, match="^metrics cannot be served at 127" if refuses else "^127"
    ):
        listen(FaultToleranceConfig(metrics_port=0))


def test_an_address_of_another_machine_is_refused_and_named() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1 port 0: Cannot assign .*--ft-metrics-host"):
        listen(FaultToleranceConfig(metrics_port=0, metrics_host="192.0.2.1"))


def test_without_prometheus_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"needs prometheus-client, which is not installed .*extra 'metrics'"):
        listen(FaultToleranceConfig(metrics_port=9400))
    assert listen(FaultToleranceConfig()) is None


@pytest.mark.parametrize("port", ["-1", "65536", "x", 1.5, True])
def test_what_is_no_port_is_refused(port: Any) -> None:
    with pytest.raises(ConfigError, match=r"metrics_port is .*: give a port, 1 to 65535, or 0 for any that is free"):
        FaultToleranceConfig(metrics_port=port)


@pytest.mark.parametrize("host", ["", "http://here", "a b", 7, None])
def test_what_is_no_address_is_refused(host: Any) -> None:
    with pytest.raises(ConfigError, match=r"metrics_host is .*: give an address or a name of this machine"):
        FaultToleranceConfig(metrics_host=host)


Make = Callable[[], tuple[MetricsExporter, int]]


@pytest.fixture
def told() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def history() -> Iterator[SharedHistory]:
    with SharedHistory.opened() as history:
        yield history


@pytest.fixture
def make(tmp_path: Path, told: list[tuple[str, str]], history: SharedHistory) -> Iterator[Make]:
    made: list[MetricsExporter] = []

    def start() -> tuple[MetricsExporter, int]:
        listener = listen(FaultToleranceConfig(metrics_port=0))
        assert listener is not None
        port = address_of(listener)[1]
        (tmp_path / "cells").mkdir()
        settings = ExporterSettings(
            listener=-1,
            launcher=os.getpid(),
            run="run",
            node="node",
            run_folder=str(tmp_path),
            history=history.reader,
        )
        made.append(MetricsExporter(listener, settings, lambda event, reason: told.append((event, reason))))
        return made[0], port

    yield start
    for each in made:
        each.close()


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as response:
        text: str = response.read().decode()
    return text


def end(exporter: MetricsExporter, number: int) -> int:
    """Signal the process, and wait until it has ended or is stopped; returns its number."""
    pid = exporter.pid
    assert pid is not None
    os.kill(pid, number)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
    return pid


def test_it_serves_at_a_low_priority_and_ends_when_it_is_closed(make: Make) -> None:
    exporter, port = make()
    assert "ft_monitor_up" in page(port)
    assert exporter.pid is not None
    assert os.getpriority(os.PRIO_PROCESS, exporter.pid) == min(19, os.nice(0) + 10)
    assert os.getsid(exporter.pid) == exporter.pid
    assert Path(f"/proc/{exporter.pid}/comm").read_text() == "ft_metrics\n"
    assert exporter.pids == {exporter.pid}
    pid = exporter.pid
    exporter.close()
    assert not Path(f"/proc/{pid}").exists()
    assert exporter.pids == set()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


@pytest.mark.parametrize(("number", "how"), [(signal.SIGKILL, "ended (signal 9)"), (signal.SIGSTOP, "was stopped")])
def test_another_one_takes_its_place_at_the_same_port_and_that_is_said_once(
    number: int, how: str, make: Make, told: list[tuple[str, str]], capfd: pytest.CaptureFixture[str]
) -> None:
    exporter, port = make()
    page(port)
    exporter.ensure()
    assert told == []
    former = []
    for _ in range(3):
        former.append(end(exporter, number))
        exporter.ensure()
        assert exporter.pid not in former
        assert "ft_monitor_up" in page(port)
    assert told == [("metrics_replaced", f"(pid {pid}) {how}") for pid in former]
    assert capfd.readouterr().err.count("metrics exporter") == 1
    limit = time.monotonic() + PATIENCE
    while exporter.pids != {exporter.pid} and time.monotonic() < limit:
        select.select([], [], [], 0.01)
    assert exporter.pids == {exporter.pid}


def test_another_one_knows_what_the_one_before_it_knew(make: Make, history: SharedHistory) -> None:
    exporter, port = make()
    for generation in (0, 1):
        facts: dict[str, Any] = {"event": "started", "t_ns": generation, "generation": generation, "pids": {}}
        history.heard("started", json.dumps(facts).encode())
    for _ in range(2):
        found = [line for line in page(port).splitlines() if line.startswith(("ft_generation", "ft_restarts_total"))]
        assert sum(line.endswith(" 1.0") for line in found) == 2  # of unknown cause
        end(exporter, signal.SIGKILL)
        exporter.ensure()


def test_one_after_the_other_is_given_up_and_the_port_closed(
    make: Make, told: list[tuple[str, str]], capfd: pytest.CaptureFixture[str]
) -> None:
    exporter, port = make()
    for _ in range(6):
        end(exporter, signal.SIGKILL)
        exporter.ensure()
    assert exporter.pid is None
    exporter.ensure()
    assert [event for event, _ in told] == ["metrics_replaced"] * 5 + ["metrics_lost"]
    assert capfd.readouterr().err.count("no metrics are served: the exporter (pid") == 1
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def test_one_that_had_lived_for_long_is_none_of_a_row(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_exporter, "_SOUND_SECONDS", 0.0)
    exporter, _ = make()
    for _ in range(8):
        end(exporter, signal.SIGKILL)
        exporter.ensure()
    assert exporter.pid is not None


def test_a_system_that_refuses_the_process_is_told_once_and_the_job_goes_on(
    make: Make, told: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    exporter, _ = make()
    exporter.ensure()
    assert (exporter.pid, exporter.pids) == (None, set())
    assert [event for event, _ in told] == ["metrics_lost"]
    assert capfd.readouterr().err.count("cannot be started") == 1


@pytest.mark.parametrize("can_start", [True, False])
def test_where_it_serves_is_told_or_that_it_cannot_be_started(
    can_start: bool,
    history: SharedHistory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    settings = ExporterSettings(-1, os.getpid(), "run", "node", str(tmp_path), history.reader)
    monkeypatch.setattr("sys.executable", sys.executable if can_start else "/nowhere/python")
    listener = listen(FaultToleranceConfig(metrics_port=0))
    assert listener is not None
    port = address_of(listener)[1]
    exporter = serve(listener, settings, lambda event, **facts: told.append((event, facts)))
    exporter.close()
    ((event, facts),) = told
    said = capfd.readouterr().err
    if can_start:
        assert (event, facts) == ("metrics", {"host": "127.0.0.1", "port": port})
        assert f"metrics at http://127.0.0.1:{port}/metrics" in said
    else:
        assert event == "metrics_lost"
        assert facts["reason"].startswith("the exporter cannot be started: ")
        assert f"no metrics are served: {facts['reason']}. The job goes on without" in said
        assert "metrics at" not in said


def test_it_speaks_as_its_launcher_does_of_a_page_that_cannot_be_made(
    history: SharedHistory, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In place of the node, which is looked at for each page, there is something that breaks."""
    program = (
        "import sys; from launcher.metrics import exporter\n"
        "def fail(*_): raise RuntimeError('a mistake')\n"
        "exporter.Node.look = fail\n"
        "exporter.main(sys.argv[1])"
    )
    listener = listen(FaultToleranceConfig(metrics_port=0))
    assert listener is not None
    port = address_of(listener)[1]
    settings = ExporterSettings(listener.fileno(), os.getpid(), "run", "node", str(tmp_path), history.reader)
    text = settings._replace(console=State(format="json")).to_text()
    process = subprocess.Popen([sys.executable, "-c", program, text], pass_fds=[listener.fileno()])
    listener.close()
    try:
        for _ in range(2):
            with pytest.raises(urllib.error.HTTPError, match="500") as caught:
                page(port)
            caught.value.close()
    finally:
        process.kill()
        process.wait()
    (said,) = map(json.loads, capfd.readouterr().err.splitlines())
    assert said["event"] == "metrics"
    assert said["text"].startswith("the metrics cannot be made: RuntimeError: a mistake (<string>:2; said once)")


def test_it_is_looked_after_once_a_second_by_whoever_waits(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, _ = make()
    exporter.tend()
    due = exporter.due_seconds()
    assert due is not None
    assert 0 < due <= 1
    former = end(exporter, signal.SIGKILL)
    monkeypatch.setattr(metrics_exporter, "_LOOK_SECONDS", 1e6)
    exporter.tend()  # it is not time yet
    assert exporter.pid == former
    monkeypatch.setattr(metrics_exporter, "_LOOK_SECONDS", 0.0)
    exporter.tend()
    assert exporter.pid not in (None, former)
    exporter.close()
    assert exporter.due_seconds() is None


def test_a_process_whose_launcher_has_ended_meanwhile_does_not_stay(tmp_path: Path, history: SharedHistory) -> None:
    listener = listen(FaultToleranceConfig(metrics_port=0))
    assert listener is not None
    settings = ExporterSettings(-1, os.getpid() + 1, "run", "node", str(tmp_path), history.reader)
    exporter = MetricsExporter(listener, settings)
    try:
        assert exporter.pid is not None
        pidfd = os.pidfd_open(exporter.pid)
        assert wait_for_exit([pidfd], PATIENCE)
        os.close(pidfd)
    finally:
        exporter.close()
