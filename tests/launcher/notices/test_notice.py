"""What a document says of a failure, and that it stays small."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcher.incidents.frames import Frame, Thread
from launcher.incidents.incident import Incident
from launcher.incidents.job_incident import Culprit, JobIncident
from launcher.incidents.rank_report import RankReport
from launcher.notices.caller import MESSAGE_SIZE
from launcher.notices.notice import EVENTS, Notice, encoded, of_incident, of_story

STACK = (Thread("MainThread", True, False, (Frame("all_reduce", "torch/x.py", 9, "torch"), Frame("step", "t.py", 7))),)
KEYS = (
    *("version", "event", "run", "node", "time", "number", "text", "generation", "kind", "why", "culprits"),
    *("more_culprits", "nodes", "report", "report_node", "seconds", "restarts_left", "exit_code", "iteration", "saved"),
)


def rank(number: int, **known: Any) -> RankReport:
    return RankReport(number, number, 100 + number, **{"section": "step", "iteration": 5, "stack": STACK, **known})


def document(notice: Notice) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(notice.to_json(run="r", node="a", time="t", number=1)))
    return made


def test_a_failure_of_one_node_names_rank_node_section_iteration_and_line() -> None:
    blamed = rank(1, is_culprit=True, cause="exit", exit_code=-9, message="ended by SIGKILL")
    incident = Incident("failure", 2, "it ended first", "none", (rank(0), blamed), node="b", folder="/logs/0001")
    told = document(of_incident(incident, restarts_left=3))
    assert tuple(told) == KEYS
    assert told["event"] in EVENTS
    assert told["culprits"] == [
        {
            "rank": 1,
            "node": "b",
            "section": "step",
            "iteration": 5,
            "line": "step (t.py:7)",
            "message": "ended by SIGKILL",
            "exit_code": -9,
        }
    ]
    assert (told["kind"], told["why"], told["generation"]) == ("failure", "it ended first", 2)
    assert (told["report"], told["report_node"], told["restarts_left"]) == ("/logs/0001/report.txt", "b", 3)
    assert told["text"].splitlines() == [*incident.headlines(), "why     it ended first"]


def test_a_failure_of_a_job_names_nodes_and_who_has_gathered_it() -> None:
    story = JobIncident(
        *(4, "hang", "likely: it is behind", (Culprit("c", rank(9)),), ("d",), ("a", "c"), (), ("d",), 0.1),
        others=2,
        gathered_on="a",
        folder="/logs/job",
    )
    told = document(of_story(story, restarts_left=None))
    assert [(each["rank"], each["node"]) for each in told["culprits"]] == [(9, "c")]
    assert (told["nodes"], told["more_culprits"]) == (["d"], 2)
    assert (told["report"], told["report_node"]) == ("/logs/job/report.txt", "a")
    assert told["text"].endswith("why     likely: it is behind")


@pytest.mark.parametrize("character", ["x", '"', "\N{SNOWMAN}", "\N{FIRE}", "\x01"])
def test_a_document_fits_into_a_message_whatever_ranks_have_said(character: str) -> None:
    """A thousand ranks with long texts everywhere, of characters that take one to six bytes of JSON each."""
    long = character * 100_000
    stack = (Thread("MainThread", True, False, (Frame(long, "t.py", 7),)),)
    facts = {"is_culprit": True, "cause": "exit", "exit_code": 1, "message": long, "section": long, "stack": stack}
    ranks = tuple(rank(n, **facts) for n in range(1000))
    notices = (
        of_incident(Incident("failure", 0, long, "none", ranks, node=long, folder=long), None),
        of_story(
            JobIncident(
                *(4, "hang", long, tuple(Culprit(long, each) for each in ranks), (long,) * 99, (), (), (), 0.1),
                gathered_on=long,
                folder=long,
            ),
            None,
        ),
    )
    for notice in notices:
        told = notice.to_json(run=long, node=long, time="t", number=1)
        assert 50_000 < len(encoded(told)) <= MESSAGE_SIZE
        assert len(told["culprits"]) + told["more_culprits"] == 1000


@pytest.mark.parametrize("length", [0, 1, 5999, 6000, 6001, 20_000])
@pytest.mark.parametrize(("character", "size"), [("x", 1), ("\N{SNOWMAN}", 3), ("\N{FIRE}", 4), ("\n", 2), ("\x01", 6)])
def test_a_text_is_cut_where_its_bytes_end(character: str, size: int, length: int) -> None:
    why = Notice("given_up", "", 1, why=character * length).to_json(run="r", node="a", time="t", number=1)["why"]
    assert why == character * min(length, (6000 - 2) // size)  # two for the quotation marks


def test_half_a_pair_of_surrogates_becomes_a_question_mark() -> None:
    """As a file name has it that is no text; many programs refuse JSON with it."""
    assert json.loads(encoded({"text": "a\udce4b"})) == {"text": "a?b"}
