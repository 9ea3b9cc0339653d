"""Every way in which torch's loop can end, and the launcher's exit code."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import DistNetworkError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)

from launcher.agent import job as run_module
from launcher.agent import torchrun_settings
from launcher.agent.incident_log import IncidentLog
from launcher.agent.plane_rendezvous import JobEndedError
from launcher.agent.progress import NOTHING_REACHED
from launcher.agent.signals import SignalInbox
from launcher.command_line.options import parse
from launcher.incidents.job_incident import Culprit, JobIncident
from launcher.incidents.rank_report import RankReport
from resilience_core.errors import ConfigError, ResilienceError


class FakeAgent(SimpleNamespace):
    """Ends as it is told to."""

    def __init__(self, ends: Any, **state: Any) -> None:
        incidents = SimpleNamespace(culprits=lambda generation: [], tell_ended_elsewhere=lambda generation, said: None)
        base = {
            "incidents": incidents,
            "stories": SimpleNamespace(close=lambda: None),
            "has_started": True,
            "ended_cleanly": False,
            "excludes_this_node_only": False,
            "exit_code": None,
        }
        super().__init__(
            ends=ends, generation=0, furthest=NOTHING_REACHED, ended_because=None, failures=0, **{**base, **state}
        )

    def run(self) -> Any:
        if isinstance(self.ends, Exception):
            raise self.ends
        return self.ends

    def get_event_succeeded(self) -> None:
        """For torch's own log of events."""

    get_event_failed = get_event_succeeded

    def tell_end(self) -> None:
        """For people."""


def ends(
    agent: FakeAgent, monkeypatch: pytest.MonkeyPatch, *, has_peers: bool = True, has_begun: bool = False
) -> tuple[int, bool]:
    """The exit code, and whether the rendezvous was closed."""
    closed: list[bool] = []
    monkeypatch.setattr(run_module.torch_events, "record", lambda *_: None)
    handler = SimpleNamespace(
        has_peers=has_peers,
        shutdown=lambda: closed.append(True),
        leave=lambda why, is_excluded: None,
        job_has_begun=lambda: has_begun,
    )
    spec = SimpleNamespace(rdzv_handler=handler)
    events = SimpleNamespace(write=lambda *_, **__: None)
    monitor = SimpleNamespace(unprotected_since_ns=None)
    resources: Any = SimpleNamespace(signals=SignalInbox("SIGTERM"), events=events, monitor=monitor)
    code = run_module._supervise(agent, spec, resources)  # type: ignore[arg-type]
    return code, bool(closed)


C10D = ("--rdzv-backend", "c10d", "--rdzv-endpoint")
TORCH = ("--ft-membership", "torch")


def furnish(arguments: list[str], folder: Path) -> None:
    """Go as far as the workers' specification."""
    job = parse(arguments)
    SignalInbox(job.arguments.signals_to_handle)
    torchrun_settings.complete(job)
    launch_config, entrypoint, rest = torchrun_settings.launch_config_of(job, str(folder), 1)
    nothing: Any = None  # torch's rendezvous needs none of our resources
    torchrun_settings.worker_spec_of(job, launch_config, entrypoint, rest, nothing)


SUCCESS = RunResult(state=WorkerState.SUCCEEDED)
FAILURE = RunResult(state=WorkerState.FAILED)
SIGTERM = SignalException("the launcher got SIGTERM", sigval=signal.SIGTERM)


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        (FakeAgent(SUCCESS), (0, True)),
        (FakeAgent(FAILURE), (1, True)),
        (FakeAgent(FAILURE, exit_code=93), (93, True)),
        (FakeAgent(None), (0, True)),
        (FakeAgent(SIGTERM, ended_cleanly=True), (0, False)),
        (FakeAgent(SIGTERM), (1, False)),
        (FakeAgent(RendezvousClosedError("closed")), (1, True)),
        (FakeAgent(DistNetworkError("timed out")), (1, True)),
        (FakeAgent(ResilienceError("the folder in memory is full")), (1, True)),
        (FakeAgent(FAILURE, excludes_this_node_only=True), (1, False)),
    ],
)
def test_each_end_has_its_exit_code(
    agent: FakeAgent, expected: tuple[int, bool], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """None of them is 2, which ft_autoresume takes for: the next run could only end the same way."""
    assert ends(agent, monkeypatch) == expected
    last_line = capfd.readouterr().err.splitlines()[-1]
    why = "every rank has ended with 0; " if agent.ends is SUCCESS else ""
    assert last_line == f"ft_launcher: {why}exit code {expected[0]}"


class Stories:
    """Has the story of generation 3."""

    def over(self, generation: int) -> None:
        """Note nothing."""

    def story_of(self, generation: int, seconds: float) -> JobIncident | None:
        rank = RankReport(5, 1, 9, cause="exit", exit_code=1)
        culprit = Culprit("node2", rank)
        return (
            None
            if generation != 3
            else JobIncident(3, "failure", "?", (culprit,), (), ("a",), (), (), 0.1, folder="/log")
        )


@pytest.mark.parametrize(("generation", "has_story"), [(3, True), (0, False)])
def test_the_last_words_of_a_node_that_waited_name_who_has_failed(
    generation: int, has_story: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    agent = FakeAgent(JobEndedError("a rank failed on node2 and no restart is left", 7))
    agent.generation = generation
    stories: Any = Stories()
    agent.incidents = IncidentLog(SimpleNamespace(), stories)  # type: ignore[arg-type]
    assert ends(agent, monkeypatch) == (7, True)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "ft_launcher: the job has ended: a rank failed on node2 and no restart is left"
    assert any("rank 5 on node node2 (pid 9) exited with code 1" in line for line in lines) is has_story
    assert any(line.startswith("ft_launcher:   report  /log/report.txt") for line in lines) is has_story


@pytest.mark.parametrize(
    ("has_begun", "expected", "words"),
    [
        (True, 0, "no worker ran here"),
        (False, 128 + signal.SIGTERM, "no worker was started here, and the job is not known to have begun"),
    ],
)
def test_a_signal_before_a_worker_was_started_is_success_for_a_spare_alone(
    has_begun: bool, expected: int, words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A scheduler takes 0 for a job that has done its work; all nodes of one that had not begun ended with it."""
    agent = FakeAgent(SIGTERM, has_started=False)
    assert ends(agent, monkeypatch, has_begun=has_begun) == (expected, False)
    lines = capfd.readouterr().err.splitlines()
    assert f"ft_launcher: ended by SIGTERM; {words}" in lines[-2]
    assert lines[-1] == f"ft_launcher: exit code {expected}"


def test_a_job_on_one_node_that_ends_well_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ends(FakeAgent(SUCCESS), monkeypatch, has_peers=False)
    assert capfd.readouterr().err == ""


def test_what_cannot_be_started_is_refused_as_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError):
        ends(FakeAgent(ConfigError("a port in use"), has_started=False), monkeypatch)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--nproc-per-node", "0"], "--nproc-per-node 0: must be 1 or more"),
        (["--nproc-per-node", "-1"], "--nproc-per-node -1: must be 1 or more"),
        (["--rdzv-conf", "read_timeout=abc"], "--rdzv-conf read_timeout is abc: must be a number of seconds"),
        (["--nnodes", "1:2", "--rdzv-backend", "nosuch", "--rdzv-endpoint", "localhost:0"], "backend 'nosuch'"),
        (
            ["--nnodes", "1:2", *C10D, "localhost:0", "--rdzv-conf", "join_timeout=abc"],
            "--rdzv-conf join_timeout is abc: must be a number of seconds",
        ),
        (
            ["--nnodes", "1:2", *C10D, "localhost:0", *TORCH, "--rdzv-conf", "join_timeout=1.5"],
            "'join_timeout' does not represent a valid integer",
        ),
        (
            ["--nnodes", "1:2", *C10D, "localhost:0"],
            "--rdzv-endpoint localhost:0: 'localhost:0' is not HOST or HOST:PORT with a port of 1 to 65535",
        ),
        (
            ["--nnodes", "1:2", "--rdzv-backend", "etcd-v2", "--ft-membership", "fixed"],
            "--rdzv-backend etcd-v2 cannot be used with --ft-membership fixed",
        ),
        (["--signals-to-handle", "SIGTERM,SIGKILL"], "--signals-to-handle: SIGKILL cannot be handled"),
    ],
)
def test_what_torchruns_options_cannot_mean_is_no_mistake_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    """Each was a traceback, with the request to report it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    with pytest.raises(ConfigError) as raised:
        furnish([*options, "train.py"], tmp_path)
    assert said in str(raised.value)


def test_a_backend_whose_client_is_not_installed_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks_its_client(parameters: object) -> None:
        raise ModuleNotFoundError("No module named 'urllib3'")

    monkeypatch.setattr(torchrun_settings.rendezvous_registry, "get_rendezvous_handler", lacks_its_client)
    (tmp_path / "train.py").touch()
    with pytest.raises(ConfigError, match="cannot be used as asked: No module named 'urllib3'"):
        furnish(["--nnodes", "1:2", "--rdzv-backend", "etcd-v2", str(tmp_path / "train.py")], tmp_path)


@pytest.mark.parametrize(
    ("membership", "conf", "expected"),
    [
        pytest.param(
            ["--ft-membership", "torch"],
            "is_host=0,read_timeout=1",
            "the nodes could not agree: RendezvousConnectionError: ",
            marks=pytest.mark.long,
        ),
        pytest.param(
            [], "is_host=0,join_timeout=2", "no node of the job 'none' has answered at ", marks=pytest.mark.long
        ),
    ],
)
def test_an_endpoint_that_nobody_answers_at_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: list[str], conf: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and not listening: refused at once
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        options = ["--nnodes", "1:2", *C10D, endpoint, "--rdzv-conf", conf, *membership]
        ended = subprocess.run(
            [sys.executable, "-m", "launcher", *options, "train.py"],
            env={**os.environ, "PYTHONPATH": str(Path(run_module.__file__).parents[1])},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert ended.returncode == 1
    said = ended.stderr
    assert expected in said
    assert endpoint in said
    assert "--rdzv-endpoint" in said
    assert "this is a mistake in ft_launcher" not in said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RendezvousConnectionError(""), "the nodes could not agree: RendezvousConnectionError"),
        (
            RendezvousConnectionError("\nno answer\nat all"),
            "the nodes could not agree: RendezvousConnectionError: no answer",
        ),
        (RendezvousTimeoutError("nobody leads"), "the nodes could not agree: nobody leads"),
    ],
)
def test_a_rendezvous_that_fails_without_a_word_is_told_too(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(run_module, "announce", lambda *words, level, event: lines.extend(words))

    assert run_module._disagreed(error) == 1
    assert lines == [said]
