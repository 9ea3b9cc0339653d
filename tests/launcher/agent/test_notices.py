"""Which node tells which event, and in which words; no process is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.agent.notices import Notices
from launcher.incidents.incident import Incident
from launcher.incidents.job_incident import JobIncident
from launcher.monitor.near_miss import NearMiss
from launcher.records.event_log import EventLog

ENDED = {
    "generation": 1,
    "outcome": "failed",
    "exit_code": 1,
    "why": None,
    "has_left": False,
    "iteration": 7,
    "saved": 5,
    "resumed_from": None,
    "went_back": False,
    "failures": 2,
}


class Made:
    """Notices of one node of a job, and what it has told."""

    def __init__(self, *, is_alone: bool, node_rank: int | None = 0, restarts_left: int = 2) -> None:
        self.told: list[dict[str, Any]] = []
        self.notices = Notices("run-7", is_alone=is_alone)
        self.notices._handle = self  # type: ignore[assignment]
        self.pid = 1
        if node_rank is not None:
            self.hear("started", generation=1, nodes=3, node_rank=node_rank, restarts_left=restarts_left, pids={})

    def tell(self, document: dict[str, Any]) -> None:
        self.told.append(document)

    def hear(self, event: str, **facts: Any) -> None:
        self.notices.heard(event, facts)

    def end(self, **facts: Any) -> None:
        self.hear("ended", **{**ENDED, **facts})

    @property
    def events(self) -> list[str]:
        return [document["event"] for document in self.told]


def incident(generation: int = 1) -> Incident:
    return Incident("failure", generation, "?", "none", ())


def story(generation: int = 1) -> JobIncident:
    return JobIncident(generation, "failure", "?", (), (), ("a",), (), (), 0.1)


def test_the_node_that_has_gathered_a_failure_tells_it_and_the_end() -> None:
    gatherer, other = Made(is_alone=False, node_rank=2, restarts_left=0), Made(is_alone=False, restarts_left=0)
    for made in (gatherer, other):
        made.notices.saw(incident())
        if made is gatherer:
            made.notices.tell_story(story())
        made.hear("job_incident", generation=1, gathered_on="c")
        made.end()
    assert gatherer.events == ["incident", "given_up"]
    assert other.events == []
    assert gatherer.told[1]["text"] == "the job has failed: no restart is left; exit code 1"
    assert (gatherer.told[1]["exit_code"], gatherer.told[1]["iteration"], gatherer.told[1]["saved"]) == (1, 7, 5)


def test_the_story_may_come_before_its_gatherer_has_told_it() -> None:
    made = Made(is_alone=False, node_rank=2)
    made.hear("job_incident", generation=1, gathered_on="c")
    made.notices.tell_story(story())
    made.end()
    assert made.events == ["incident", "given_up"]


def test_where_no_story_comes_who_has_seen_the_failure_tells_it() -> None:
    made = Made(is_alone=False, node_rank=2)
    made.notices.saw(incident())
    made.notices.tell_own(0)  # of another generation: it is not what was seen
    made.notices.tell_own(1)
    made.end(why="no progress")
    assert made.events == ["incident", "given_up"]
    assert made.told[1]["why"] == "no progress"


def test_the_first_node_tells_restarts_and_a_good_end() -> None:
    for node_rank, expected in ((0, ["restarted", "finished"]), (1, [])):
        made = Made(is_alone=False, node_rank=node_rank)
        made.hear("restarted", generation=1, workers=2, cause="the failure", seconds=0.0351)
        made.end(outcome="succeeded", exit_code=0)
        assert made.events == expected


def test_a_restart_has_its_seconds_and_what_is_left() -> None:
    made = Made(is_alone=True)
    made.hear("restarted", generation=1, workers=2, cause="the failure", seconds=0.0351)
    made.hear("restarted", generation=2, workers=2, cause=None, seconds=None)
    assert (made.told[0]["seconds"], made.told[0]["restarts_left"]) == (0.0351, 2)
    assert made.told[0]["text"] == "generation 1 has started on 3 node(s), 0.04 s after the failure was seen"
    assert made.told[1]["seconds"] is None


def test_a_node_that_leaves_says_so_itself_and_a_failed_job_is_not_its_news() -> None:
    made = Made(is_alone=False, node_rank=1)
    made.end(has_left=True, why="health check 'shm'")
    assert made.events == ["node_left"]
    assert made.told[0]["text"].endswith("has left the job: health check 'shm'; exit code 1")


@pytest.mark.parametrize(
    ("outcome", "code", "event"),
    [
        *(("succeeded", 0, "finished"), ("failed", 93, "given_up"), ("broken off", None, "given_up")),
        ("ended by SIGTERM", 0, "stopped"),
    ],
)
def test_each_end_has_its_name(outcome: str, code: int | None, event: str) -> None:
    made = Made(is_alone=True, node_rank=None)
    made.end(outcome=outcome, exit_code=code)
    assert made.events == [event]
    assert made.told[0]["exit_code"] == code


def test_what_concerns_one_node_is_told_by_it_in_the_words_of_the_launcher(tmp_path: Path) -> None:
    made = Made(is_alone=False, node_rank=1)
    log = EventLog(str(tmp_path), listener=made.notices.heard)
    miss = NearMiss(3, 1, 77, "section", "step", 2.0, 0.25)
    log.write("near_miss", generation=1, count=4, **miss._asdict())
    log.write("monitor_lost", reason="killed twice")
    log.write("monitor_back", reason="since now")
    log.write("monitor_replaced", reason="killed")
    log.write("note", generation=1, text="x")
    log.close()
    assert made.events == ["near_miss", "protection_lost", "protection_back"]
    assert made.told[0]["text"].startswith("near miss 4: rank 3 (pid 77) came back 250.0 ms late (section 'step'")
    assert "PROTECTION IS OFF" in made.told[1]["text"]
    assert [document["number"] for document in made.told] == [1, 2, 3]
    assert {document["run"] for document in made.told} == {"run-7"}


def test_without_the_setting_nothing_is_told() -> None:
    notices = Notices()
    notices.saw(incident())
    notices.tell_own(1)
    notices.tell_story(story())
    notices.heard("ended", {})
    notices.close()
    assert notices.pids == set()
