"""A rank that was let go because a peer was killed is no near miss: what is told of those that came back, and when."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.agent import incident_log, spared_ranks
from launcher.agent.incident_log import IncidentLog
from launcher.agent.monitor_reports import take_reports
from launcher.agent.spared_ranks import SETTLED_NS
from launcher.monitor.messages import MonitorReport, Spared
from launcher.monitor.near_miss import NearMiss
from resilience_core.protocol.error_record import ErrorRecord

LATE = NearMiss(2, 0, 7, "section", "step", 2.0, 0.05, 0.05)
OWN = ErrorRecord("ValueError", "bad batch")


class Node:
    """A node whose second generation runs, and a clock that stands still until it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1_000_000
        self.lines: list[str] = []
        self.events: list[tuple[str, int]] = []
        self.reports: list[MonitorReport] = []
        self.is_shared = True
        for module in (incident_log, spared_ranks):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic_ns=lambda: self.now_ns))
        monkeypatch.setattr(incident_log, "announce", lambda line, **_: self.lines.append(line))
        write: Callable[..., None] = lambda name, at_ns, **_: self.events.append((name, at_ns))  # noqa: E731
        monitor = SimpleNamespace(read_reports=lambda: self.reports)
        self.resources: Any = SimpleNamespace(events=SimpleNamespace(write=write), monitor=monitor)
        self.workers: dict[int, Any] = {}
        self.errors: dict[int, ErrorRecord] = {}
        processes = SimpleNamespace(collect_exits=lambda: None, workers=self.workers)
        self.current: Any = SimpleNamespace(
            number=1, condemned={5}, withdraw=lambda _: None, processes=processes, errors=lambda: self.errors,
            is_being_ended=False,
        )  # fmt: skip
        self.stories: Any = SimpleNamespace(is_shared=True, has_verdict=lambda *_: None, withdrawn=lambda _: None)
        self.log = IncidentLog(self.resources, self.stories)

    def spare(self, miss: NearMiss = LATE, generation: int = 1) -> None:
        self.reports[:] = [Spared(generation, (miss,))]
        take_reports(self.resources, self.current, self.log, self.stories, restarts_are_left=True)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(monkeypatch)


def test_of_several_nodes_it_is_a_near_miss_once_the_generation_has_gone_on(node: Node) -> None:
    node.spare()
    assert node.log.settle(1) == SETTLED_NS / 1e9
    assert (node.lines, node.events) == ([], [])
    node.now_ns += SETTLED_NS
    assert node.log.settle(1) is None
    assert node.events == [("near_miss", 1_000_000)]  # when it was spared
    assert "The limit is too close to what is normal" in node.lines[0]


def test_where_the_generation_is_over_a_moment_later_a_peer_may_have_been_killed(node: Node) -> None:
    node.spare()
    node.now_ns += SETTLED_NS
    assert node.log.settle(2) is None
    assert (node.lines, node.events) == ([], [("withdrawn", 1_000_000)])


@pytest.mark.parametrize(("is_done", "name"), [(True, "near_miss"), (False, "withdrawn")])
def test_at_the_end_of_a_job_it_depends_on_how_it_ends(node: Node, is_done: bool, name: str) -> None:
    node.spare()
    assert node.log.settle(1, is_over=True, is_done=is_done) is None
    assert node.names == [name]


def test_on_one_node_it_is_told_at_once(node: Node) -> None:
    node.stories.is_shared = False
    node.spare()
    assert node.names == ["near_miss"]


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("how", ["ended", "failing", "over"])
def test_where_a_local_rank_has_failed_it_is_no_near_miss(node: Node, how: str, is_shared: bool) -> None:
    node.stories.is_shared = is_shared
    if how == "ended":
        node.workers[1] = SimpleNamespace(local_rank=1, exit_code=-9)
    elif how == "failing":
        node.errors[1] = OWN
    node.spare(LATE._replace(was_announced=True), generation=0 if how == "over" else 1)
    assert node.names == ["withdrawn"]
    said = "withdrawn: rank 2 (pid 7) came back (section 'step', limit 2 s), perhaps because a peer that it waited for"
    assert [line.startswith(said) for line in node.lines] == ([] if is_shared else [True])


def test_ranks_that_our_signal_has_ended_or_that_lost_a_thread_let_nobody_go(node: Node) -> None:
    """Who was spared in the same verdict had come back before the signal."""
    node.stories.is_shared = False
    node.workers[5] = SimpleNamespace(local_rank=5, exit_code=-9)
    node.workers[0] = SimpleNamespace(local_rank=0, exit_code=None)
    node.errors[0] = OWN._replace(thread="uploads")
    node.spare()
    assert node.names == ["near_miss"]
