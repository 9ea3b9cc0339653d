"""Whatever stands in the files of a run, a report is made of the rest: as text, for programs, and as a page."""

from __future__ import annotations

import contextlib
import copy
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.live.live_run import LiveRun
from launcher.reports.as_json import as_json
from launcher.reports.build import make_report
from launcher.reports.folders import NoRunError
from launcher.reports.model import Report
from launcher.reports.page import page
from launcher.reports.terminal import lines as text_of
from launcher.top import snapshot
from launcher.top.header import Headers
from launcher.top.rows import all_rows
from tests.launcher.reports.invented_runs import EPOCH, Failure, InventedRun, invent_run

WRONG: tuple[Any, ...] = (
    *(None, True, 0, -1, 7, -0.5, 1e300, 1 << 63, 10**400, float("nan"), float("inf")),
    *("", "x", "\ud800", [], [None], [7], {}, {"a": None}),
)
STRAGGLER_LOG = "straggler.jsonl"


def straggler_report(**verdict: Any) -> dict[str, Any]:
    slow = {"rank": 1, "state": "SLOW", "slowdown": 0.2, "node": "node0", "section": "step", "because": "it is slow"}
    return {
        "format": "straggler-report",
        "version": 1,
        "time": EPOCH + 5.0,
        "ranks": [1000],
        "verdicts": [slow | verdict],
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> InventedRun:
    failures = [Failure(7, 1), Failure(13, 3, "hang", 5.0)]
    run = invent_run(
        tmp_path_factory.mktemp("run"), ranks=4, nodes=2, failures=failures, steps=20, lines=12, near_misses=1
    )
    told = json.loads((run.folders[0] / "job_incidents" / "0001" / "incident.json").read_text())
    (run.folders[0] / "incidents" / "0001" / "job_incident.json").write_text(json.dumps(told | {"nodes": []}))
    (run.folders[0] / STRAGGLER_LOG).write_text(2 * (json.dumps(straggler_report()) + "\n"))
    return run


def shown(run: InventedRun) -> None:
    """Make everything that can be made of it."""
    folders = [str(folder) for folder in run.folders]
    report = make_report(folders)
    assert text_of(report)
    json.loads(as_json(report))
    page(report).encode()
    for folder in folders:
        live = LiveRun(folder)
        look = live.look()
        rows = all_rows(look, ())
        json.loads(snapshot.as_json(look, rows))
        assert snapshot.as_text(Headers().lines(look), rows)
        live.close()


def places(document: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Return where something stands in a document: each is a way down into it."""
    yield place
    if isinstance(document, (dict, list)):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield from places(value, (*place, key))


def replaced(document: Any, place: tuple[str | int, ...], value: Any) -> Any:
    if not place:
        return value
    document = copy.deepcopy(document)
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return document


@pytest.mark.long
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_value_that_is_none_is_no_reason_to_fail(run: InventedRun, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(run.folders[0].rglob("*.json*"))))
    written = path.read_text()
    documents = written.splitlines() if path.suffix == ".jsonl" else [written]
    number = data.draw(st.integers(0, len(documents) - 1))
    document = json.loads(documents[number])
    place = data.draw(st.sampled_from(list(places(document))))
    documents[number] = json.dumps(replaced(document, place, data.draw(st.sampled_from(WRONG))))
    try:
        path.write_text("\n".join(documents) + "\n")
        with contextlib.suppress(NoRunError):  # another version of the events, say
            shown(run)
    finally:
        path.write_text(written)


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Let this process have two gibibytes more than it has: a mistake ends a test, and not the machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + (2 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("number", [1 << 63, 10**29])
@pytest.mark.parametrize("event", ["started", "hang"])
def test_a_damaged_number_of_a_generation_costs_no_memory(run: InventedRun, event: str, number: int) -> None:
    """One bit may make it of any size, and the ones before it were looked for one by one."""
    paths = sorted(run.folders[0].glob("events*.jsonl"))
    path = next(each for each in paths if f'"{event}"' in each.read_text())
    written = path.read_text()
    documents = [json.loads(line) for line in written.splitlines()]
    next(each for each in documents if each["event"] == event)["generation"] = number
    try:
        path.write_text("".join(f"{json.dumps(each)}\n" for each in documents))
        shown(run)
    finally:
        path.write_text(written)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(
    "kind",
    ["job_incidents", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("incidents", "elsewhere"))],
)
def test_a_frame_that_is_none_is_no_reason_to_fail(run: InventedRun, kind: str, wrong: Any) -> None:
    path = next((run.folders[0] / kind).rglob("incident.json"))
    written = path.read_text()
    document = json.loads(written)
    ranks = (document["nodes"][0] if kind == "job_incidents" else document)["ranks"]
    frames = next(rank["stack"] for rank in ranks if rank["stack"])[0]["frames"]
    try:
        for number in range(len(frames[0]) + 1):
            frames[0] = [wrong if number == place else value for place, value in enumerate(frames[0])]
            frames[0] = wrong if number == len(frames[0]) else frames[0]
            path.write_text(json.dumps(document))
            shown(run)
    finally:
        path.write_text(written)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("field", ["rank", "state", "slowdown", "node", "section", "because", None])
def test_a_damaged_verdict_is_left_out_or_without_what_it_lacks(
    run: InventedRun, field: str | None, wrong: Any
) -> None:
    path = run.folders[0] / STRAGGLER_LOG
    written = path.read_text()
    damaged = straggler_report(**{field: wrong}) if field is not None else straggler_report() | {"verdicts": wrong}
    try:
        path.write_text(written + json.dumps(damaged) + "\n")
        report = make_report([str(folder) for folder in run.folders])
        found = next(slow for slow in report.slow_ranks if slow.rank == 1)
        assert (found.slowdown, found.of_reports) == (7.0 if (field, wrong) == ("slowdown", 7) else 0.2, 3)
        assert text_of(report)
        json.loads(as_json(report))
        page(report).encode()
    finally:
        path.write_text(written)


@pytest.mark.parametrize("seconds", [0, -1, -1e-9, float("nan"), float("inf"), 1e300, "x", None])
def test_what_can_be_no_limit_is_none(tmp_path: Path, seconds: Any) -> None:
    run = invent_run(tmp_path, failures=0, steps=20, near_misses=1)
    path, events = run.folders[0] / "figures.jsonl", run.folders[0] / "events.jsonl"
    documents = [json.loads(line) for line in path.read_text().splitlines()]
    events.write_text(events.read_text().replace("rank_section_timeouts", "of_another_release"))
    for line in documents:
        for facts in line["ranks"].values():
            for limit in facts.get("limits", {}).values():
                limit["seconds"] = seconds
    path.write_text("".join(json.dumps(line) + "\n" for line in documents))
    shown(run)
    report = make_report([str(run.folders[0])])
    assert [(limit.seconds, limit.room) for limit in report.limits] == [(None, None)] * len(report.limits)
    assert not any(line.startswith("LIMITS") for line in text_of(report))


def damaged_run(folder: Path) -> InventedRun:
    """Return a run with a damaged line of events, one of figures, and a damaged incident."""
    run = invent_run(folder, failures=[Failure(7, 1)], steps=20)
    for name, line in (
        ("events.jsonl", '{"event": 7, "t_ns": 1}'),
        ("figures.jsonl", '{"event": "figures", "t_ns": 1000000000000000}'),
    ):
        path = run.folders[0] / name
        path.write_text(f"{path.read_text()}{line}\n")
    (run.folders[0] / "incidents" / "0001" / "incident.json").write_text("{")
    return run


def test_a_second_report_of_the_same_process_says_the_same_of_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = damaged_run(tmp_path)
    reports: list[Report] = [make_report([str(run.folders[0])]) for _ in range(2)]
    assert reports[0].notes == reports[1].notes
    said = "\n".join(reports[1].notes)
    for part in (
        "its event is 7",
        "a damaged line of figures is left out",
        "incidents/0001 is left out: it is damaged",
    ):
        assert said.count(part) == 1, part
    assert not caplog.records


@pytest.mark.parametrize("t_ns", [0, (1 << 63) - 1])
def test_of_a_run_whose_events_are_all_of_one_moment_there_is_a_report(tmp_path: Path, t_ns: int) -> None:
    run = invent_run(tmp_path, failures=[Failure(7, 1)], steps=20)
    path = run.folders[0] / "events.jsonl"
    events = [json.loads(line) | {"t_ns": t_ns} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    shown(run)


def test_of_many_damaged_lines_the_first_few_are_told_and_the_others_counted(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=0, steps=20)
    for name in ("events.jsonl", "figures.jsonl"):
        path = run.folders[0] / name
        path.write_text(path.read_text() + "".join(f'{{"event": {number}, "t_ns": 1}}\n' for number in range(2000)))
    report = make_report([str(run.folders[0])])
    said = "\n".join(report.notes)
    assert said.count("a damaged line is left out") == 10
    assert said.count("1,995 more line(s) are left out") == 2
    assert report.runs[0].is_about
