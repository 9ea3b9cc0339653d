"""What counts as a duration that was observed under a limit."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.processes.evidence import Evidence, evidence_to_json
from launcher.reports.as_json import as_json
from launcher.reports.build import make_report
from launcher.reports.formats import duration, signed_share
from launcher.reports.model import Limit
from launcher.reports.page import page
from launcher.reports.phrases import observed
from launcher.reports.terminal import lines as text_of
from tests.launcher.reports.invented_runs import Failure, InventedRun, invent_run

LONG_NS = 2_800_000_000
FAILURES = ("hang", "failure", "job_incident")


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def with_a_long_step(
    folder: Path, rank: int, after_ns: int, took_ns: int = LONG_NS, others: Sequence[int] = ()
) -> None:
    """Let a rank have closed its last step by the last line of generation 0, and then nothing more.

    Args:
        folder: Of its node, in a run that has failed once.
        rank: The rank.
        after_ns: When its last sign was, after the failure was seen.
        took_ns: How long the longest step took since the line before.
        others: How long others took since then.
    """
    lines = lines_of(folder / "figures.jsonl")
    last = next(line for line in lines if line.get("generation") == 0 and line.get("is_last"))
    known = last["ranks"][str(rank)]
    known["open"] = {}
    step = known["sections"]["step"]
    for each in (took_ns, *others):
        step["closed"] += 1
        step["took_ns"] += each
        step["longest_ns"] = max(step["longest_ns"], each)
        step["close_calls"] += each >= 24e9
        bits = str(each.bit_length())
        step["durations"][bits] = step["durations"].get(bits, 0) + 1
    known["last_sign_ns"] = seen_in(folder) + after_ns
    (folder / "figures.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def seen_in(folder: Path) -> int:
    failed = next(event for event in lines_of(folder / "events.jsonl") if event["event"] in FAILURES)
    return failed.get("seen_ns", failed["t_ns"])


def with_an_error(incident: Path, rank: int, at_ns: int, *, is_consequence: bool) -> None:
    """Let a rank have left its step by an exception, after the failure was seen or before."""
    known = json.loads(incident.read_text())
    report = next(each for each in known["ranks"] if each["rank"] == rank)
    report["error"] = {
        "type": "RuntimeError",
        "message": "Connection closed by peer" if is_consequence else "bad",
        "section": "step",
        "iteration": 12,
        "at_ns": known["seen_ns"] + at_ns,
        "noted_ns": known["seen_ns"] + at_ns,
        "is_consequence": is_consequence,
    }
    report |= {"section": None, "open_seconds": 0.0}
    incident.write_text(json.dumps(known))


def with_an_end(incident: Path, rank: int, at_ns: int) -> None:
    """Let a rank have been killed, and its process be seen to have ended, after the failure was seen or before."""
    known = json.loads(incident.read_text())
    report = next(each for each in known["ranks"] if each["rank"] == rank)
    evidence = Evidence(local_rank=rank, exit_code=-9, ended_ns=known["seen_ns"] + at_ns, open_sections=("step",))
    report |= {"error": None, "exit_code": -9, "evidence": evidence_to_json(evidence)}
    incident.write_text(json.dumps(known))


def limit(run: InventedRun, kind: str) -> Limit:
    return next(row for row in make_report([str(folder) for folder in run.folders]).limits if row.kind == kind)


@pytest.mark.parametrize("kind", ["failure", "hang"])
@pytest.mark.parametrize(
    ("rank", "after_ns", "took_ns", "counts"),
    [
        (0, -100_000_000, LONG_NS, True),  # it went on until the other one failed
        (0, 20_000_000, LONG_NS, False),  # it was let go by the end of the other one
        (0, 20_000_000, LONG_NS + 200_000_000, True),  # it was in that step for less, so this is one before it
        (1, -100_000_000, LONG_NS, True),  # the one that failed
    ],
)
def test_a_long_section_shortly_before_the_end_counts_unless_the_end_has_closed_it(
    tmp_path: Path, kind: str, rank: int, after_ns: int, took_ns: int, counts: bool
) -> None:
    run = invent_run(tmp_path, failures=[Failure(12, 1, kind, 2.78)], steps=20, nodes=1)
    before = limit(run, "section step")
    assert before.longest is not None
    assert before.longest < LONG_NS / 1e9
    with_a_long_step(run.folders[0], rank, after_ns, took_ns)

    found = limit(run, "section step")
    longest = (took_ns / 1e9, rank) if counts else (before.longest, before.longest_rank)
    assert (found.longest, found.longest_rank, found.is_about) == (*longest, False)


def test_what_a_rank_closed_before_the_one_that_the_end_has_closed_counts(tmp_path: Path) -> None:
    """Both since the line before: one of 27 s, which has come close to its limit, and one that was cut off."""
    run = invent_run(tmp_path, failures=[Failure(12, 1)], steps=20, nodes=1)
    before = limit(run, "section step")
    with_a_long_step(run.folders[0], 0, 20_000_000, 27_000_000_000, [270_000_000])

    found = limit(run, "section step")
    assert (found.longest, found.longest_rank, found.is_about) == (27.0, 0, False)
    assert (found.samples, found.close_calls) == (before.samples + 1, 1)


@pytest.mark.parametrize("lines", [3, 1000], ids=["not shown open", "shown open"])
def test_the_wait_for_a_rank_that_takes_long_to_end_is_no_duration(tmp_path: Path, lines: int) -> None:
    """It has raised; its peer leaves the step when the process ends, which is before the launcher sees that."""
    run = invent_run(tmp_path, failures=[Failure(12, 1, "failure", 28.0)], steps=20, nodes=1, lines=lines)
    before = limit(run, "section step")
    incident = run.folders[0] / "incidents" / "0001" / "incident.json"
    with_an_error(incident, 1, -27_900_000_000, is_consequence=False)
    with_an_error(incident, 0, -50_000_000, is_consequence=True)
    with_a_long_step(run.folders[0], 0, -50_000_000, 27_950_000_000)

    found = limit(run, "section step")
    assert found == before
    assert (found.longest, found.close_calls, found.is_about) == (2.0, 0, False)
    assert not recommended_limits(run, "section step")


@pytest.mark.parametrize("lines", [3, 1000], ids=["few lines", "many lines"])
def test_the_wait_for_a_rank_whose_connections_close_before_it_is_seen_to_end_is_no_duration(
    tmp_path: Path, lines: int
) -> None:
    """It was killed: its sockets are closed first, and the launcher sees some milliseconds later that it has ended."""
    run = invent_run(tmp_path, failures=[Failure(12, 1, "failure", 28.0)], steps=20, nodes=1, lines=lines)
    incident = run.folders[0] / "incidents" / "0001" / "incident.json"
    with_an_end(incident, 1, -100_000)
    before = limit(run, "section step")
    with_an_error(incident, 0, -12_000_000, is_consequence=True)
    with_a_long_step(run.folders[0], 0, -10_000_000, 27_990_000_000)

    found = limit(run, "section step")
    assert found == before
    assert (found.longest, found.close_calls, found.is_about) == (2.0, 0, False)
    assert not recommended_limits(run, "section step")


@pytest.mark.parametrize("noted_ns", [-27_900_000_000, -1_000_000], ids=["noted at once", "noted late"])
@pytest.mark.parametrize("lines", [3, 1000], ids=["few lines", "many lines"])
def test_a_section_that_an_exception_has_left_is_no_duration_whenever_the_failure_was_noted(
    tmp_path: Path, lines: int, noted_ns: int
) -> None:
    """The one that has failed had closed its connections, and cleaned up for 2 s, before its exception was noted."""
    run = invent_run(tmp_path, failures=[Failure(12, 1, "failure", 28.0)], steps=20, nodes=1, lines=lines)
    before = limit(run, "section step")
    incident = run.folders[0] / "incidents" / "0001" / "incident.json"
    with_an_error(incident, 1, noted_ns, is_consequence=False)
    with_an_error(incident, 0, -2_000_000_000, is_consequence=True)
    with_a_long_step(run.folders[0], 0, -2_000_000_000, 26_000_000_000)
    # Of code that closes its sections itself, it is one where the failure was noted later.
    assert (limit(run, "section step") == before) == (noted_ns < -2_000_000_000)
    let_it_be_left(run.folders[0], 0, 26_000_000_000, 2_000_000_000)
    found = limit(run, "section step")
    assert found == before
    assert not recommended_limits(run, "section step")
    # What was closed before since the last line but one counts, and is exact.
    with_a_long_step(run.folders[0], 0, -2_000_000_000, 26_000_000_000, [7_000_000_000])
    let_it_be_left(run.folders[0], 0, 26_000_000_000, 7_000_000_000)
    found = limit(run, "section step")
    assert (found.longest, found.longest_rank, found.samples, found.is_about) == (7.0, 0, before.samples + 1, False)


def test_a_section_that_is_left_after_the_launcher_has_looked_is_no_duration_either(tmp_path: Path) -> None:
    """The incident shows it open, and what was closed since the line before ended by itself."""
    run = invent_run(tmp_path, failures=[Failure(12, 1, "failure", 7.2)], steps=20, nodes=1, lines=3)
    before = limit(run, "section step")
    with_an_end(run.folders[0] / "incidents" / "0001" / "incident.json", 1, -100_000)
    with_a_long_step(run.folders[0], 0, 10_000_000, 7_210_000_000, [7_000_000_000])
    let_it_be_left(run.folders[0], 0, 7_210_000_000, 7_000_000_000)
    found = limit(run, "section step")
    assert (found.longest, found.samples, found.is_about) == (7.0, before.samples + 1, False)


def let_it_be_left(folder: Path, rank: int, took_ns: int, longest_ns: int) -> None:
    """Let the longest step of the last line be one that an exception has left; ``longest_ns`` took that of the rest."""
    lines = lines_of(folder / "figures.jsonl")
    last = next(line for line in lines if line.get("generation") == 0 and line.get("is_last"))
    step = last["ranks"][str(rank)]["sections"]["step"]
    step |= {"closed": step["closed"] - 1, "took_ns": step["took_ns"] - took_ns, "longest_ns": longest_ns}
    at_ns = last["ranks"][str(rank)]["last_sign_ns"]
    step |= {"close_calls": 0, "left": 1, "left_ns": took_ns, "left_opened_ns": at_ns - took_ns, "left_at_ns": at_ns}
    step["durations"][str(took_ns.bit_length())] -= 1
    (folder / "figures.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_rank_that_has_left_a_section_by_an_exception_and_went_on_may_still_have_waited_in_one(
    tmp_path: Path,
) -> None:
    """It was left before the line before the last one; the step in which it waited was closed by the code itself."""
    run = invent_run(tmp_path, failures=[Failure(12, 1, "failure", 28.0)], steps=20, nodes=1, lines=1000)
    before = limit(run, "section step")
    incident = run.folders[0] / "incidents" / "0001" / "incident.json"
    with_an_end(incident, 1, -100_000)
    with_an_error(incident, 0, -12_000_000, is_consequence=True)
    with_a_long_step(run.folders[0], 0, -10_000_000, 27_990_000_000)
    path = run.folders[0] / "figures.jsonl"
    lines = lines_of(path)
    for line in lines:
        for known in line["ranks"].values():
            for section in known["sections"].values():
                section |= {"left": 1, "left_ns": 1_000_000, "left_opened_ns": 1, "left_at_ns": 1_000_001}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert limit(run, "section step") == before


def test_where_it_cannot_be_told_which_of_two_long_steps_was_the_wait_that_is_said(
    tmp_path: Path,
) -> None:
    run = invent_run(tmp_path, failures=[Failure(12, 1, "failure", 28.0)], steps=20, nodes=1, lines=3)
    incident = run.folders[0] / "incidents" / "0001" / "incident.json"
    with_an_error(incident, 1, -2_000_000_000, is_consequence=False)
    with_an_error(incident, 0, -50_000_000, is_consequence=True)
    with_a_long_step(run.folders[0], 0, -50_000_000, 20_000_000_000, [9_000_000_000])

    found = limit(run, "section step")
    assert found.is_about
    assert found.longest == pytest.approx(9.0, rel=0.1)
    notes = [
        note for note in make_report([str(run.folders[0])]).notes if "was a wait for a rank that had failed" in note
    ]
    assert [note.startswith("section step: ") for note in notes] == [True]


def test_of_several_nodes_no_clock_tells_whether_a_rank_was_let_go(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(12, 1)], steps=20, nodes=2, own_folders=True)
    before = limit(run, "section step")
    with_a_long_step(run.folders[0], 0, -100_000_000, 20_000_000_000)
    (looked,) = run.folders[0].glob("elsewhere/*/incident.json")
    with_an_error(looked, 0, -100_000_000, is_consequence=True)
    found = limit(run, "section step")
    assert (found.longest, found.is_about) == (before.longest, True)
    # The one that failed has raised by itself at the end of its step.
    with_a_long_step(run.folders[1], 1, -99_000_000)
    with_an_error(run.folders[1] / "incidents" / "0001" / "incident.json", 1, -100_000_000, is_consequence=False)
    assert limit(run, "section step").longest == 2.8


def test_where_only_the_longest_of_each_rank_is_known_that_is_said(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=0, steps=20)
    of_steps, between = limit(run, "section step"), limit(run, "out of section")
    assert observed(of_steps) == f"{of_steps.samples:,}"
    assert observed(between) == f"{between.samples} maxima"


def test_a_configured_limit_is_known_before_a_rank_tells_of_it(tmp_path: Path) -> None:
    """Ranks tell of the limits of sections that they have opened, and only in full lines."""
    run = invent_run(tmp_path, failures=0, steps=20, is_going_on=True)
    without_later_full_lines(run.folders[0])

    found = limit(run, "section checkpointing")
    assert (found.seconds, found.source) == (60.0, "configured")
    assert found.room is not None
    assert not recommended_limits(run)


def test_where_it_is_not_known_whether_there_is_a_limit_none_is_recommended(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=0, steps=20, is_going_on=True)
    events = run.folders[0] / "events.jsonl"
    without_later_full_lines(run.folders[0])
    began, *rest = lines_of(events)
    del began["configuration"]["rank_section_timeouts"]["checkpointing"]
    events.write_text("".join(json.dumps(line) + "\n" for line in [began, *rest]))

    found = limit(run, "section checkpointing")
    assert (found.seconds, found.is_known) == (None, False)
    assert not recommended_limits(run)
    assert "limit not known" in page(make_report([str(run.folders[0])]))


def test_a_limit_is_recommended_where_a_full_line_tells_of_none(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=0, steps=20)
    figures = run.folders[0] / "figures.jsonl"
    lines = lines_of(figures)
    for line in lines:
        for rank in line["ranks"].values():
            rank.get("limits", {}).pop("section checkpointing", None)
    figures.write_text("".join(json.dumps(line) + "\n" for line in lines))

    assert limit(run, "section checkpointing").is_known
    assert ["Set a limit for section checkpointing" in text for text in recommended_limits(run)] == [True]


def without_figures_of(folder: Path, generation: int, how: str) -> None:
    """Take the lines of a generation away, or damage one of them."""
    path = folder / "figures.jsonl"
    first, *lines = path.read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["generation"] != generation or how]
    kept[0] = json.dumps(json.loads(first) | json.loads(kept[0]))  # the first line says who has written the file
    if how:
        number = next(n for n, line in enumerate(kept) if json.loads(line)["generation"] == generation)
        kept[number + 2] = how
    path.write_text("".join(f"{line}\n" for line in kept))


@pytest.mark.parametrize("how", ["", "damaged", '{"event": "lost", "t_ns": 1, "lines": 1}'])
def test_where_figures_are_missing_what_was_observed_is_about_right_only(tmp_path: Path, how: str) -> None:
    """The longest step, which has come close to its limit, is among the lines that are missing."""
    run = invent_run(tmp_path, failures=4, slow_iteration=5)
    folder = str(run.folders[0])
    whole = make_report([folder])
    assert not any(row.is_about for row in (*whole.limits, *whole.recommendations))
    assert "~" not in "\n".join(text_of(whole))

    without_figures_of(run.folders[0], 0, how)
    report = make_report([folder])
    assert all(row.is_about for row in (*report.limits, *report.recommendations))
    assert all(row["is_about"] for row in json.loads(as_json(report))["limits"])
    text = " ".join("\n".join(text_of(report, 1000)).split())
    step = next(row for row in report.limits if row.kind == "section step")
    assert f"section step 30 s ~{duration(step.longest)} ~{step.samples} ~{signed_share(step.room)}" in text
    assert re.search(r"~\d+ save\(s\)", text)
    limits = [each for each in report.recommendations if each.about == "limit"]
    assert limits
    for each in limits:
        assert f"From ~{each.samples} " in each.text
        assert "longer durations than that may have ended by themselves" in each.text
    said = page(report)
    assert f"longest ~{duration(step.longest)}" in said
    assert f"~{signed_share(step.room)} room" in said
    assert f"from ~{limits[0].samples} observations" in said
    assert sum("what was observed under limits" in note for note in report.notes) == 1


def without_later_full_lines(folder: Path) -> None:
    """Let a run's figures be those of its first minute: no full line since its first save."""
    lines = lines_of(folder / "figures.jsonl")
    save = next(n for n, line in enumerate(lines) if "checkpointing" in line["ranks"]["0"]["sections"])
    assert not lines[save]["is_full"]
    for line in lines[:save]:
        for rank in line["ranks"].values():
            rank.get("limits", {}).pop("section checkpointing", None)
    (folder / "figures.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[: save + 1]))


def recommended_limits(run: InventedRun, kind: str = "section checkpointing") -> list[str]:
    found = make_report([str(folder) for folder in run.folders]).recommendations
    return [each.text for each in found if each.about == "limit" and kind in each.text]


def test_without_the_incident_what_was_observed_is_about_right_and_that_is_said(tmp_path: Path) -> None:
    run = invent_run(tmp_path, failures=[Failure(12, 1)], steps=20, nodes=1)
    assert not limit(run, "section step").is_about
    shutil.rmtree(run.folders[0] / "incidents")
    report = make_report([str(run.folders[0])])
    assert all(row.is_about for row in report.limits)
    assert ["tells which durations were waits" in note for note in report.notes].count(True) == 1
