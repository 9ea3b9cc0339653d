"""What a node tells the others of a failure, when, and what it says where no story comes."""

from __future__ import annotations

import errno
import select
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.agent import incident_log, job_stories, story_teller
from launcher.agent.incident_log import IncidentLog
from launcher.agent.job_stories import JobStories
from launcher.agent.notices import Notices
from launcher.incidents.accounts import account_text, parse_account
from launcher.incidents.incident import ELSEWHERE, Incident
from launcher.incidents.job_incident import decide
from launcher.incidents.node_accounts import NodeAccount
from launcher.incidents.rank_report import RankReport
from launcher.monitor.messages import Look, Proceed
from launcher.nodes.gathering import Gathered, Heard, Word
from launcher.processes.evidence import Evidence
from launcher.records.console import ERROR
from resilience_core.config.schema import FaultToleranceConfig
from resilience_core.protocol.error_record import ErrorRecord

PATIENCE = 60.0
TOLD_NS = 10**12
LOST_A_PEER = ErrorRecord("RuntimeError", "Connection closed by peer", is_consequence=True)


def report(rank: int, **known: Any) -> RankReport:
    seen = Evidence(rank, **known)
    return RankReport(rank, rank, 100 + rank, exit_code=seen.exit_code, error=seen.error, evidence=seen)


def incident(kind: str, *ranks: RankReport, culprits: Collection[int] = (), why: str = "?") -> Incident:
    named = tuple(rank._replace(is_culprit=rank.rank in culprits) for rank in ranks)
    return Incident(kind, 3, why, "none", named, folder=None)


class Exchange:
    """Notes what was said."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []
        self.came_back: list[tuple[tuple[int, ...], set[str]]] = []
        self.accounts: list[NodeAccount] = []
        self.stories: list[tuple[int, str]] = []
        self.has_decided = threading.Event()

    def listen(self, listener: Any) -> None:
        self.listener = listener

    def suspect(self, generation: int) -> None:
        self.said.append(("suspect", generation))

    def looked(self, generation: int, came_back: tuple[int, ...] = (), **how: bool) -> None:
        self.said.append(("looked", generation))
        self.came_back.append((came_back, {name for name, value in how.items() if value}))

    def give_account(self, generation: int, text: str) -> None:
        self.said.append(("account", generation))
        self.accounts.append(parse_account(text))

    def decided(self, generation: int, text: str) -> None:
        self.stories.append((generation, text))
        self.has_decided.set()


class Made:
    """Stories of a node whose third generation runs two ranks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.exchange = Exchange()
        self.orders: list[Any] = []
        self.said: list[tuple[str, ...]] = []
        self.said_about: list[dict[str, Any]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.now = incident("failure", report(0), report(1))
        monkeypatch.setattr(story_teller, "announce", self._hear)
        monkeypatch.setattr(job_stories, "find_py_spy", lambda: "py-spy")
        monkeypatch.setattr(job_stories.failure_incident, "look", lambda *_: {})
        monkeypatch.setattr(job_stories.failure_incident, "failure_incident", lambda *_: self.now)
        self.resources: Any = SimpleNamespace(
            config=FaultToleranceConfig(stack_capture_timeout=PATIENCE),
            monitor=SimpleNamespace(pass_on=self.orders.append),
            events=SimpleNamespace(write=lambda name, **facts: self.events.append((name, facts))),
            disk=SimpleNamespace(submit=lambda call: call()),
            on_disk=lambda what, call, otherwise: call(),
            machine=SimpleNamespace(gpu_users=set()),
            notices=Notices(),
            log_folder=str(folder),
        )
        processes = SimpleNamespace(collect_exits=lambda: None, pids=lambda: {0: 100, 1: 101})
        self.current: Any = SimpleNamespace(
            number=3, is_fenced=False, condemned=set(), processes=processes, views=dict, errors=dict, asked_ns=dict,
            overstayed={},
        )  # fmt: skip
        workers = [SimpleNamespace(local_rank=n, global_rank=n) for n in (0, 1)]
        self.stories = JobStories(self.resources, self.exchange)
        self.stories.began(self.current, SimpleNamespace(workers=workers, group_world_size=2))  # type: ignore[arg-type]

    def _hear(self, *lines: str, **about: Any) -> None:
        self.said.append(lines)
        self.said_about.append(about)

    def look(
        self,
        wait: Callable[[Collection[int], float], set[int]] = lambda *_: set(),
        for_all: Callable[[Incident, Collection[int]], Incident] = lambda seen, condemned: seen,
        told_ns: int = TOLD_NS,
    ) -> None:
        self.stories.look(wait, for_all, told_ns)

    def story(self, generation: int = 3) -> str:
        account = NodeAccount(incident("failure", report(1, exit_code=-11, ended_ns=9))._replace(node="b"))
        return decide(generation, [account], (), (), "", 0.1).to_text()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Made:
    return Made(monkeypatch, tmp_path)


def is_readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


# ---- looks ------------------------------------------------------------------------------------------------


def test_what_the_leader_wants_of_the_monitor_is_passed_on_by_the_agent(made: Made) -> None:
    """An order to a monitor that is being replaced may have to wait, and the exchange's thread keeps the lease."""
    made.stories.heard(Heard(3, Word.LOOK))
    made.stories.heard(Heard(3, Word.PROCEED, came_back=(1, 2, 3)))
    assert made.orders == []
    assert is_readable(made.stories.descriptor)

    made.stories.pass_on()
    assert made.orders == [Look(3, may_signal=False), Proceed(3, (1, 2, 3))]
    assert not is_readable(made.stories.descriptor)


def test_an_order_for_another_generation_is_dropped(made: Made) -> None:
    made.stories.heard(Heard(2, Word.LOOK))
    made.stories.heard(Heard(2, Word.PROCEED))
    made.stories.pass_on()
    assert made.orders == []


def test_the_monitor_is_asked_once_until_it_has_answered(made: Made) -> None:
    for _ in range(2):
        made.stories.heard(Heard(3, Word.LOOK))
        made.stories.pass_on()
    assert made.orders == [Look(3, may_signal=False)]
    made.stories.looked(incident(ELSEWHERE, report(0)), 3)
    assert made.exchange.said == [("looked", 3)]
    made.stories.heard(Heard(3, Word.LOOK))
    made.stories.pass_on()
    assert len(made.orders) == 2


def test_the_monitor_says_briefly_who_came_back_whatever_it_has_not_answered(made: Made) -> None:
    made.stories.heard(Heard(3, Word.LOOK))
    made.stories.heard(Heard(3, Word.CONFIRM))
    made.stories.pass_on()
    assert made.orders == [Look(3, may_signal=False), Look(3, may_signal=False, is_brief=True)]
    made.stories.looked(None, 3, (1, 2, 3), is_brief=True)
    made.stories.heard(Heard(3, Word.LOOK))
    made.stories.pass_on()
    assert len(made.orders) == 2  # the look was not answered by that
    made.stories.has_verdict(3, (4, 5, 6), only_waits=True)
    assert made.exchange.came_back == [((1, 2, 3), {"is_brief"}), ((4, 5, 6), {"only_waits"})]


def test_a_look_that_is_answered_after_a_verdict_still_tells_that_its_ranks_only_wait(made: Made) -> None:
    """Another node has suspected a rank meanwhile; until the next generation the verdict is what it was."""
    made.stories.has_verdict(3, (1, 2, 3), only_waits=True)
    made.stories.looked(None, 3, (4, 5, 6))
    made.stories.has_verdict(3)
    made.stories.looked(None, 3, (7, 8, 9))
    assert made.exchange.came_back == [
        ((1, 2, 3), {"only_waits"}),
        ((4, 5, 6), {"only_waits"}),
        ((), set()),
        ((7, 8, 9), set()),
    ]


def test_who_is_known_to_have_come_back_is_passed_on_with_a_brief_look(made: Made) -> None:
    made.stories.heard(Heard(3, Word.CONFIRM, came_back=(1, 2, 3)))
    made.stories.pass_on()
    assert made.orders == [Look(3, may_signal=False, is_brief=True, came_back=(1, 2, 3))]


def test_a_monitor_that_has_never_answered_is_asked_again(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was replaced, and its successor knows of no look."""
    monkeypatch.setattr(job_stories, "_LOOK_COUNTS_SECONDS", -1.0)
    for _ in range(2):
        made.stories.heard(Heard(3, Word.LOOK))
        made.stories.pass_on()
    assert len(made.orders) == 2


def test_a_verdict_of_our_own_monitor_is_a_look(made: Made) -> None:
    made.stories.suspected(3)
    made.stories.has_verdict(3)
    assert made.exchange.said == [("suspect", 3), ("looked", 3)]


def test_a_look_tells_nobody_anything_unless_the_generation_fails(made: Made) -> None:
    """The verdict that it was asked for may be withdrawn."""
    made.stories.looked(incident(ELSEWHERE, report(0, waits=False)), 3)
    made.stories.looked(None, 3)
    assert [what for what, _ in made.exchange.said] == ["looked", "looked"]
    assert made.said == []


# ---- accounts ---------------------------------------------------------------------------------------------


def test_what_was_seen_before_the_ranks_lost_their_peer_is_told(made: Made) -> None:
    made.stories.looked(incident(ELSEWHERE, report(0, waits=False, stands_at="f (t.py:1)"), report(1, waits=True)), 3)
    made.now = incident("failure", report(0), report(1, error=LOST_A_PEER, exit_code=1))
    made.look()
    (account,) = made.exchange.accounts
    assert account.was_told
    assert account.incident.kind == ELSEWHERE
    zero, one = account.incident.ranks
    assert zero.evidence is not None
    assert zero.evidence.stands_at == "f (t.py:1)"
    assert one.exit_code == 1


OWN = ErrorRecord("ValueError", "bad batch", at_ns=TOLD_NS - 1)


@pytest.mark.parametrize(
    ("known", "is_after"),
    [
        ({"error": OWN, "has_left": True}, False),  # its process goes on for as long as it has something to end
        ({"error": OWN, "exit_code": 1, "ended_ns": TOLD_NS + 10**9}, False),
        ({"error": OWN._replace(at_ns=TOLD_NS), "exit_code": 1, "ended_ns": TOLD_NS + 5}, True),
        ({"error": OWN._replace(thread="loader")}, True),
        ({"error": LOST_A_PEER, "exit_code": 1, "ended_ns": 5}, True),
        ({"exit_code": -11, "ended_ns": TOLD_NS + 10**8 - 1}, False),  # noticed late, perhaps
        ({"exit_code": -11, "ended_ns": TOLD_NS + 10**8}, True),
        ({"exit_code": -11}, False),  # ending
        # Of an exception in torch's error file nothing is known but when the process had ended.
        ({"error": OWN._replace(at_ns=TOLD_NS + 9), "exit_code": 1, "ended_ns": TOLD_NS + 9}, False),
        ({"exit_code": 0, "ended_ns": 5}, True),
    ],
)
def test_a_node_was_told_where_its_own_clock_says_that_its_ranks_failed_afterwards(
    made: Made, known: dict[str, Any], is_after: bool
) -> None:
    """Else nothing orders the two failures, whichever node was the first to see that a process had ended."""
    made.now = incident("failure", report(0), report(1, **known))
    made.look()
    made.stories.failed(made.now, told_ns=TOLD_NS)
    made.stories.failed(made.now)
    assert [account.was_told for account in made.exchange.accounts] == [is_after, is_after, False]


def test_what_was_seen_long_ago_tells_nothing_of_this_failure(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.stories.looked(incident(ELSEWHERE, report(0, waits=False), report(1)), 3)
    monkeypatch.setattr(job_stories, "_LOOK_COUNTS_SECONDS", 0.0)
    made.look()
    assert made.exchange.accounts[0].incident.ranks == made.now.ranks


def test_a_look_that_is_under_way_is_waited_for(made: Made) -> None:
    made.stories.heard(Heard(3, Word.LOOK))
    waits: list[float] = []

    def wait(pidfds: Collection[int], seconds: float) -> set[int]:
        waits.append(seconds)
        if len(waits) == 2:
            made.stories.looked(incident(ELSEWHERE, report(0, waits=False), report(1)), 3)
        return set()

    made.look(wait)
    assert len(waits) == 2
    evidence = made.exchange.accounts[0].incident.ranks[0].evidence
    assert evidence is not None
    assert evidence.waits is False


def test_a_verdict_that_our_monitor_has_announced_is_waited_for(made: Made) -> None:
    """Where a process is stuck, its stack takes all the time there is, and the other node's ranks are killed before."""
    made.stories.suspected(3)
    waits: list[float] = []

    def wait(pidfds: Collection[int], seconds: float) -> set[int]:
        waits.append(seconds)
        if len(waits) == 2:
            made.stories.has_verdict(3)
        return set()

    made.look(wait)
    assert len(waits) == 2
    assert max(waits) <= PATIENCE + 0.3
    made.stories._given = -1
    made.look(wait)
    assert len(waits) == 2


def test_a_look_that_never_comes_costs_no_more_than_its_time(made: Made) -> None:
    made.resources.config = FaultToleranceConfig(stack_capture_timeout=0.0)
    made.stories.heard(Heard(3, Word.LOOK))
    made.look()
    assert len(made.exchange.accounts) == 1


def test_ranks_that_will_be_ended_are_asked_by_a_signal_where_py_spy_is_missing(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.resources.config = FaultToleranceConfig(stack_capture_timeout=0.0)
    monkeypatch.setattr(job_stories, "find_py_spy", lambda: None)
    made.look()
    assert made.orders == []  # nobody has suspected anybody: a process has ended

    made.stories.began(made.current, made.stories._group)  # type: ignore[arg-type]
    made.stories._given = -1
    made.stories.looked(incident(ELSEWHERE, report(0)), 3)
    made.look()
    assert made.orders == [Look(3, may_signal=True)]


def test_of_two_looks_the_one_that_may_signal_is_waited_for(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_stories, "find_py_spy", lambda: None)
    made.stories.heard(Heard(3, Word.LOOK))
    answers = [incident(ELSEWHERE, report(0)), incident(ELSEWHERE, report(0, waits=False))]

    def wait(pidfds: Collection[int], seconds: float) -> set[int]:
        made.stories.looked(answers.pop(0), 3)
        return set()

    made.look(wait)
    assert answers == []
    evidence = made.exchange.accounts[0].incident.ranks[0].evidence
    assert evidence is not None
    assert evidence.waits is False


def test_a_verdict_of_our_own_is_told_and_not_what_was_seen_for_others(made: Made) -> None:
    made.stories.looked(incident(ELSEWHERE, report(0, waits=True), report(1)), 3)
    verdict = incident("hang", report(0, is_condemned=True, waits=False), report(1, waits=True))
    made.look(for_all=lambda seen, condemned: verdict)
    assert made.exchange.accounts[0].incident.kind == "hang"
    assert made.exchange.accounts[0].incident.ranks == verdict.ranks


def test_a_node_gives_one_account_of_a_generation(made: Made) -> None:
    made.stories.failed(incident("failure", report(0, exit_code=-11), culprits=[0], why="killed by SIGSEGV"))
    made.look()
    made.look()
    assert len(made.exchange.accounts) == 1
    assert not made.exchange.accounts[0].was_told


def test_a_fenced_node_has_nothing_to_tell(made: Made) -> None:
    """Its ranks were killed by its own monitor."""
    made.current.is_fenced = True
    made.look()
    assert made.exchange.said == []


@pytest.mark.parametrize(
    ("culprits", "why", "suspects"),
    [
        ([0], "killed by SIGSEGV", False),
        ([], "who failed lost a peer", True),
        ([0], "likely: raised TimeoutError", True),
    ],
)
def test_where_another_node_may_be_the_cause_its_ranks_are_looked_at(
    made: Made, culprits: list[int], why: str, suspects: bool
) -> None:
    made.stories.failed(incident("failure", report(0, exit_code=1), report(1), culprits=culprits, why=why))
    assert (("suspect", 3) in made.exchange.said) == suspects


def test_what_was_seen_of_the_other_ranks_is_told_with_a_failure_here(made: Made) -> None:
    made.stories.looked(incident(ELSEWHERE, report(0), report(1, waits=False, stands_at="f (t.py:1)")), 3)
    made.stories.failed(incident("failure", report(0, error=LOST_A_PEER, exit_code=1), report(1)))
    zero, one = made.exchange.accounts[0].incident.ranks
    assert zero.exit_code == 1
    assert one.evidence is not None
    assert one.evidence.stands_at == "f (t.py:1)"


def test_a_request_is_told_by_all_nodes(made: Made) -> None:
    made.stories.requested(3, 1, "shutdown_workload: enough")
    (account,) = made.exchange.accounts
    assert account.incident.kind == "request"
    assert [(r.rank, r.pid, r.message) for r in account.incident.ranks] == [(1, 101, "shutdown_workload: enough")]
    made.stories.heard(Heard(3, Word.STORY, made.story()))
    assert len(made.said) == 1


# ---- stories ----------------------------------------------------------------------------------------------


def fails(made: Made) -> None:
    seen = incident("failure", report(0, exit_code=1), culprits=[0])
    assert made.stories.will_tell(seen, ["what this node has seen"])
    made.stories.over(3)


@pytest.mark.parametrize("is_first", [True, False])
def test_the_story_is_told_once_and_instead_of_what_this_node_has_seen(made: Made, is_first: bool) -> None:
    steps = [lambda: made.stories.heard(Heard(3, Word.STORY, made.story())), lambda: fails(made)]
    for step in steps if is_first else steps[::-1]:
        step()
    made.stories.heard(Heard(3, Word.STORY, made.story()))
    made.stories.heard(Heard(3, Word.SILENCE))
    (lines,) = made.said
    assert lines[0].startswith("rank 1 on node b (pid 101) was killed by SIGSEGV")
    assert [(name, facts["culprits"], facts["nodes"]) for name, facts in made.events] == [("job_incident", [1], ["b"])]


@pytest.mark.parametrize("is_first", [True, False])
def test_where_no_story_comes_this_node_tells_what_it_has_seen(made: Made, is_first: bool) -> None:
    steps = [lambda: made.stories.heard(Heard(3, Word.SILENCE)), lambda: fails(made)]
    for step in steps if is_first else steps[::-1]:
        step()
    assert made.said == [("what this node has seen", "  note    the other nodes have not told what they have seen")]
    (about,) = made.said_about
    assert (about["event"], about["level"], about["ranks"], about["generation"]) == ("failure", ERROR, [0], 3)
    assert made.events == []


def test_a_node_that_has_seen_nothing_itself_says_nothing_where_no_story_comes(made: Made) -> None:
    made.look()
    made.stories.heard(Heard(3, Word.SILENCE))
    assert made.said == []


@pytest.mark.parametrize("is_before", [True, False])
def test_a_node_that_learns_of_the_end_alone_tells_the_story_too(
    made: Made, monkeypatch: pytest.MonkeyPatch, is_before: bool
) -> None:
    """It was ending its ranks for a change of the nodes when one of another node failed."""
    monkeypatch.setattr(incident_log, "announce", made._hear)
    told = threading.Timer(0.05, lambda: made.stories.heard(Heard(3, Word.STORY, made.story())))
    told.start()
    if is_before:
        told.join()
    IncidentLog(made.resources, made.stories).tell_ended_elsewhere(3, "the job has ended: no restart is left")
    told.join()
    story, end = made.said
    assert story[0].startswith("rank 1 on node b (pid 101) was killed by SIGSEGV")
    assert (end[0], end[1].strip()) == ("the job has ended: no restart is left", story[0])
    assert [name for name, _ in made.events] == ["job_incident"]


def test_a_verdict_that_was_withdrawn_is_no_failure(made: Made) -> None:
    assert made.stories.will_tell(incident("hang", report(0)), ["a verdict"])
    made.stories.withdrawn(3)
    made.stories.heard(Heard(3, Word.STORY, made.story()))
    assert made.said == []
    assert made.stories.story_of(3, 0.0) is None


def test_a_damaged_story_is_none(made: Made) -> None:
    fails(made)
    made.stories.heard(Heard(3, Word.STORY, "{"))
    assert made.said == []
    made.stories.heard(Heard(3, Word.SILENCE))
    assert len(made.said) == 1


def test_the_last_words_wait_for_the_story_and_no_longer_than_they_may(made: Made) -> None:
    fails(made)
    assert made.stories.story_of(3, 0.0) is None
    timer = threading.Timer(0.05, lambda: made.stories.heard(Heard(3, Word.STORY, made.story())))
    timer.start()
    story = made.stories.story_of(3, PATIENCE)
    timer.join()
    assert story is not None
    assert [each.rank.rank for each in story.culprits] == [1]


def test_the_incident_of_this_node_points_to_the_story(made: Made, tmp_path: Path) -> None:
    seen = incident("failure", report(0, exit_code=1)).write(str(tmp_path / "incidents"))
    made.stories.will_tell(seen, ["what this node has seen"])
    made.stories.heard(Heard(3, Word.STORY, made.story()))
    assert "rank 1 on node b" in (tmp_path / "incidents" / "0001" / "report.txt").read_text()
    assert (tmp_path / "incidents" / "0001" / "job_incident.json").exists()


def test_whoever_leads_decides_writes_and_tells(made: Made, tmp_path: Path) -> None:
    texts = {
        "b-1-x": account_text(
            incident("failure", report(1, exit_code=-11, ended_ns=9))._replace(node="b"), was_told=False
        ),
        "c-1-x": "{",
    }
    made.stories.gathered(Gathered(3, texts, ("d",), (), "a rank failed on b", 0.1))
    assert made.exchange.has_decided.wait(PATIENCE)
    ((generation, text),) = made.exchange.stories
    assert generation == 3
    assert '"silent": ["d", "c"]' in text
    made.stories._teller._decider.call(lambda: None, PATIENCE)  # it writes after that
    assert (tmp_path / "job_incidents" / "0001" / "report.txt").exists()


@pytest.mark.parametrize("nodes", [1, 65])
def test_a_report_that_cannot_be_written_is_not_pointed_to_where_few_nodes_are(
    made: Made, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    """Of many, what was seen is written after the story was told; that it cannot be is said here."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("launcher.incidents.job_incident.write_files", full)
    written = threading.Event()

    def announce(*lines: str, event: str) -> None:
        assert event == "log_folder"
        made.said.append(lines)
        written.set()

    monkeypatch.setattr(story_teller, "announce", announce)
    text = account_text(incident("failure", report(1, exit_code=-11, ended_ns=9))._replace(node="b"), was_told=False)
    made.stories.gathered(Gathered(3, {f"b-{n}-x": text for n in range(nodes)}, (), (), "", 0.1))
    assert made.exchange.has_decided.wait(PATIENCE)
    assert written.wait(PATIENCE)
    ((_, story),) = made.exchange.stories
    assert ('"folder": null' in story) == (nodes == 1)
    assert made.said[0][0].endswith("No space left on device")


def test_nothing_is_kept_of_generations_long_gone(made: Made) -> None:
    for number in range(3, 1000):
        made.current.number = number
        made.stories.began(made.current, made.stories._group)  # type: ignore[arg-type]
        made.stories.heard(Heard(number, Word.STORY, made.story(number)))
        made.stories.heard(Heard(number, Word.SILENCE))
        made.stories.over(number)
    teller = made.stories._teller
    assert len(made.said) == 997
    assert max(map(len, (teller._failures, teller._stories, teller._silent, teller._told))) <= 2


def test_on_one_node_there_is_nothing_to_tell(made: Made) -> None:
    alone = JobStories(made.resources, None)
    alone.began(made.current, made.stories._group)  # type: ignore[arg-type]
    alone.suspected(3)
    alone.has_verdict(3)
    alone.looked(None, 3)
    alone.failed(incident("failure", report(0)))
    alone.look(lambda *_: set(), lambda seen, condemned: seen, TOLD_NS)
    alone.over(3)
    alone.requested(3, 0, "enough")
    assert not alone.will_tell(incident("failure", report(0)), ["a failure"])
    assert alone.story_of(3, 0.0) is None
    assert made.exchange.said == []
    alone.close()
