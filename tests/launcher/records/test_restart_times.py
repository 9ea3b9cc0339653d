"""The parts of restarts, from events as launchers write them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from launcher.records.event_files import dated_events
from launcher.records.event_log import EventLog
from launcher.records.restart_times import PARTS, Run, runs_of

S = 1_000_000_000
WALL = 1_700_000_000 * S
"""When, since 1970, the monotonic clocks of the machines of these tests stood at zero, in nanoseconds."""


def write(folder: Path, name: str, *lines: tuple[str, float, dict[str, Any]], boot: str = "one") -> None:
    """Write a file of events: name, monotonic seconds, facts."""
    with (folder / name).open("w") as file:
        for number, (event, seconds, facts) in enumerate(lines):
            time = f"2023-11-14T22:13:20.{0:03d}+0000" if seconds == 0 else _time(seconds)
            about = {"version": 1, "node": boot, "boot": boot} if number == 0 else {}
            file.write(json.dumps({"event": event, "t_ns": round(seconds * S), "time": time, **facts, **about}) + "\n")


def _time(seconds: float) -> str:
    from datetime import datetime, timezone

    at = datetime.fromtimestamp(WALL / S + seconds, timezone.utc)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "+0000"


def of_a_hang(generation: int, at: float) -> list[tuple[str, float, dict[str, Any]]]:
    """Rank 3 hangs: deadline 1 s before it is seen, stopped 0.2 s, met 0.3 s, started 0.4 s, alive 0.5 s after it."""
    old, new = {"generation": generation}, {"generation": generation + 1}
    signs = {"0": {"first_sign_ns": round((at + 0.5) * S)}, "1": {"first_sign_ns": None}}
    deadline = {"deadline_ns": round((at - 1) * S), "culprits": [3], "condemned": [3]}
    return [
        ("hang", at - 0.9, {**old, **deadline}),
        ("seen", at, {**old, "failed": [1]}),
        ("asked", at + 0.1, old),
        ("stopped", at + 0.2, old),
        ("rendezvous", at + 0.3, {**new, "nodes": 1}),
        ("started", at + 0.4, new),
        ("restarted", at + 0.4, {**new, "cause": "the failure", "seconds": 0.4}),
        ("phases", at + 0.6, {**new, "ranks": signs}),
    ]


def seconds(run: Run, index: int = 0) -> list[float]:
    """Return the parts of a restart, seconds."""
    times = run.restarts[index].times_ns
    return [round((end - begin) / S, 3) for begin, end in itertools.pairwise(times)]


def test_the_parts_of_a_restart_follow_one_another(tmp_path: Path) -> None:
    lines = [
        ("began", 0.0, {}),
        ("rendezvous", 1.0, {"generation": 0, "nodes": 1}),
        ("started", 1.1, {"generation": 0}),
    ]
    end = ("ended", 30.0, {"generation": 1, "outcome": "succeeded", "exit_code": 0, "why": None})
    write(tmp_path, "events.jsonl", *lines, *of_a_hang(0, 10.0), end)
    (run,) = runs_of(dated_events(tmp_path))
    (restart,) = run.restarts
    assert (restart.generation, restart.kind, restart.culprits, restart.cause) == (1, "hang", (3,), "the failure")
    assert restart.times_ns[0] == WALL + 9 * S  # the deadline, on the wall clock
    assert dict(zip(PARTS, seconds(run), strict=True)) == {
        "detection": 1.1,
        "stop": 0.1,
        "rendezvous": 0.1,
        "start": 0.2,
    }
    assert restart.is_complete
    assert (run.began_ns, run.ended_ns) == (WALL, WALL + 30 * S)
    assert (run.outcome, run.exit_code, run.nodes) == ("succeeded", 0, 1)


def test_a_restart_is_complete_when_its_ranks_have_spoken_or_it_is_over(tmp_path: Path) -> None:
    lines = [("began", 0.0, {}), ("started", 1.1, {"generation": 0}), *of_a_hang(0, 10.0)]
    write(tmp_path, "events.jsonl", *lines[:-1])
    (run,) = runs_of(dated_events(tmp_path))
    assert [restart.is_complete for restart in run.restarts] == [False]
    assert run.ended_ns is None
    write(tmp_path, "events.jsonl", *lines)
    assert [r.is_complete for run in runs_of(dated_events(tmp_path)) for r in run.restarts] == [True]
    write(tmp_path, "events.jsonl", *lines[:-1], *of_a_hang(1, 20.0)[:-1])
    assert [r.is_complete for run in runs_of(dated_events(tmp_path)) for r in run.restarts] == [True, False]


def test_nodes_are_put_together_and_clocks_that_differ_give_no_negative_part(tmp_path: Path) -> None:
    """The clock of the lost machine was 5 s ahead: it seems to stop its ranks after the others have met again."""
    first = [
        ("began", 0.0, {}),
        ("rendezvous", 1.0, {"generation": 0, "nodes": 2}),
        ("started", 1.1, {"generation": 0}),
    ]
    story = ("job_incident", 10.15, {"generation": 0, "kind": "lost", "culprits": [], "nodes": ["b"]})
    write(tmp_path, "events.jsonl", *first, *of_a_hang(0, 10.0), story, ("ended", 30.0, {}))
    other = [("began", 5.0, {}), ("started", 6.0, {"generation": 0}), ("stopped", 15.2, {"generation": 0})]
    write(tmp_path, "events-b-7.jsonl", *other, boot="two")
    (run,) = runs_of(dated_events(tmp_path))
    assert run.nodes == 2
    (restart,) = run.restarts
    assert (restart.kind, restart.culprits) == ("lost", ())
    assert seconds(run) == [1.1, 5.1, 0.0, 0.0]


def test_of_several_nodes_the_cause_is_the_failure_itself_where_one_has_seen_it(tmp_path: Path) -> None:
    """Its peers know of it a moment later, and may start first."""
    lines = [("began", 0.0, {}), ("started", 1.0, {"generation": 0}), *of_a_hang(0, 10.0)]
    write(tmp_path, "events.jsonl", *lines, ("ended", 30.0, {}))
    new = {"generation": 1}
    other: list[tuple[str, float, dict[str, Any]]] = [
        *(("began", 0.5, {}), ("started", 1.0, {"generation": 0}), ("stopped", 10.2, {"generation": 0})),
        *(("started", 10.3, new), ("restarted", 10.3, {**new, "cause": "the failure of another node"})),
    ]
    write(tmp_path, "events-b-7.jsonl", *other, ("ended", 30.0, {}), boot="two")
    ((restart,),) = (run.restarts for run in runs_of(dated_events(tmp_path)))
    assert restart.cause == "the failure"


def test_two_runs_of_one_name_are_two(tmp_path: Path) -> None:
    for name, at in (("events.jsonl", 0.0), ("events-a-2.jsonl", 100.0)):
        lines = [("began", at, {}), ("started", at + 1, {"generation": 0}), *of_a_hang(0, at + 10)]
        write(tmp_path, name, *lines, ("ended", at + 50, {"outcome": "failed", "exit_code": 1, "why": "x"}))
    runs = runs_of(dated_events(tmp_path))
    assert [(run.began_ns - WALL) // S for run in runs] == [0, 100]
    assert [len(run.restarts) for run in runs] == [1, 1]
    assert {(run.outcome, run.exit_code, run.why) for run in runs} == {("failed", 1, "x")}


def test_a_change_of_nodes_is_no_failure_and_a_lone_rank_is_asked_for_nothing(tmp_path: Path) -> None:
    old, new = {"generation": 0}, {"generation": 1}
    lines = [("began", 0.0, {}), ("started", 1.0, old), ("stopped", 5.0, old), ("started", 5.5, new)]
    write(tmp_path, "events.jsonl", *lines, ("restarted", 5.5, {**new, "cause": "the change of nodes", "seconds": 1}))
    (run,) = runs_of(dated_events(tmp_path))
    (restart,) = run.restarts
    assert (restart.kind, restart.cause) == ("membership", "the change of nodes")
    assert seconds(run) == [0.0, 0.5, 0.5, 0.0]


def test_a_node_that_has_seen_no_rank_end_begins_when_it_has_learned_of_the_failure(tmp_path: Path) -> None:
    old, new = {"generation": 0}, {"generation": 1}
    lines = [("began", 0.0, {}), ("started", 1.0, old), ("asked", 5.2, old), ("stopped", 5.5, old), ("started", 6, new)]
    write(
        tmp_path,
        "events.jsonl",
        *lines,
        ("restarted", 6.0, {**new, "cause": "the failure of another node", "seconds": 1}),
    )
    ((restart,),) = (run.restarts for run in runs_of(dated_events(tmp_path)))
    assert restart.times_ns[0] == WALL + 5 * S
    assert seconds(runs_of(dated_events(tmp_path))[0]) == [0.2, 0.3, 0.5, 0.0]


@pytest.mark.parametrize("damaged", [None, "x", True, -1, float("nan"), float("inf")])
def test_a_time_of_learning_that_is_no_duration_is_passed_over(tmp_path: Path, damaged: Any) -> None:
    old, new = {"generation": 0}, {"generation": 1}
    lines = [("began", 0.0, {}), ("started", 1.0, old), ("stopped", 5.0, old), ("started", 5.5, new)]
    write(
        tmp_path,
        "events.jsonl",
        *lines,
        ("restarted", 5.5, {**new, "cause": "the change of nodes", "seconds": damaged}),
    )
    assert seconds(runs_of(dated_events(tmp_path))[0]) == [0.0, 0.0, 0.5, 0.0]


def test_a_verdict_that_was_taken_back_has_not_ended_the_generation(tmp_path: Path) -> None:
    """Rank 3 was late at 2 s and spared; at 10 s rank 1 fails. A verdict of another node stands."""
    old, new = {"generation": 0}, {"generation": 1}
    lines: list[tuple[str, float, dict[str, Any]]] = [
        ("began", 0.0, {}),
        ("started", 1.0, old),
        ("hang", 2.1, {**old, "culprits": [3], "condemned": [2, 3], "deadline_ns": 2 * S, "seen_ns": round(2.05 * S)}),
        ("withdrawn", 2.2, {**old, "rank": 2}),
        ("near_miss", 2.2, {**old, "rank": 3}),
        ("seen", 10.0, {**old, "failed": [1]}),
        ("failure", 10.1, {**old, "culprits": [1], "condemned": [], "deadline_ns": None, "seen_ns": 10 * S}),
        ("stopped", 10.3, old),
        ("started", 10.4, new),
        ("phases", 11.0, {**new, "ranks": {"0": {"first_sign_ns": round(10.5 * S)}}}),
    ]
    write(tmp_path, "events.jsonl", *lines)
    ((restart,),) = (run.restarts for run in runs_of(dated_events(tmp_path)))
    assert (restart.kind, restart.culprits) == ("failure", (1,))
    assert restart.times_ns[0] == WALL + 10 * S
    write(tmp_path, "events.jsonl", *(line for line in lines if line[0] != "near_miss"))
    other = [("began", 0.5, {}), ("started", 1.0, old), ("near_miss", 2.2, {**old, "rank": 3})]
    write(tmp_path, "events-b-7.jsonl", *other, boot="two")
    ((restart,),) = (run.restarts for run in runs_of(dated_events(tmp_path)))
    assert (restart.kind, restart.culprits) == ("hang", (3,))


@pytest.mark.parametrize("facts", [{"ranks": 3}, {"ranks": {"0": 4}}, {}])
def test_damaged_facts_cost_a_figure_and_no_more(tmp_path: Path, facts: dict[str, Any]) -> None:
    lines = of_a_hang(0, 10.0)[:-1]
    lines[0] = ("hang", 9.1, {"generation": 0, "deadline_ns": "x", "culprits": [None, 3]})
    phases = ("phases", 11.0, {"generation": 1, **facts})
    write(tmp_path, "events.jsonl", ("began", 0.0, {}), ("started", 1.0, {"generation": 0}), *lines, phases)
    (run,) = runs_of(dated_events(tmp_path))
    assert run.restarts[0].culprits == (3,)


def test_a_wall_clock_time_differs_from_the_monotonic_one_by_one_number(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path))
    for number in range(5):
        log.write("note", at_ns=number * 7 * S)
    log.close()
    assert len({event.at_ns - event.facts["t_ns"] for event in dated_events(tmp_path)}) == 1
