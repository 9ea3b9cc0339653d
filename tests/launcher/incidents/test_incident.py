"""Incidents: what is written is what is read, whole or not at all, and people get one clear story."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.incidents.children import Child
from launcher.incidents.frames import Frame, Thread
from launcher.incidents.incident import Incident
from launcher.incidents.incident_files import DamagedIncidentError, read_incident, read_incidents
from launcher.incidents.job_incident import own_place
from launcher.incidents.phrases import SHORT_STACK, kernel_phrase, shortened
from launcher.incidents.rank_phrases import blamed_section, raised_at
from launcher.incidents.rank_report import RankReport
from launcher.monitor.hang_incident import trimmed
from launcher.notices.notice import of_incident
from launcher.processes.evidence import Evidence
from launcher.records.format_versions import UnknownVersionError
from resilience_core.protocol.cell_layout import SHARED_SECTION
from resilience_core.protocol.error_record import ErrorRecord
from resilience_core.protocol.group_numbers import GroupNumber

texts = st.text(max_size=20)
frames = st.builds(Frame, texts, texts, st.integers(0, 10**6))
threads = st.builds(Thread, texts, st.booleans(), st.booleans(), st.lists(frames, max_size=3).map(tuple))
seconds = st.none() | st.floats(0, 1e6)
counts = st.none() | st.integers(-64, 10**9)
stacks = st.lists(threads, max_size=1).map(tuple)
children = st.builds(Child, st.integers(1, 2**22), texts, st.sampled_from("RSDTZ"), st.none() | texts, stacks)
reports = st.builds(
    RankReport,
    rank=st.integers(0, 10**6),
    local_rank=st.integers(0, 64),
    pid=st.integers(0, 2**22),
    is_condemned=st.booleans(),
    is_culprit=st.booleans(),
    cause=st.none() | st.sampled_from(["section", "heartbeat", "out of section", "startup", "exit"]),
    section=st.none() | texts,
    open_seconds=seconds,
    limit_seconds=seconds,
    iteration=counts,
    process_state=st.none() | texts,
    system_call=st.none() | texts,
    exit_code=st.none() | st.integers(-64, 255),
    message=st.none() | texts,
    waits_in=st.none() | texts,
    no_stack=st.none() | texts,
    unmonitored=st.none() | texts,
    stack=st.lists(threads, max_size=2).map(tuple),
    children=st.lists(children, max_size=2).map(tuple),
)


def consistent(report: RankReport) -> RankReport:
    """As they are made: an exit has its code, and any other cause how long and against which limit."""
    if report.evidence is not None:
        report = report._replace(evidence=report.evidence._replace(error=report.error))
    if report.cause == "exit":
        return report._replace(exit_code=report.exit_code or 1)
    if report.cause is not None and report.open_seconds is not None:
        return report._replace(exit_code=None, limit_seconds=report.limit_seconds or 1.0)
    return report


def fits_64_bits(value: object) -> bool:
    """No clock and no counter shows more, and more is refused where it is read; what is no number fits."""
    if isinstance(value, tuple):
        return all(map(fits_64_bits, value))
    return not isinstance(value, int | float) or -(1 << 63) <= value < 1 << 63


incidents = st.builds(
    Incident,
    kind=st.sampled_from(["hang", "failure", "request"]),
    generation=st.integers(0, 100),
    why=texts,
    action=texts,
    ranks=st.lists(reports.filter(fits_64_bits).map(consistent), max_size=3).map(tuple),
    deadline_ns=counts,
    seen_ns=st.integers(0, 2**62),
)

STACK = (Thread("MainThread", True, True, (Frame("read", "data.py", 7), Frame("main", "train.py", 12))),)
HUNG = RankReport(
    3, 1, 4711, True, True, "section", "step", open_seconds=184.2, limit_seconds=180.0, iteration=1200, stack=STACK
)
VICTIM = RankReport(2, 0, 4710, section="step", open_seconds=184.2, iteration=1200, waits_in="all_reduce (c10d.py:3)")
HANG = Incident("hang", 0, "its stack stands outside", "SIGKILL to rank 3", (VICTIM, HUNG), deadline_ns=1, seen_ns=2)


@given(incidents)
def test_an_incident_survives_json(incident: Incident) -> None:
    assert Incident.from_json(json.loads(json.dumps(incident.to_json()))) == incident


@given(incidents)
def test_any_incident_can_be_told(incident: Incident) -> None:
    assert incident.summary()
    assert len(incident.report()) > len(incident.ranks)


def test_a_child_that_a_rank_may_wait_for_is_told_and_the_report_has_all_of_them() -> None:
    at_work = (Thread("MainThread", True, False, (Frame("load", "data.py", 7), Frame("main", "train.py", 12))),)
    stuck = [Child(5000 + n, "pt_data_worker", "S", "hrtimer_nanosleep", at_work) for n in range(3)]
    idle = Child(6000, "pt_data_worker", "S", "do_poll")
    rank = HUNG._replace(children=(*stuck, idle))
    incident = HANG._replace(ranks=(VICTIM, rank))

    told = [line for line in incident.summary() if line.startswith("  child ")]

    phrase = "pid {} (pt_data_worker): state S in hrtimer_nanosleep, at load (data.py:7)"
    assert told == [f"  child   {phrase.format(5000)}", f"  child   {phrase.format(5001)}"]
    report = incident.report()
    assert [f"  child process {child}" in report for child in rank.children] == [True] * 4
    assert report[report.index(f"  child process {phrase.format(5002)}") + 2] == "      load (data.py:7)"


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    first = HANG.write(str(tmp_path / "incidents"))
    second = HANG._replace(generation=1).write(str(tmp_path / "incidents"))

    assert [os.path.basename(str(i.folder)) for i in (first, second)] == ["0001", "0002"]
    assert list(read_incidents(str(tmp_path))) == [first, second]
    assert read_incident(str(first.folder)) == first
    assert (first.node, first._replace(folder=None, wall_time="", node="")) == (os.uname().nodename, HANG)
    lines = Path(str(first.folder), "incident.json").read_text().splitlines()
    assert [line for line in lines if '"local_rank":' in line] == lines[7 : 7 + len(HANG.ranks)]  # one of its own each
    assert len(HANG.ranks) > 1


def test_a_message_that_no_encoding_knows_is_written_all_the_same(tmp_path: Path) -> None:
    """Names of files may hold bytes that are no text; Python hands them on as lone surrogates."""
    said = "ValueError: no file \udcff.pt"
    rank = RankReport(0, 0, 9, is_culprit=True, cause="exit", exit_code=1, message=said, stderr_tail=(said,))

    written = Incident("failure", 0, "raised ValueError", "none is left to be stopped", (rank,)).write(str(tmp_path))

    assert written.folder is not None
    assert Path(written.folder, "report.txt").read_text().count("no file \\udcff.pt") == 2
    assert read_incident(written.folder) == written


def test_a_half_written_incident_is_not_there(tmp_path: Path) -> None:
    HANG.write(str(tmp_path / "incidents"))
    (tmp_path / "incidents" / "0002").mkdir()

    assert len(list(read_incidents(str(tmp_path)))) == 1
    assert HANG.write(str(tmp_path / "incidents")).folder == str(tmp_path / "incidents" / "0003")


def test_a_report_does_not_command_the_terminal_that_shows_it(tmp_path: Path) -> None:
    said = "a\x1b[31m\r\x9b2J\n--- rank 9"
    rank = RankReport(
        0, 0, 9, is_culprit=True, cause="exit", exit_code=1, section=said, message=said, stderr_tail=(said,)
    )

    written = Incident("failure", 0, f"raised {said}", "none", (rank,)).write(str(tmp_path))

    assert written.folder is not None
    text = Path(written.folder, "report.txt").read_bytes().decode()
    assert "a\\x1b[31m\\x0d\\x9b2J\n    --- rank 9" in text
    assert [each for each in text if each != "\n" and not each.isprintable()] == []
    assert [line for line in text.splitlines() if line.startswith("--- rank 9")] == []
    assert read_incident(written.folder) == written


def test_a_folder_without_incidents_has_none_and_one_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    assert list(read_incidents(tmp_path)) == []
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_incidents(tmp_path / "nowhere")


def test_a_path_object_will_do(tmp_path: Path) -> None:
    written = HANG.write(str(tmp_path / "incidents"))
    assert list(read_incidents(tmp_path)) == [written]
    assert read_incident(tmp_path / "incidents" / "0001") == written


def test_what_has_no_end_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "incidents" / "0001"
    folder.mkdir(parents=True)
    (folder / "incident.json").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="it is a device, not a plain file"):
        read_incident(folder)
    assert list(read_incidents(tmp_path)) == []
    assert f"{folder} is left out: " in caplog.text


def test_what_is_far_too_long_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "incident.json", "wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(DamagedIncidentError, match="longer than 64 MiB"):
        read_incident(tmp_path)


def _of_the_next_version(folder: str) -> None:
    path = Path(folder, "incident.json")
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "version": 99, "what_is_new": 1}))


def test_an_incident_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    written = Incident("hang", 0, "why", "action", ()).write(str(tmp_path / "incidents"))
    assert written.folder is not None
    _of_the_next_version(written.folder)
    with pytest.raises(UnknownVersionError, match="the incident has version 99, and this torch-resilience reads"):
        read_incident(written.folder)
    with pytest.raises(UnknownVersionError, match="version None"):
        Incident.from_json({})


def test_an_incident_of_an_unknown_version_is_left_out_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (Incident("hang", n, "why", "action", ()).write(str(tmp_path / "incidents")) for n in range(2))
    _of_the_next_version(str(first.folder))
    for _ in range(2):
        assert list(read_incidents(str(tmp_path))) == [second]
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [f"{first.folder} is left out"]


def test_a_folder_that_cannot_be_written_is_the_callers_business(tmp_path: Path) -> None:
    (tmp_path / "incidents").write_text("a file in its place")

    with pytest.raises(OSError, match="exists"):
        HANG.write(str(tmp_path / "incidents"))


def test_the_story_says_who_where_how_long_why_and_what_was_done() -> None:
    assert HANG.culprit == HUNG
    assert HANG.condemned == (HUNG,)
    assert HANG.summary() == [
        "rank 3 (pid 4711): section 'step' open for 184.200 s at iteration 1200; limit 180 s",
        "  stack   read (data.py:7)",
        "  stack   main (train.py:12)",
        "  why     its stack stands outside",
        "  peer    rank 2 (pid 4710): section 'step', iteration 1200, waits in all_reduce (c10d.py:3)",
        "  action  SIGKILL to rank 3",
    ]


ORIGIN = "learned: 5 x 0.09 s over 10 intervals, at least 60 s; --ft-learned-limits off switches it off"
WAITING = RankReport(
    0, 0, 15, True, cause="out of section", open_seconds=60.1, limit_seconds=60.0, limit_origin=ORIGIN, iteration=12,
    limit_advice="If this is legitimately slow, switch learned limits off: --ft-learned-limits off", waits_in="barrier",
)  # fmt: skip
SLOW = RankReport(1, 1, 17, is_culprit=True, section="step", open_seconds=70.5, iteration=12, stack=STACK)
HELD_UP = Incident(
    "hang", 0, "its stack stands outside", "SIGKILL to rank 0", (WAITING, SLOW), deadline_ns=1, seen_ns=2
)


def test_of_one_that_has_raised_and_not_ended_yet_it_is_said_that_it_has() -> None:
    """Where all raise the same, the first that ends is seen, and the others are on their way."""
    error = ErrorRecord("ValueError", "bad argument")
    raised = SLOW._replace(error=error, message=error.first_line(), section=None, stack=())
    incident = Incident("failure", 0, "2 ranks raised the same", "1 peer(s) asked to end", (raised,))
    said = "rank 1 (pid 17) raised ValueError, and has not ended yet, iteration 12"
    assert incident.summary()[:2] == [said, "  error   ValueError: bad argument"]
    assert incident.headlines()[0] == f"{said}: ValueError: bad argument"


RAISED = """Traceback (most recent call last):
  File "/w/train.py", line 40, in main
    step()
  File "/w/train.py", line 13, in step
    torch.stack(rows)
  File "/v/lib/python3.11/site-packages/torch/functional.py", line 7, in stack
    raise ValueError("bad argument")
ValueError: bad argument
"""


def test_of_one_that_raised_and_cleans_up_outside_of_the_section_that_section_and_the_line_are_told() -> None:
    """It has left the section since, and its stack shows the clean-up, or nothing."""
    error = ErrorRecord("ValueError", "bad argument", RAISED, section="step", iteration=12)
    raised = SLOW._replace(error=error, message=error.first_line(), section=None, unmonitored="has shut down")
    incident = Incident("hang", 0, "raised ValueError before any other", "SIGKILL to rank 0", (WAITING, raised))
    head, *_, said = incident.summary()[:4]
    assert head == "rank 1 (pid 17) raised ValueError, and has not ended yet, iteration 12, in section 'step'"
    assert said == "  error   ValueError: bad argument; at step (/w/train.py:13)"
    assert incident.headlines()[0] == f"{head}: ValueError: bad argument; at step (/w/train.py:13)"
    assert str(own_place(raised)) == "step (/w/train.py:13)"
    assert incident.is_in_a_step
    for each in (incident, trimmed(incident)):  # a message to the launcher has no traceback
        (told,) = of_incident(each, 0).culprits
        assert (told.section, told.line) == ("step", "step (/w/train.py:13)")
    assert trimmed(incident).ranks[1].error == error._replace(traceback=RAISED.splitlines()[3] + "\n")
    of_torch = error._replace(traceback="\n".join([RAISED.splitlines()[0], *RAISED.splitlines()[5:]]))
    alone = trimmed(incident._replace(ranks=(WAITING, raised._replace(error=of_torch))))
    assert alone.ranks[1].error == error._replace(traceback="")


@pytest.mark.parametrize(
    ("changes", "raised"),
    [
        ({"cause": "section", "limit_seconds": 60.0}, "; at step (/w/train.py:13)"),
        ({"error": ErrorRecord("ValueError", "x", RAISED, section="setup", thread="loader")}, ""),
        ({"error": None}, ""),
    ],
)
def test_one_that_hangs_is_told_of_where_it_stands(changes: dict[str, Any], raised: str) -> None:
    """Whatever it has raised, or one of its threads, before: the line of that stands with the exception alone."""
    error = ErrorRecord("ValueError", "bad argument", RAISED, section="setup")
    rank = SLOW._replace(**{"error": error, **changes})
    assert (blamed_section(rank), raised_at(rank)) == ("step", raised)
    assert str(own_place(rank)) == "read (data.py:7)"


def test_where_another_is_to_blame_it_is_said_whose_limit_has_passed_and_where_it_comes_from() -> None:
    overdue = f"rank 0 (pid 15): out of section for 60.100 s at iteration 12; limit 60 s ({ORIGIN})"
    assert HELD_UP.summary() == [
        "rank 1 (pid 17) holds the others up, iteration 12, in section 'step' for 70.500 s",
        "  stack   read (data.py:7)",
        "  stack   main (train.py:12)",
        f"  overdue {overdue}, waits in barrier",
        "  why     its stack stands outside",
        "  action  SIGKILL to rank 0",
    ]
    assert f"overdue {overdue}" in HELD_UP.headlines()
    report = "\n".join(HELD_UP.report())
    assert overdue in report
    assert report.endswith("switch learned limits off: --ft-learned-limits off")


@pytest.mark.parametrize(
    ("facts", "cause", "said"),
    [
        ({"section": None}, "out of section", ", between sections for 70.500 s"),
        ({"section": None}, "heartbeat", ""),  # it may use no section at all
        ({"unmonitored": "has shut monitoring down"}, "section", ", has shut monitoring down"),
        ({"open_seconds": None}, "section", ""),
    ],
)
def test_where_one_that_is_not_overdue_is_is_said_where_it_is_known(
    facts: dict[str, Any], cause: str, said: str
) -> None:
    incident = HELD_UP._replace(ranks=(WAITING._replace(cause=cause), SLOW._replace(**facts)))
    assert incident.summary()[0] == f"rank 1 (pid 17) holds the others up, iteration 12{said}"


def test_one_that_has_destroyed_its_group_does_not_hold_the_others_up() -> None:
    gone = SLOW._replace(evidence=Evidence(1, left_group_ns=7))
    incident = HELD_UP._replace(ranks=(WAITING, gone))
    said = "rank 1 (pid 17) has destroyed its process group, and has not ended yet, iteration 12, in section 'step'"
    assert incident.summary()[0] == said
    for other in ({"left_group_ns": 0}, {"has_left": True}, {"exit_code": -15}):
        ranks = WAITING, SLOW._replace(evidence=Evidence(1, **{"left_group_ns": 7, **other}))
        assert " holds the others up" in incident._replace(ranks=ranks).summary()[0]


def test_who_is_only_likely_to_be_the_culprit_likely_holds_the_others_up() -> None:
    likely = HELD_UP._replace(why="likely: behind the others")
    said = "rank 1 (pid 17) likely holds the others up, iteration 12, in section 'step' for 70.500 s"
    assert likely.summary()[0] == likely.headlines()[0] == said


def test_who_was_overdue_by_itself_is_told_before_who_was_only_due_and_a_large_group_stays_few() -> None:
    due = WAITING._replace(open_seconds=59.95)
    many = HELD_UP._replace(ranks=(*(due._replace(rank=n) for n in range(2, 9)), WAITING, SLOW))
    assert [rank.rank for rank in many.overdue] == [0, 2, 3, 4]
    assert sum("overdue" in line for line in many.headlines()) == 1
    assert sum(line.startswith("  peer") for line in many.summary()) == 4


def test_the_report_has_every_stack_and_the_option_to_raise_the_limit() -> None:
    report = "\n".join(HANG.report())

    assert "MainThread (active, holds the GIL)\n    read (data.py:7)" in report
    assert "no stack could be had" in report
    assert report.endswith("raise the limit: --ft-rank-section-timeouts step:SECONDS")


def test_of_a_section_without_a_slot_of_its_own_no_option_is_told_that_cannot_be_used() -> None:
    rank = RankReport(0, 0, 9, True, True, "section", SHARED_SECTION, open_seconds=9.0, limit_seconds=5.0)
    hint = Incident("hang", 0, "why", "action", (rank,)).report()[-1]
    assert "--ft-rank-section-timeouts one of" not in hint
    assert hint.endswith("can be told of 63 names only: use fewer")


def test_the_report_says_why_there_is_no_stack() -> None:
    """A rank that died of a segmentation fault had 'no stack', and nobody said why nor how to get one."""

    def told(kind: str, **facts: object) -> str:
        rank = RankReport(0, 0, 9, is_culprit=True)._replace(**facts)
        return "\n".join(line for line in Incident(kind, 0, "why", "action", (rank,)).report() if "  no stack" in line)

    ended = "  no stack: the process had ended before anybody could look at it"
    hint = "; with PYTHONFAULTHANDLER=1 in the environment Python writes one to standard error as it dies"
    assert told("failure", cause="exit", exit_code=-11) == ended + hint
    assert told("hang", exit_code=-11) == ended + hint
    assert told("failure", cause="exit", exit_code=-9) == ended  # no handler sees that
    assert told("hang", exit_code=0) == ended
    assert told("failure", cause="exit", exit_code=-11, stderr_tail=("Fatal Python error: Segmentation fault",)) == (
        f"{ended}; Python has written one to standard error, below"
    )
    assert told("failure", cause="exit", exit_code=1) == ""  # the traceback tells
    assert told("failure") == ""  # a peer, which runs
    assert told("hang", no_stack="it is stopped") == "  no stack: it is stopped"


def test_of_a_rank_without_a_python_frame_it_is_said_where_it_is_in_the_kernel() -> None:
    """Stuck in C before or after all of its Python, or in a file system: nothing else tells where it hangs."""
    bare = HUNG._replace(stack=(), process_state="D", system_call="fsync", kernel_wait="jbd2_log_wait_commit")
    place = "sleeps uninterruptibly in the kernel (state D) in fsync, wait channel jbd2_log_wait_commit"
    incident = HANG._replace(ranks=(VICTIM, bare))

    assert f"  stack   no Python frame known: {place}" in incident.summary()
    report = incident.report()
    assert report[report.index("  no stack could be had") + 1 :].count(f"  process {place}") == 1
    # So it is of a main thread that has no frame, while another thread has one.
    odd = bare._replace(stack=(Thread("MainThread", False, False, ()),))
    assert f"  stack   no Python frame known: {place}" in HANG._replace(ranks=(odd,)).summary()
    # With a stack the report alone has it.
    framed = HANG._replace(ranks=(bare._replace(stack=STACK),))
    assert not any(place in line for line in framed.summary())
    assert f"  process {place}" in framed.report()
    # Of a failure nobody was looked at, and who has ended is nowhere.
    assert not any(place in line for line in incident._replace(kind="failure").report())
    assert not any(place in line for line in HANG._replace(ranks=(bare._replace(exit_code=1),)).report())


@pytest.mark.parametrize(
    ("groups", "is_idle", "said"),
    [
        (
            [GroupNumber("0", 1843, 8, "nccl", "", "all_reduce", 1841)],
            False,
            "in collective 1841 of group 0 (all_reduce)",
        ),
        ([GroupNumber("0", 1841, 8, "gloo", "", "", 1841)], False, "has called 1841 collectives of group 0"),
        ([GroupNumber("3", 7, 2, "nccl", "tp", "recv 0<-1")], False, "in recv 0<-1 of group 3 'tp'"),
        ([GroupNumber("0", 1840, 8, "nccl", "", "", 0)], True, "has called 1840 collectives of group 0"),
        ([GroupNumber("0", 0, 8), GroupNumber("1", 12, 2)], None, "has called 12 collectives of group 1"),
        (
            [GroupNumber(name, 5, 2, operation="all_reduce", first_undone=5) for name in "012"],
            False,
            "in collective 5 of group 0 (all_reduce) and in collective 5 of group 1 (all_reduce)",
        ),
        (
            [GroupNumber("0", 4, 3, "gloo"), *(GroupNumber(name, 1, 2, "gloo", "dp") for name in "1234")],
            False,
            "has called 4 collectives of group 0, 1 of group 1 'dp', 1 of group 2 'dp' and of 2 more groups",
        ),
    ],
)
def test_how_far_a_rank_is_in_its_collectives_is_told_of_culprits_and_peers(
    groups: list[GroupNumber], is_idle: bool | None, said: str
) -> None:
    evidence = Evidence(1, groups=tuple(groups), is_idle=is_idle)
    ranks = (VICTIM._replace(evidence=evidence), HUNG._replace(evidence=evidence))
    incident = HANG._replace(ranks=ranks)
    told = incident.summary()
    assert f"  comms   {said}" in told
    (peer,) = (line for line in told if line.startswith("  peer "))
    assert peer.endswith(f", waits in all_reduce (c10d.py:3), {said}")
    assert Incident.from_json(json.loads(json.dumps(incident.to_json()))) == incident
    nothing = HANG._replace(ranks=(HUNG._replace(evidence=Evidence(1, groups=(GroupNumber("0", 0, 2),))),))
    assert "comms" not in "\n".join(nothing.summary())


def test_a_group_that_is_none_makes_the_incident_a_damaged_one(tmp_path: Path) -> None:
    evidence = Evidence(1, groups=(GroupNumber("0", 5, 2),))
    written = HANG._replace(ranks=(HUNG._replace(evidence=evidence),)).write(str(tmp_path))
    path = Path(str(written.folder), "incident.json")
    path.write_text(path.read_text().replace('["0", 5, 2,', '["0", "5", 2,'))
    with pytest.raises(DamagedIncidentError, match="not a group"):
        read_incident(str(written.folder))


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("stack", 0, "frames", 0), None, "a frame is None"),
        (("stack", 0, "frames", 0), ["read", "data.py", "7"], "a frame is .'read', 'data.py', '7'."),
        (("stack", 0, "frames", 0), ["read", "data.py", 7, {}], "a frame is"),
        (("stack", 0, "frames", 1), "abc", "a frame is 'abc'"),
        (("stack", 0, "name"), [], r"name is \[\]"),
        (("children", 0, "pid"), "1", "pid is '1'"),
        (("children", 0, "stack", 0, "frames", 0), 7, "a frame is 7"),
        (("open_seconds",), float("nan"), "open_seconds is nan"),
        (("limit_seconds",), float("inf"), "limit_seconds is inf"),
        (("iteration",), 1 << 63, "iteration is 9223372036854775808"),
    ],
)
def test_what_is_no_stack_no_child_and_no_number_makes_the_incident_a_damaged_one(
    tmp_path: Path, place: tuple[str | int, ...], value: Any, said: str
) -> None:
    child = Child(7, "pt_data_worker", "S", None, STACK)
    written = HANG._replace(ranks=(HUNG._replace(children=(child,)),)).write(str(tmp_path))
    path = Path(str(written.folder), "incident.json")
    document = json.loads(path.read_text())
    inner = document["ranks"][0]
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path.write_text(json.dumps(document))
    with pytest.raises(DamagedIncidentError, match=said):
        read_incident(str(written.folder))


@pytest.mark.parametrize(
    ("state", "call", "wait", "said"),
    [
        ("S", "futex", "futex_do_wait", "sleeps in the kernel (state S) in futex, wait channel futex_do_wait"),
        ("S", None, "futex_do_wait", "sleeps in the kernel (state S) in futex_do_wait"),
        ("D", "system call 999", None, "sleeps uninterruptibly in the kernel (state D) in system call 999"),
        ("R", None, None, "runs (state R)"),
        ("T", "read", None, "is stopped by a signal (state T) in read"),
        ("t", None, None, "is stopped by a tracer (state t)"),
        ("I", None, None, "is (state I)"),
    ],
)
def test_a_place_in_the_kernel_has_its_words(state: str, call: str | None, wait: str | None, said: str) -> None:
    assert kernel_phrase(state, call, wait) == said


@pytest.mark.parametrize(
    ("exit_code", "said"), [(3, "exited with code 3"), (-9, "was killed by SIGKILL"), (-62, "was killed by signal 62")]
)
def test_a_failure_says_how_the_rank_ended(exit_code: int, said: str) -> None:
    rank = RankReport(0, 0, 9, is_culprit=True, cause="exit", section="step", iteration=4, exit_code=exit_code)
    incident = Incident("failure", 0, "exited first", "stop", (rank._replace(message="KeyError: 'x'"),))

    assert incident.summary()[0] == f"rank 0 (pid 9) {said}, iteration 4, in section 'step'"
    assert "  error   KeyError: 'x'" in incident.summary()


@pytest.mark.parametrize(
    ("cause", "silent", "option"),
    [
        ("heartbeat", "no heartbeat for 9.000 s", "--ft-rank-heartbeat-timeout"),
        ("out of section", "out of section for 9.000 s", "--ft-rank-out-of-section-timeout"),
        ("startup", "init_workload_monitoring() not called for 9.000 s", "--ft-rank-startup-timeout"),
    ],
)
def test_each_cause_has_its_words_and_its_option(cause: str, silent: str, option: str) -> None:
    rank = RankReport(0, 0, 9, True, True, cause, open_seconds=9.0, limit_seconds=5.0)
    incident = Incident("hang", 0, "why", "action", (rank,))

    assert incident.summary()[0] == f"rank 0 (pid 9): {silent}; limit 5 s"
    assert option in incident.report()[-1]


def test_a_failure_of_which_nobody_is_named_still_says_who_ended_and_how() -> None:
    rank = RankReport(0, 0, 9, cause="exit", section="step", iteration=4, exit_code=1)
    incident = Incident("failure", 0, "it may be the cause, or have lost a peer", "stop", (rank, VICTIM))

    assert incident.summary()[0] == "rank 0 (pid 9) exited with code 1, iteration 4, in section 'step'"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, "out of section, iteration 4"),
        ({"section": "step"}, "section 'step', iteration 4"),
        ({"unmonitored": "has not initialised monitoring", "iteration": None}, "has not initialised monitoring"),
        ({"unmonitored": "has shut monitoring down", "section": "step"}, "has shut monitoring down, iteration 4"),
        ({"exit_code": 0, "unmonitored": "has shut monitoring down"}, "exited with code 0, iteration 4"),
        ({"exit_code": -9, "section": "step"}, "was killed by SIGKILL, in section 'step', iteration 4"),
    ],
)
def test_a_peer_is_said_to_be_what_it_is(facts: dict[str, Any], said: str) -> None:
    peer = RankReport(0, 0, 8, iteration=4)._replace(**facts)
    incident = HANG._replace(ranks=(peer, HUNG))

    assert [line for line in incident.summary() if "peer" in line] == [f"  peer    rank 0 (pid 8): {said}"]
    assert f"--- rank 0 (pid 8): {said}" in incident.report()


def test_each_rank_is_followed_by_its_own_stack() -> None:
    other = RankReport(2, 0, 4710, True, True, "section", "step", open_seconds=184.2, limit_seconds=180.0)
    other = other._replace(stack=(Thread("MainThread", True, False, (Frame("wait", "loader.py", 3),)),))
    story = HANG._replace(ranks=(HUNG, other)).summary()

    assert [line.split()[:2] for line in story[:5]] == [
        ["rank", "3"], ["stack", "read"], ["stack", "main"], ["rank", "2"], ["stack", "wait"],
    ]  # fmt: skip


def stack_of(*packages: str) -> list[Frame]:
    return [Frame(f"f{number}", f"{package or 'own'}.py", number, package) for number, package in enumerate(packages)]


def test_a_long_stack_keeps_the_users_own_line_and_says_what_was_left_out() -> None:
    frames = stack_of(*["torch"] * 10, "", *["lightning"] * 5)
    short = shortened(frames)

    assert short == [*frames[:5], 5, frames[10], 5]
    assert len(short) == SHORT_STACK


@pytest.mark.parametrize("own", range(20))
@pytest.mark.parametrize("length", [1, 7, 8, 9, 20])
def test_no_frame_is_lost_without_a_word(own: int, length: int) -> None:
    frames = stack_of(*("" if number == own else "torch" for number in range(length)))
    short = shortened(frames)

    assert len(short) <= SHORT_STACK
    assert sum(each if isinstance(each, int) else 1 for each in short) == length
    assert own >= length or frames[own] in short


def test_our_own_frames_are_shown_only_where_the_rank_stands_in_them() -> None:
    frames = stack_of("", "resilience_core", "adapters", "")
    assert shortened(frames) == [frames[0], frames[3]]
    assert shortened(frames[1:]) == frames[1:]


def test_who_would_have_been_late_a_moment_later_is_not_said_to_be_late() -> None:
    rank = HUNG._replace(open_seconds=0.995, limit_seconds=1.0)
    assert HANG._replace(ranks=(rank,)).summary()[0].endswith("limit 1 s, which would have passed 5 ms later")


def test_the_report_has_the_traceback_and_the_last_lines_of_standard_error() -> None:
    error = ErrorRecord("KeyError", "'x'", "Traceback ...\n  File \"train.py\"\nKeyError: 'x'")
    rank = RankReport(0, 0, 9, is_culprit=True, cause="exit", exit_code=1, error=error, stderr_tail=("one", "two"))
    report = Incident("failure", 0, "why", "action", (rank,)).report()

    assert [line.strip() for line in report[-6:]] == [
        "Traceback ...", 'File "train.py"', "KeyError: 'x'", "last lines of standard error", "one", "two",
    ]  # fmt: skip
    assert "  no stack could be had" not in report


def test_a_thread_in_code_of_its_own_is_told_beside_a_main_thread_that_is_innocent() -> None:
    """The section was opened there; what the main thread does meanwhile tells nothing."""
    saver = Thread("saver", False, False, (Frame("write", "save.py", 3), Frame("run", "threading.py", 982, "python")))
    idle = Thread("pool", False, False, (Frame("get", "queue.py", 171, "python"), Frame("loop", "pool.py", 5)))
    rank = HUNG._replace(stack=(idle, saver, *STACK, *(saver._replace(name=f"saver-{n}") for n in range(5))))
    told = HANG._replace(ranks=(VICTIM, rank)).summary()
    assert [line for line in told if line.startswith("  thread")] == [
        "  thread  saver: write (save.py:3)",
        "  thread  saver-0: write (save.py:3)",
    ]
    assert not any("  thread" in line for line in HANG.summary())


def test_a_near_miss_says_that_its_stacks_may_be_of_afterwards() -> None:
    said = "Stacks were taken while a rank came back"
    assert said in "\n".join(HANG._replace(kind="near_miss").report())
    ranks = (HANG.ranks[0]._replace(message="verdict withdrawn: rank 0 came back"), *HANG.ranks[1:])
    assert said in "\n".join(HANG._replace(ranks=ranks).report())
    assert said not in "\n".join(HANG.report())
