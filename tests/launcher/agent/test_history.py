"""What a node's metrics make of its events."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from launcher.agent.history import CAUSES, History, Told

S = 1_000_000_000
MS = 1_000_000
LATER = 10**18
"""A moment at which no story of a failure can come any more."""


def event(name: str, seconds: float, **facts: Any) -> dict[str, Any]:
    return {"event": name, "t_ns": int(seconds * S), **facts}


def generation(number: int, began: float, nodes: int = 1) -> list[dict[str, Any]]:
    return [
        event("rendezvous", began, generation=number, nodes=nodes),
        event("started", began + 0.1, generation=number, pids={"0": 7}),
    ]


def failing(number: int, at: float, **facts: Any) -> list[dict[str, Any]]:
    return [event("seen", at, generation=number, failed=[0]), event("failure", at, generation=number, **facts)]


def told(events: list[dict[str, Any]], now_ns: int = LATER) -> Told:
    history = History()
    for each in events:
        history.take(each)
    return history.told(now_ns)


def restarts(events: list[dict[str, Any]], now_ns: int = LATER) -> dict[str, int]:
    return {cause: count for cause, count in told(events, now_ns).restarts.items() if count}


def test_every_cause_is_there_from_the_beginning() -> None:
    assert told([]).restarts == dict.fromkeys(CAUSES, 0)
    assert told([]).generation is None


def test_a_hang_is_detected_and_restarted() -> None:
    events = [
        *generation(0, 0.0),
        event("phases", 0.9, generation=0, ranks={"0": {"first_sign_ns": S}, "1": {"first_sign_ns": S}}),
        event("hang", 5.2, generation=0, deadline_ns=5 * S, seen_ns=5 * S + 3 * MS),
        event("seen", 5.3, generation=0, failed=[0]),
        event("stopped", 5.35, generation=0),
        *generation(1, 5.4),
        event("request", 6.0, generation=1, rank=0, action="continue"),
        event("phases", 8.0, generation=1, ranks={"0": {"first_sign_ns": 7 * S}, "1": {"first_sign_ns": int(7.3 * S)}}),
    ]

    found = told(events)

    assert restarts(events) == {"hang": 1}
    assert (found.generation, found.over) == (1, 0)
    assert (found.detections.total, found.detections.sum_seconds) == (1, pytest.approx(0.003))
    assert (found.restart_times.total, found.restart_times.sum_seconds) == (1, pytest.approx(0.497))
    assert (found.recoveries.total, found.recoveries.sum_seconds) == (1, pytest.approx(2.297))
    assert dict(found.detections.buckets)[0.002] == 0
    assert dict(found.detections.buckets)[0.005] == 1


def test_a_verdict_that_was_taken_back_is_no_cause_of_a_later_restart() -> None:
    def verdict(at: float) -> dict[str, Any]:
        return event("hang", at, generation=0, condemned=[0, 1], deadline_ns=int(at * S) - 2, seen_ns=int(at * S) - 1)

    def spared(at: float) -> list[dict[str, Any]]:
        return [event("withdrawn", at, generation=0, rank=0), event("near_miss", at, generation=0, rank=1)]

    begin, end = [*generation(0, 0), verdict(1), *spared(1.1)], generation(1, 9)
    assert restarts([*begin, *failing(0, 5), *end]) == {"failure": 1}
    assert restarts([*begin, *end]) == {"unknown": 1}
    assert restarts([*begin, verdict(4), *failing(0, 5), *end]) == {"hang": 1}
    assert restarts([*generation(0, 0), verdict(1), *spared(1.1)[:1], *failing(0, 5), *end]) == {"hang": 1}
    late = verdict(1) | {"t_ns": int(1.2 * S)}  # written when its stacks were taken, after the ranks were spared
    assert restarts([*generation(0, 0), *spared(1.1), late, *failing(0, 5), *end]) == {"failure": 1}
    found = told([*begin, *failing(0, 5), *end])
    assert (found.near_misses, found.detections.total) == (1, 1)  # the verdict was found, and taken back


def test_a_failure_whose_next_ranks_never_report_has_no_recovery() -> None:
    events = [*generation(0, 0), *failing(0, 1), *generation(1, 2)]
    events.append(
        event("phases", 63, generation=1, ranks={"0": {"first_sign_ns": 3 * S}, "1": {"first_sign_ns": None}})
    )
    assert told(events).recoveries.total == 0
    assert restarts(events) == {"failure": 1}


@pytest.mark.parametrize("ranks", [{}, None, [3], {"0": 4}, {"0": {}}])
def test_phases_that_tell_of_no_rank_cost_the_recovery_alone(ranks: Any) -> None:
    events = [*generation(0, 0), *failing(0, 1), *generation(1, 2), event("phases", 3, generation=1, ranks=ranks)]
    assert told(events).recoveries.total == 0
    assert restarts(events) == {"failure": 1}


def test_a_generation_that_ends_the_job_is_no_restart() -> None:
    assert restarts([*generation(0, 0), *failing(0, 1), event("given_up", 2, generation=0)]) == {}


def test_a_launcher_that_joins_a_job_later_has_not_restarted() -> None:
    assert restarts(generation(5, 0, nodes=2)) == {}


@pytest.mark.parametrize(
    ("kind", "cause"),
    [("hang", "hang"), ("failure", "failure"), ("lost", "lost_node"), ("request", "request"), ("new", "unknown")],
)
def test_of_several_nodes_counts_what_all_have_found(kind: str, cause: str) -> None:
    """A rank that has only lost its peer has failed here; the peer hung elsewhere."""
    story = event("job_incident", 2.5, generation=0, kind=kind)
    assert restarts([*generation(0, 0, 2), *failing(0, 1), *generation(1, 2, 2), story]) == {cause: 1}


def test_of_several_nodes_a_cause_is_awaited_but_not_for_ever() -> None:
    events = [*generation(0, 0, 2), *failing(0, 1), *generation(1, 2, 2)]
    assert restarts(events, 4 * S) == {}
    assert restarts(events, 8 * S) == {"failure": 1}


def test_of_many_nodes_it_is_awaited_for_as_long_as_their_launchers_do() -> None:
    events = [*generation(0, 0, 500), *failing(0, 1), *generation(1, 2, 500)]
    assert restarts(events, 12 * S) == {}
    assert restarts(events, 13 * S) == {"failure": 1}


def test_without_a_failure_nodes_have_come_or_gone() -> None:
    assert restarts([*generation(0, 0, 2), *generation(1, 2, 2)]) == {"membership": 1}
    assert restarts([*generation(0, 0, 1), *generation(1, 2, 1)]) == {"unknown": 1}


def test_a_node_that_was_cut_off_says_so_whatever_the_others_have_found() -> None:
    fenced = event("fenced", 1, generation=-1, late_ns=3)
    story = event("job_incident", 3, generation=0, kind="lost")
    events = [*generation(0, 0, 2), fenced, *generation(1, 2, 2), story]
    assert restarts(events) == {"cut_off": 1}
    assert told(events).fenced == 1


def test_a_restart_is_counted_when_no_more_is_kept_of_its_generation() -> None:
    events = [each for number in range(30) for each in generation(number, 10.0 * number, nodes=2)]
    history = History()
    for each in events:
        history.take(each)
    assert sum(history.told(300 * S).restarts.values()) == 29


def test_the_monitor_near_misses_and_the_run_folder() -> None:
    events = [
        event("began", 0, run_folder="/dev/shm/one"),
        event("near_miss", 1, generation=0, count=1),
        event("near_miss", 2, generation=0, count=2),
        event("monitor_replaced", 3, reason="ended"),
        event("monitor_lost", 4, reason="ended"),
    ]
    found = told(events)
    assert (found.near_misses, found.monitors_replaced, found.is_monitored) == (2, 1, False)
    assert found.run_folder == "/dev/shm/one"
    moved = event("run_folder_moved", 5, former="/dev/shm/one", run_folder="/tmp/two", why="full")
    found = told([*events, event("monitor_back", 5, reason="since"), moved])
    assert (found.is_monitored, found.run_folder) == (True, "/tmp/two")


def test_an_event_with_anything_in_it_costs_itself_alone() -> None:
    """Whatever a field holds; what raises is counted by who reads the lines."""
    whole = [*generation(0, 0), *failing(0, 1), *generation(1, 2)]
    anything: list[Any] = [None, "text", -1, 2**70, 1.5, [], {}, True, {"0": None}, [["a"]]]
    generator = random.Random(11)
    history = History()
    for each in whole:
        for name in ("rendezvous", "started", "seen", "hang", "failure", "phases", "began", "job_incident", "fenced"):
            wrong = event(name, 0) | {
                key: generator.choice(anything)
                for key in ("nodes", "deadline_ns", "seen_ns", "ranks", "run_folder", "kind")
            }
            wrong["generation"] = generator.choice([None, "text", -1, 1.5, [], {}, 10**6])
            json.dumps(wrong)
            if name != "started" and name != "fenced":
                history.take(wrong)
        history.take(each)
    assert history.told(LATER).restarts["failure"] == 1
