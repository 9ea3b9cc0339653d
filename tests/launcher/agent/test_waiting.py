"""Whom the agent looks after while it waits for something else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

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
        exporter=exporter,
    )


@pytest.mark.parametrize("due", [0.0, 0.01])
def test_what_serves_metrics_is_looked_after_whatever_is_waited_for(silent: int, due: float) -> None:
    """As in the pause of a crash loop, in which there is no rank."""
    calls: list[str] = []
    exporter = SimpleNamespace(due_seconds=lambda: due, tend=lambda: calls.append("tended"))
    woken = wait_for(resources_of(silent, exporter), [], PATIENCE)
    assert calls == ["tended"]
    assert woken == (set(), False, False, False)


def test_without_metrics_or_with_none_any_more_the_time_is_up_when_it_is(silent: int) -> None:
    lost = SimpleNamespace(due_seconds=lambda: None, tend=lambda: None)
    for exporter in (None, lost):
        assert wait_for(resources_of(silent, exporter), [], 0.0).ended == set()
