"""What a report shows of a node that was lost, or got no place: its row, its name, and its time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from launcher.reports.as_json import as_json
from launcher.reports.build import make_report
from launcher.reports.failure_costs import cost_of_failure
from launcher.reports.formats import duration
from launcher.reports.incident_nodes import with_names
from launcher.reports.ledger import Accounts
from launcher.reports.lost_work import Kept, Loss
from launcher.reports.model import Report
from launcher.reports.page import page
from launcher.reports.page_colours import palette_of
from launcher.reports.page_rows import folded
from launcher.reports.terminal import lines as text_of
from tests.launcher.reports.invented_runs import EPOCH, Failure, InventedRun, begin_later, invent_run

NODES = ("node0", "node1", "node2")


def with_lost_nodes(parent: Path, lost: Sequence[int] = (1,), hosts: Sequence[str] = NODES) -> InventedRun:
    """Return a run of three nodes with a rank each; the lost ones are killed, and the others go on, numbered anew."""
    run = invent_run(parent, ranks=3, nodes=3, failures=[Failure(17, 1)], steps=30, own_folders=True)
    seen = run.lives[0].seen
    assert seen is not None
    for number, folder in enumerate(run.folders):
        shutil.rmtree(folder / "elsewhere", ignore_errors=True)
        shutil.rmtree(folder / "incidents", ignore_errors=True)
        until_ns = (5_000 + 1000 * number + seen - 0.5) * 1e9
        left = [each for each in range(3) if each not in lost]
        for path in folder.glob("*.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            if number in lost:
                lines = [line for line in lines if line["t_ns"] < until_ns]
            for line in lines if number not in lost else ():
                if line.get("generation") == 1 and line["event"] == "figures":
                    (facts,) = line["ranks"].values()
                    line["ranks"] = {str(left.index(number)): facts}
                if line.get("generation") == 1 and line["event"] == "rendezvous":
                    line["nodes"] = len(left)
                if line["event"] == "job_incident":
                    line |= {"kind": "lost", "culprits": [], "nodes": [hosts[1]]}
            path.write_text("".join(json.dumps(line | named(line, hosts)) + "\n" for line in lines))
    path = run.folders[0] / "job_incidents" / "0001" / "incident.json"
    told = json.loads(path.read_text())
    heard = [each | named(each, hosts) for each in told["nodes"] if NODES.index(each["node"]) not in lost]
    told |= {"kind": "lost", "culprits": [], "nodes_to_blame": [hosts[1]], "lost": [hosts[1]], "nodes": heard}
    told["why"] = f"node {hosts[1]} is lost (the launcher of node {hosts[1]} was killed)"
    path.write_text(json.dumps(told))
    return run


def named(facts: dict[str, object], hosts: Sequence[str]) -> dict[str, str]:
    return {"node": hosts[NODES.index(str(facts["node"]))]} if "node" in facts else {}


def reported(run: InventedRun) -> Report:
    return make_report([str(folder) for folder in run.folders])


def marked(report: Report) -> list[list[tuple[int, str]]]:
    rows = folded(report, palette_of(report))
    return [[(rank.rank, rank.node) for rank in row.ranks] for row in rows if row.incidents]


@pytest.mark.parametrize(
    ("hosts", "names"),
    [(NODES, NODES), (("vm", "vm", "vm"), ("vm", "vm (2)", "vm (3)")), (("a", "b", "a"), ("a", "b", "a (2)"))],
)
def test_a_lost_node_is_marked_in_its_own_row(tmp_path: Path, hosts: Sequence[str], names: Sequence[str]) -> None:
    report = reported(with_lost_nodes(tmp_path, hosts=hosts))
    one, two, three = names
    assert [(rank.rank, rank.node) for rank in report.ranks] == [(0, one), (1, two), (1, three), (2, three)]
    assert {(row.rank, row.node) for row in report.ledger.by_rank} == {(0, one), (1, two), (1, three)}
    (incident,) = report.incidents
    assert (incident.kind, incident.nodes_to_blame, incident.victims) == ("lost", (two,), (0, 2))
    assert incident.why == f"node {two} is lost (the launcher of node {two} was killed)"
    assert marked(report) == [[(1, two)]]
    assert f": node {two}" in " ".join(text_of(report, 200))
    assert f"#1 {two}: lost" in page(report)
    assert json.loads(as_json(report))["incidents"][0]["nodes_to_blame"] == [two]


def test_an_incident_that_was_written_without_a_reason_says_who_was_not_heard(tmp_path: Path) -> None:
    run = invent_run(tmp_path, ranks=2, nodes=2, failures=[Failure(17, 1)], steps=30)
    path = run.folders[0] / "job_incidents" / "0001" / "incident.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"why": "", "culprits": [], "silent": ["node1"]}))
    (incident,) = reported(run).incidents
    assert incident.culprits == ()
    assert incident.why.startswith("no rank that was heard of is known to have failed by itself, and node node1 has")


@pytest.mark.parametrize("newcomers", [(2,), (1, 2)])
def test_an_incident_costs_nothing_that_a_newcomer_had_waited_before_it(
    tmp_path: Path, newcomers: Sequence[int]
) -> None:
    run = invent_run(tmp_path, ranks=3, nodes=3, failures=[Failure(17, 0)], steps=30, own_folders=True)
    (whole,) = reported(run).incidents
    for number in newcomers:
        without_the_first_generation(run.folders[number])

    (incident,) = reported(run).incidents

    assert whole.cost_seconds is not None
    assert incident.cost_seconds == pytest.approx(whole.cost_seconds, abs=0.01)


def test_where_all_places_are_others_the_one_counts_that_has_waited_least() -> None:
    lost, one, other = ("a", 0), ("b", 0), ("c", 0)
    spent = {0: {lost: {"detection": 2.0, "start": 50.0}}, 1: {one: {"start": 9.0}, other: {"start": 4.0}}}
    assert cost_of_failure(Accounts((), (Loss(Kept.ALL), Loss(Kept.ALL)), spent), 0, 1) == 6.0


def without_the_first_generation(folder: Path) -> None:
    """Let a node be one that has waited since its launcher's begin, for the second generation."""
    for path in folder.glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        first = {"version": 1, "node": lines[0]["node"], "boot": lines[0]["boot"], "launcher": lines[0]["launcher"]}
        kept = [line for line in lines if line.get("generation") != 0]
        kept[0] = {**kept[0], **first}
        path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    shutil.rmtree(folder / "elsewhere", ignore_errors=True)


def test_where_it_cannot_be_told_which_node_of_a_host_was_lost_no_row_is_marked(tmp_path: Path) -> None:
    report = reported(with_lost_nodes(tmp_path, lost=(1, 2), hosts=("vm", "vm", "vm")))
    (incident,) = report.incidents
    assert incident.nodes_to_blame == ("one of vm (2), vm (3)",)
    assert incident.why.startswith("node vm is lost")
    assert marked(report) == []
    assert 'id="mark-1"' in page(report)


def test_a_culprit_has_the_name_and_the_row_of_its_node(tmp_path: Path) -> None:
    run = invent_run(tmp_path, ranks=3, nodes=3, failures=[Failure(17, 1, "hang", 31.0)], steps=30, own_folders=True)
    for folder in run.folders:
        shutil.rmtree(folder / "elsewhere", ignore_errors=True)
        for path in (*folder.rglob("*.jsonl"), *folder.rglob("*.json")):
            text = path.read_text()
            for name in NODES:
                text = text.replace(f'"{name}"', '"vm"')
            path.write_text(text)
    report = reported(run)
    (culprit,) = report.incidents[0].culprits
    assert (culprit.rank, culprit.node) == (1, "vm (2)")
    assert "vm (2)" in culprit.headline
    assert marked(report) == [[(1, "vm (2)")]]


def test_a_rank_of_that_number_on_another_node_is_not_marked(tmp_path: Path) -> None:
    report = reported(with_lost_nodes(tmp_path))
    lost = report.incidents[0]
    culprits = make_report([str(invent_run(tmp_path / "other", failures=1).folders[0])]).incidents[0].culprits
    suspects = [(1, "node2", [(1, "node2")]), (1, "node7", []), (2, "", [(2, "node2")])]
    for rank, node, expected in suspects:
        suspect = culprits[0]._replace(rank=rank, node=node)
        incident = lost._replace(kind="hang", nodes_to_blame=(), culprits=(suspect,))
        found = marked(report._replace(incidents=(incident,)))
        assert [place for row in found for place in row] == expected
    blamed = lost._replace(nodes_to_blame=("node2",))  # its rank had another number in that generation than in the next
    assert marked(report._replace(incidents=(blamed,))) == [[(2, "node2")]]


def test_only_names_of_nodes_are_put_into_a_text() -> None:
    said = "node vm is lost; node vm-1, node vm.local, node vm (3) and vm are not"
    assert with_names(said, ["vm"], ["vm (2)"]) == said.replace("node vm is", "node vm (2) is")
    assert with_names(said, ["vm", "vm"], ["vm (2)", "vm (3)"]) == said
    assert with_names(said, ["vm"], []) == said


@pytest.mark.parametrize(("began", "ended"), [(-40.0, -30.0), (-40.0, 10.0), (5.0, 2000.0), (45.0, 46.0)])
def test_a_launcher_that_got_no_rank_makes_a_run_no_longer(tmp_path: Path, began: float, ended: float) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=30)
    before = reported(run)
    path = run.folders[0] / "events.jsonl"
    first = json.loads(path.read_text().splitlines()[0])
    lines = [
        {**first, "launcher": 999, "t_ns": first["t_ns"] + round(began * 1e9), "time": at(began)},
        {"event": "warning", "t_ns": first["t_ns"] + round(ended * 1e9), "time": at(ended)},
    ]
    (run.folders[0] / "events-node0-999.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = reported(run)
    if began == -40.0 and ended == -30.0:  # a run of its own, and nothing tells whether something was started
        assert (len(report.runs), report.seconds) == (2, pytest.approx(before.seconds + 40.0))
        assert any("(pid 999) is not known to have started a rank, and may have" in note for note in report.notes)
        return
    assert any("(pid 999) has started no rank" in note for note in report.notes), "the others tell of all nodes"
    assert (report.seconds, report.began_at, report.began_epoch) == (
        before.seconds,
        before.began_at,
        before.began_epoch,
    )
    assert report.runs == before.runs
    assert report.ledger.entries == before.ledger.entries
    assert report.seconds == pytest.approx(report.ledger.wall_seconds, abs=1e-6)
    assert any("are no part of the ledger, nor of how long the run took" in note for note in report.notes)
    assert {rank.spans[-1].end for rank in report.ranks} == {report.seconds}


def at(seconds: float) -> str:
    moment = datetime.fromtimestamp(EPOCH, timezone.utc) + timedelta(seconds=seconds)
    return moment.isoformat(timespec="milliseconds")


def test_a_page_says_which_length_is_which(tmp_path: Path) -> None:
    run = invent_run(tmp_path, ranks=2, nodes=2, failures=0, steps=10, own_folders=True)
    shown = page(reported(run))
    assert "<dt>lasted</dt>" in shown
    assert "first launcher" not in shown
    begin_later(run.folders[1], 0.8)
    report = reported(run)
    assert report.seconds == pytest.approx(run.seconds, abs=1e-3)
    assert report.ledger.wall_seconds == pytest.approx(run.seconds - 0.4, abs=1e-3)
    shown = page(report)
    assert f"<dt>lasted, mean of the ranks</dt><dd>{duration(run.seconds - 0.4)}" in shown
    assert f", {duration(run.seconds)} from the first launcher&#x27;s begin to the last one&#x27;s end." in shown


def test_how_a_node_has_ended_that_has_left_is_not_how_the_run_has(tmp_path: Path) -> None:
    run = invent_run(tmp_path, ranks=3, nodes=3, failures=[Failure(17, 0)], steps=30, own_folders=True)
    for path in run.folders[2].glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        kept = [line for line in lines if line.get("generation") != 1 or line["event"] == "ended"]
        for line in kept:
            if line["event"] == "ended":
                stopped_ns = max(each["t_ns"] for each in kept if each is not line)
                line |= {"outcome": "ended by SIGTERM", "generation": 0, "t_ns": stopped_ns + 10**8}
        path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    for folders in (run.folders, run.folders[::-1]):
        (told,) = make_report([str(folder) for folder in folders]).runs
        assert (told.outcome, told.exit_code, told.nodes) == ("succeeded", 0, 3)


@pytest.mark.parametrize("cut_at", ["started", "rendezvous"])
def test_a_killed_launcher_of_which_a_generation_lacks_ranks_may_have_started_ranks(
    tmp_path: Path, cut_at: str
) -> None:
    """Its events are cut within a line, as after a power cut, and nothing is left of its figures."""
    run = with_lost_nodes(tmp_path)
    whole = reported(run)
    assert whole.runs[0].nodes_lost == 1
    (run.folders[1] / "figures.jsonl").unlink()
    path = run.folders[1] / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    number = next(n for n, line in enumerate(lines) if f'"{cut_at}"' in line)
    path.write_text("".join(lines[:number]) + lines[number][:20])

    report = reported(run)
    said = " ".join(report.notes)
    assert "may have started ranks of generation(s) 0, of which nothing is left" in said
    assert "is not known to have started a rank" in said
    assert "has started no rank" not in said
    assert all(entry.is_about for entry in report.ledger.entries)
    assert (report.runs[0].is_about, report.runs[0].nodes_lost) == (True, 1)
    assert "~3 ranks on ~3 nodes, succeeded (exit code 0), 1 node was lost" in "\n".join(text_of(report, 200))


def test_a_launcher_that_ended_after_it_had_met_has_started_what_it_tells_of(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1)], steps=30)
    path = run.folders[0] / "events.jsonl"
    *lines, last = path.read_text().splitlines(keepends=True)
    met = json.loads(last) | {"event": "rendezvous", "generation": 2, "nodes": 1}
    path.write_text("".join([*lines, json.dumps(met) + "\n", last]))
    assert not reported(run).runs[0].is_about
    path.write_text("".join([*lines, json.dumps(met) + "\n"]))
    assert reported(run).runs[0].is_about


def test_without_the_folder_of_a_node_the_head_and_the_length_are_about_right_only(tmp_path: Path) -> None:
    """A third node joins when one of two is lost, and nothing is left of the third: two nodes ran at any time."""
    run = with_lost_nodes(tmp_path)
    assert not reported(run).runs[0].is_about
    for folder in run.folders[:2]:
        path = folder / "events.jsonl"
        path.write_text(path.read_text().replace('"nodes": 3', '"nodes": 2'))
    report = reported(run._replace(folders=run.folders[:2]))
    assert report.runs[0].is_about
    assert report.ledger.is_wall_about
    assert "on ~2 nodes" in "\n".join(text_of(report))


@pytest.mark.parametrize("seconds", [0.35, 0.0], ids=["its last lines", "its last line alone"])
def test_where_the_last_lines_of_one_node_are_missing_the_length_is_about_right_only(
    tmp_path: Path, seconds: float
) -> None:
    """Its ranks may have gone on until the end: a gap so short is no absence, and the mean of the ranks too short."""
    run = invent_run(tmp_path, ranks=2, nodes=2, failures=0, steps=10, own_folders=True)
    whole = reported(run)
    assert not whole.ledger.is_wall_about
    files = [run.folders[1] / f"{name}.jsonl" for name in ("events", "figures")]
    lines = {path: [json.loads(line) for line in path.read_text().splitlines()] for path in files}
    last_ns = max(line["t_ns"] for each in lines.values() for line in each)
    for path, each in lines.items():
        left = [line for line in each if line["t_ns"] < last_ns - seconds * 1e9]
        path.write_text("".join(json.dumps(line) + "\n" for line in left))

    report = reported(run)
    assert report.ledger.wall_seconds < whole.ledger.wall_seconds
    assert report.ledger.wall_seconds == pytest.approx(whole.ledger.wall_seconds, abs=0.5)
    assert all(entry.is_about for entry in report.ledger.entries)
    assert report.ledger.is_wall_about
    assert report.is_length_about
    text = " ".join("\n".join(text_of(report)).split())
    assert f"together ~{report.ledger.wall_seconds:.1f} s" in text


def without_the_common_incident(run: InventedRun) -> str:
    """Remove the folder of what the nodes have found together, and return its name as events tell it."""
    folder = run.folders[0] / "job_incidents" / "0001"
    shutil.rmtree(folder)
    for path in run.folders:
        file = path / "events.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        told = ({"folder": str(folder)} if line["event"] == "job_incident" else {} for line in lines)
        file.write_text("".join(json.dumps(line | more) + "\n" for line, more in zip(lines, told, strict=True)))
    return str(folder)


@pytest.mark.parametrize("hosts", [NODES, ("vm", "vm", "vm")])
def test_a_lost_node_is_named_as_events_tell_it_where_the_folder_is_missing(
    tmp_path: Path, hosts: Sequence[str]
) -> None:
    run = with_lost_nodes(tmp_path, hosts=hosts)
    name = "node1" if hosts == NODES else "vm (2)"
    missing = without_the_common_incident(run)

    report = reported(run)

    (incident,) = report.incidents
    assert (incident.kind, incident.nodes_to_blame, incident.culprits) == ("lost", (name,), ())
    assert incident.why == (
        f"node {name} was named as lost by the nodes together; nothing is left of what was seen of it but that"
    )
    assert marked(report) == [[(1, name)]]
    assert f"lost, cost ~{duration(incident.cost_seconds)}: node {name}" in "\n".join(text_of(report, 200))
    said = [note for note in report.notes if "what the nodes have found together is not in these log folders" in note]
    assert len(said) == 1
    assert f"({missing}, gathered on node node0)" in said[0]
    assert all("incidents in generation(s) 0" not in note or missing in note for note in report.notes)


@pytest.mark.parametrize("is_own_left", [True, False])
def test_a_culprit_is_named_as_events_tell_it_where_the_folder_is_missing(tmp_path: Path, is_own_left: bool) -> None:
    """Of the node that has failed, the incident, and what its events tell of that, may be missing as well."""
    run = invent_run(tmp_path, ranks=3, nodes=3, failures=[Failure(17, 1)], steps=30, own_folders=True)
    whole = reported(run)
    assert not any("found together" in note for note in whole.notes)
    without_the_common_incident(run)
    if not is_own_left:
        shutil.rmtree(run.folders[1] / "incidents")
        path = run.folders[1] / "events.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if '"event": "failure"' not in line))

    report = reported(run)

    (incident,) = report.incidents
    (culprit,) = incident.culprits
    assert (incident.kind, culprit.rank, culprit.node, culprit.local_rank) == ("failure", 1, "node1", 0)
    if is_own_left:
        assert incident.culprits == whole.incidents[0].culprits
        assert incident.why == whole.incidents[0].why
    else:
        assert culprit.headline == "rank 1 on node node1 was named by the nodes together"
        assert incident.why == "named by the nodes together; nothing is left of what was seen of it but that"
    assert any("what the nodes have found together is not in these log folders" in note for note in report.notes)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"culprits": [], "nodes": []}, "the nodes together could not tell"),
        ({"kind": 7, "culprits": ["x"], "nodes": None, "folder": 3, "gathered_on": 4}, "the nodes together could not"),
        ({"kind": "lost", "culprits": [], "nodes": ["a", "b"]}, "nodes a, b were named as lost by the nodes together"),
        ({"kind": "hang", "culprits": [], "nodes": ["a"]}, "node a was named by the nodes together"),
    ],
)
def test_what_the_nodes_have_found_goes_before_what_one_has_seen(
    tmp_path: Path, told: dict[str, object], why: str
) -> None:
    run = invent_run(tmp_path, ranks=3, nodes=3, failures=[Failure(17, 1)], steps=30, own_folders=True)
    without_the_common_incident(run)
    for folder in run.folders:
        lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        text = "".join(json.dumps(line | (told if line["event"] == "job_incident" else {})) + "\n" for line in lines)
        (folder / "events.jsonl").write_text(text)
    (incident,) = reported(run).incidents
    assert incident.culprits == ()
    assert incident.nodes_to_blame == tuple(told["nodes"] or ())  # type: ignore[arg-type]  # a list of names, or None
    assert incident.why.startswith(why)
    assert incident.kind == (told["kind"] if told.get("kind") in ("lost", "hang") else "failure")


def test_a_cost_is_about_right_only_where_the_note_says_so_of_its_generation(tmp_path: Path) -> None:
    """The first failure was seen on one of two nodes alone, the second one on both."""
    failures = [Failure(17, 1), Failure(23, 1)]
    run = invent_run(tmp_path, ranks=2, nodes=2, failures=failures, steps=40, own_folders=True)
    seen = run.lives[1].seen
    assert seen is not None
    path = run.folders[0] / "events.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines.append({"event": "seen", "t_ns": round((5_000 + seen + 0.01) * 1e9), "time": at(seen), "generation": 1})
    path.write_text("".join(json.dumps(line) + "\n" for line in sorted(lines, key=lambda line: line["t_ns"])))

    report = reported(run)

    assert [incident.is_cost_about for incident in report.incidents] == [True, False]
    (note,) = report.notes
    assert note.startswith("generation(s) 0: when the failure was seen is not noted on every node")
    # What all generations have spent is the sum of both.
    assert {entry.category.key for entry in report.ledger.entries if entry.is_about} == {"detection", "stop"}


def test_a_share_in_the_ledger_is_about_right_only_where_its_seconds_are(tmp_path: Path) -> None:
    report = reported(invent_run(tmp_path, ranks=2, nodes=2, failures=[Failure(17, 1)], steps=40))
    for width in (40, 80):
        rows = {line.rstrip("#").rstrip()[:40] for line in text_of(report, width) if line.endswith(("#", "%"))}
        columns = set[int]()
        for entry in report.ledger.entries:
            (row,) = (row for row in rows if row.startswith(f"  {entry.category.name} "))
            assert entry.is_about == ("~" in row)
            about = "~" if entry.is_about else " "
            assert row.endswith(f"{about}{entry.share * 100:.1f} %"), row
            columns.add(len(row))
        assert len(columns) == 1
    assert "~100.0 %" not in "\n".join(text_of(report))
    assert {entry.is_about for entry in report.ledger.entries} == {True, False}
