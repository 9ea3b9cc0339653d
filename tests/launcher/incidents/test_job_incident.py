"""What all nodes are told of a failure, what is written of it, and what travels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.incidents.accounts import account_text, parse_account, with_ends, without_spared
from launcher.incidents.frames import Frame, Thread
from launcher.incidents.incident import ELSEWHERE, Incident, new_folder
from launcher.incidents.job_incident import JobIncident, decide, own_place, parse_story, point_to
from launcher.incidents.node_accounts import NodeAccount
from launcher.incidents.rank_report import RankReport
from launcher.processes.evidence import Evidence
from resilience_core.protocol.error_record import ErrorRecord

OWN_LINE = Frame("work", "train.py", 31)
STACK = (Thread("MainThread", True, True, (Frame("sleep", "time.py", 1, "python"), OWN_LINE)),)
TRACEBACK = 'Traceback (most recent call last):\n  File "/x/train.py", line 12, in <module>\n    work()\n'
TRACEBACK += (
    '  File "/usr/lib/python3.11/site-packages/torch/nn.py", line 7, in all_reduce\n    x\nRuntimeError: gone\n'
)
LOST_A_PEER = ErrorRecord("RuntimeError", "Connection closed by peer", TRACEBACK, is_consequence=True)


def rank(number: int, **known: Any) -> RankReport:
    seen = Evidence(number % 2, **{"iteration": 7, **known})
    return RankReport(
        *(number, number % 2, 100 + number),
        section="step",
        iteration=7,
        is_condemned=seen.is_condemned,
        exit_code=seen.exit_code,
        error=seen.error,
        message=seen.error.first_line() if seen.error is not None else None,
        evidence=seen,
    )


HUNG = rank(3, is_condemned=True, waits=False, stands_at=str(OWN_LINE))._replace(
    cause="section", open_seconds=2.0, limit_seconds=1.5, stack=STACK
)
WAITING = rank(0, is_condemned=True, waits=True, waits_at="train.py:9")._replace(waits_in="all_reduce (c10d.py:3)")
AT_B = NodeAccount(Incident("hang", 5, "outside", "SIGKILL to rank 3", (rank(2, waits=True), HUNG), node="b"))
AT_A = NodeAccount(Incident(ELSEWHERE, 5, "?", "none", (WAITING, rank(1, waits=True)), node="a"))


def told(
    *accounts: NodeAccount, silent: tuple[str, ...] = (), lost: tuple[str, ...] = (), why: str = ""
) -> JobIncident:
    return decide(5, accounts, silent, lost, why, 0.25)._replace(gathered_on="a")


def in_short(story: JobIncident) -> JobIncident:
    """Without what only rules need."""
    return story._replace(culprits=tuple(c._replace(rank=c.rank._replace(evidence=None)) for c in story.culprits))


def test_a_hang_is_told_in_three_lines_with_node_and_place() -> None:
    story = told(AT_A, AT_B)._replace(folder="/logs/job_incidents/0001")
    who, why, report = story.summary()
    assert who == (
        "rank 3 on node b (pid 103): section 'step' open for 2.000 s at iteration 7; limit 1.5 s; at work (train.py:31)"
    )
    assert why.startswith("  why     its stack stands outside any collective, the others wait in one")
    assert why.endswith(" [2 of 2 nodes heard]")
    assert report == "  report  /logs/job_incidents/0001/report.txt on node a"
    assert story.kind == "hang"


def test_an_exception_is_told_with_the_line_that_raised_it() -> None:
    trace = 'Traceback (most recent call last):\n  File "/x/train.py", line 12, in step\n    bad()\nValueError: bad\n'
    error = ErrorRecord("ValueError", "bad", trace, iteration=7)
    at_b = NodeAccount(Incident("failure", 5, "?", "?", (rank(2, error=error, exit_code=1, ended_ns=9),), node="b"))
    story = told(AT_A, at_b)
    assert story.kind == "failure"
    assert story.headlines() == [
        "rank 2 on node b (pid 102) exited with code 1, iteration 7, in section 'step': ValueError: bad; at step "
        "(/x/train.py:12)"
    ]


def test_a_kill_for_want_of_memory_is_told_with_its_figures() -> None:
    killed = rank(2, exit_code=-9, ended_ns=9)._replace(memory_kill="out of memory, 498 of 500 MiB (memory.max of /g)")
    story = told(AT_A, NodeAccount(Incident("failure", 5, "?", "?", (killed,), node="b")))
    assert story.headlines()[0].startswith(
        "rank 2 on node b (pid 102) was killed by the kernel: out of memory, 498 of 500 MiB (memory.max of /g)"
    )


def test_a_lost_node_is_told_as_such() -> None:
    story = told(AT_A, lost=("c",), why="node c was silent for 5.0 s")
    assert story.kind == "lost"
    assert story.headlines() == ["node c: generation 5 ended"]
    assert story.summary()[1].endswith("[1 of 2 nodes heard, not c]")
    assert "node c was silent for 5.0 s" in story.why


def test_where_nobody_is_named_that_is_said() -> None:
    story = told(AT_A)
    assert story.headlines() == ["generation 5 ended, and which rank is the cause cannot be told"]


def test_where_nobody_is_named_who_has_failed_is_said_with_its_exception(tmp_path: Path) -> None:
    """Otherwise nothing of it would be on any line, though it is all that is known."""
    timed_out = ErrorRecord("RuntimeError", "Timed out waiting 5000ms", at_ns=5, is_consequence=True)
    lost = [rank(n, error=timed_out, exit_code=1) for n in (0, 1, 2)]
    accounts = [
        NodeAccount(Incident("failure", 5, "?", "none", (each,), node=node))
        for node, each in zip("abc", lost, strict=True)
    ]
    story = decide(5, accounts, (), (), "", 0.1)
    assert not story.culprits
    first, *seen, why, _ = story._replace(folder=str(tmp_path)).summary()
    assert first == "generation 5 ended, and which rank is the cause cannot be told"
    assert [line.partition(": ")[0] for line in seen] == ["  seen    node a", "  seen    node b"]
    assert all("exited with code 1" in line for line in seen)
    assert all(line.endswith(": RuntimeError: Timed out waiting 5000ms") for line in seen)
    assert why.startswith("  why ")
    assert parse_story(story.to_text()) == story
    assert parse_story(json.dumps({k: v for k, v in story.to_json().items() if k != "seen"})).seen == ()


def test_a_story_survives_its_journey() -> None:
    story = told(AT_A, AT_B, silent=("d",))
    assert parse_story(story.to_text()) == in_short(story)


IN_A_GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/home/me/train.py", line 12, in main
  |     raise ExceptionGroup("all", failed)
  | ExceptionGroup: all (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/me/train.py", line 7, in read
    |     raise ValueError("bad batch")
    | ValueError: bad batch
    +------------------------------------
"""


def test_the_place_of_an_exception_group_is_that_of_an_exception_in_it() -> None:
    error = ErrorRecord("ExceptionGroup", "all (1 sub-exception)", IN_A_GROUP)
    assert str(own_place(RankReport(0, 0, 9, error=error))) == "read (/home/me/train.py:7)"
    outer = error._replace(traceback=IN_A_GROUP.partition("    | Trace")[0])
    assert str(own_place(RankReport(0, 0, 9, error=outer))) == "main (/home/me/train.py:12)"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', '{"version": 1, "culprits": [7]}', "null", "7"])
def test_a_damaged_story_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_story(text)


@given(st.integers(0, 10**6))
def test_a_story_cut_anywhere_is_refused(at: int) -> None:
    text = told(AT_A, AT_B).to_text()
    with pytest.raises(ValueError, match=r"."):
        parse_story(text[: at % len(text)])


def test_what_is_written_holds_what_every_node_has_seen(tmp_path: Path) -> None:
    first = told(AT_A, AT_B).write_into(new_folder(str(tmp_path)), [AT_A.incident, AT_B.incident])
    assert first.folder == str(tmp_path / "0001")
    document = json.loads((tmp_path / "0001" / "incident.json").read_text())
    assert [node["node"] for node in document["nodes"]] == ["a", "b"]
    assert [Incident.from_json(node) for node in document["nodes"]] == [AT_A.incident, AT_B.incident]
    assert JobIncident.from_json(document) == first
    report = (tmp_path / "0001" / "report.txt").read_text()
    assert "--- culprit: rank 3 on node b" in report
    assert "    work (train.py:31)" in report
    assert "=== node a was told of it\n  rank 0 (pid 100): section 'step', iteration 7, waits in all_reduce" in report
    assert "=== node b has seen a hang" in report


def test_the_folder_of_one_node_says_what_all_have_found(tmp_path: Path) -> None:
    incident = AT_B.incident.write(str(tmp_path))
    assert incident.folder is not None
    point_to(told(AT_A, AT_B), incident.folder)
    assert "As all nodes of the job have found:\nrank 3 on node b" in Path(incident.folder, "report.txt").read_text()
    read = parse_story(Path(incident.folder, "job_incident.json").read_text())
    assert read == in_short(told(AT_A, AT_B))._replace(wall_time=read.wall_time)
    point_to(told(AT_A, AT_B), str(tmp_path / "gone"))


# ---- accounts ---------------------------------------------------------------------------------------------


def test_an_account_keeps_what_rules_and_people_need() -> None:
    kept = parse_account(account_text(AT_B.incident, was_told=True))
    assert kept.was_told
    assert kept.incident == AT_B.incident


def test_the_traceback_of_a_victim_becomes_the_place_where_it_has_waited() -> None:
    ranks = tuple(rank(n, error=LOST_A_PEER, exit_code=1) for n in range(8))
    incident = Incident("failure", 5, "?", "?", ranks, node="a")
    kept = parse_account(account_text(incident, was_told=False)).incident
    assert [r.evidence.waits_at for r in kept.ranks if r.evidence is not None] == ["<module> (/x/train.py:12)"] * 8


def test_a_rank_costs_little_and_those_that_may_be_to_blame_a_few_kilobytes() -> None:
    long = Thread("MainThread", True, True, tuple(Frame(f"f{n}", "train.py", n) for n in range(30)))
    ranks = tuple(
        rank(n, error=LOST_A_PEER._replace(traceback=TRACEBACK * 100), exit_code=1, ended_ns=5)._replace(
            stack=(long,), stderr_tail=("x" * 100,) * 20, cause="exit"
        )
        for n in range(64)
    )
    text = account_text(Incident("failure", 5, "?", "?", ranks, node="a"), was_told=False)
    assert len(text) < 4 * 15_000 + 60 * 900


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 9, "was_told": false, "incident": {}}', "null"])
def test_a_damaged_account_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_account(text)


def test_a_rank_that_ended_after_its_stack_was_taken_counts_as_it_ended() -> None:
    now = Incident("elsewhere", 5, "?", "?", (rank(2), rank(3, error=LOST_A_PEER, exit_code=1, ended_ns=5)), node="b")
    two, three = with_ends(AT_B.incident, now).ranks
    assert two == AT_B.incident.ranks[0]
    assert three == now.ranks[1]


def test_the_end_of_a_rank_that_we_have_ended_tells_nothing() -> None:
    now = Incident("failure", 5, "?", "?", (rank(2), rank(3, exit_code=-9, ended_ns=5)), node="b")
    assert with_ends(AT_B.incident, now, ended_by_us=[1]) == AT_B.incident


def test_a_rank_that_was_spared_is_no_culprit_any_more() -> None:
    incident = AT_B.incident._replace(ranks=(rank(2), HUNG._replace(is_culprit=True)))
    _, spared = without_spared(incident, [1]).ranks
    assert (spared.is_culprit, spared.is_condemned) == (False, False)
    assert spared.evidence is not None
    assert not spared.evidence.is_condemned
    assert without_spared(incident, [0]) == incident._replace(
        ranks=(without_spared(incident, [0]).ranks[0], incident.ranks[1])
    )


def test_a_story_stays_short_however_many_ranks_fail_alike() -> None:
    error = ErrorRecord("ValueError", "bad", "x" * 4000, iteration=7)
    each = [
        NodeAccount(Incident("failure", 5, "?", "?", (rank(n, error=error, exit_code=1, ended_ns=9),), node=f"n{n}"))
        for n in range(300)
    ]
    story = told(*each)
    assert len(story.culprits) == 300
    assert len(story.to_text()) < 60_000
    assert parse_story(story.to_text()).headlines() == [*story.headlines()[:4], "and 296 more"] == story.headlines()


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)


@given(st.sampled_from(["top", "culprit"]), st.data())
def test_whatever_can_be_read_can_be_told(where: str, data: st.DataObject) -> None:
    """It comes from another node, and a launcher that fails over it would end the job on all of them alike."""
    document = json.loads(told(AT_A, AT_B, silent=("d",)).to_text())
    part = document if where == "top" else document["culprits"][0]
    part[data.draw(st.sampled_from(sorted(part)))] = data.draw(VALUES)
    try:
        story = parse_story(json.dumps(document))
    except ValueError:
        return
    assert all(isinstance(line, str) for line in story.summary())


def test_a_request_is_told_as_one() -> None:
    asking = RankReport(2, 0, 102, is_culprit=True, message="shutdown: enough")
    story = told(AT_A, NodeAccount(Incident("request", 5, "enough", "the job ends", (asking,), node="b")))
    assert story.kind == "request"
    assert story.headlines() == ["rank 2 on node b (pid 102) asks: shutdown: enough"]
