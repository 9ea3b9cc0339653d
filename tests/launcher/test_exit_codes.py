"""Every way in which torch's loop can end, and the launcher's exit code."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError

from launcher import run as run_module
from launcher.signals import SignalInbox
from resilience_core.errors import ConfigError, ResilienceError


class FakeAgent(SimpleNamespace):
    """Ends as it is told to."""

    def __init__(self, ends: Any, **state: Any) -> None:
        base = {"has_started": True, "ended_cleanly": False, "leaves_the_others_alone": False, "exit_code": None}
        super().__init__(
            ends=ends, generation=0, best_iteration=None, ended_because=None, failures=0, **{**base, **state}
        )

    def run(self) -> Any:
        if isinstance(self.ends, Exception):
            raise self.ends
        return self.ends

    def get_event_succeeded(self) -> None:
        """For torch's own log of events."""

    get_event_failed = get_event_succeeded

    def last_words(self) -> list[str]:
        """For people."""
        return ["the job has failed"]


def ends(agent: FakeAgent, monkeypatch: pytest.MonkeyPatch) -> tuple[int, bool]:
    """The exit code, and whether the rendezvous was closed."""
    closed: list[bool] = []
    monkeypatch.setattr(run_module.torch_events, "record", lambda *_: None)
    spec = SimpleNamespace(rdzv_handler=SimpleNamespace(shutdown=lambda: closed.append(True)))
    events = SimpleNamespace(write=lambda *_, **__: None)
    outfit: Any = SimpleNamespace(signals=SignalInbox("SIGTERM"), events=events)
    code = run_module._supervise(agent, spec, outfit)  # type: ignore[arg-type]
    return code, bool(closed)


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
        (FakeAgent(ResilienceError("the folder in memory is full")), (1, True)),
        (FakeAgent(FAILURE, leaves_the_others_alone=True), (1, False)),
    ],
)
def test_each_end_has_its_exit_code(
    agent: FakeAgent, expected: tuple[int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them is 2, which ft_autoresume takes for: the next run could only end the same way."""
    assert ends(agent, monkeypatch) == expected


def test_what_cannot_be_started_is_refused_as_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError):
        ends(FakeAgent(ConfigError("a port in use"), has_started=False), monkeypatch)
