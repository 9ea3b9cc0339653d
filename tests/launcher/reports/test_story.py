"""Which launches belong together, and what a report tells of runs, generations, incidents and ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.reports.build import make_report
from launcher.reports.folders import NoRunError, run_folders
from launcher.reports.model import CATEGORIES, DOWN, IDLE, SECTION, STARTING, STOPPING, Report
from launcher.reports.page import page
from launcher.reports.terminal import lines as text_of
from tests.launcher.reports.invented_runs import EPOCH, Failure, InventedRun, invent_run


def reported(run: InventedRun) -> Report:
    return make_report([str(folder) for folder in run.folders])


def test_of_each_failure_there_is_one_incident_with_its_culprit(tmp_path: Path) -> None:
    run = invent_run(tmp_path, ranks=8, nodes=2, failures=[Failure(17, 5, "hang", 31.0), Failure(28, 2)])
    report = reported(run)
    first, second = report.incidents
    assert [(i.kind, i.generation, i.number) for i in report.incidents] == [("hang", 0, 1), ("failure", 1, 2)]
    (culprit,) = first.culprits
    assert (culprit.rank, culprit.node, culprit.section, culprit.iteration) == (5, "node1", "step", 17)
    assert culprit.line == "load_batch (train.py:31)"
    assert first.victims == (0, 1, 2, 3, 4, 6, 7)
    assert [stack.ranks for stack in first.stacks] == [(5,), (0, 1, 2, 3, 4, 6, 7)]
    assert first.stacks[0].is_culprits
    assert first.stacks[1].frames[0] == "all_reduce (torch/distributed/distributed_c10d.py:2501)"
    assert first.stacks[1].own == 1
    assert first.at == pytest.approx(run.lives[0].seen, abs=1e-6)
    assert first.late_seconds == pytest.approx(0.004)
    assert first.repeated == 7
    assert Path(first.report or "").is_file()
    assert second.culprits[0].line == "load_batch (/invented/train.py:32)"
    assert "ValueError: invented: a batch is broken" in (second.culprits[0].message or "")


def test_a_failure_whose_incident_cannot_be_read_is_still_one(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=1)
    path = run.folders[0] / "incidents" / "0001" / "incident.json"
    path.write_text(path.read_text()[:200])
    report = reported(run)
    (incident,) = report.incidents
    assert [(culprit.rank, culprit.node) for culprit in incident.culprits] == [(1, "node0")]  # as the event says
    assert incident.why.startswith("named by the launcher; nothing is left")
    assert any("incidents/0001 is left out" in note for note in report.notes)


def test_generations_say_from_where_to_where(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 0)], steps=30)
    first, second = reported(run).generations
    assert (first.iteration, first.done, first.resumed_from, first.repeated) == (17, 16, None, 7)
    assert (second.iteration, second.done, second.resumed_from, second.why) == (29, 29, 10, "finished")
    assert first.first_step == pytest.approx(run.lives[0].first_step, abs=1e-6)
    assert first.ended == pytest.approx(run.lives[0].stopped, abs=1e-6)
    assert first.incident == 0


@pytest.mark.parametrize("lines", [3, 60])
def test_spans_leave_no_gap(tmp_path: Path, lines: int) -> None:
    run = invent_run(tmp_path, lines=lines, failures=[Failure(17, 0, "hang", 31.0)], steps=40)
    report = reported(run)
    for rank in report.ranks:
        assert rank.spans[0].start == 0.0
        assert rank.spans[-1].end == report.seconds
        for before, after in zip(rank.spans, rank.spans[1:], strict=False):
            assert before.end == after.start
            assert before.start < before.end
        kinds = [span.kind for span in rank.spans]
        assert kinds[:3] == [DOWN, STARTING, SECTION]
        assert [kind for kind in kinds if kind != SECTION] == [
            *(DOWN, STARTING, IDLE, STOPPING, DOWN, STARTING, IDLE, DOWN)
        ]
        hang = next(span for span in rank.spans if span.kind == IDLE)
        assert hang.end - hang.start == pytest.approx(31.0, abs=1e-5)
        for span in rank.spans:
            assert all(part.seconds <= span.end - span.start + 1e-6 for part in span.parts)


def test_near_misses_are_told_with_their_limit(tmp_path: Path) -> None:
    report = reported(invent_run(tmp_path, near_misses=2))
    assert [(miss.rank, miss.limit_seconds, miss.late_seconds) for miss in report.near_misses] == [(1, 30.0, 0.004)] * 2
    assert sum(limit.near_misses for limit in report.limits) == 2


def test_an_upper_bound_of_how_late_a_rank_was_is_told_as_one(tmp_path: Path) -> None:
    run = invent_run(tmp_path, near_misses=2)
    path = run.folders[0] / "events.jsonl"
    path.write_text(path.read_text().replace('"late_seconds": 0.004', '"late_seconds": null', 1))
    report = reported(run)
    assert [(miss.late_seconds, miss.is_late_at_most) for miss in report.near_misses] == [(0.004, True), (0.004, False)]
    told = [line for line in text_of(report, 100) if "limit 30 s" in line and line.endswith("late")]
    assert [line.partition("limit 30 s, ")[2] for line in told] == ["at most 4.0 ms late", "4.0 ms late"]
    shown = page(report)
    assert shown.count(">at most 4.0 ms<") == 1
    assert shown.count("missed by at most 4.0 ms") == 1


@pytest.mark.parametrize(("facts", "most"), [({}, 1.0), ({"left": 1}, 5.0)])
def test_a_rank_was_late_by_no_more_than_its_longest_section(
    tmp_path: Path, facts: dict[str, int], most: float
) -> None:
    run = invent_run(tmp_path, failures=0, steps=20, slow_iteration=5, near_misses=8)
    known = {"section": "step", "limit_seconds": 26.0, "late_seconds": None, "late_at_most_seconds": 5.0}
    for name in ("events", "figures"):
        path = run.folders[0] / f"{name}.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line |= known if line["event"] == "near_miss" else {}
            for rank in line.get("ranks", {}).values() if name == "figures" else ():
                rank["sections"].get("step", {}).update(facts)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = reported(run)
    assert [(miss.late_seconds, miss.is_late_at_most) for miss in report.near_misses] == [
        (pytest.approx(most), True)
    ] * 8
    (head,) = (line for line in text_of(report, 100) if line.startswith("CLOSE"))
    assert head.startswith("CLOSE 8 verdict(s) taken back, the last 6 of them, ")


def test_two_jobs_at_the_same_time_are_refused(tmp_path: Path) -> None:
    folders = [str(invent_run(tmp_path, name).folders[0]) for name in ("one", "other")]
    with pytest.raises(NoRunError, match="two jobs that ran at the same time: rank 0"):
        make_report(folders)


def test_a_run_of_an_unknown_version_is_named(tmp_path: Path) -> None:
    run = invent_run(tmp_path)
    events = run.folders[0] / "events.jsonl"
    events.write_text(events.read_text().replace('"version": 1', '"version": 7', 1))
    with pytest.raises(NoRunError, match="version 7"):
        reported(run)


def test_slow_ranks_come_from_the_reports_of_the_straggler_detector(tmp_path: Path) -> None:
    run = invent_run(tmp_path)
    slow = {"rank": 1, "node": "node0", "state": "SLOW", "slowdown": 0.21, "section": "forward", "because": "hot"}
    unknown = {"rank": 0, "node": "node0", "state": "UNKNOWN", "slowdown": None, "section": "", "because": "?"}
    reports = [
        {"format": "straggler-report", "version": 1, "time": EPOCH + 60.0 * n, "verdicts": [slow, unknown] if n else []}
        for n in range(3)
    ]
    log = run.folders[0] / "reports.jsonl"
    log.write_text("".join(json.dumps(each) + "\n" for each in reports) + '{"format": "straggler-re')
    (found,) = reported(run).slow_ranks
    assert found[:6] == (1, "node0", 0.21, "forward", 2, 3)
    assert found.since == pytest.approx(60.0)
    assert found.source == str(log)


def test_reports_of_another_run_in_one_log_name_no_rank_of_this_one(tmp_path: Path) -> None:
    """As where the log's path is the same in every run: it is appended to."""
    run = invent_run(tmp_path)
    slow = {"rank": 1, "node": "node0", "state": "SLOW", "slowdown": 0.21, "section": "forward", "because": "hot"}
    report = {"format": "straggler-report", "version": 1}
    before = [report | {"time": EPOCH - 60.0 * n, "verdicts": [slow]} for n in (2, 1)]
    own = [report | {"time": EPOCH + 60.0 * n, "verdicts": []} for n in range(3)]
    log = run.folders[0] / "reports.jsonl"
    log.write_text("".join(json.dumps(each) + "\n" for each in (*before, *own)))
    told = reported(run)
    assert told.slow_ranks == ()
    assert any("2 of 5 report(s) are of another time" in note for note in told.notes)


# ---- what a path stands for -------------------------------------------------------------------------------


def test_the_folder_of_log_folders_stands_for_its_newest_run(tmp_path: Path) -> None:
    invent_run(tmp_path, "one")
    with pytest.raises(NoRunError, match="holds no run"):
        run_folders([str(tmp_path / "one" / "incidents")])
    assert run_folders([str(tmp_path)]) == [str(tmp_path / "one")]
    invent_run(tmp_path, "two")
    with pytest.raises(NoRunError, match="holds 2 runs and no link 'latest'; name one of them: one, two"):
        run_folders([str(tmp_path)])
    (tmp_path / "latest").symlink_to("two")
    assert run_folders([str(tmp_path), str(tmp_path / "latest")]) == [str(tmp_path / "two")]
    with pytest.raises(NoRunError, match="is not there"):
        run_folders([str(tmp_path / "three")])


def test_a_verdict_that_was_taken_back_ends_no_generation(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=0, steps=30)
    events = run.folders[0] / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    began_ns = json.loads(lines[0])["t_ns"]
    hang = {"event": "hang", "t_ns": began_ns + 30 * 10**9, "time": "", "generation": 0, "culprits": [1]}
    hang |= {"condemned": [0, 1], "deadline_ns": None, "seen_ns": began_ns + 30 * 10**9, "folder": "incidents/0001"}
    spared = [
        {"event": event, "t_ns": began_ns + 31 * 10**9, "time": "", "generation": 0, "rank": rank}
        | {"cause": "section", "section": "step", "limit_seconds": 30.0, "late_seconds": 0.1, "was_late": rank == 1}
        for rank, event in enumerate(("withdrawn", "near_miss"))
    ]
    events.write_text("".join([lines[0], *(json.dumps(each) + "\n" for each in (hang, *spared)), *lines[1:]]))
    report = reported(run)
    assert report.incidents == ()
    assert report.ledger.entries[0].seconds == pytest.approx(run.truth.seconds["productive"], abs=1e-3)
    assert [miss.rank for miss in report.near_misses] == [1]


def test_a_node_that_has_done_its_part_is_not_waited_for(tmp_path: Path) -> None:
    run = invent_run(tmp_path, ranks=4, nodes=2, failures=[Failure(17, 0)], steps=40, own_folders=True)
    (first, _), early = run.lives, run.folders[1]
    figures = [json.loads(line) for line in (early / "figures.jsonl").read_text().splitlines()]
    for line in figures:
        for facts in line["ranks"].values():
            facts |= {key: min(facts[key], 12) for key in ("done", "iteration") if facts[key] is not None}
    (early / "figures.jsonl").write_text("".join(json.dumps(line) + "\n" for line in figures))
    events = [json.loads(line) for line in (early / "events.jsonl").read_text().splitlines()]
    (at,) = [number for number, e in enumerate(events) if e["event"] == "stopped" and e["generation"] == 0]
    events.insert(at, {**events[at], "event": "finished"})
    events = [e for e in events if e["event"] != "job_incident"]
    (early / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in events))
    report = reported(run)
    assert (report.ledger.steps, report.ledger.repeated) == (40, 7)
    assert [generation.done for generation in report.generations] == [16, 39]
    row = next(row for row in report.ledger.by_rank if row.rank == 2)
    spent = {category.key: row.seconds[number] for number, category in enumerate(CATEGORIES)}
    assert spent["stop"] == 0
    assert spent["idle"] > first.stopped - first.last_sign


def test_a_job_that_was_refused_has_nothing_to_account_for(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=0, steps=5)
    events = run.folders[0] / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join(line for line in lines if '"began"' in line or '"ended"' in line))
    (run.folders[0] / "figures.jsonl").unlink()
    report = reported(run)
    assert (report.ledger.entries, report.ledger.repeated, report.ranks) == ((), None, ())
    assert any("has started no rank" in note for note in report.notes)
    assert "together" not in "\n".join(text_of(report))
