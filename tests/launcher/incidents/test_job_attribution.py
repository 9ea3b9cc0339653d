"""Who is to blame for a failure of several nodes: no clock of two machines is compared, no victim is named."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.incidents.incident import ELSEWHERE, Incident
from launcher.incidents.job_attribution import JobAttribution, attribute_job
from launcher.incidents.node_accounts import NodeAccount
from launcher.incidents.rank_report import RankReport
from launcher.processes.evidence import Evidence
from resilience_core.protocol.error_record import ErrorRecord
from resilience_core.protocol.group_numbers import GroupNumber

LOST_A_PEER = ErrorRecord("RuntimeError", "gloo/transport: Connection closed by peer", at_ns=5, is_consequence=True)
OWN = ErrorRecord("ValueError", "bad batch", at_ns=50, iteration=7)
GAVE_UP = ErrorRecord("TimeoutError", "no batch", at_ns=50, iteration=7)
WAITS = {"waits": True, "waits_at": "train.py:20", "stands_at": "train.py:20"}
LOST = {"error": LOST_A_PEER, "exit_code": 1, "ended_ns": 5}
OUTSIDE = {"waits": False, "stands_at": "train.py:31"}


def evidence(rank: int, **known: Any) -> Evidence:
    return Evidence(rank % 2, **{"iteration": 7, "state": "S", "is_monitored": True, **known})


def account(
    node: str, *ranks: tuple[int, dict[str, Any]], kind: str = ELSEWHERE, was_told: bool = False, **more: Any
) -> NodeAccount:
    reports = []
    for rank, known in ranks:
        seen = evidence(rank, **known)
        reports.append(
            RankReport(
                *(rank, rank % 2, 100 + rank),
                is_condemned=seen.is_condemned,
                is_culprit=rank in more.get("culprits", ()),
                exit_code=seen.exit_code,
                error=seen.error,
                evidence=seen,
            )
        )
    return NodeAccount(Incident(kind, 3, more.get("why", "?"), "none", tuple(reports), node=node), was_told)


def named(*accounts: NodeAccount, **how: Any) -> tuple[int, ...]:
    return attribute_job(accounts, **how).ranks


def hang(node: str, *ranks: tuple[int, dict[str, Any]]) -> NodeAccount:
    return account(node, *((rank, {"is_condemned": True, **known}) for rank, known in ranks), kind="hang")


GONE = {"has_left": True, "state": "S"}
EXITED = {"exit_code": 1, "ended_ns": 60}


@pytest.mark.parametrize(
    ("done", "others", "ranks"),
    [
        ({"iteration": 7}, 7, (0, 2, 3)),
        ({"iteration": 8}, 7, (0, 2, 3)),
        ({"iteration": 6}, 7, (0, 2)),
        ({"iteration": -1}, -1, (0, 2, 3)),
        ({"iteration": 7, "open_sections": ("step",)}, 7, (0, 2)),
    ],
)
def test_who_exits_beside_ranks_that_have_done_as_much_as_all_others_is_named_with_them(
    done: dict[str, Any], others: int, ranks: tuple[int, ...]
) -> None:
    """Two ranks that had finished were named alone, although nobody needed them, and not those that exited."""
    found = attribute_job(
        [
            account("a", (0, {**GONE, **done}), (1, {**EXITED, "iteration": others}), was_told=True),
            account("b", (2, {**GONE, **done}), (3, {**EXITED, "iteration": others}), kind="failure"),
        ]
    )
    assert found.ranks == ranks
    assert found.why.startswith("likely: finished its training while the others still needed it")
    assert ("it cannot be told which came first" in found.why) == (len(ranks) == 3)
    assert "rank 3 on node b: ended by itself, without an exception on record" in found.why


UNMONITORED = {"exit_code": 1, "ended_ns": 60, "is_monitored": False}


@pytest.mark.parametrize(
    ("iterations", "was_told", "ranks"), [((7, 7), False, (1, 2)), ((7, 7), True, (2,)), ((-1, -1), False, (2,))]
)
def test_who_exits_with_1_and_no_word_is_named_with_one_that_has_finished_where_it_was_as_far(
    iterations: tuple[int, int], was_told: bool, ranks: tuple[int, ...]
) -> None:
    """It may have failed after its loop, or have lost the one that had left; where it was told first, the latter."""
    exited, done = iterations
    found = attribute_job(
        [
            account("a", (1, {**UNMONITORED, "iteration": exited}), kind="failure", was_told=was_told),
            account("b", (2, {**GONE, "iteration": done, "exit_code": 0, "ended_ns": 9}), kind="failure"),
        ]
    )
    assert found.ranks == ranks
    assert found.why.startswith("likely: ended with 0 while the others still needed it") or len(ranks) == 1


@pytest.mark.parametrize(("was_told", "ranks"), [(False, (1, 2)), (True, (1,))])
def test_who_exits_with_1_and_no_word_may_be_what_another_exits_for(was_told: bool, ranks: tuple[int, ...]) -> None:
    """Only the one with another code was named, which had lost the first."""
    found = attribute_job(
        [
            account("a", (1, UNMONITORED), kind="failure"),
            account("b", (2, {"exit_code": 3, "ended_ns": 60}), kind="failure", was_told=was_told),
        ]
    )
    assert found.ranks == ranks
    assert found.why.startswith("likely: ")


def test_who_exits_for_one_that_raised_or_died_is_not_named_for_having_said_nothing() -> None:
    for how in ({"error": OWN, "exit_code": 1, "ended_ns": 60}, {"exit_code": -9, "ended_ns": 60}):
        found = attribute_job(
            [
                account("a", (1, {**UNMONITORED}), kind="failure", was_told=True),
                account("b", (2, how), kind="failure"),
            ]
        )
        assert found.ranks == (2,)


# ---- a process ended or raised ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"error": OWN, "exit_code": 1, "ended_ns": 60}, "raised ValueError"),
        ({"error": OWN}, "raised ValueError .* has not ended yet"),
        ({"exit_code": -11, "ended_ns": 60}, "killed by SIGSEGV"),
        ({"exit_code": -9, "ended_ns": 60}, "killed by SIGKILL"),
        ({"exit_code": 3, "ended_ns": 60}, "ended by itself"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_who_fails_by_itself_is_named_and_who_lost_it_is_not_whatever_the_clocks_say(
    how: dict[str, Any], why: str, is_first: bool
) -> None:
    """The victim's clock is far behind, so that its failure looks earlier by the numbers."""
    accounts = [account("a", (0, LOST), (1, LOST), kind="failure"), account("b", (2, how), (3, WAITS), kind="failure")]
    found = attribute_job(accounts if is_first else accounts[::-1])
    assert found.ranks == (2,)
    assert found.nodes == ()
    assert re.search(why, found.why)


def test_a_rank_that_fails_after_its_node_was_told_of_another_failure_is_not_named() -> None:
    late = account("a", (0, {"error": OWN._replace(type="KeyError"), "exit_code": 1}), kind="failure", was_told=True)
    first = account("b", (2, {"error": OWN, "exit_code": 1, "ended_ns": 60}), kind="failure")
    assert named(late, first) == (2,)


def test_where_all_were_told_somebody_is_named_all_the_same() -> None:
    assert named(account("a", (0, {"error": OWN, "exit_code": 1}), kind="failure", was_told=True)) == (0,)


def test_the_same_failure_on_several_nodes_is_told_as_one() -> None:
    each = {"error": OWN, "exit_code": 1, "ended_ns": 60}
    found = attribute_job([account("a", (0, each), (1, WAITS)), account("b", (2, each)), account("c", (4, WAITS))])
    assert found.ranks == (0, 2)
    assert found.why.startswith("likely: 2 ranks on 2 nodes failed alike: raised ValueError")


def test_a_failure_of_every_rank_is_a_fact() -> None:
    """Nobody is left who may have caused it."""
    each = {"error": OWN, "exit_code": 1, "ended_ns": 60}
    found = attribute_job([account("a", (0, each), (1, each)), account("b", (2, each), (3, each))])
    assert found.ranks == (0, 1, 2, 3)
    assert found.why == "4 ranks on 2 nodes failed alike: raised ValueError"


def test_a_rank_that_has_passed_its_limit_outside_any_collective_is_named_before_those_that_gave_it_up() -> None:
    """They raise what they want when their wait has ended."""
    gave_up = {"error": OWN, "exit_code": 1, "ended_ns": 60}
    accounts = [account("a", (0, gave_up), (1, gave_up), kind="failure"), hang("b", (2, OUTSIDE), (3, WAITS))]
    found = attribute_job(accounts)
    assert found.ranks == (2,)
    assert found.why.startswith("likely: its stack stands outside any collective, where it has passed its limit")
    assert "not certain, since rank 0, 1 on node a: 2 ranks raised the same ValueError" in found.why


@pytest.mark.parametrize("waits", [{}, OUTSIDE, WAITS])
def test_a_stopped_rank_whose_peers_gave_it_up_is_a_fact(waits: dict[str, Any]) -> None:
    accounts = [account("a", (0, LOST), (1, LOST), kind="failure"), hang("b", (2, {**waits, "state": "T"}), (3, WAITS))]
    found = attribute_job(accounts)
    assert (found.ranks, found.why) == ((2,), "the process is stopped (SIGSTOP)")
    raised = {"error": OWN, "exit_code": 1, "ended_ns": 60}
    found = attribute_job([account("a", (0, raised), kind="failure"), accounts[1]])
    assert found.ranks == (2,)
    assert found.why.startswith("likely: the process is stopped (SIGSTOP); not certain, since rank 0 on node a")


def test_a_failure_beside_a_hang_of_ranks_that_wait_is_likely() -> None:
    raised = {"error": OWN, "exit_code": 1, "ended_ns": 60}
    found = attribute_job([account("a", (0, raised), kind="failure"), hang("b", (2, WAITS), (3, WAITS))])
    assert found.ranks == (0,)
    assert found.why.startswith("likely: raised ValueError")
    assert found.why.endswith("; not certain, since it may have failed for one that hangs")


@pytest.mark.parametrize("code", [-11, -9])
def test_a_rank_that_dies_after_it_has_lost_its_peer_is_a_victim(code: int) -> None:
    dead = {"error": LOST_A_PEER, "exit_code": code, "ended_ns": 60}
    assert named(account("a", (0, dead), (1, WAITS), kind="failure"), account("b", (2, WAITS))) == ()
    killed = account("a", (0, dead), (1, {"exit_code": -9, "ended_ns": 70}), kind="failure")
    assert named(killed, account("b", (2, WAITS))) == (1,)


def test_who_exits_without_a_word_may_have_given_up_on_the_one_that_stands_outside() -> None:
    gone = {"exit_code": 5, "ended_ns": 60}
    accounts = [account(n, (r, gone), (r + 1, gone), kind="failure") for n, r in (("a", 0), ("b", 2))]
    assert named(*accounts, account("c", (4, OUTSIDE), (5, gone))) == (4,)
    assert attribute_job(accounts).why.startswith("likely: ")


def test_a_rank_whose_interpreter_ends_holds_nobody_up() -> None:
    """It has lost its peer, caught that, and ends with an exit code."""
    ending = {**OUTSIDE, "is_finalizing": True, "stands_at": ""}
    gone = account("b", (2, {}), (3, {"exit_code": 9, "ended_ns": 60}), kind="failure")
    for others in ([ending, ending], [ending, WAITS]):
        found = attribute_job([account("a", (0, others[0]), (1, others[1])), gone])
        assert found.ranks == (3,)
        assert found.why.startswith("likely: ended by itself, without an exception on record")
    assert named(hang("a", (0, ending), (1, WAITS)), account("b", (2, WAITS))) == (0,), "it hangs"


def test_a_rank_that_hangs_since_it_has_lost_a_thread_is_told_by_where_it_stands() -> None:
    lost = {**OUTSIDE, "error": OWN._replace(thread="loader")}
    nobody_failed = [hang("a", (0, lost), (1, WAITS)), hang("b", (2, WAITS), (3, WAITS))]
    others_gave_up = [account("a", (0, LOST), (1, LOST), kind="failure"), hang("b", (2, lost), (3, WAITS))]
    for accounts, culprit in ((nobody_failed, 0), (others_gave_up, 2)):
        found = attribute_job(accounts)
        assert found.ranks == (culprit,)
        assert "outside any collective" in found.why


def test_a_crash_is_no_fact_where_a_rank_of_another_node_has_exited_by_itself() -> None:
    """It may have crashed in what it took down, having lost that one."""
    gone = account("b", (2, {"exit_code": 9, "ended_ns": 60}), (3, {}), kind="failure")
    found = attribute_job([account("a", (0, {"exit_code": -11, "ended_ns": 60}), (1, {}), kind="failure"), gone])
    assert found.ranks == (0,)
    assert found.why.startswith("likely: killed by SIGSEGV; not certain, since rank 2 on node b: ended by itself")
    killed = account("a", (0, {"exit_code": -9, "ended_ns": 60}), (1, {}), kind="failure")
    assert attribute_job([killed, gone]) == JobAttribution((0,), (), "killed by SIGKILL")


def test_a_crash_is_no_cause_where_one_like_it_came_after_another_rank_had_exited() -> None:
    gone = account("b", (2, {"exit_code": -11}), (3, {"exit_code": 9, "ended_ns": 60}), kind="failure")
    found = attribute_job([account("a", (0, {"exit_code": -11, "ended_ns": 60}), (1, {}), kind="failure"), gone])
    assert found.ranks == (3,)
    assert found.why.startswith("likely: ended first, ")
    assert found.why.endswith("not certain, since rank 0 on node a: killed by SIGSEGV")
    otherwise = account("a", (0, {"exit_code": -4, "ended_ns": 60}), (1, {}), kind="failure")
    assert named(otherwise, gone) == (0,)


def test_who_was_killed_is_named_before_who_has_crashed_on_another_node() -> None:
    killed = account("b", (2, {}), (3, {"exit_code": -9, "ended_ns": 60}), kind="failure")
    crashed = account("a", (0, {"exit_code": -11, "ended_ns": 60}), (1, {}), kind="failure")
    found = attribute_job([crashed, killed])
    assert found.ranks == (3,)
    assert found.why == "likely: killed by SIGKILL; not certain, since rank 0 on node a: killed by SIGSEGV"


def test_an_exception_is_named_beside_a_rank_of_another_node_that_has_exited_by_itself() -> None:
    """It may be how its script gives up a peer that it has lost."""
    gone = account("b", (2, {"exit_code": 9, "ended_ns": 60}), (3, {}), kind="failure")
    found = attribute_job([account("a", (0, {"error": OWN, "exit_code": 1, "ended_ns": 60}), (1, {})), gone])
    assert found.ranks == (0, 2)
    assert found.why.startswith("likely: 2 nodes failed by themselves, and it cannot be told which came first")


def test_ranks_of_two_nodes_have_not_failed_alike_where_they_had_raised_different_exceptions_before() -> None:
    first, second = (OWN._replace(earlier=f"RuntimeError: {n}") for n in range(2))
    for error, begin in ((first, "2 ranks on 2 nodes failed alike"), (second, "likely: 2 nodes failed by themselves")):
        each = (
            account("a", (0, {"error": first}), kind="failure"),
            account("b", (2, {"error": error}), kind="failure"),
        )
        found = attribute_job(each)
        assert found.ranks == (0, 2)
        assert found.why.startswith(begin)


def test_an_exception_is_named_beside_a_rank_of_another_node_that_has_ended_with_1_and_kept_none() -> None:
    """A victim that logs its lost peer may raise anything afterwards; its culprit may log, and exit with 1."""
    last, first = ({"exit_code": 1, "ended_ns": ns, "is_monitored": False} for ns in (61, 60))
    raised = account("a", (0, {"error": OWN, "exit_code": 1, "ended_ns": 60}), (1, {}), kind="failure")
    found = attribute_job([raised, account("b", (2, last), (3, first), kind="failure")])
    assert found.ranks == (0, 3)
    assert found.why == (
        "likely: 2 nodes failed by themselves, and it cannot be told which came first (node a: raised ValueError; node "
        "b: ended by itself, without an exception on record)"
    )
    # Not one that was told of a failure before, or has an exception on record; and nobody is killed for it.
    for other in (account("b", (2, first), was_told=True), account("b", (2, LOST | {"is_monitored": False}))):
        assert attribute_job([raised, other]).why.startswith("raised ValueError")
    killed = account("a", (0, {"exit_code": -9, "ended_ns": 60}), (1, {}), kind="failure")
    assert attribute_job([killed, account("b", (2, first))]).why == "killed by SIGKILL"


def test_who_has_ended_with_0_before_one_rank_raised_is_named_where_it_was_needed_and_a_doubt_elsewhere() -> None:
    """What a script raises that has lost a peer may be anything."""
    raised = account("a", (0, {"error": OWN, "exit_code": 1, "ended_ns": 60}), kind="failure")
    gone = {"exit_code": 0, "has_left": True, "ended_ns": 60, "last_sign_ns": 40}
    for left in ({**gone, "iteration": 6}, {**gone, "open_sections": ("step",)}):
        found = attribute_job([raised, account("b", (2, left))])
        assert found.ranks == (2,)
        assert found.why == (
            "likely: ended with 0 before another rank raised ValueError; not certain, since that one may have done so "
            "by itself"
        )
    found = attribute_job([raised, account("b", (2, gone))])
    assert (found.ranks, found.why) == ((0,), "likely: raised ValueError; not certain, since rank 2 had ended with 0")


@pytest.mark.parametrize(("code", "how"), [(-9, "SIGKILL"), (-11, "SIGSEGV")])
def test_who_has_died_is_named_before_who_raised_on_another_node(code: int, how: str) -> None:
    died = account("b", (2, {}), (3, {"exit_code": code, "ended_ns": 60}), kind="failure")
    found = attribute_job([account("a", (0, {"error": OWN}), (1, {}), kind="failure"), died])
    assert found.ranks == (3,)
    assert found.why.startswith(f"likely: killed by {how}; not certain, since rank 0 on node a: raised ValueError")


def test_a_rank_that_was_getting_on_holds_nobody_up() -> None:
    """A job whose ranks have nothing to do with each other: one exits, and the other is in its next step."""
    gone = account("a", (0, {"exit_code": 1, "ended_ns": 60}), kind="failure")
    assert named(gone, account("b", (2, OUTSIDE))) == (2,)
    found = attribute_job([gone, account("b", (2, {**OUTSIDE, "is_lively": True}))])
    assert found.ranks == (0,)
    assert "exit" in found.why or "ended by itself" in found.why


def test_a_rank_that_computes_is_not_named_before_one_that_has_exited() -> None:
    """Without monitoring nothing tells whether it was getting on; one that sleeps there may have been waited for."""
    gone = account(
        "b", (2, {"exit_code": 3, "ended_ns": 60, "has_begun": False, "is_monitored": False}), kind="failure"
    )
    outside = {**OUTSIDE, "may_wait": True, "has_begun": False, "is_monitored": False}
    assert named(account("a", (0, {**outside, "state": "R", "is_busy": True})), gone) == (2,)
    two = account("a", (0, {**outside, "is_busy": False}), (1, {**outside, "is_busy": False}))
    assert named(two, gone) == (2,), "several hardly hang at once"
    found = attribute_job([account("a", (0, {**outside, "is_busy": False})), gone])
    assert found.ranks == (0, 2)
    assert found.why.startswith("likely: its stack stands outside any collective, the others have failed or ended, or ")
    assert "rank 2 on node b: ended by itself, without an exception on record" in found.why
    accounts = [account("a", (0, {**outside, "is_busy": False}), (1, WAITS)), gone]
    assert "the others wait or have failed or ended, or failed: " in attribute_job(accounts).why
    assert named(account("a", (0, {**outside, "is_busy": False})), gone._replace(was_told=True)) == (0,)
    assert named(account("a", (0, {**OUTSIDE, "may_wait": True})), gone) == (0,), "its limits will tell"


def test_who_gives_up_by_sys_exit_is_named_beside_one_that_exits_without_an_exception() -> None:
    """Both are exits, which no clock orders."""
    gone = account("b", (2, {"exit_code": 9, "ended_ns": 60}), kind="failure")
    found = attribute_job([account("a", (0, {"error": OWN._replace(type="SystemExit", message="3")})), gone])
    assert found.ranks == (0, 2)
    assert "it cannot be told which came first" in found.why


@pytest.mark.parametrize(
    ("gone", "raised", "who"),
    [
        ({"left_group_ns": 7}, {}, (0, 2)),
        ({"left_group_ns": 7}, {"left_group_ns": 49}, (0, 2)),
        ({"left_group_ns": 7}, {"left_group_ns": 1, "error": OWN._replace(at_ns=10**9)}, (0,)),
        ({"left_group_ns": 7, "has_left": True}, {}, (0,)),
        ({"left_group_ns": 7, **LOST}, {}, (0,)),
    ],
    ids=["of another node", "both", "out before", "finished", "a victim"],
)
def test_who_has_destroyed_its_group_on_another_node_is_named_beside_one_that_raised(
    gone: dict[str, Any], raised: dict[str, Any], who: tuple[int, ...]
) -> None:
    """No clock tells which came first."""
    own = account("a", (0, {"error": OWN, "exit_code": 1, "ended_ns": 60, **raised}), kind="failure")
    found = attribute_job([own, account("b", (2, {**gone, "left_group_ns": 7}))])
    assert found.ranks == who
    doubt = "likely: raised ValueError; not certain, since rank 2 had destroyed its process group, perhaps before"
    assert found.why == (doubt if len(who) == 2 else "raised ValueError")


@pytest.mark.parametrize(("code", "name"), [(-11, "SIGSEGV"), (-9, "SIGKILL")])
def test_who_has_destroyed_its_group_on_another_node_is_named_beside_one_that_crashed(code: int, name: str) -> None:
    """Not beside one that was killed, which comes of nothing."""
    died = account("a", (0, {"exit_code": code, "ended_ns": 60}), kind="failure")
    found = attribute_job([died, account("b", (2, {"left_group_ns": 7}))])
    doubt = "; not certain, since rank 2 had destroyed its process group, perhaps before"
    crashed = ((0, 2), f"likely: killed by {name}{doubt}")
    assert found[::2] == (crashed if code == -11 else ((0,), f"killed by {name}"))
    # One that stands outside any collective is no reason for a crash.
    assert attribute_job([died, account("b", (2, OUTSIDE))]).why == f"killed by {name}"


def test_who_has_destroyed_its_group_after_another_one_of_its_node_had_raised_is_no_culprit() -> None:
    known = {"error": OWN, "exit_code": 1, "ended_ns": 60}
    own = account("a", (0, known), (1, {"left_group_ns": 70}), kind="failure")
    assert attribute_job([own, account("b", (2, WAITS))])[::2] == (
        (0,),
        "raised ValueError before any other failure was seen",
    )


def test_an_exception_is_no_fact_where_a_rank_of_another_node_may_have_failed_before() -> None:
    """One that cleans up stands outside any collective; its exception is on record once it leaves the script."""
    raised = account("a", (0, {"error": OWN, "exit_code": 1, "ended_ns": 60}), kind="failure")
    found = attribute_job([raised, account("b", (2, OUTSIDE))])
    assert found.ranks == (0,)
    assert found.why == (
        "likely: raised ValueError; not certain, since rank 2 stands outside any collective, and may have failed before"
    )
    asleep = {"kernel_wait": "hrtimer_nanosleep"}
    assert attribute_job([raised, account("b", (2, asleep))]).why == found.why
    for innocent in ({**OUTSIDE, "is_lively": True}, WAITS, {**OUTSIDE, **LOST}, {**WAITS, **asleep}, {}):
        assert not attribute_job([raised, account("b", (2, innocent))]).why.startswith("likely")
    died = account("a", (0, {"exit_code": -9, "ended_ns": 60}), kind="failure")
    assert attribute_job([died, account("b", (2, OUTSIDE))]).why == "killed by SIGKILL"


LEFT = {"exit_code": 0, "has_left": True, "ended_ns": 60, "last_sign_ns": 40}


def test_who_has_ended_with_0_is_named_where_all_others_that_failed_raised_the_same() -> None:
    raised = {"error": OWN, "exit_code": 1, "ended_ns": 60, "has_left": True}
    accounts = [account("a", (0, raised), (1, {**raised, "exit_code": None})), account("b", (2, LEFT), (3, raised))]
    found = attribute_job(accounts)
    assert found.ranks == (2,)
    assert found.why == (
        "likely: ended with 0 before 3 ranks raised ValueError alike; not certain, since they may have done so by "
        "themselves"
    )
    other = {**raised, "error": OWN._replace(type="KeyError")}
    assert 2 not in named(account("a", (0, raised), (1, other)), account("b", (2, LEFT), (3, raised)))
    died = {"exit_code": -9, "ended_ns": 60}
    assert named(account("a", (0, raised), (1, died)), account("b", (2, LEFT), (3, raised))) == (1,)
    assert named(account("a", (0, WAITS), (1, WAITS)), account("b", (2, LEFT), (3, raised))) == (3,), "one alone"


def test_iterations_do_not_order_two_failures_either() -> None:
    """Who is a step behind may have given up since the other one has."""
    early = {"error": OWN._replace(type="KeyError", iteration=6), "exit_code": 1, "ended_ns": 10**15}
    late = {"error": OWN, "exit_code": 1, "ended_ns": 1}
    found = attribute_job([account("a", (0, late)), account("b", (2, early))])
    assert found.ranks == (0, 2)
    assert found.why.startswith("likely: 2 nodes failed by themselves, and it cannot be told which came first")


def test_who_has_raised_and_not_ended_is_named_beside_the_one_whose_end_was_seen_first() -> None:
    """It may have told the other one to give up, and save something on its way out."""
    gave_up = {"error": OWN._replace(type="Aborted", message="so was I told"), "exit_code": 1, "ended_ns": 60}
    first = account("a", (0, WAITS), (1, {"error": OWN, "has_left": True}))
    found = attribute_job([account("b", (2, gave_up), (3, WAITS), kind="failure"), first])
    assert found.ranks == (1, 2)
    assert found.why == (
        "likely: 2 nodes failed by themselves, and it cannot be told which came first "
        "(node b: raised Aborted; node a: raised ValueError, and has not ended yet)"
    )


def test_what_several_ranks_of_a_node_raised_is_named_beside_what_one_of_another_node_did() -> None:
    """That they may have one cause elsewhere makes none of them a victim."""
    raised = {"error": OWN._replace(type="KeyError"), "exit_code": 1, "ended_ns": 60}
    both = account("a", (0, raised), (1, raised), kind="failure")
    found = attribute_job([both, account("b", (2, {"error": OWN, "exit_code": 1}), (3, WAITS), kind="failure")])
    assert found.ranks == (0, 1, 2)
    assert found.why.endswith("(node a: 2 ranks raised the same KeyError; node b: raised ValueError)")


def test_who_has_given_up_a_wait_is_named_beside_one_that_has_raised() -> None:
    """It may have waited for a disk, and told the other one of it; not so where it has lost a peer of torch's."""
    raised = account("a", (0, {"error": OWN, "exit_code": 1}), (1, WAITS), kind="failure")
    found = attribute_job([raised, account("b", (2, {"error": GAVE_UP}), (3, WAITS))])
    assert found.ranks == (0, 2)
    assert found.why.endswith("(node a: raised ValueError; node b: raised TimeoutError, and has not ended yet)")
    in_torch = GAVE_UP._replace(traceback='  File "torch/distributed/distributed_c10d.py", line 3, in barrier\n')
    found = attribute_job([raised, account("b", (2, {"error": in_torch, "exit_code": 1}), (3, WAITS))])
    assert (found.ranks, found.why) == ((0,), "raised ValueError before any other failure was seen")


def test_the_same_exception_on_two_nodes_is_one_whether_or_not_the_process_has_ended() -> None:
    accounts = [account("a", (0, {"error": OWN}), (1, WAITS)), account("b", (2, {"error": OWN, "exit_code": 1}))]
    found = attribute_job(accounts)
    assert (found.ranks, found.why) == ((0, 2), "likely: 2 ranks on 2 nodes failed alike: raised ValueError")


def test_of_two_failures_that_nothing_orders_both_are_told_as_likely() -> None:
    one = {"error": OWN._replace(type="KeyError"), "exit_code": 1, "ended_ns": 9}
    other = {"error": OWN, "exit_code": 1, "ended_ns": 1}
    found = attribute_job([account("a", (0, other)), account("b", (2, one))])
    assert found.ranks == (0, 2)
    assert found.why.startswith("likely: 2 nodes failed by themselves, and it cannot be told which came first (node a:")


def test_who_may_have_failed_for_another_is_not_named_beside_one_that_surely_has_not() -> None:
    doubtful = {"error": GAVE_UP, "exit_code": 1, "ended_ns": 1}
    sure = {"exit_code": -11, "ended_ns": 10**15}
    assert named(account("a", (0, doubtful)), account("b", (2, sure))) == (2,)
    found = attribute_job([account("a", (0, doubtful)), account("b", (2, WAITS))])
    assert found.ranks == (0,)
    assert found.why.startswith("likely: ")


def test_a_failure_that_our_question_may_have_caused_names_nobody() -> None:
    woken = {"asked_ns": 10, "error": OWN, "exit_code": 1, "ended_ns": 60}
    assert named(account("a", (0, woken)), hang("b", (2, OUTSIDE), (3, WAITS))) == (2,)


ABORTED = {"exit_code": -6, "ended_ns": 9}


def test_ranks_that_were_aborted_for_another_are_not_named_where_that_one_stands_outside() -> None:
    """A watchdog of a collective library aborts whoever waits for the one that is stuck."""
    accounts = [account(n, (r, ABORTED), (r + 1, WAITS), kind="failure") for n, r in (("a", 0), ("b", 2), ("c", 4))]
    stuck = account("d", (6, OUTSIDE), (7, WAITS))
    assert named(*accounts, stuck) == (6,)
    found = attribute_job(accounts)
    assert found.why.startswith("likely: 3 ranks on 3 nodes failed alike: ended")


def test_who_was_aborted_after_a_hang_was_found_elsewhere_is_a_victim_of_it() -> None:
    accounts = [hang("a", (0, WAITS), (1, WAITS)), account("b", (2, ABORTED), (3, WAITS), was_told=True)]
    assert named(*accounts, account("c", (4, WAITS), (5, OUTSIDE))) == (5,)


@pytest.mark.parametrize("code", [134, 137, 143])
def test_a_shell_that_reports_a_signal_is_named_as_likely_alone(code: int) -> None:
    ended = account("a", (0, {"exit_code": code, "ended_ns": 9}), (1, WAITS), kind="failure")
    found = attribute_job([ended, account("b", (2, WAITS))])
    assert found.ranks == (0,)
    assert found.why.startswith("likely: ")
    assert named(ended, account("b", (2, {"exit_code": -11, "ended_ns": 9}), kind="failure")) == (2,)


def test_two_kills_for_two_reasons_are_not_one_failure() -> None:
    killed = {"exit_code": -9, "ended_ns": 9}
    by_kernel = account("a", (0, killed), kind="failure", culprits=(0,), why="killed by the kernel, out of memory")
    by_hand = account("b", (2, killed), kind="failure", culprits=(2,), why="killed by SIGKILL")
    found = attribute_job([by_kernel, by_hand])
    assert found.why.startswith("likely: 2 nodes failed by themselves")
    assert "node a: killed by the kernel, out of memory; node b: killed by SIGKILL" in found.why


def test_a_rank_that_waits_in_vain_for_one_that_hangs_is_not_the_cause() -> None:
    """Nobody was late by our limits: a timeout of the collective library has ended the wait."""
    accounts = [account("a", (0, LOST), (1, WAITS), kind="failure"), account("b", (2, OUTSIDE), (3, WAITS))]
    assert named(*accounts) == (2,)


def test_of_ranks_that_have_just_failed_iterations_tell_nothing() -> None:
    accounts = [account("a", (0, LOST), kind="failure"), account("b", (2, {"iteration": 6}), (3, {"iteration": 7}))]
    assert named(*accounts) == ()


def test_a_rank_of_which_nothing_is_known_may_be_the_cause() -> None:
    unknown = account("b", kind="failure")
    unknown = unknown._replace(incident=unknown.incident._replace(ranks=(RankReport(2, 0, 102),)))
    found = attribute_job([hang("a", (0, WAITS)), unknown])
    assert found.ranks == ()


def test_who_has_asked_for_the_end_is_told_before_all_else() -> None:
    asking = account("a", (1, {}), kind="request")
    found = attribute_job([asking, account("b", (2, LOST))], silent=["c"])
    assert found == JobAttribution((1,), (), "it has asked for the end of the job")


# ---- a node is gone ---------------------------------------------------------------------------------------


def test_a_lost_node_is_named_where_the_others_only_lost_their_peers() -> None:
    found = attribute_job(
        [account("a", (0, LOST), (1, WAITS), kind="failure")],
        lost=["c"],
        why_lost="the launcher of node c was killed",
    )
    assert found.ranks == ()
    assert found.nodes == ("c",)
    assert found.why == "node c is lost (the launcher of node c was killed)"


def test_a_rank_that_failed_by_itself_is_named_before_a_node_that_was_lost_later() -> None:
    found = attribute_job([account("a", (0, {"exit_code": -11, "ended_ns": 60}), kind="failure")], lost=["c"])
    assert found.ranks == (0,)
    assert found.why == "likely: killed by SIGSEGV; not certain, since node c is lost as well"


def test_a_rank_that_fails_once_its_node_knows_of_a_lost_one_is_not_the_cause() -> None:
    late = account("a", (0, {"exit_code": -11, "ended_ns": 60}), kind="failure", was_told=True)
    found = attribute_job([late], lost=["c"])
    assert found.nodes == ("c",)
    assert found.why == "likely: node c is lost; not certain, since rank 0 on node a: killed by SIGSEGV"


def test_a_rank_that_was_ending_when_a_node_was_lost_is_told() -> None:
    found = attribute_job([account("a", (0, {"has_left": True}), (1, WAITS))], lost=["c"])
    assert found.why == "likely: node c is lost; not certain, since rank 0 was ending"


def test_the_one_node_that_does_not_answer_is_the_likely_cause_where_all_others_wait() -> None:
    waiting = [account("a", (0, LOST), (1, WAITS), kind="failure"), account("b", (2, WAITS))]
    found = attribute_job(waiting, silent=["c"])
    assert found == JobAttribution((), ("c",), found.why)
    assert found.why.startswith("likely: node c has not answered")
    assert attribute_job(waiting, silent=["c", "d"]).nodes == ()


def test_where_a_node_is_silent_and_a_rank_elsewhere_may_be_the_cause_no_node_is_named() -> None:
    found = attribute_job([account("a", (0, LOST), (1, {"waits": None}), kind="failure")], silent=["c"])
    nobody = "no rank that was heard of is known to have failed by itself, and node c has not answered"
    assert found == JobAttribution((), (), nobody)


@pytest.mark.parametrize("known", [OUTSIDE, {"waits": False, "has_left": True, "is_monitored": False}])
def test_a_rank_that_cleans_up_after_a_lost_connection_is_no_fact(known: dict[str, Any]) -> None:
    """It has stopped waiting since its peer is gone, and its exception is on record only later."""
    seen = [account("a", (0, LOST), (1, LOST), kind="failure"), account("b", (2, known), (3, LOST), was_told=True)]
    found = attribute_job(seen)
    assert found.ranks == (2,)
    assert found.why.startswith("likely: ")
    assert found.why.endswith("not certain, since it may have lost a peer as the others have")
    found = attribute_job(seen, silent=["c"])
    assert found.ranks == found.nodes == ()


def test_a_stopped_rank_is_likely_while_a_node_is_silent() -> None:
    seen = [account("a", (0, LOST), (1, LOST), kind="failure"), account("b", (2, {"state": "T"}), was_told=True)]
    found = attribute_job(seen, silent=["c"])
    assert (found.ranks, found.why.partition(";")[2]) == ((2,), " not certain, since node c has not answered")


def test_a_failure_of_which_a_silent_node_may_be_the_cause_is_likely() -> None:
    failed = (0, {"error": OWN, "exit_code": 1})
    late = attribute_job([account("a", failed, kind="failure", was_told=True)], silent=["c", "d"])
    assert late.ranks == (0,)
    assert late.why.startswith("likely: raised ValueError")
    assert late.why.endswith("not certain, since nodes c, d have not answered")
    assert not attribute_job([account("a", failed, kind="failure")], silent=["c"]).why.startswith("likely: ")


def test_who_may_have_heard_the_story_already_is_not_blamed_for_silence() -> None:
    waiting = [account("a", (0, LOST), (1, WAITS), kind="failure"), account("b", (2, WAITS))]
    assert attribute_job(waiting, silent=["c"], may_blame_silent=False).nodes == ()


# ---- a hang -----------------------------------------------------------------------------------------------


def test_a_rank_outside_any_collective_is_named_though_another_node_was_the_first_to_be_late() -> None:
    accounts = [hang("a", (0, WAITS), (1, WAITS)), account("b", (2, WAITS), (3, OUTSIDE)), hang("c", (4, WAITS))]
    found = attribute_job(accounts)
    assert found.ranks == (3,)
    assert "stands outside any collective, the others wait in one" in found.why


def test_a_stopped_rank_on_a_node_that_was_not_late_is_named() -> None:
    accounts = [hang("a", (0, WAITS), (1, WAITS)), account("b", (2, {"state": "T"}), (3, WAITS))]
    assert named(*accounts) == (2,)


def test_a_rank_that_waits_elsewhere_than_all_others_is_named_across_nodes() -> None:
    elsewhere = {**WAITS, "waits_at": "train.py:40"}
    accounts = [hang("a", (0, WAITS), (1, WAITS)), hang("b", (2, elsewhere), (3, WAITS))]
    found = attribute_job(accounts)
    assert found.ranks == (2,)
    assert found.why.startswith("likely: waits elsewhere than the others")


@pytest.mark.parametrize(
    ("places", "ranks"),
    [
        (("train.py:40", "train.py:31", "train.py:31", "train.py:31", ""), (0,)),
        (("", "train.py:31", "train.py:31", "train.py:31", "train.py:31"), ()),
        (("train.py:40", "train.py:31", "train.py:31", "", ""), ()),  # most may stand elsewhere
        (("", "", "", "", ""), ()),
    ],
)
def test_a_wait_at_a_place_that_is_not_known_is_neither_elsewhere_nor_where_most_are(
    places: tuple[str, ...], ranks: tuple[int, ...]
) -> None:
    waits = [{**WAITS, "waits_at": place, "stands_at": place} for place in places]
    found = attribute_job([hang("a", *enumerate(waits[:2])), hang("b", *enumerate(waits[2:], start=2))])
    assert found.ranks == ranks


def test_who_lost_its_peer_counts_as_one_that_waits() -> None:
    """Its stack was taken too late, or shows the end of its process."""
    gone = {**LOST, "waits": False, "stands_at": "train.py:99"}
    accounts = [hang("a", (0, WAITS), (1, gone)), account("b", (2, OUTSIDE), (3, gone))]
    assert named(*accounts) == (2,)


def test_who_went_silent_first_by_two_clocks_is_not_asked() -> None:
    """The rule for ranks of one machine would name rank 0, whose clock is behind."""
    silent = {"is_condemned": True, "last_sign_ns": 1, "limit_ns": 10}
    went_on = {"last_sign_ns": 10**15}
    found = attribute_job([account("a", (0, silent), kind="hang"), account("b", (2, went_on), (3, went_on))])
    assert found.ranks == ()


def test_where_every_rank_waits_in_the_same_place_nobody_is_named() -> None:
    found = attribute_job([hang("a", (0, WAITS), (1, WAITS)), hang("b", (2, WAITS), (3, WAITS))])
    assert found.ranks == found.nodes == ()
    assert found.why.startswith("every rank waits for the others")


def test_where_every_rank_has_lost_a_peer_that_is_the_reason() -> None:
    """All ran into the time limit of a process group that was never complete, say."""
    found = attribute_job([account("a", (0, LOST), kind="failure"), account("b", (2, LOST))])
    assert found.ranks == ()
    assert found.why == "who failed lost a peer or waited for one in vain: the cause is not known"


def test_a_rank_that_has_lost_a_thread_is_named_for_want_of_better_evidence() -> None:
    lost = {"error": OWN._replace(thread="loader")}
    found = attribute_job([account("a", (0, lost), (1, {})), account("b", (2, {}), (3, {}))])
    assert found.ranks == (0,)
    assert found.why.startswith("likely: one of its threads ended with ValueError")


def test_nothing_known_names_nobody() -> None:
    assert attribute_job([]) == JobAttribution((), (), "nothing is known of any rank")
    assert attribute_job([], silent=["c"]).nodes == ()


# ---- properties -------------------------------------------------------------------------------------------

victims = st.sampled_from([LOST, WAITS, {"error": LOST_A_PEER}, {"exit_code": -6, "ended_ns": 3, "has_gpu": True}])
culprits = st.sampled_from(
    [{"error": OWN, "exit_code": 1}, {"exit_code": -11}, {"exit_code": -9}, {"exit_code": 3}, {"error": OWN}]
)
clocks = st.integers(0, 10**15)


@given(st.data())
def test_of_many_victims_and_one_culprit_the_culprit_alone_is_named(data: st.DataObject) -> None:
    """Whatever each node's clock shows, whichever nodes were told, and in whatever order they are heard."""
    size = data.draw(st.integers(2, 5))
    guilty = data.draw(st.integers(0, 2 * size - 1))
    accounts = []
    for node in range(size):
        clock = data.draw(clocks)
        ranks = []
        for rank in (2 * node, 2 * node + 1):
            known = dict(data.draw(culprits if rank == guilty else victims))
            if "ended_ns" in known or known.get("exit_code") is not None:
                known["ended_ns"] = 1 + clock
            if "error" in known:
                known["error"] = known["error"]._replace(at_ns=clock, noted_ns=clock)
            ranks.append((rank, known))
        is_theirs = guilty in (2 * node, 2 * node + 1)
        accounts.append(
            account(f"n{node}", *ranks, kind="failure", was_told=not is_theirs and data.draw(st.booleans()))
        )
    assert attribute_job(data.draw(st.permutations(accounts))).ranks == (guilty,)


@given(st.lists(st.tuples(victims, victims), min_size=1, max_size=5))
def test_of_victims_alone_nobody_is_named(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    accounts = [
        account(f"n{n}", (2 * n, one), (2 * n + 1, other), kind="failure") for n, (one, other) in enumerate(pairs)
    ]
    found = attribute_job(accounts)
    assert found.ranks == (), found


# ---- how far ranks are in their collectives ----------------------------------------------------------------


def in_nccl(number: int, first_undone: int) -> dict[str, Any]:
    group = GroupNumber("0", number, 4, "nccl", "", "all_reduce" if first_undone else "", first_undone)
    return {"groups": (group,), "is_idle": first_undone == 0, "stands_at": f"train.py:{number}", "has_gpu": True}


def test_who_has_not_arrived_is_named_on_whatever_node_it_is_and_nobody_where_a_node_is_silent() -> None:
    seen = hang("a", (0, in_nccl(5, 5)), (1, in_nccl(6, 5)))
    told = account("b", (2, in_nccl(4, 0)), (3, in_nccl(5, 5)), was_told=True)
    assert attribute_job([seen]).ranks == ()
    found = attribute_job([seen, told])
    assert found.ranks == (2,)
    assert "the others wait in collective 5 of group 0 (all_reduce), and this rank has called 4" in found.why
    assert attribute_job([seen, told], silent=["c"]).ranks in ((), (2,))
    of_five = account("b", (2, in_nccl(4, 0)), was_told=True)
    assert attribute_job([seen, of_five], silent=["c"]).ranks == ()  # a member of the group is not known


def test_who_gets_on_is_not_blamed_across_nodes_and_no_clock_is_asked_for_it() -> None:
    """Ages are compared, each by a clock of its own."""
    pair = {**WAITS, "waits_for_one": True, "limit_ns": 2 * 10**9}
    gets_on = {**OUTSIDE, "is_lively": True, "silent_ns": 10**7, "last_sign_ns": 1}
    accounts = [hang("a", (0, pair)), account("a2", (1, gets_on)), account("b", (2, gets_on)), hang("c", (3, pair))]
    assert named(*accounts) == ()
    stuck = {**gets_on, "silent_ns": 19 * 10**8}
    assert named(*accounts[:2], account("b", (2, stuck)), accounts[3]) == (2,)


def test_who_has_ended_is_not_blamed_for_a_pair_on_two_nodes_that_waits_for_each_other() -> None:
    pair, ended = {**WAITS, "waits_for_one": True}, {"exit_code": 0, "has_left": True, "is_condemned": False}
    found = attribute_job([hang("a", (0, pair), (1, ended)), hang("b", (2, pair)), account("c", (4, ended))])
    assert found.ranks == ()
    assert "for each other, or for a rank that is gone" in found.why


def test_a_rank_that_has_shut_down_on_one_node_does_not_hide_one_in_state_d_on_another() -> None:
    down = {"has_left": True, "waits": False}
    stuck = {"state": "D", "hangs_in_kernel": True}
    assert named(hang("a", (0, WAITS)), account("b", (2, down)), account("c", (4, stuck), (5, WAITS))) == (4,)


def test_who_exits_and_lets_its_peers_end_with_0_is_told_as_that() -> None:
    """They have caught the loss of their peer."""
    caught = {"exit_code": 0, "has_left": True}
    gone = {"exit_code": 5, "ended_ns": 60}
    found = attribute_job(
        [account("a", (0, caught), (1, caught)), account("b", (2, gone), (3, caught), kind="failure")]
    )
    assert found.ranks == (2,)
    assert found.why.startswith("likely: ended by itself, without an exception on record")


def test_a_rank_that_is_stopped_is_named_before_one_that_raised_on_another_node() -> None:
    """It may have given up the stopped one."""
    raised = account("a", (0, {"error": OWN, "exit_code": 1}), (1, WAITS), kind="failure")
    found = attribute_job([raised, account("b", (2, {"state": "T"}), (3, WAITS), was_told=True)])
    assert found.ranks == (2,)
    assert found.why.startswith("likely: the process is stopped (SIGSTOP); not certain, since rank 0 on node a: raised")
    killed = account("a", (0, {"exit_code": -9, "ended_ns": 60}), (1, WAITS), kind="failure")
    found = attribute_job([killed, account("b", (2, {"state": "T"}), (3, WAITS), was_told=True)])
    assert found.ranks == (0, 2)  # it may have been its own watchdog's
    assert found.why == (
        "likely: one rank is stopped (SIGSTOP), another: killed by SIGKILL; not certain, since it cannot be told "
        "which was first"
    )
    ended = {"state": "T", "exit_code": 1, "error": LOST_A_PEER}
    assert attribute_job([raised, account("b", (2, ended), was_told=True)]).why.startswith("raised ValueError")
