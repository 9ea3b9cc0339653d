"""Whom the agent looks after while it waits for something else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.agent.resources import AgentResources
from launcher.agent.waiting import wait_for

PATIENCE = 60.0


@pytest.fixture
def silent() -> Iterator[int]:
    """A descriptor at which nothing ever comes."""
    read_end, write_end = os.pipe()
    yield read_end
    os.close(read_end)
    os.close(write_end)


def resources_of(descriptor: int, exporter: Any) -> Any:
    speaker = SimpleNamespace(fileno=lambda: descriptor)
    return SimpleNamespace(
        monitor=SimpleNamespace(channel=speaker),
        control=speaker,
        signals=SimpleNamespace(descriptor=descriptor),
        starter=SimpleNamespace(descriptors=list, due_seconds=lambda: None, maintain=lambda: None),
        dues_of_helpers=lambda: [exporter.due_seconds()],
        tend_helpers=exporter.tend,
    )


@pytest.mark.parametrize("due", [0.0, 0.01])
def test_what_serves_metrics_is_looked_after_whatever_is_waited_for(silent: int, due: float) -> None:
    """As in the pause of a crash loop, in which there is no rank."""
    calls: list[str] = []
    exporter = SimpleNamespace(due_seconds=lambda: due, tend=lambda: calls.append("tended"))
    woken = wait_for(resources_of(silent, exporter), [], PATIENCE)
    assert calls == ["tended"]
    assert woken == (set(), False, False, False)


def test_with_no_metrics_any_more_the_time_is_up_when_it_is(silent: int) -> None:
    lost = SimpleNamespace(due_seconds=lambda: None, tend=lambda: None)
    assert wait_for(resources_of(silent, lost), [], 0.0).ended == set()


def test_resources_look_after_what_tells_events_and_what_serves_metrics() -> None:
    calls: list[str] = []
    notices = SimpleNamespace(due_seconds=lambda: 1.0, tend=lambda: calls.append("events"))
    exporter = SimpleNamespace(due_seconds=lambda: 2.0, tend=lambda: calls.append("metrics"))
    for served, dues in ((None, [1.0, None]), (exporter, [1.0, 2.0])):
        resources: Any = SimpleNamespace(notices=notices, exporter=served)
        assert AgentResources.dues_of_helpers(resources) == dues
        AgentResources.tend_helpers(resources)
    assert calls == ["events", "events", "metrics"]
