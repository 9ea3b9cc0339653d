"""Reports of runs of which events are missing: no figure without ``~`` differs from the truth, and all add up."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.reports.as_json import as_json
from launcher.reports.build import make_report
from launcher.reports.formats import duration
from launcher.reports.model import Report, wall_seconds
from launcher.reports.page import page
from launcher.reports.places import Entry, unaccounted
from launcher.reports.terminal import lines as text_of
from tests.launcher.reports.invented_runs import (
    Failure,
    InventedRun,
    in_one_folder,
    invent_failing_nodes,
    invent_run,
    invent_runs,
)

FAILURES = (Failure(3, 1), Failure(8, 0, "hang", 31.0), Failure(12, 1))
WRITER = ("version", "node", "boot", "launcher", "process_began_ns")
ROW = re.compile(r"  (productive|checkpointing|lost work|start|detection|stop|rendezvous|waiting)  ")


@pytest.fixture
def run(tmp_path: Path) -> InventedRun:
    return invent_run(tmp_path, failures=FAILURES, steps=16, save_every=5, lines=40)


def events_of(run: InventedRun) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folders[0] / "events.jsonl").read_text().splitlines()]


def write_events(run: InventedRun, events: Sequence[dict[str, Any]]) -> None:
    (run.folders[0] / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def reported(run: InventedRun) -> Report:
    report = make_report([str(folder) for folder in run.folders])
    ledger = report.ledger
    assert sum(entry.seconds for entry in ledger.entries) == pytest.approx(wall_seconds(report), abs=1e-3)
    for row in ledger.by_rank:
        assert sum(row.seconds) == pytest.approx(wall_seconds(report), abs=1e-3)
    for generation in report.generations:
        assert generation.first_step is None or generation.first_step >= generation.began >= 0
    return report


def counts_of(report: Report) -> dict[str, str]:
    """Return every count that is shown, with its sign."""
    text = " ".join("\n".join(text_of(report, 1000)).split())
    patterns = {
        "ranks": r"(\S+) ranks on",
        "restarts": r"(\S+) restarts?",
        "kept": r"; (\S+) steps kept",
        "again": r", (\S+) done again",
        "incidents": r"INCIDENTS (\S+)",
        "failures": r"(?:and|rests on) (\S+) failure\(s\)",
    }
    return {name: found[1] for name, pattern in patterns.items() if (found := re.search(pattern, text))}


def assert_none_is_wrong(report: Report, truth: Report) -> None:
    expected = counts_of(truth)
    for name, shown in counts_of(report).items():
        assert shown.startswith("~") or shown == expected[name], (name, shown, expected[name])
    if not report.ledger.is_wall_about:
        assert wall_seconds(report) == pytest.approx(wall_seconds(truth), abs=0.1)
    exact = {entry.category.key: entry.seconds for entry in truth.ledger.entries}
    for entry in report.ledger.entries:
        if not entry.is_about and entry.category.key != "unknown":
            key = entry.category.key
            # The events of a failure are up to 50 ms apart; what is not known of a row is 'unknown'.
            assert entry.seconds <= exact.get(key, 0.0) + 0.1, key
    if "~" in "".join(counts_of(report).values()) and "~" not in "".join(expected.values()):
        assert len(report.notes) > len(truth.notes)


def test_without_any_one_event_no_figure_that_is_shown_as_exact_is_wrong(run: InventedRun) -> None:
    truth, events = reported(run), events_of(run)
    assert "~" not in "".join(counts_of(truth).values())
    for number, event in enumerate(events):
        write_events(run, events[:number] + events[number + 1 :])
        report = reported(run)
        assert_none_is_wrong(report, truth)
        if event["event"] == "started":
            assert (report.ledger.steps, report.ledger.repeated) == (truth.ledger.steps, truth.ledger.repeated)
            assert [g.number for g in report.generations] == [0, 1, 2, 3]


def test_without_any_one_event_and_without_incidents_no_figure_that_is_shown_as_exact_is_wrong(
    run: InventedRun,
) -> None:
    shutil.rmtree(run.folders[0] / "incidents")
    truth, events = reported(run), events_of(run)
    for number in range(len(events)):
        write_events(run, events[:number] + events[number + 1 :])
        assert_none_is_wrong(reported(run), truth)


@pytest.mark.parametrize("own_folders", [False, True])
def test_of_two_nodes_without_any_one_event_no_figure_that_is_shown_as_exact_is_wrong(
    tmp_path: Path, own_folders: bool
) -> None:
    run = invent_failing_nodes(tmp_path, own_folders=own_folders)
    truth = reported(run)
    for path in (path for folder in run.folders for path in sorted(folder.glob("events*.jsonl"))):
        lines = path.read_text().splitlines(keepends=True)
        for number in range(len(lines)):
            path.write_text("".join(lines[:number] + lines[number + 1 :]))
            report = make_report([str(folder) for folder in run.folders])
            assert report.ledger.wall_seconds == pytest.approx(wall_seconds(report), abs=1e-3)
            assert_none_is_wrong(report, truth)
        path.write_text("".join(lines))


@pytest.mark.parametrize("node", [0, 1])
def test_of_a_node_without_figures_whose_events_end_early_no_figure_that_is_shown_as_exact_is_wrong(
    tmp_path: Path, node: int
) -> None:
    run = invent_failing_nodes(tmp_path, own_folders=True)
    truth, path = reported(run), run.folders[node] / "events.jsonl"
    (run.folders[node] / "figures.jsonl").unlink()
    lines = path.read_text().splitlines(keepends=True)
    for number in range(1, len(lines)):
        path.write_text("".join(lines[:number]) + lines[number][:30])
        assert_none_is_wrong(make_report([str(folder) for folder in run.folders]), truth)


def test_without_any_one_line_of_figures_no_figure_that_is_shown_as_exact_is_wrong(run: InventedRun) -> None:
    truth, path = reported(run), run.folders[0] / "figures.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    for number in range(1, len(lines)):  # the first one says who has written the file
        path.write_text("".join(lines[:number] + lines[number + 1 :]))
        assert_none_is_wrong(reported(run), truth)


@pytest.mark.parametrize("part", ["first", "last"])
def test_of_a_file_of_events_that_was_cut_no_figure_that_is_shown_as_exact_is_wrong(
    run: InventedRun, part: str
) -> None:
    truth, events = reported(run), events_of(run)
    for length in range(1, len(events)):
        write_events(run, events[:length] if part == "first" else events[-length:])
        if part == "last" and "version" not in events[-length]:
            first = events[-length] | {key: events[0][key] for key in WRITER}
            write_events(run, [first, *events[len(events) - length + 1 :]])
        report = reported(run)
        assert_none_is_wrong(report, truth)
        assert [incident.generation for incident in report.incidents] == [0, 1, 2]
        assert [incident.culprits[0].rank for incident in report.incidents] == [1, 0, 1]


def test_after_a_power_cut_at_any_time_no_figure_that_is_shown_as_exact_is_wrong(run: InventedRun) -> None:
    """What was written in the last seconds before it is on no disk, nor are incidents."""
    truth, events = reported(run), events_of(run)
    figures = run.folders[0] / "figures.jsonl"
    lines = figures.read_text().splitlines(keepends=True)
    first = [event["event"] for event in events].index("started")  # before that there are no ranks to tell of
    for number, event in list(enumerate(events[:-1], 1))[first:]:
        write_events(run, events[:number])
        figures.write_text("".join(line for line in lines if json.loads(line)["t_ns"] <= event["t_ns"]))
        kept = [e for e in events[:number] if e["event"] in ("failure", "hang")]
        for folder in (run.folders[0] / "incidents").iterdir():
            if folder.name not in {Path(each["folder"]).name for each in kept}:
                shutil.rmtree(folder)
        assert_none_is_wrong(reported(run), truth)


@pytest.mark.parametrize("is_there", [False, True])
def test_where_no_event_is_left_figures_and_incidents_tell_of_all_generations(run: InventedRun, is_there: bool) -> None:
    truth = reported(run)
    (run.folders[0] / "events.jsonl").unlink()
    if is_there:
        (run.folders[0] / "events.jsonl").touch()
    report = reported(run)
    assert_none_is_wrong(report, truth)
    shown = page(report)
    assert re.search(r"~\d+ iterations kept, ~8 done again", shown)
    assert "<dd>~3</dd>" in shown
    assert "≈" not in shown
    assert len(report.incidents) == 3
    told = {entry.category.key: entry.seconds for entry in report.ledger.entries}
    assert told["detection"] == pytest.approx(run.truth.seconds["detection"], abs=0.1)
    assert "stop" not in told
    assert told["unknown"] > 0


def without(number: int) -> Callable[[dict[str, Any]], bool]:
    return lambda event: event.get("generation") != number


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_generation_is_known_by_its_figures_alone(run: InventedRun, number: int) -> None:
    truth = reported(run)
    write_events(run, [event for event in events_of(run) if event["event"] == "ended" or without(number)(event)])
    report = reported(run)
    assert_none_is_wrong(report, truth)
    assert (report.ledger.steps, report.ledger.repeated) == (truth.ledger.steps, truth.ledger.repeated)
    assert counts_of(report)["restarts"] == "~3"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_generation_is_known_by_its_incident_alone(run: InventedRun, number: int) -> None:
    truth = reported(run)
    for name in ("events.jsonl", "figures.jsonl"):
        path = run.folders[0] / name
        first, *others = [json.loads(line) for line in path.read_text().splitlines()]
        about = {key: first[key] for key in WRITER}
        kept = [first, *others] if name == "events.jsonl" else [line | about for line in (first, *others)]
        kept = [line for line in kept if without(number)(line)]
        path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    report = reported(run)
    assert_none_is_wrong(report, truth)
    assert [incident.generation for incident in report.incidents] == [0, 1, 2]
    assert report.ledger.repeated is None


@pytest.mark.parametrize("number", [1, 2, 3])
def test_of_a_generation_of_which_nothing_is_left_the_report_says_so(run: InventedRun, number: int) -> None:
    truth = reported(run)
    shutil.rmtree(run.folders[0] / "incidents" / f"{number + 1:04d}", ignore_errors=True)
    for name in ("events.jsonl", "figures.jsonl"):
        path = run.folders[0] / name
        kept = [json.loads(line) for line in path.read_text().splitlines()]
        kept = [line for line in kept if line["event"] == "ended" or without(number)(line)]
        path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    report = reported(run)
    assert_none_is_wrong(report, truth)
    assert re.search("nothing (else )?is left of", " ".join(report.notes))


def test_where_no_start_and_no_figures_are_left_other_events_tell_of_the_ranks(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=FAILURES, steps=16, has_figures=False)
    write_events(run, [event for event in events_of(run) if event["event"] != "started"])
    (told,) = reported(run).runs
    assert (told.world_size, told.restarts, told.is_about) == (2, 3, True)


@pytest.mark.parametrize("name", ["events.jsonl", "events-node0-100.jsonl"])
def test_a_launcher_without_events_is_told_from_another_of_the_same_pid(tmp_path: Path, name: str) -> None:
    runs = invent_runs(tmp_path, 2, lines=20)
    in_one_folder(runs)
    run = runs[0]
    truth = reported(run)
    assert (len(truth.runs), len(truth.incidents)) == (2, 4)
    (run.folders[0] / name).unlink()
    report = reported(run)
    assert_none_is_wrong(report, truth)
    assert counts_of(report)["incidents"] == "~4"
    assert not any("no launcher" in note for note in report.notes)


def lose_events_and_the_writer(run: InventedRun) -> None:
    """Leave no line that tells on which node the launcher ran, nor its pid: the first one of figures is damaged."""
    (run.folders[0] / "events.jsonl").write_text("")
    path = run.folders[0] / "figures.jsonl"
    first, *others = path.read_text().splitlines(keepends=True)
    assert not any('"node"' in line for line in others)
    path.write_text("".join([first.replace("{", "", 1), *others]))


def test_incidents_of_a_launcher_whose_node_no_line_tells_are_its_own(run: InventedRun) -> None:
    truth = reported(run)
    lose_events_and_the_writer(run)
    report = reported(run)
    assert_none_is_wrong(report, truth)
    assert [incident.generation for incident in report.incidents] == [0, 1, 2]
    assert [node.name for node in report.nodes] == [node.name for node in truth.nodes]  # the incidents tell
    assert not any("None" in note or "is not listed" in note for note in report.notes)


def test_an_incident_of_another_node_is_of_no_launcher_where_two_may_have_seen_it(run: InventedRun) -> None:
    lose_events_and_the_writer(run)
    figures = run.folders[0] / "figures.jsonl"
    figures.with_name("figures-b-1.jsonl").write_text(figures.read_text())
    report = make_report([str(run.folders[0])])
    assert not report.incidents
    assert sum("is not listed" in note for note in report.notes) == 3


def test_an_incident_of_no_launcher_is_noted(run: InventedRun) -> None:
    copied = run.folders[0] / "incidents" / "0009"
    shutil.copytree(run.folders[0] / "incidents" / "0001", copied)
    document = json.loads((copied / "incident.json").read_text())
    (copied / "incident.json").write_text(json.dumps(document | {"node": "elsewhere"}))
    report = reported(run)
    assert len(report.incidents) == 3
    assert any("0009" in note and "is not listed" in note for note in report.notes)


def test_a_rate_of_failures_rests_on_the_time_and_the_failures_that_belong_together(run: InventedRun) -> None:
    truth = counts_of(reported(run))
    lives, events = run.lives, events_of(run)
    began_ns, last = events[0]["t_ns"], lives[-1]
    for name in ("events.jsonl", "figures.jsonl"):  # the log folder was removed, in the last generation
        path = run.folders[0] / name
        about = {key: events[0][key] for key in WRITER}
        kept = [json.loads(line) for line in path.read_text().splitlines()]
        kept = [line for line in kept if line["t_ns"] > began_ns + (last.seen or 0.0) * 1e9]
        path.write_text("".join(json.dumps(line | about) + "\n" for line in kept))
    shutil.rmtree(run.folders[0] / "incidents")
    report = reported(run)
    (told,) = [each.text for each in report.recommendations if each.about == "checkpoint interval"]
    found = re.search(r"(\d+) save\(s\) and ~0 failure\(s\) in ~?([\d.]+) s", told)
    assert found, (told, truth)
    assert int(found[1]) == len(last.saves)
    assert float(found[2]) >= last.last_sign - last.started - 1.5


def test_of_one_event_that_is_left_all_adds_up_and_nothing_is_shown_as_exact(run: InventedRun) -> None:
    events = events_of(run)
    for event in events:
        write_events(run, [event])
        report = make_report([str(run.folders[0])])
        assert sum(entry.seconds for entry in report.ledger.entries) == pytest.approx(wall_seconds(report), abs=1e-3)
        assert all(entry.is_about for entry in report.ledger.entries)


def test_without_any_figures_nothing_is_shown_as_exact(run: InventedRun) -> None:
    """What was detection may have been work: nothing tells when ranks last got on."""
    (run.folders[0] / "figures.jsonl").write_text("")
    assert all(entry.is_about for entry in reported(run).ledger.entries)


@pytest.mark.parametrize(
    ("boots", "is_about", "expected"),
    [
        (("a", "a"), True, [500_000_000]),
        (("a", "events.jsonl"), True, [500_000_000]),  # as where the line that tells of it is missing
        (("a", "a"), False, []),
        (("a", "b"), True, []),
    ],
)
def test_what_is_left_of_the_wall_time_of_a_machine_is_unknown_where_lines_are_missing(
    boots: Sequence[str], is_about: bool, expected: list[int]
) -> None:
    launches = [
        SimpleNamespace(boot=boot, file="events.jsonl", ended_ns=end, last_ns=end)
        for boot, end in zip(boots, (5, 7), strict=True)
    ]
    story: Any = SimpleNamespace(launches=launches, runs_about={0} if is_about else set(), seconds=7.0)
    spent = [Entry(("node", 0), 0, 0, "start", 2_000_000_000), Entry(("node", 0), 0, 0, "productive", 4_500_000_000)]
    left = list(unaccounted(story, spent))
    assert [(entry.place, entry.key, entry.ns, entry.is_about) for entry in left] == [
        (("node", 0), "unknown", ns, True) for ns in expected
    ]


@pytest.mark.parametrize(("lacks", "has_begin"), [("first", False), ("last", True), ("all", False)])
def test_the_length_of_a_run_is_about_right_only_where_its_begin_or_its_end_is_not_known(
    run: InventedRun, lacks: str, has_begin: bool
) -> None:
    whole = reported(run)
    length = duration(wall_seconds(whole))
    assert f", {length}; " in text_of(whole)[2]
    assert not any((whole.ledger.is_wall_about, whole.is_length_about, whole.runs[0].is_length_about))
    events = events_of(run)
    if lacks == "all":
        (run.folders[0] / "events.jsonl").unlink()
    else:
        kept = events[1:] if lacks == "first" else events[:-1]
        write_events(run, [kept[0] | {key: events[0][key] for key in WRITER}, *kept[1:]])

    report = reported(run)
    length = duration(wall_seconds(report))
    assert report.ledger.is_wall_about
    document = json.loads(as_json(report))
    assert document["is_length_about"]
    assert document["ledger"]["is_wall_about"]
    assert document["runs"][0]["is_length_about"]
    assert document["runs"][0]["is_begin_about"] == (not has_begin)
    assert f", ~{length}; " in text_of(report)[2]
    assert text_of(report)[2].startswith("  ~") == (not has_begin)
    assert any(re.match(r"  together +~", line) for line in text_of(report))
    assert f"<dd>~{length}</dd>" in page(report)


def test_of_several_runs_each_whose_end_is_not_known_has_a_length_that_is_about_right(tmp_path: Path) -> None:
    runs = invent_runs(tmp_path, 2)
    path = runs[0].folders[0] / "events.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    report = make_report([str(run.folders[0]) for run in runs])
    assert [each.is_length_about for each in report.runs] == [True, False]
    assert not report.ledger.is_wall_about, "the last one's end is known"
    text = "\n".join(text_of(report))
    assert f"  run-0: ~{duration(report.runs[0].seconds)}, no end" in text
    assert f"  run-1: {duration(report.runs[1].seconds)}, succ" in text
    assert f">~{duration(report.runs[0].seconds)}<" in page(report)


@pytest.mark.parametrize(("left", "clock_ahead", "runs"), [(2, 0, 1), (1, 0, 1), (2, 3600, 2)])
def test_last_events_behind_zero_bytes_are_of_the_launcher_whose_figures_have_that_name(
    tmp_path: Path, left: int, clock_ahead: int, runs: int
) -> None:
    """They come after its last line of figures, and nothing else tells who has written them, but their clocks do."""
    run = invent_run(tmp_path, failures=[Failure(3, 1)], steps=8)
    path = run.folders[0] / "events.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()[-left:]]
    for line in lines:  # of a machine that was started later, and now has run as long
        line["time"] = (datetime.fromisoformat(line["time"]) + timedelta(seconds=clock_ahead)).isoformat()
    path.write_bytes(bytes(4096) + b"\n" + "".join(json.dumps(line) + "\n" for line in lines).encode())

    report = reported(run)
    assert len(report.runs) == runs
    if runs == 1:
        assert (report.runs[0].outcome, report.runs[0].nodes, report.runs[0].nodes_lost) == ("succeeded", 1, 0)
        assert not any("has started no rank" in note for note in report.notes)


@pytest.mark.parametrize("begun_later", [False, True])
def test_nodes_whose_first_lines_are_missing_are_of_one_run_by_when_their_processes_began(
    tmp_path: Path, begun_later: bool
) -> None:
    """Of three launchers on one host, one has begun to write after another one's last line is, which says nothing."""
    run = invent_run(tmp_path, ranks=3, nodes=3, failures=[Failure(3, 1)], steps=8, own_folders=True, lines=40)
    for number, folder in enumerate(run.folders):
        lines = {}
        for name in ("events", "figures"):
            path = folder / f"{name}.jsonl"
            lines[name] = [json.loads(line) for line in path.read_text().splitlines()]
            shift_ns = number * 1_000_000_000_000  # the clocks of these nodes differ by that
            for line in lines[name]:
                line["t_ns"] -= shift_ns
            lines[name][0] |= {"node": "host", "boot": "boot-0", "launcher": 100 + number}
            lines[name][0]["process_began_ns"] -= shift_ns
        if number:
            lines["events"] = []
        if number == 1:
            lines["figures"] = lines["figures"][:2]
        if number == 2:
            first, *others = lines["figures"]
            began_ns = first["process_began_ns"] if not begun_later else others[3]["t_ns"] - 1
            lines["figures"] = [{**others[3], **{key: first[key] for key in WRITER}, "process_began_ns": began_ns}]
            lines["figures"] += others[4:]
        for name, rows in lines.items():
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    report = make_report([str(folder) for folder in run.folders])
    assert len(report.runs) == 1 + begun_later


def test_a_cost_is_not_known_where_the_time_is_of_which_it_is_a_part(run: InventedRun) -> None:
    """The first events and the figures are gone, and iterations went back: the incident is all that tells of time."""
    events = [event | {"went_back": True} if event["event"] == "ended" else event for event in events_of(run)]
    for number in (2, 3, 4):
        shutil.rmtree(run.folders[0] / "incidents" / f"{number:04d}", ignore_errors=True)
    (run.folders[0] / "figures.jsonl").unlink()
    write_events(run, [event for event in events if event["event"] in ("shut_down", "ended")])

    report = reported(run)

    assert [entry.category.key for entry in report.ledger.entries] == ["unknown"]
    assert [(each.cost_seconds, each.is_cost_about) for each in report.incidents] == [(None, False)]


@pytest.mark.parametrize("has_folder", [True, False])
def test_the_lost_line_of_a_hang_is_told_by_its_folder_or_stop_is_an_estimate(tmp_path: Path, has_folder: bool) -> None:
    """Folders of incidents of a node, and of a job, have the same numbers."""
    failures = [Failure(8, 3, "hang", 31.0)]
    run = invent_run(tmp_path, ranks=4, nodes=2, own_folders=True, failures=failures, steps=16, save_every=5)
    node, other = run._replace(folders=run.folders[1:]), run._replace(folders=run.folders[:1])
    seen = next(event for event in events_of(node) if event["event"] == "hang")
    (began,), (began_too,) = ([e for e in events_of(each) if e["event"] == "began"] for each in (node, other))
    at_ns = seen["seen_ns"] - began["t_ns"] + began_too["t_ns"]
    write_events(other, [*events_of(other), {**seen, "event": "seen", "t_ns": at_ns, "failed": [0], "folder": None}])
    whole = {entry.category.key: entry for entry in reported(run).ledger.entries}
    events = [event for event in events_of(node) if event["event"] != "hang"]
    for event in events:
        if event["event"] == "job_incident":
            event["folder"] = str(run.folders[0] / "job_incidents" / "0001")
    write_events(node, events)
    if not has_folder:
        shutil.rmtree(node.folders[0] / "incidents")
        shutil.rmtree(run.folders[0] / "job_incidents")

    stop = next(entry for entry in reported(run).ledger.entries if entry.category.key == "stop")

    assert (stop.seconds == pytest.approx(whole["stop"].seconds, abs=1e-4)) == has_folder
    assert (whole["stop"].is_about, stop.is_about) == (False, not has_folder)
