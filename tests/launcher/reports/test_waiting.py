"""Time in which ranks waited for one that had failed: it is detection, not work, whatever closed their sections."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from launcher.processes.evidence import Evidence, evidence_to_json
from launcher.reports.build import make_report
from launcher.reports.model import Report
from resilience_core.protocol.error_record import ErrorRecord
from tests.launcher.reports.invented_runs import Failure, InventedRun, invent_run

VICTIM = 0


def let_go(
    run: InventedRun,
    *,
    victim: int = VICTIM,
    is_consequence: bool = True,
    section: str = "step",
    beside_ns: int = 0,
    is_counted: bool = True,
) -> None:
    """Let the section of the victim that is open when its peer has failed end by an exception just before that is seen.

    The peer was killed at the begin of the section. ``is_counted`` where code closes its section by itself on the way
    out, so that the client cannot know that an exception leaves it.
    """
    life = run.lives[0]
    assert life.open is not None
    assert life.seen is not None
    folder = run.folders[victim] if len(run.folders) > 1 else run.folders[0]  # each node has a clock of its own
    began = json.loads((folder / "events.jsonl").read_text().splitlines()[0])["t_ns"]
    closed_ns = began + round((life.seen - 0.01) * 1e9)
    took_ns = closed_ns - began - round(life.open[1] * 1e9)
    for path in folder.glob("figures*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            known = line["ranks"].get(str(victim))
            if known is not None and line["generation"] == 0 and line["is_last"]:
                left = known["sections"][section]
                if is_counted:
                    left |= {"closed": left["closed"] + 1, "took_ns": left["took_ns"] + took_ns}
                    left["longest_ns"] = max(left["longest_ns"], took_ns)
                else:
                    left |= {
                        "left": 1,
                        "left_ns": took_ns,
                        "left_opened_ns": closed_ns - took_ns,
                        "left_at_ns": closed_ns,
                    }
                done = life.open[2] if section == "step" and is_counted else life.open[2] - 1
                known |= {"open": {}, "done": done, "last_sign_ns": closed_ns, "beside_ns": beside_ns}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    error = ErrorRecord(
        *("RuntimeError", "Connection closed by peer", "", section, life.open[2], closed_ns - 1_000_000, closed_ns),
        is_consequence=is_consequence,
        is_step_done=section != "step",
    )
    evidence = Evidence(local_rank=0, iteration=life.open[2], has_left=True, last_sign_ns=closed_ns)
    for path in (*folder.glob("incidents/*/incident.json"), *folder.glob("elsewhere/*/incident.json")):
        document: dict[str, Any] = json.loads(path.read_text())
        for rank in document["ranks"]:
            if rank["rank"] == victim and document["generation"] == 0:
                rank |= {"error": error._asdict(), "evidence": evidence_to_json(evidence), "open_seconds": 0.01}
        path.write_text(json.dumps(document))


def in_a_save(run: InventedRun) -> None:
    """Let the peer fail in a save in place of the step that it has opened: that of the steps before this one."""
    life = run.lives[0]
    assert life.open is not None
    for folder in run.folders:
        for path in folder.glob("figures*.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            for known in (each for line in lines if line["generation"] == 0 for each in line["ranks"].values()):
                if known["iteration"] == life.open[2]:
                    known |= {"open": {"checkpointing": known["open"]["step"]}, "iteration": life.open[2] - 1}
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for path in (*folder.glob("incidents/0001/incident.json"), *folder.glob("elsewhere/0000-*/incident.json")):
            document = json.loads(path.read_text())
            for rank in document["ranks"]:
                rank |= {"section": "checkpointing", "iteration": life.open[2] - 1}
                if rank.get("error"):
                    rank["error"] |= {"section": "checkpointing", "iteration": life.open[2] - 1}
            path.write_text(json.dumps(document))


def without_lines_of_the_wait(run: InventedRun) -> None:
    path, life = run.folders[0] / "figures.jsonl", run.lives[0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert life.open is not None
    opened_ns = json.loads((run.folders[0] / "events.jsonl").read_text().splitlines()[0])["t_ns"] + life.open[1] * 1e9
    kept = [line for line in lines if line["generation"] > 0 or line["is_last"] or line["t_ns"] < opened_ns]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))


def without_elsewhere(run: InventedRun, *, is_told: bool) -> None:
    """Let the second node have left no folder of what it has seen, as where it did not look before it was told.

    Args:
        run: Of two nodes.
        is_told: Its account is in the story of the job.
    """
    for elsewhere in (path for folder in run.folders for path in folder.glob("elsewhere/0000-*")):
        account = json.loads((elsewhere / "incident.json").read_text())
        (told,) = (path for folder in run.folders for path in folder.glob("job_incidents/0001/incident.json"))
        story = json.loads(told.read_text())
        others = [each for each in story["nodes"] if each["node"] != account["node"]]
        told.write_text(json.dumps(story | {"nodes": [*others, account] if is_told else others}))
        shutil.rmtree(elsewhere)


def seconds(report: Report) -> dict[str, float]:
    return {entry.category.key: entry.seconds for entry in report.ledger.entries}


def about(report: Report) -> set[str]:
    return {entry.category.key for entry in report.ledger.entries if entry.is_about}


@pytest.mark.parametrize("is_counted", [True, False])
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    ("has_line", "waited"), [(True, 1.5), (False, 9.0)], ids=["a line meanwhile", "longer than any before"]
)
def test_to_wait_for_a_peer_that_has_failed_is_detection_and_no_work(
    tmp_path: Path, nodes: int, has_line: bool, waited: float, is_counted: bool
) -> None:
    failures = [Failure(17, 1, "failure", waited)]
    run = invent_run(tmp_path, nodes=nodes, own_folders=nodes > 1, failures=failures, steps=40, lines=200)
    if not has_line:
        without_lines_of_the_wait(run)
    truth = make_report([str(folder) for folder in run.folders])
    let_go(run, is_counted=is_counted)
    report = make_report([str(folder) for folder in run.folders])
    for key in ("productive", "checkpointing", "lost_work", "detection", "stop", "idle"):
        assert seconds(report)[key] == pytest.approx(run.truth.seconds[key], abs=0.06), key
    assert seconds(report)["detection"] >= waited
    assert about(report) == about(truth) == ({"detection", "stop"} if nodes > 1 else set())
    assert (report.ledger.steps, report.ledger.repeated) == (truth.ledger.steps, truth.ledger.repeated) == (40, 7)
    if nodes > 1:  # which rank has let it go is not known: it is no step that ended by itself
        (step,) = (limit for limit in report.limits if limit.kind == "section step")
        assert step.longest == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("has_line", "waited"), [(True, 1.5), (False, 9.0)], ids=["a line meanwhile", "longer than any before"]
)
@pytest.mark.parametrize("is_counted", [True, False])
@pytest.mark.parametrize("has_saves", [True, False])
def test_to_wait_in_a_save_for_a_peer_that_has_failed_is_neither_work_nor_checkpointing(
    tmp_path: Path, has_line: bool, waited: float, has_saves: bool, is_counted: bool
) -> None:
    failures = [Failure(17, 1, "failure", waited)]
    run = invent_run(tmp_path, failures=failures, steps=40, lines=200, has_saves=has_saves)
    if not has_line:
        without_lines_of_the_wait(run)
    in_a_save(run)
    let_go(run, section="checkpointing", is_counted=is_counted)
    report = make_report([str(run.folders[0])])
    for key in ("productive", "checkpointing", "lost_work", "detection", "stop", "idle"):
        # Where no save is noted, a second of saving lies before or after what was kept.
        assert seconds(report)[key] == pytest.approx(run.truth.seconds[key], abs=0.06 if has_saves else 1.0), key
    assert about(report) <= ({"productive", "checkpointing", "lost_work"} if not has_saves else set())
    (save,) = (limit for limit in report.limits if limit.kind == "section checkpointing")
    assert (save.longest, save.is_about) == (1.0, False)


def test_in_which_save_beside_the_steps_a_rank_has_waited_is_not_told(tmp_path: Path) -> None:
    """Steps may have been done since it was opened."""
    run = invent_run(tmp_path, failures=[Failure(17, 1, "failure", 9.0)], steps=40, lines=200)
    in_a_save(run)
    let_go(run, section="checkpointing", beside_ns=1)
    report = make_report([str(run.folders[0])])
    assert seconds(report)["lost_work"] == pytest.approx(run.truth.seconds["lost_work"] + 9.0, abs=0.06)


def test_a_save_in_which_a_rank_has_waited_is_no_checkpointing_where_what_was_lost_is_not_known(tmp_path: Path) -> None:
    """Iterations begin anew, so all until the wait is taken for kept."""
    run = invent_run(tmp_path, failures=[Failure(17, 1, "failure", 9.0)], steps=40, lines=200)
    in_a_save(run)
    let_go(run, section="checkpointing")
    events = run.folders[0] / "events.jsonl"
    events.write_text(events.read_text().replace('"went_back": false', '"went_back": true'))
    report = make_report([str(run.folders[0])])
    assert seconds(report)["checkpointing"] == pytest.approx(run.truth.seconds["checkpointing"])


@pytest.mark.parametrize("is_told", [True, False])
def test_of_a_node_that_was_told_of_a_failure_the_story_of_the_job_tells_that_it_waited(
    tmp_path: Path, is_told: bool
) -> None:
    """Which rank of the node was let go stands nowhere else; where it does not either, what was lost is not exact."""
    run = invent_run(
        tmp_path, nodes=2, own_folders=True, failures=[Failure(17, 0, "failure", 9.0)], steps=40, lines=200
    )
    let_go(run, victim=1)
    whole = make_report([str(folder) for folder in run.folders])
    without_elsewhere(run, is_told=is_told)
    report = make_report([str(folder) for folder in run.folders])
    if is_told:
        assert seconds(report) == seconds(whole)
        assert about(report) == about(whole) == {"detection", "stop"}
        assert seconds(report)["lost_work"] == pytest.approx(run.truth.seconds["lost_work"], abs=0.06)
    else:
        assert seconds(report)["lost_work"] > seconds(whole)["lost_work"] + 4
        assert {"detection", "lost_work"} <= about(report)


def test_a_step_that_is_left_by_an_exception_of_its_own_was_work(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1, "failure", 9.0)], steps=40, lines=200)
    let_go(run, is_consequence=False)
    report = make_report([str(folder) for folder in run.folders])
    assert seconds(report)["lost_work"] == pytest.approx(run.truth.seconds["lost_work"] + 9.0, abs=0.06)


@pytest.mark.parametrize("lines", [2, 200])
def test_how_long_a_section_was_open_that_an_exception_has_left_tells_when_the_wait_began(
    tmp_path: Path, lines: int
) -> None:
    """It was shorter than other steps, and no line was written meanwhile."""
    run = invent_run(tmp_path, failures=[Failure(17, 1, "failure", 1.5)], steps=40, lines=lines)
    without_lines_of_the_wait(run)
    let_go(run, is_counted=False)
    report = make_report([str(folder) for folder in run.folders])
    assert seconds(report)["lost_work"] == pytest.approx(run.truth.seconds["lost_work"], abs=0.06)
    assert about(report) == set()


@pytest.mark.parametrize("has_gone_on", [False, True])
def test_an_exception_that_was_noted_right_after_a_section_was_closed_has_left_it(
    tmp_path: Path, has_gone_on: bool
) -> None:
    """As in files of earlier releases, unless the rank has given a sign since: then a later one may have been left."""
    run = invent_run(tmp_path, failures=[Failure(17, 1, "failure", 1.5)], steps=40, lines=200)
    without_lines_of_the_wait(run)
    let_go(run, is_counted=False)
    for path in run.folders[0].glob("incidents/0001/incident.json"):
        document = json.loads(path.read_text())
        document["ranks"][VICTIM]["error"]["at_ns"] += 1_200_000
        path.write_text(json.dumps(document))
    if has_gone_on:
        figures = run.folders[0] / "figures.jsonl"
        lines = [json.loads(line) for line in figures.read_text().splitlines()]
        for line in lines:
            if line["generation"] == 0 and line["is_last"]:
                line["ranks"][str(VICTIM)]["last_sign_ns"] += 100_000
        figures.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = make_report([str(run.folders[0])])
    waited = 1.5 if has_gone_on else 0
    assert seconds(report)["lost_work"] == pytest.approx(run.truth.seconds["lost_work"] + waited, abs=0.06)


def save_in_the_handler(run: InventedRun, took_ns: int, after_ns: int) -> None:
    """Let the victim save while it handles the exception, and a line be written meanwhile.

    Args:
        run: Of one node, whose victim was let go.
        took_ns: How long it saved.
        after_ns: When that was over, after the exception.
    """
    path = run.folders[0] / "figures.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    number = next(n for n, line in enumerate(lines) if line["generation"] == 0 and line["is_last"])
    known = lines[number]["ranks"][str(VICTIM)]
    closed_ns = known["last_sign_ns"] + after_ns
    between = json.loads(json.dumps(lines[number]))
    between |= {"is_last": False, "t_ns": closed_ns - took_ns // 2}
    between["ranks"][str(VICTIM)] |= {
        "open": {"checkpointing": closed_ns - took_ns},
        "last_sign_ns": closed_ns - took_ns,
    }
    saves = known["sections"]["checkpointing"]
    saves |= {"closed": saves["closed"] + 1, "took_ns": saves["took_ns"] + took_ns}
    saves["longest_ns"] = max(saves["longest_ns"], took_ns)
    bits = str(took_ns.bit_length())
    saves["durations"] = saves["durations"] | {bits: saves["durations"].get(bits, 0) + 1}
    spent_ns = saves["took_ns"] + saves.get("left_ns", 0)
    known["saves"] = [*known["saves"], {"iteration": 777, "t_ns": closed_ns, "checkpointing_ns": spent_ns}]
    known["last_sign_ns"] = closed_ns
    lines.insert(number, between)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("after_ns", [5_000_000, 500_000_000], ids=["before it was seen", "after it was seen"])
@pytest.mark.parametrize("section", ["step", "checkpointing"])
def test_a_save_while_a_rank_handles_the_loss_of_a_peer_is_no_work_and_a_save_all_the_same(
    tmp_path: Path, section: str, after_ns: int
) -> None:
    run = invent_run(tmp_path, failures=[Failure(17, 1, "failure", 1.5)], steps=40, lines=200)
    if section == "checkpointing":
        in_a_save(run)
    let_go(run, section=section, is_counted=False)
    folders = [str(run.folders[0])]
    before = make_report(folders)
    save_in_the_handler(run, after_ns - 1_000_000, after_ns)
    report = make_report(folders)
    assert seconds(report) == seconds(before)
    for key in ("productive", "checkpointing", "lost_work", "detection", "stop", "idle"):
        assert seconds(report)[key] == pytest.approx(run.truth.seconds[key], abs=0.06), key
    assert about(report) == about(before) == set()
    (former,), (saves,) = (
        [limit for limit in each.limits if limit.kind == "section checkpointing"] for each in (before, report)
    )
    assert (saves.samples, saves.longest, saves.is_about) == (former.samples + 1, former.longest, False)
    events = run.folders[0] / "events.jsonl"  # where what was lost is not known, all until the wait is taken for kept
    events.write_text(events.read_text().replace('"went_back": false', '"went_back": true'))
    assert seconds(make_report(folders))["checkpointing"] == pytest.approx(run.truth.seconds["checkpointing"])


def test_where_nothing_tells_when_the_wait_began_it_counts_to_its_end(tmp_path: Path) -> None:
    """It was shorter than other steps, and no line was written meanwhile."""
    run = invent_run(tmp_path, failures=[Failure(17, 1, "failure", 1.5)], steps=40, lines=2)
    let_go(run)
    report = make_report([str(folder) for folder in run.folders])
    assert seconds(report)["lost_work"] == pytest.approx(run.truth.seconds["lost_work"] + 1.5, abs=0.06)


def test_a_wait_that_no_step_is_open_for_any_more_is_told_from_the_steps_before(tmp_path: Path) -> None:
    """A line has shown a step open that ended well: it is not the one in which the rank has waited."""
    run = invent_run(tmp_path, failures=[Failure(17, 1, "failure", 1.5)], steps=40, lines=200)
    without_lines_of_the_wait(run)
    let_go(run)
    report = make_report([str(folder) for folder in run.folders])
    assert seconds(report)["lost_work"] == pytest.approx(run.truth.seconds["lost_work"] + 1.5, abs=0.06)


def test_saves_that_are_not_noted_were_over_before_the_wait(tmp_path: Path) -> None:
    """Only the last line tells how long they took, and it was written after the wait."""
    run = invent_run(tmp_path, failures=[Failure(21, 1, "failure", 9.0)], steps=40, lines=2, has_saves=False)
    let_go(run)
    assert seconds(make_report([str(run.folders[0])]))["checkpointing"] == pytest.approx(
        run.truth.seconds["checkpointing"]
    )


def test_a_rank_that_was_killed_before_it_left_its_section_has_closed_what_it_closed(tmp_path: Path) -> None:
    """Its exception is on record, and the section is open to the end that it had opened after its peer had failed."""
    run = invent_run(tmp_path, failures=[Failure(7, 1)], steps=30, lines=8)
    figures = run.folders[0] / "figures.jsonl"
    before = figures.read_text()
    let_go(run)
    figures.write_text(before)
    last = [line for line in map(json.loads, before.splitlines()) if line["generation"] == 0][-1]
    opened_ns = last["ranks"][str(VICTIM)]["open"]["step"]
    (path,) = run.folders[0].glob("incidents/*/incident.json")
    document = json.loads(path.read_text())
    for rank in document["ranks"]:
        if rank["rank"] != VICTIM:
            rank["error"]["at_ns"] = opened_ns - 10_000_000
    path.write_text(json.dumps(document))
    report = make_report([str(run.folders[0])])
    (limit,) = (each for each in report.limits if each.kind == "section step")
    assert (limit.samples, limit.is_about) == (2 * (7 + 30), False)
