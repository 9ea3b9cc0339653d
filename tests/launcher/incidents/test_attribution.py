"""Who is to blame: the surest evidence decides, a victim is never named, and nobody where it cannot be told."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from launcher.incidents.attributed import PERHAPS_FOR_ANOTHER
from launcher.incidents.attribution import attribute
from launcher.incidents.rules_of_collectives import has_not_arrived
from launcher.processes.evidence import Evidence
from resilience_core.protocol.error_record import ErrorRecord
from resilience_core.protocol.group_numbers import GroupNumber

LOST_A_PEER = ErrorRecord("RuntimeError", "gloo/transport: Connection closed by peer", at_ns=5, is_consequence=True)
OWN = ErrorRecord("ValueError", "bad batch", at_ns=10**12)
S = 10**9
WAITS = {"is_condemned": True, "waits": True}
OUTSIDE = {"is_condemned": True, "waits": False}
SILENT = {"is_condemned": True, "last_sign_ns": S}
WENT_ON = {"last_sign_ns": 5 * S}
LOST = {"error": LOST_A_PEER, "exit_code": 1, "ended_ns": 5}


def rank(local_rank: int, **known: Any) -> Evidence:
    return Evidence(local_rank, **{"iteration": 7, "state": "S", "is_monitored": True, **known})


def waiting(local_rank: int, **known: Any) -> Evidence:
    return rank(local_rank, **{**WAITS, "waits_at": "train.py:20", **known})


def culprits(*group: Evidence, **how: Any) -> tuple[int, ...]:
    return attribute(group, **how).local_ranks


LOST_A_THREAD = OWN._replace(thread="uploads")


# ---- one kind of evidence each ---------------------------------------------------------------------------


@pytest.mark.parametrize("culprit_first", [True, False])
@pytest.mark.parametrize(
    ("culprit", "victim", "why"),
    [
        ({"error": OWN}, WAITS, "raised ValueError .* has not ended yet"),
        ({"error": OWN}, LOST, "raised ValueError"),
        ({"exit_code": -11, "is_dumping_core": True}, LOST, "dumping core after SIGSEGV"),
        ({"exit_code": -11, "is_dumping_core": True}, WAITS, "dumping core"),
        ({"exit_code": -9, "ended_ns": 9}, {"error": OWN._replace(at_ns=10)}, "killed by SIGKILL"),
        ({"exit_code": -9}, LOST, "is ending after SIGKILL"),
        ({"exit_code": 17, "ended_ns": 9}, LOST, "ended by itself"),
        ({"exit_code": 1, "ended_ns": 9}, LOST, "ended by itself"),
        (
            {"exit_code": -6, "ended_ns": 9},
            {},
            "likely: ended by SIGABRT, its own .* or .*, without an exception .* another rank may have caused it",
        ),
        ({"exit_code": -15, "ended_ns": 9}, LOST, "ended by SIGTERM, which ft_launcher had not sent$"),
        ({"exit_code": 0, "has_left": True}, LOST, "ended with 0 while"),
        ({"exit_code": 0, "has_left": True}, WAITS, "ended with 0 while"),
        ({"has_left": True}, WAITS, "finished its training while"),
        ({"exit_code": 0, "has_left": True}, {"error": LOST_A_PEER, "has_left": True}, "ended with 0 while"),
        ({"state": "T"}, WAITS, "stopped .SIGSTOP"),
        ({"state": "T", "is_condemned": True}, {"is_condemned": True}, "stopped .SIGSTOP"),
        ({"state": "t"}, {"is_condemned": True}, "stopped by a tracer"),
        ({"state": "T"}, LOST, "stopped .SIGSTOP"),
        ({"waits": False}, WAITS, "outside any collective"),
        ({"waits": False, "is_condemned": True}, {"waits": True}, "outside any collective"),
        ({"waits": False, "is_condemned": True}, {}, "only rank that is overdue, and its stack"),
        ({"is_condemned": True, "has_begun": False}, {}, "not come as far as init_workload"),
        ({"iteration": 6}, {"is_condemned": True}, "at iteration 6 of 7"),
        ({"is_condemned": True, "last_sign_ns": S}, {"last_sign_ns": 5 * S}, "went on for 4.0 s"),
        ({"is_condemned": True, "is_busy": True}, {"is_condemned": True, "is_busy": False}, "uses the processor"),
        (
            {"error": OWN._replace(type="TimeoutError")},
            WAITS,
            "likely: raised TimeoutError before .* another rank may have caused it",
        ),
        (
            {
                "error": OWN._replace(
                    type="ExceptionGroup", traceback="  | ExceptionGroup: all\n    | TimeoutError: no batch\n"
                )
            },
            WAITS,
            "likely: raised ExceptionGroup before .* another rank may have caused it",
        ),
        # An exception that has ended no more than a thread counts for less than anything else.
        ({"error": LOST_A_THREAD}, WAITS, "likely: one of its threads ended with ValueError"),
        ({"error": LOST_A_THREAD}, LOST, "likely: one of its threads ended with ValueError"),
        ({"error": LOST_A_THREAD, "exit_code": 1}, LOST, "raised ValueError"),
        ({"exit_code": 3, "ended_ns": OWN.at_ns + S}, {"error": LOST_A_THREAD}, "ended by itself"),
        ({"error": OWN._replace(at_ns=OWN.at_ns + S)}, {"error": LOST_A_THREAD}, "raised ValueError before any other"),
        ({"exit_code": -11, "ended_ns": OWN.at_ns + S}, {"error": LOST_A_THREAD}, "killed by SIGSEGV"),
        (OUTSIDE, {**WAITS, "error": LOST_A_THREAD}, "outside any collective"),
        ({"iteration": 6}, {"is_condemned": True, "error": LOST_A_THREAD}, "at iteration 6 of 7"),
    ],
)
def test_each_kind_of_evidence_names_the_culprit(
    culprit: dict[str, Any], victim: dict[str, Any], why: str, culprit_first: bool
) -> None:
    group = [rank(1, **culprit), rank(0, **victim), rank(2, **victim)]
    blame = attribute(group if culprit_first else group[::-1])

    assert blame.local_ranks == (1,)
    assert re.search(why, blame.why), blame.why


def test_the_exception_raised_first_counts_not_the_process_that_ends_first() -> None:
    slow = rank(1, error=OWN)
    fast = rank(0, error=ErrorRecord("KeyError", "'x'", at_ns=OWN.at_ns + 1), exit_code=1, ended_ns=OWN.at_ns + 2)
    assert culprits(fast, slow) == (1,)


def test_the_same_exception_on_all_ranks_is_everybodys() -> None:
    group = [rank(n, error=OWN._replace(at_ns=OWN.at_ns + n), exit_code=1) for n in range(3)]
    assert culprits(*group) == (0, 1, 2)
    assert "3 ranks raised the same ValueError" in attribute(group).why


def test_an_exception_long_before_a_death_is_the_cause_and_one_after_it_is_not() -> None:
    killed = rank(0, exit_code=-9, ended_ns=OWN.at_ns + S)
    assert culprits(rank(1, error=OWN, exit_code=1, ended_ns=OWN.at_ns + 1), killed) == (1,)
    assert culprits(rank(1, error=OWN._replace(is_uncaught=True)), killed) == (1,)
    assert culprits(rank(1, error=OWN._replace(at_ns=OWN.at_ns + S)), killed) == (0,)


@pytest.mark.parametrize(
    ("exit_code", "who", "why"),
    [
        (
            3,
            (0, 1),
            "likely: one rank ended by itself, without an exception on record, and another had raised ValueError "
            "before; not certain, since that one had not ended, and may go on after that",
        ),
        (
            -9,
            (0, 1),
            "likely: one rank was killed by SIGKILL, and another had raised ValueError before; "
            "not certain, since that one had not ended, and may go on after that",
        ),
        (
            -11,
            (0, 1),
            "likely: one rank was killed by SIGSEGV, and another had raised ValueError before; "
            "not certain, since that one had not ended, and may go on after that",
        ),
    ],
)
@pytest.mark.parametrize("later", [{}, {"exit_code": -15, "ended_ns": OWN.at_ns + S + 1}], ids=["lives", "ended later"])
def test_who_lives_after_an_exception_may_go_on_after_it_when_another_one_dies(
    exit_code: int, who: tuple[int, ...], why: str, later: dict[str, Any]
) -> None:
    """Say, a rank that waits before it tries to save once more, when another one is killed for its memory."""
    blame = attribute([rank(0, exit_code=exit_code, ended_ns=OWN.at_ns + S), rank(1, error=OWN, **later)])
    assert (blame.local_ranks, blame.why) == (who, why)


def test_several_that_have_raised_alike_are_named_beside_one_that_is_dying() -> None:
    raised = [rank(n, error=OWN._replace(at_ns=OWN.at_ns + n)) for n in (1, 2)]
    dying = rank(0, **STILL_CRASHING)
    late = rank(3, exit_code=1, error=LOST_A_PEER, ended_ns=OWN.at_ns + S)
    blame = attribute([*raised, dying, late])
    assert blame.local_ranks == (0, 1, 2)
    assert blame.why == (
        "likely: one rank is ending after SIGSEGV, and others had raised ValueError before; "
        "not certain, since those had not ended, and may go on after that"
    )


def test_who_waits_for_others_in_a_handler_is_no_culprit_of_a_hang_elsewhere() -> None:
    waits = rank(1, error=OWN, waits=True)
    hangs = rank(0, is_condemned=True, waits=False)
    blame = attribute([hangs, waits])
    assert blame.local_ranks == (0,)
    assert blame.why.startswith("likely: its stack stands outside any collective")
    assert blame.why.endswith("another rank has raised ValueError, and may wait while handling that")
    # Where its peers wait, too, it has gone astray; what it raised is the cause also where it has left its program.
    for group in (
        [rank(0, is_condemned=True, waits=True), waits],
        [hangs, rank(1, error=OWN._replace(is_uncaught=True), waits=True)],
        [hangs, rank(1, error=OWN, waits=False)],
    ):
        assert attribute(group).local_ranks == (1,)
        assert attribute(group).why.startswith("raised ValueError")


def test_who_raised_for_want_of_another_while_that_one_had_raised_too_is_named_beside_it() -> None:
    """It waited in a handler, so that what the loss of its peer has raised comes from what it handled."""
    lost = OWN._replace(type="RuntimeError", message="Connection closed by peer", traceback="all_reduce")
    later = rank(0, error=OWN._replace(type="KeyError", at_ns=OWN.at_ns + S), exit_code=1, ended_ns=OWN.at_ns + 2 * S)
    assert culprits(rank(1, error=lost), later) == (0, 1)


@pytest.mark.parametrize(
    ("gone", "raised", "who", "why"),
    [
        ({"left_group_ns": 40}, {}, (0, 1), "one rank raised ValueError, and another had destroyed its process group"),
        # That alone is what took down its group: a victim does so on its way out as well.
        ({"left_group_ns": 40}, {"left_group_ns": OWN.at_ns - 10}, (0, 1), "one rank raised ValueError, and another"),
        ({"left_group_ns": 40}, {"left_group_ns": S}, (1,), ""),
        ({"left_group_ns": OWN.at_ns + 1}, {}, (1,), ""),
        ({"left_group_ns": 40, "has_left": True}, {}, (1,), ""),
        ({"left_group_ns": 40, **LOST}, {}, (1,), ""),
        ({}, {}, (1,), ""),
    ],
    ids=["before", "on its way out", "out before", "after", "finished", "a victim", "there"],
)
@pytest.mark.parametrize("has_others", [False, True])
def test_who_had_destroyed_its_group_when_another_one_raised_is_named_beside_it(
    gone: dict[str, Any], raised: dict[str, Any], who: tuple[int, ...], why: str, has_others: bool
) -> None:
    blame = attribute([rank(0, **gone), rank(1, error=OWN, exit_code=1, **raised), rank(2)], has_others=has_others)
    assert blame.local_ranks == who
    assert blame.why.startswith(f"likely: {why}" if why else "raised ValueError"), blame.why


@pytest.mark.parametrize(
    ("exit_code", "crashed", "is_sure"),
    [
        (-11, {}, False),
        (-11, {"left_group_ns": S - 10}, False),
        (-11, {"left_group_ns": S // 2}, True),
        (-7, {}, False),
        (-9, {}, True),
    ],
    ids=["crashed", "on its way out", "out before", "another signal", "killed"],
)
def test_who_had_destroyed_its_group_when_another_one_crashed_is_named_beside_it(
    exit_code: int, crashed: dict[str, Any], is_sure: bool
) -> None:
    """Nothing that it handled is on record; a kill comes of nothing."""
    name = signal.Signals(-exit_code).name
    group = [rank(0, left_group_ns=40), rank(1, exit_code=exit_code, ended_ns=S, **crashed), rank(2)]
    assert attribute(group) == (
        ((1,), f"killed by {name}")
        if is_sure
        else (
            (0, 1),
            f"likely: one rank was killed by {name}, and another had destroyed its process group before; "
            "not certain, since that may be why",
        )
    )
    group[0] = rank(0, left_group_ns=S + 1)
    assert attribute(group).why == f"killed by {name}"


@pytest.mark.parametrize(("earlier", "is_likely"), [(None, True), ("KeyError: 'x'", False)])
def test_an_exit_may_be_for_the_loss_of_a_peer_that_was_caught(earlier: str | None, is_likely: bool) -> None:
    error = OWN._replace(type="SystemExit", message="1", earlier=earlier)
    blame = attribute([rank(0), rank(1, error=error, exit_code=1)])
    assert blame.local_ranks == (1,)
    assert blame.why.startswith("likely: raised SystemExit") == is_likely
    assert blame.why.endswith(PERHAPS_FOR_ANOTHER) == is_likely


def test_what_all_end_with_is_likely_where_scripts_give_up_so() -> None:
    group = [rank(n, error=OWN._replace(type="SystemExit", message="1", at_ns=OWN.at_ns + n)) for n in range(2)]
    assert attribute(group).why.startswith("likely: 2 ranks raised the same SystemExit")


def test_several_that_raise_alike_when_another_has_destroyed_its_group_are_named_beside_it() -> None:
    group = [rank(n, error=OWN._replace(at_ns=OWN.at_ns + n)) for n in (2, 0)] + [rank(1, left_group_ns=4)]
    assert attribute(group) == (
        (0, 1, 2),
        "likely: 2 ranks raised ValueError, and another had destroyed its process group before; "
        "not certain, since that may be why",
    )


@pytest.mark.parametrize("exit_code", [-11, -9])
@pytest.mark.parametrize(
    ("raised_ms", "left_ms", "is_sure"),
    [(300, 0, False), (50, 0, False), (21, 0, False), (19, 0, True), (19, 19, False), (-1, 0, True), (-1, 1, True)],
)
def test_who_may_have_raised_before_another_one_died_is_named_beside_it(
    exit_code: int, raised_ms: int, left_ms: int, is_sure: bool
) -> None:
    """A crash may come of a peer that destroys its group; a kill comes of nothing, and is told alone at once."""
    ms = 10**6
    died_ns = OWN.at_ns + S
    error = OWN._replace(at_ns=died_ns - raised_ms * ms)
    left_ns = died_ns - left_ms * ms if left_ms else 0
    blame = attribute([rank(0, exit_code=exit_code, ended_ns=died_ns), rank(1, error=error, left_group_ns=left_ns)])
    if is_sure or (left_ms == 19 and exit_code == -9):
        assert blame == ((0,), f"killed by {signal.Signals(-exit_code).name}")
    else:
        assert blame.local_ranks == (0, 1)
        assert blame.why.startswith(f"likely: one rank was killed by {signal.Signals(-exit_code).name}, and another ")


def test_who_hangs_is_named_beside_one_that_has_destroyed_its_group_in_a_handler() -> None:
    """It may have done with its training, and export what it has learned."""
    raised = rank(0, error=OWN._replace(type="StopIteration"), left_group_ns=OWN.at_ns - 1)
    hung = rank(1, is_condemned=True, waits=False)
    blame = attribute([raised, hung])
    assert blame.local_ranks == (0, 1)
    assert blame.why == (
        "likely: one rank hangs, and another raised StopIteration and destroyed its process group; "
        "not certain, since either may be the cause"
    )
    # Who waits for it does so for it, and what has left its program is the cause.
    for group in (
        [raised, hung._replace(waits=True)],
        [raised._replace(error=OWN._replace(is_uncaught=True)), hung],
        [raised._replace(left_group_ns=0), hung],
    ):
        assert attribute(group).local_ranks == (0,), group
    assert attribute([raised, hung, rank(2, exit_code=-9, ended_ns=5)]).local_ranks == (2,)


def test_several_that_are_killed_from_outside_are_all_named() -> None:
    assert culprits(rank(0, exit_code=-9, ended_ns=5), rank(1), rank(2, exit_code=-9, ended_ns=6)) == (0, 2)


GONE = {"exit_code": 9, "ended_ns": S}
CRASHED_LATER = {"exit_code": -11, "ended_ns": S + 1}
STILL_CRASHING = {"exit_code": -11, "state": "Z"}


@pytest.mark.parametrize(
    ("culprit", "victims", "why"),
    [
        (GONE, [CRASHED_LATER, STILL_CRASHING], "likely: ended first, .* another one was seen to end less than 0.1 s"),
        (GONE, [STILL_CRASHING, STILL_CRASHING], "likely: ended first, .* another rank may have caused it"),
        (GONE, [{"exit_code": -11, "is_dumping_core": True}, {}], "likely: ended first, "),
        ({"exit_code": -9, "ended_ns": S}, [CRASHED_LATER, STILL_CRASHING], "killed by SIGKILL$"),
        # Noticed late, or not yet: a kill is no consequence of anything.
        ({"exit_code": -9, "ended_ns": S + 2}, [CRASHED_LATER, STILL_CRASHING], "killed by SIGKILL$"),
        ({"exit_code": -9, "state": "Z"}, [CRASHED_LATER, STILL_CRASHING], "is ending after SIGKILL$"),
        ({"exit_code": -9, "ended_ns": S + 2}, [GONE, STILL_CRASHING], "killed by SIGKILL$"),
        ({"exit_code": -15, "ended_ns": S}, [CRASHED_LATER, STILL_CRASHING], "ended by SIGTERM, which ft_launcher had"),
        ({"exit_code": -6, "ended_ns": S}, [CRASHED_LATER], "likely: ended first, by SIGABRT"),
        ({"exit_code": -11, "ended_ns": S}, [{}, {}], "killed by SIGSEGV$"),
        ({"exit_code": -11, "ended_ns": S}, [CRASHED_LATER, {}], "likely: killed by SIGSEGV; .* has died with it"),
        (CRASHED_LATER, [{"exit_code": 9, "ended_ns": S + 2}], "killed by SIGSEGV$"),
        (GONE, [{"exit_code": -9, "ended_ns": 2 * S}], "likely: ended first"),
    ],
)
@pytest.mark.parametrize("others", [True, False])
def test_who_crashes_after_another_has_ended_is_a_victim(
    culprit: dict[str, Any], victims: list[dict[str, Any]], why: str, others: bool
) -> None:
    group = [*(rank(n, **known) for n, known in enumerate(victims)), rank(len(victims), **culprit)]
    for order in (group, group[::-1]):
        blame = attribute(order, has_others=others)
        assert blame.local_ranks == (len(victims),)
        assert re.search(f"^{why}", blame.why), blame.why


AT = OWN.at_ns
RAISED = {"error": OWN}


@pytest.mark.parametrize(
    ("gone", "raised", "is_gone_named", "why"),
    [
        # Whoever loses a peer raises at once, a moment before the end of the peer is noticed.
        (
            {"exit_code": 9, "ended_ns": AT + S // 500},
            RAISED,
            True,
            "likely: ended .*, since another rank raised Value",
        ),
        ({"exit_code": 9, "ended_ns": AT - S}, RAISED, True, "likely: ended .*another rank raised ValueError"),
        ({"exit_code": -6, "ended_ns": AT - S // 500}, RAISED, True, "likely: ended .*another rank raised ValueError"),
        (
            {"exit_code": 9, "ended_ns": AT + S // 20},
            {"error": OWN._replace(is_uncaught=True)},
            False,
            "likely: raised ValueError.* another rank has ended",
        ),
        (
            {"exit_code": 9, "ended_ns": AT + S},  # its connections were closed before
            {"error": OWN._replace(is_uncaught=True)},
            False,
            "likely: raised ValueError, and has not ended yet; not certain, since another rank has ended",
        ),
        (
            {"exit_code": 9, "ended_ns": AT + 3 * S},
            {"error": OWN._replace(is_uncaught=True)},
            False,
            "raised ValueError before any other failure was seen, and",
        ),
        (
            {"exit_code": 9, "ended_ns": AT + S // 500},
            {**RAISED, "exit_code": 1, "ended_ns": AT + 1},
            False,
            "raised ValueError before any other failure was seen$",
        ),
        (
            {"exit_code": 0, "has_left": True, "ended_ns": AT + S // 500, "open_sections": ("step",)},
            RAISED,
            True,
            "likely: ended with 0 in section 'step'; not certain, since another rank raised ValueError$",
        ),
        (
            {"exit_code": 0, "has_left": True, "ended_ns": AT},
            RAISED,
            False,
            "likely: raised ValueError; not certain, since another rank has ended",
        ),
        (
            {"state": "T"},
            RAISED,
            True,
            "likely: the process is stopped .SIGSTOP.; not certain, since another .* raised",
        ),
        ({"state": "T"}, {"exit_code": 5, "ended_ns": S}, True, "likely: the process is stopped .* ended by itself"),
    ],
)
def test_what_a_rank_raises_may_be_how_it_gives_up_one_that_has_ended_or_is_stopped(
    gone: dict[str, Any], raised: dict[str, Any], is_gone_named: bool, why: str
) -> None:
    for group in ([rank(0, **gone), rank(1, **raised)], [rank(1, **raised), rank(0, **gone), rank(2)]):
        blame = attribute(group)
        assert blame.local_ranks == (0 if is_gone_named else 1,), blame
        assert re.search(f"^{why}", blame.why), blame.why


@pytest.mark.parametrize("raised", [{}, {"is_monitored": False}, {"exit_code": 1}])
def test_who_has_ended_with_1_and_kept_no_exception_is_named_beside_one_that_raised_at_that_time(
    raised: dict[str, Any],
) -> None:
    """Both may be how a script ends that has lost its peer: by ``sys.exit(1)``, or by whatever it runs into then."""
    victim = rank(1, **{**RAISED, **raised})
    for ended_ns in (AT - S // 20, AT + S // 500, AT + S):  # the end is noticed after the connections were closed
        gone = rank(0, exit_code=1, ended_ns=ended_ns, is_monitored=False)
        blame = attribute([gone, victim, rank(2)])
        assert blame == (
            (0, 1),
            "likely: one rank ended by itself, without an exception on record, and another raised ValueError; not "
            "certain, since it cannot be told which came first",
        )
    # Not where the other one has ended before, or long after that one had raised, or has lost a peer.
    ended = victim._replace(exit_code=1, ended_ns=AT + S // 2)
    lost = gone._replace(error=LOST_A_PEER)
    for group in ([gone, ended], [gone._replace(ended_ns=AT + 3 * S), victim], [lost, victim]):
        blame = attribute(group)
        assert blame.local_ranks == (1,)
        assert blame.why.startswith("raised ValueError")


def test_who_ends_with_0_may_have_closed_its_connections_before_another_rank_raised() -> None:
    left = rank(0, exit_code=0, has_left=True, ended_ns=AT + S // 2, is_monitored=False)
    raised = rank(1, error=OWN._replace(at_ns=AT), exit_code=1, ended_ns=AT + S)
    assert attribute([left, raised, rank(2)]) == (
        (1,),
        "likely: raised ValueError; not certain, since another rank has ended with 0 before, or at the same time",
    )
    assert attribute([left, raised._replace(ended_ns=AT + S // 4)]).why.startswith("raised ValueError")
    assert attribute([left._replace(ended_ns=AT + 3 * S), raised]).why.startswith("raised ValueError")


def test_a_crash_after_an_end_without_a_record_is_likely_only() -> None:
    gone = rank(0, exit_code=1, ended_ns=S, is_monitored=False)
    after = attribute([gone, rank(1, exit_code=-11, ended_ns=2 * S)])
    assert after == (
        (1,),
        "likely: killed by SIGSEGV; not certain, since another rank had ended before, without an exception on record",
    )
    assert attribute([gone, rank(1, exit_code=-11, ended_ns=S // 2)]) == ((1,), "killed by SIGSEGV")
    assert attribute([gone, rank(1, exit_code=-9, ended_ns=S + S // 20)]) == ((1,), "killed by SIGKILL")


@pytest.mark.parametrize(("code", "how"), [(-9, "killed by SIGKILL"), (-15, "ended by SIGTERM, which .* not sent")])
def test_a_rank_that_is_stopped_is_named_beside_one_that_a_signal_has_ended(code: int, how: str) -> None:
    """That may have been its own watchdog's."""
    blame = attribute([rank(0, exit_code=code, ended_ns=S), rank(1, state="T"), rank(2)])
    assert blame.local_ranks == (0, 1)
    why = f"likely: one rank is stopped .SIGSTOP., another: {how}.*; not certain, since it cannot be told which"
    assert re.match(why, blame.why), blame.why


def test_what_several_raise_is_likely_while_another_rank_lives() -> None:
    several = [rank(n, error=OWN._replace(at_ns=OWN.at_ns + n), exit_code=1) for n in range(3)]
    blame = attribute([*several, rank(3)])
    assert blame.local_ranks == (0, 1, 2)
    assert blame.why.startswith("likely: 3 ranks raised the same ValueError; not certain, since what several ranks")


def test_what_all_raise_is_likely_where_they_had_raised_different_exceptions_before() -> None:
    """A script may keep its exception, and end by one that says only that it has failed."""
    summary = {n: OWN._replace(at_ns=OWN.at_ns + n, earlier=f"RuntimeError: {n}") for n in range(2)}
    alike = attribute([rank(n, error=each._replace(earlier="RuntimeError: 0")) for n, each in summary.items()])
    assert alike == ((0, 1), "2 ranks raised the same ValueError")
    apart = attribute([rank(n, error=each) for n, each in summary.items()])
    assert apart.local_ranks == (0, 1)
    assert apart.why.startswith("likely: 2 ranks raised the same ValueError; not certain, since what several ranks")
    # One that had lost a peer before is a victim.
    victim = rank(0, error=summary[0]._replace(is_consequence=True))
    assert attribute([victim, rank(1, error=summary[1])]) == ((1,), "raised ValueError, and has not ended yet")


def test_a_rank_that_sleeps_in_no_collective_is_named_where_all_others_raised_alike() -> None:
    """They may have caught that a time limit had passed, and run into the same mistake afterwards."""
    several = [rank(n, error=OWN._replace(at_ns=OWN.at_ns + n, message=f"in {n}")) for n in range(2)]
    asleep = rank(2, kernel_wait="hrtimer_nanosleep")
    assert attribute([*several, asleep, rank(3, **LOST)]) == (
        (2,),
        "likely: sleeps in hrtimer_nanosleep, in no collective; not certain, since 2 ranks raised ValueError, and may "
        "have done so by themselves",
    )
    # Not while another one lives, or has raised something else, or has ended by itself; nor on several nodes.
    for other in (rank(3), rank(3, error=OTHER), rank(3, exit_code=0, ended_ns=OWN.at_ns + 3 * S, has_left=True)):
        assert 2 not in culprits(*several, asleep, other)
    assert 2 not in culprits(several[0], asleep)
    assert 2 not in culprits(*several, asleep, has_others=True)


def test_a_rank_that_sleeps_in_no_collective_is_named_where_all_others_have_lost_a_peer() -> None:
    asleep = rank(2, kernel_wait="pipe_read")
    assert attribute([rank(0, **LOST), rank(1, **LOST), asleep]) == (
        (2,),
        "likely: sleeps in pipe_read, in no collective, and all others lost a peer or waited for one in vain; not "
        "certain, since it may have done so too, and have caught that",
    )
    assert culprits(rank(0, **LOST), rank(1), asleep) == ()
    assert culprits(rank(0, **LOST), rank(1, **LOST), asleep._replace(kernel_wait="futex_do_wait")) == ()
    assert culprits(rank(0, **LOST), rank(1, **LOST), asleep, has_others=True) == ()


def test_an_exception_long_before_the_last_end_is_before_a_death_that_is_still_to_be_noticed() -> None:
    """Who lost that rank crashes in what it takes down."""
    raised = rank(0, error=OWN, exit_code=1, ended_ns=OWN.at_ns + S)
    assert culprits(raised, rank(1, exit_code=-11)) == (0,)
    assert culprits(raised._replace(ended_ns=OWN.at_ns + 1), rank(1, exit_code=-11)) == (1,)


# ---- where it cannot be told -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "others", "why"),
    [
        (
            [waiting(0), waiting(1)],
            False,
            "may have skipped a collective or a message, or called another, or one too",
        ),
        ([waiting(0), waiting(1)], True, "another node"),
        ([waiting(0, iteration=6), waiting(1)], False, "skipped a collective"),
        ([waiting(0), rank(1)], False, "cannot be told"),
        (
            [waiting(0, last_sign_ns=S), rank(1, **WENT_ON), rank(2, **WENT_ON)],
            False,
            "it cannot be told which of those",
        ),
        ([rank(0, is_condemned=True), rank(1)], False, "or stacks which rank is the cause$"),
        ([rank(0, is_condemned=True, waits=False), rank(1, is_condemned=True, waits=False)], False, "cannot be told"),
        ([rank(0, is_condemned=True, waits=False), rank(1, state="T")], False, "it cannot be told which came first"),
        # The one that is not overdue has come to what the others wait in by its own delay later.
        ([rank(0, **SILENT), rank(1, **SILENT), rank(2, **WENT_ON)], False, "cannot be told"),
        ([rank(0, **SILENT), rank(1, **WENT_ON)], False, "cannot be told"),
        ([rank(0, **SILENT, limit_ns=9 * S), rank(1, **WENT_ON), rank(2, **WENT_ON)], False, "cannot be told"),
        ([rank(0, **SILENT), *(rank(n, last_sign_ns=S + S // 2) for n in (1, 2))], False, "cannot be told"),
        ([rank(0, **LOST), rank(1)], False, "lost a peer .* not known"),
        ([rank(0, **LOST), rank(1)], True, "on another node"),
        ([rank(0, exit_code=1, is_monitored=False), rank(1)], False, "left no exception on record"),
        ([rank(0, exit_code=-6, has_gpu=True), rank(1)], False, "may be the cause, or have lost a peer"),
        ([rank(0, is_condemned=True)], True, "cannot be told"),
    ],
)
def test_nobody_is_named_where_it_cannot_be_told(group: list[Evidence], others: bool, why: str) -> None:
    blame = attribute(group, has_others=others)
    assert blame.local_ranks == ()
    assert re.search(why, blame.why), blame.why


def test_the_only_rank_is_named_whatever_it_did() -> None:
    assert culprits(rank(0, **LOST)) == (0,)
    assert culprits(rank(0, is_condemned=True)) == (0,)


def test_who_waits_elsewhere_than_most_is_named() -> None:
    group = [waiting(0), waiting(1, waits_at="train.py:31"), waiting(2)]
    assert culprits(*group) == (1,)
    assert culprits(*group, waiting(3, waits_at="train.py:31")) == ()


def standing(local_rank: int, at: str = "poll (train.py:31)", **known: Any) -> Evidence:
    """Waits in a way that no stack shows, or does not wait."""
    return rank(local_rank, **{"is_condemned": True, "waits": False, "stands_at": at, **known})


def test_who_stands_apart_from_all_others_is_the_likely_culprit() -> None:
    """A loop until a file is there looks like a hang, but all of them in the same one look like victims."""
    apart = standing(1, "save (train.py:40)", is_condemned=False)
    blame = attribute([standing(0), apart, standing(2)])
    assert blame.local_ranks == (1,)
    assert blame.why.startswith("likely: it stands elsewhere than the others, who all stand at poll (train.py:31)")
    assert culprits(standing(0, waits=None), apart, standing(2, waits=None)) == (1,)
    assert culprits(standing(0), apart, standing(2), has_others=True) == ()


@pytest.mark.parametrize(
    "group",
    [
        [standing(0), standing(1, "save")],
        [standing(0), standing(1, "save"), standing(2, "load")],
        [standing(0), standing(1, "save"), standing(2), standing(3, "save")],
        [standing(0), standing(1), standing(2)],
        [standing(0), standing(1, "save"), standing(2, "", waits=None)],
        [standing(0), standing(1, "save", waits=None), standing(2)],  # perhaps it waits for them
        [standing(0), standing(1, "save"), standing(2, state="D")],  # these are stuck by themselves
        [standing(0), standing(1, "save"), standing(2, state="R")],
    ],
)
def test_who_stands_apart_is_not_named_where_the_others_may_be_stuck_by_themselves(group: list[Evidence]) -> None:
    assert culprits(*group) == ()


def in_step(local_rank: int, closed: int, *others: tuple[str, int], **known: Any) -> Evidence:
    """Waits in an all-reduce inside the section 'step'."""
    sections = {"waits_for_all": True, "open_sections": ("step",), "closed": (("step", closed), *others)}
    return waiting(local_rank, **{**sections, **known})


@pytest.mark.parametrize(
    "ahead",
    [
        in_step(1, 12),
        in_step(1, 12, ("checkpointing", 0), open_sections=("checkpointing",), waits_at="train.py:31"),
        in_step(1, 12, open_sections=(), is_condemned=False),
        in_step(1, 12, waits_for_all=False),
    ],
)
@pytest.mark.parametrize("others", [1, 2])
def test_who_has_been_through_the_section_that_the_others_wait_in_is_likely_to_have_skipped(
    ahead: Evidence, others: int
) -> None:
    group = [ahead, *(in_step(n, 11) for n in (0, 2)[:others])]
    blame = attribute(group[::-1])
    assert blame.local_ranks == (1,)
    why = "likely: (it has closed section .step. 12 times, the others? 11 times and still waits? in|waits elsewhere)"
    assert re.match(why, blame.why)


def test_nobody_is_ahead_of_nodes_of_which_nothing_is_known() -> None:
    assert culprits(in_step(0, 11), in_step(1, 12)) == (1,)
    assert culprits(in_step(0, 11), in_step(1, 12), has_others=True) == ()


@pytest.mark.parametrize(
    "group",
    [
        [in_step(0, 11), in_step(1, 11, open_sections=(), waits_at="train.py:31")],  # given a batch more
        [in_step(0, 11), in_step(1, 13)],
        [in_step(0, 11), in_step(1, -1), in_step(2, 11)],
        [in_step(0, 11), in_step(1, 12)._replace(closed=())],
        [in_step(0, 11, waits_for_all=False), in_step(1, 12)],  # receives, or writes a checkpoint
        [in_step(0, 11, has_gpu=True), in_step(1, 12, has_gpu=True)],  # the queue is ahead of what has run
        [in_step(0, 11), in_step(1, 12, waits=None)],
        [in_step(0, 11, state="D"), in_step(1, 12)],
        [in_step(0, 11, state="R"), in_step(1, 12)],
        [in_step(0, 11, open_sections=("epoch",)), in_step(1, 12)],
        [in_step(0, 11), in_step(1, 12), in_step(2, 12)],
        [in_step(0, 11), in_step(1, 12), in_step(2, 12), in_step(3, 11)],
        [in_step(0, 11, ("log", 4)), in_step(1, 11, ("log", 5))],  # sections of one rank's own
    ],
)
def test_who_may_rightly_be_ahead_is_not_named(group: list[Evidence]) -> None:
    assert culprits(*group) == ()


def test_what_tells_nobody_apart_is_said() -> None:
    why = attribute([in_step(0, 11), in_step(1, 11)]).why
    assert why.endswith("nobody is ahead, all are in section 'step' and have closed it 11 times before")


def test_one_outside_that_is_overdue_goes_before_one_that_is_not() -> None:
    assert culprits(rank(0, waits=False), rank(1, waits=False, is_condemned=True), waiting(2)) == (1,)


def test_who_may_wait_unseen_is_named_with_a_hedge_and_only_where_nobody_is_surer() -> None:
    """It may stand in ``f = work.wait; f()``, and the others in what their peer has skipped."""
    unsure, sure = rank(0, **OUTSIDE, may_wait=True), rank(1, **OUTSIDE)
    hedge = "likely: .*outside any collective.*; not certain, since it may wait for another rank there"
    for group in ([unsure, waiting(1)], [unsure, rank(1)]):
        blame = attribute(group)
        assert blame.local_ranks == (0,)
        assert re.match(hedge, blame.why)
    hidden = [rank(0, iteration=6, is_condemned=True, may_wait=True, waits=False), rank(1, is_condemned=True)]
    busy = [rank(0, is_condemned=True, may_wait=True, is_busy=True), rank(1, is_condemned=True, is_busy=False)]
    for group, fact in ((hidden, "behind the others"), (busy, "the only rank that uses the processor")):
        blame = attribute(group)
        assert blame.local_ranks == (0,)
        assert re.match(f"likely: ({fact}).*; not certain", blame.why)
    # It sleeps, and whether the other waits, which is overdue as well, cannot be told.
    both = attribute([sure, rank(0, is_condemned=True)])
    assert both == ((1,), "its stack stands outside any collective, where it waits for nobody")
    assert culprits(sure, rank(0, **OUTSIDE)) == ()
    for group in ([sure, waiting(0)], [sure, rank(0)], [unsure, sure, waiting(2)]):
        blame = attribute(group)
        assert blame.local_ranks == (1,)
        assert not blame.why.startswith("likely")


def test_a_rank_that_never_said_its_iteration_is_not_behind() -> None:
    assert culprits(rank(0, iteration=-1, is_condemned=True), rank(1, iteration=8)) == ()


def test_ranks_that_are_behind_and_may_wait_are_not_named() -> None:
    """``start().wait()`` is a call and a wait; the rank that is ahead has skipped what they wait for."""
    behind = [rank(n, iteration=3, is_condemned=True, stands_at="train.py:7") for n in (1, 2)]
    assert culprits(waiting(0, iteration=4, waits_at="train.py:9"), *behind) == ()
    unknown = [each._replace(stands_at="") for each in behind]
    assert culprits(waiting(0, iteration=4, waits_at="train.py:9"), *unknown) == (1, 2)


def test_who_raised_last_is_not_said_to_have_raised_before_the_others() -> None:
    """A peer may lose the connection to a rank that shuts its group down and raises afterwards."""
    later = LOST_A_PEER._replace(at_ns=OWN.at_ns + 1)
    assert "before any other" in attribute([rank(0, error=OWN), rank(1, error=later)]).why
    blame = attribute([rank(0, error=OWN, exit_code=1), rank(1, error=LOST_A_PEER._replace(at_ns=OWN.at_ns - S))])
    assert blame == ((0,), "raised ValueError")


@pytest.mark.parametrize(("asked_ns", "is_told"), [(0, False), (OWN.at_ns - 1, True), (OWN.at_ns + 1, False)])
def test_an_error_that_our_question_may_have_caused_is_told_as_one(asked_ns: int, is_told: bool) -> None:
    """A wait in C that the signal interrupts may come back with an error."""
    why = attribute([rank(0, is_condemned=True, error=OWN, asked_ns=asked_ns), waiting(1)]).why
    assert (", after a signal had asked for the stack, which may be why" in why) == is_told
    both = attribute([rank(n, is_condemned=True, error=OWN, asked_ns=asked_ns) for n in range(2)])
    assert both.local_ranks == (0, 1)
    assert (", after a signal had asked for the stack, which may be why" in both.why) == is_told


ASKED = {"is_condemned": True, "asked_ns": S}
OTHER = ErrorRecord("OSError", "poll", at_ns=OWN.at_ns + 1)
ENDED = {"exit_code": 9, "ended_ns": 2 * S}


def test_who_is_stopped_beside_one_that_is_stuck_is_blamed_as_likely() -> None:
    stopped = rank(0, state="T", is_condemned=True)
    beside = attribute([stopped, rank(1, **OUTSIDE)])
    assert beside.local_ranks == (0,)
    assert beside.why.startswith("likely: the process is stopped (SIGSTOP); not certain")
    assert attribute([stopped, waiting(1)]) == ((0,), "the process is stopped (SIGSTOP)")


def test_who_has_ended_is_blamed_for_sure_only_where_most_have_not() -> None:
    ended = {"exit_code": 0, "has_left": True}
    alone = attribute([rank(0, **ended), waiting(1)])
    assert alone.local_ranks == (0,)
    assert alone.why.startswith("likely: ended with 0 while the others still needed it; not certain")
    many = attribute([rank(0, has_left=True), rank(1, **ended), waiting(2)])
    assert many.local_ranks == (2,)
    assert many.why.startswith("likely: still needs ranks that have finished their training, as most have: it seems")
    # Who ends inside a section has not come to its end.
    inside = attribute([rank(0, **ended), rank(1, **ended, open_sections=("step",)), waiting(2)])
    assert inside == ((1,), "ended with 0 while the others still needed it")
    left = {**ended, "open_sections": ("step",), "is_monitored": False}  # a section that was left open does no harm
    assert culprits(rank(0, **ended), rank(1, **left), waiting(2)) == (2,)
    lost = attribute([rank(0, **ended), rank(1, **ended), rank(2, **LOST)])
    assert (lost.local_ranks, "have ended with 0" in lost.why) == ((2,), True)


def test_who_stops_waiting_may_have_waited_for_another_in_vain() -> None:
    gave_up = OWN._replace(type="EOFError", message="")
    both = attribute([rank(n, error=gave_up) for n in range(2)])
    assert both.why.startswith("likely: 2 ranks raised the same EOFError; not certain")
    assert "likely" not in attribute([rank(0, error=gave_up)]).why  # nobody else is there
    assert "likely" in attribute([rank(0, error=gave_up)], has_others=True).why
    frames = '  File "{}", line 20, in main\n    step()\n  File "{}", line 9, in f\n    check(x)\nRuntimeError: no\n'
    in_library, in_user = "/site/torch/nn/parallel/distributed.py", "/home/torch/train.py"
    for known, is_hedged in (
        ({"type": "torch.distributed.checkpoint.api.CheckpointException"}, True),
        ({"type": "torch.OutOfMemoryError"}, False),
        ({"traceback": frames.format(in_user, in_library)}, True),
        ({"traceback": "ConnectionRefusedError: [Errno 111]\n\nDuring handling\n\nValueError: no batch"}, True),
        ({"traceback": '  File "x.py", line 1, in f\n    raise ConnectionError\nValueError: EOFError'}, False),
        ({"traceback": frames.format(in_library, in_user)}, False),  # the forward() of a wrapped model
    ):
        why = attribute([rank(0, error=OWN._replace(**known)), rank(1)]).why
        assert why.startswith("likely: raised ") is is_hedged


def test_who_ended_first_is_not_certain_and_less_so_where_the_next_one_ended_soon() -> None:
    """It may have given up on a rank that ends, or hangs, later: an exit without an exception does not tell."""
    first = rank(0, exit_code=11, ended_ns=S)
    close = attribute([first, rank(1, exit_code=11, ended_ns=S + S // 20)])
    assert (close.local_ranks, close.why[:27]) == ((0,), "likely: ended first, withou")
    assert "less than 0.1 s later" in close.why
    later = attribute([first, rank(1, exit_code=11, ended_ns=S + S // 5)])
    why = "likely: ended first, without an exception on record; not certain, since another rank may have caused it"
    assert later == ((0,), why)
    assert attribute([first]) == ((0,), "ended by itself, without an exception on record")  # there is no other


def test_a_thread_that_an_exception_has_ended_names_nobody_who_waits_or_has_company() -> None:
    lost = {"is_condemned": True, "error": LOST_A_THREAD}
    assert culprits(waiting(0, error=LOST_A_THREAD), waiting(1)) == ()
    assert culprits(rank(0, **lost), rank(1, **lost)) == ()
    assert culprits(rank(0, error=LOST_A_PEER._replace(thread="sends"), is_condemned=True), waiting(1)) == ()
    # Who has ended without a record may be the one that failed.
    unknown = rank(1, exit_code=1, ended_ns=S, is_monitored=False)
    assert culprits(rank(0, error=LOST_A_THREAD), unknown) == ()
    # What a signal of ours has upset in a thread, has not upset the rank.
    asked = rank(0, **lost, asked_ns=OWN.at_ns - 1)
    assert not asked.may_be_upset
    assert culprits(asked, rank(1, exit_code=3, ended_ns=S, asked_ns=1)) == (1,)


@pytest.mark.parametrize(
    "upset",
    [
        [{"error": OWN}, {"error": OTHER}],
        [{"error": OTHER, "exit_code": 1}, {"error": OWN}],
        [{"error": OWN}, ENDED],
        [ENDED, {"exit_code": 7, "ended_ns": S}],
        [{"error": OWN}, {"exit_code": 0, "ended_ns": S, "has_left": True}],
    ],
)
def test_of_several_that_our_question_upsets_in_different_ways_none_is_named_for_it(upset: list[Any]) -> None:
    """Whichever of them fails first is a coin; where they stood when they were asked counts."""
    group = [rank(number, **ASKED, **how) for number, how in enumerate(upset)]
    blame = attribute(group)
    assert blame.local_ranks == ()
    assert blame.why.endswith("; 2 ranks failed or ended, after a signal had asked for the stack, which may be why")
    assert culprits(group[0]._replace(waits=True), group[1]._replace(waits=False)) == (1,)
    # A failure from before the question is what it was; so is one of a rank that was not asked.
    earlier = rank(2, error=OWN._replace(at_ns=S // 2), asked_ns=S)
    for each in (earlier, earlier._replace(asked_ns=0)):
        assert culprits(*group, each) == (2,)


def test_an_end_that_our_question_may_have_caused_is_told_as_one() -> None:
    why, perhaps = "likely: ended by itself, without an exception on record", PERHAPS_FOR_ANOTHER
    assert attribute([rank(0, **ENDED), waiting(1)]) == ((0,), f"{why}{perhaps}")
    asked = attribute([rank(0, **ENDED, **ASKED), waiting(1, asked_ns=S)])
    assert asked == ((0,), f"{why}, after a signal had asked for the stack, which may be why{perhaps}")
    left = {"exit_code": 0, "has_left": True}
    for known, hint in (({}, ""), ({"asked_ns": S}, ", after a signal had asked for the stack, which may be why")):
        gone = attribute([rank(0, **left, **known), waiting(1), waiting(2)])
        assert gone == ((0,), f"ended with 0 while the others still needed it{hint}")
    # A victim's lost connection is no second failure of that kind.
    assert culprits(rank(0, **ENDED, **ASKED), rank(1, **LOST | {"asked_ns": 1})) == (0,)


def test_peers_that_went_on_for_a_moment_only_are_held_up_themselves() -> None:
    group = [rank(0, is_condemned=True, last_sign_ns=S), rank(1, last_sign_ns=5 * S), rank(2, last_sign_ns=2 * S)]
    assert culprits(*group) == ()


# ---- ranks that get on, have left or hang in the kernel ---------------------------------------------------

GETS_ON = {"waits": False, "is_lively": True, "silent_ns": S // 50}
FOR_ONE = {**WAITS, "waits_for_one": True, "limit_ns": 2 * S}
FOR_ALL = {**WAITS, "waits_for_all": True, "limit_ns": 2 * S}
LEFT = {"exit_code": 0, "has_left": True}
SMALL = GroupNumber("tp", 3, 2, "nccl")


def test_who_gets_on_is_not_blamed_for_others_that_wait_for_one_another() -> None:
    pair = [rank(0, **FOR_ONE, waits_at="train.py:5"), rank(3, **FOR_ONE, waits_at="train.py:9")]
    found = attribute([*pair, rank(1, **GETS_ON), rank(2, **GETS_ON)])
    assert found.local_ranks == ()
    assert found.why.startswith("who is overdue waits at train.py:5 and train.py:9 for a message to or from one other")
    assert found.why.endswith("; the others get on")
    assert not attribute([*pair, rank(1)]).why.endswith("; the others get on")
    for still in ({"silent_ns": S // 4}, {"is_lively": False}, {"is_condemned": True}, {"silent_ns": -1}):
        assert culprits(*pair, rank(1, **{**GETS_ON, **still})) == (1,)


def test_who_gets_on_may_be_missed_where_all_others_wait_for_everybody() -> None:
    """It never comes to the collective: a loop that reads batches, say."""
    waiting_for_all = [rank(n, **FOR_ALL) for n in range(2)]
    assert attribute([*waiting_for_all, rank(2, **GETS_ON)])[0] == (2,)
    assert culprits(waiting_for_all[0], rank(1, **WAITS), rank(2, **GETS_ON)) == ()
    in_small = [e._replace(groups=(SMALL,)) for e in waiting_for_all]
    assert culprits(*in_small, rank(2, **GETS_ON)) == ()


def test_what_a_rank_that_gets_on_has_called_tells_that_it_has_not_arrived() -> None:
    behind = in_nccl(1, 1840, 0)._replace(is_condemned=False, is_lively=True, silent_ns=1)
    ahead = [in_nccl(n, 1841, 1841)._replace(limit_ns=S, groups=(group_of(1841, 3, 1841), SMALL)) for n in (0, 2)]
    found = attribute([*ahead, behind._replace(groups=(group_of(1840, 3, 0), SMALL))])
    assert found.local_ranks == (1,)
    assert "has not arrived" in found.why


def test_who_wait_for_a_message_may_wait_for_each_other_and_not_for_those_that_have_ended() -> None:
    pair = [rank(n, **FOR_ONE, waits_at="train.py:5") for n in range(2)]
    found = attribute([*pair, *(rank(n, **LEFT) for n in (2, 3))])
    assert found.local_ranks == ()
    assert found.why.startswith(
        "2 ranks wait at train.py:5 for a message to or from one other rank: for each other, or"
    )
    # Of one alone, who could have sent is gone; and who has lost a connection has lost one that is gone.
    assert culprits(pair[0], *(rank(n, **LEFT) for n in (1, 2, 3))) == (0,)
    assert culprits(pair[0], rank(1, **LOST), rank(2, **LOST), rank(3, **LEFT)) == (3,)
    # Nor is it of any matter who has left in the midst of a section.
    assert culprits(*pair, rank(2, **LEFT, open_sections=("step",)), rank(3, **LEFT)) == (2,)


def test_who_have_called_different_numbers_in_a_group_of_theirs_may_wait_for_each_other() -> None:
    apart = [rank(n, **FOR_ALL, groups=(GroupNumber("tp", 3 + n, 2),)) for n in range(2)]
    found = attribute([*apart, rank(2, **LEFT)])
    assert found.local_ranks == ()
    assert "different numbers of collectives of group tp" in found.why
    level = [e._replace(groups=(SMALL,)) for e in apart]
    found = attribute([*level, rank(2, **LEFT)])
    assert found.local_ranks == (2,)
    assert found.why.endswith("not certain, since they may wait for each other in a smaller process group")
    of_work = [e._replace(groups=(), waits_for_all=False, waits_by_source=True) for e in apart]
    assert attribute([*of_work, rank(2, **LEFT)])[1].endswith("since they may wait for each other, for messages")
    of_all = [e._replace(groups=(GroupNumber("0", 3, 3),)) for e in apart]
    assert attribute([*of_all, rank(2, **LEFT)]) == ((2,), "ended with 0 while the others still needed it")


@pytest.mark.parametrize("waits", [None, False])
@pytest.mark.parametrize("is_condemned", [True, False])
def test_who_has_shut_monitoring_down_does_not_hide_one_that_hangs_in_the_kernel(
    waits: bool | None, is_condemned: bool
) -> None:
    stuck = rank(3, state="D", hangs_in_kernel=True, waits=waits, is_condemned=is_condemned)
    found = attribute([rank(0, has_left=True, waits=False), waiting(1), waiting(2), stuck])
    assert found.local_ranks == (3,)
    assert found.why.startswith("likely: it is in uninterruptible sleep (state D)")
    assert found.why.endswith("not certain, since another rank has ended or shut monitoring down")


def test_who_has_shut_monitoring_down_does_not_hide_one_that_is_stopped() -> None:
    stopped = rank(3, state="T")
    found = attribute([rank(0, has_left=True), waiting(1), stopped])
    assert found.local_ranks == (3,)
    assert found.why.endswith("not certain, since another rank has ended or shut monitoring down")
    assert attribute([rank(0, has_left=True, error=LOST_A_PEER), waiting(1), stopped])[1] == (
        "the process is stopped (SIGSTOP)"
    )


def test_a_rank_in_uninterruptible_sleep_without_a_stack_is_named_where_all_others_wait() -> None:
    stuck = rank(1, state="D", hangs_in_kernel=True, is_condemned=True)
    found = attribute([waiting(0), stuck])
    assert found.local_ranks == (1,)
    assert found.why.endswith("not certain, since whatever it needs may be held up for others, too")
    assert culprits(waiting(0), rank(2, is_condemned=True), stuck) == ()
    assert culprits(rank(0, **FOR_ONE), rank(2, **GETS_ON), stuck) == (1,)
    assert culprits(waiting(0), waiting(1, hangs_in_kernel=True)) == ()
    writes = {"is_lively": True, "silent_ns": 1, "is_condemned": False}  # a moment ago it was well
    assert culprits(rank(0, **FOR_ONE), rank(1, hangs_in_kernel=True, **writes)) == ()


def test_one_that_stands_anywhere_is_no_less_suspect_than_one_that_has_passed_no_limit() -> None:
    assert culprits(waiting(0), rank(1, waits=False), rank(2, is_condemned=True)) == ()
    assert culprits(waiting(0), rank(1, waits=False), rank(2)) == (1,)


# ---- whatever is known -----------------------------------------------------------------------------------


def _victim(condemned: bool, waits: bool | None, lost: bool, gpu: bool, ended: bool) -> Evidence:
    return Evidence(
        0,
        is_condemned=condemned,
        iteration=7,
        state="S",
        exit_code=1 if lost and ended else None,
        ended_ns=10**12 if lost and ended else 0,
        is_monitored=True,
        error=LOST_A_PEER if lost else None,
        waits=waits,
        waits_at="train.py:20" if waits else "",
        has_gpu=gpu,
        is_busy=None if gpu else False,
        last_sign_ns=S,
    )


victims = st.builds(_victim, st.booleans(), st.sampled_from([True, None]), st.booleans(), st.booleans(), st.booleans())
causes = st.sampled_from(
    [
        {"error": OWN},
        {"error": OWN, "exit_code": 1, "ended_ns": 2 * 10**12},
        {"exit_code": -11, "is_dumping_core": True},
        {"exit_code": -9, "ended_ns": 10**12 + 1},
        {"exit_code": 17, "ended_ns": 10**12 + 1},
        {"state": "T"},
        {"state": "t"},
    ]
)


@given(st.lists(victims, min_size=1, max_size=5), causes, st.booleans(), st.randoms(), st.booleans())
@settings(deadline=None)
def test_a_victim_is_never_named_where_there_is_a_cause(
    others: list[Evidence], cause: dict[str, Any], condemned: bool, order: Any, has_others: bool
) -> None:
    group = [e._replace(local_rank=number) for number, e in enumerate(others)]
    group.append(rank(len(group), is_condemned=condemned, last_sign_ns=S, **cause))
    order.shuffle(group)
    assert attribute(group, has_others=has_others).local_ranks == (len(others),)


@given(st.lists(victims, min_size=2, max_size=5), st.booleans())
@settings(deadline=None)
def test_a_group_of_victims_is_not_blamed(found: list[Evidence], has_others: bool) -> None:
    group = [e._replace(local_rank=number) for number, e in enumerate(found)]
    assume(any(e.is_condemned or e.exit_code is not None for e in group))
    blame = attribute(group, has_others=has_others)
    assert (blame.local_ranks, bool(blame.why)) == ((), True)


anything = st.builds(
    Evidence,
    st.just(0),
    is_condemned=st.booleans(),
    iteration=st.integers(-1, 3),
    state=st.sampled_from(["", "R", "S", "D", "T", "t", "Z"]),
    exit_code=st.sampled_from([None, None, 0, 1, 3, -int(signal.SIGKILL), -6, -15, -99]),
    ended_ns=st.integers(0, 10),
    is_dumping_core=st.booleans(),
    has_left=st.booleans(),
    is_monitored=st.booleans(),
    error=st.sampled_from([None, LOST_A_PEER, OWN]),
    waits=st.sampled_from([True, False, None]),
    waits_at=st.sampled_from(["", "a", "b"]),
    stands_at=st.sampled_from(["", "a", "b"]),
    is_busy=st.sampled_from([True, False, None]),
    has_gpu=st.booleans(),
    waits_for_all=st.booleans(),
    waits_for_store=st.booleans(),
    open_sections=st.sampled_from([(), ("a",), ("a", "b")]),
    closed=st.sampled_from([(), (("a", 0),), (("a", 1), ("b", 3))]),
    last_sign_ns=st.integers(0, 5 * S),
    limit_ns=st.integers(0, 5 * S),
)


@given(st.lists(anything, min_size=1, max_size=5), st.booleans())
@settings(deadline=None)
def test_there_is_always_a_reason_and_only_ranks_of_the_group_are_named(found: list[Evidence], others: bool) -> None:
    blame = attribute([e._replace(local_rank=number) for number, e in enumerate(found)], has_others=others)
    assert blame.why
    assert set(blame.local_ranks) <= set(range(len(found)))
    assert len(set(blame.local_ranks)) == len(blame.local_ranks)


def test_where_only_lines_of_source_tell_of_waits_nothing_is_said_of_a_collective() -> None:
    """One of them may be stuck in a ``wait`` of its own, of a library for files, say."""
    local_ranks, why = attribute(
        [Evidence(0, **WAITS, waits_by_source=True), Evidence(1, **WAITS)]  # type: ignore[arg-type]
    )
    assert (local_ranks, "seems to wait" in why, "skipped" in why) == ((), True, False)


# ---- where ranks wait for the store of a process group, no collective exists yet --------------------------


def at_store(local_rank: int, **known: Any) -> Evidence:
    return waiting(
        local_rank, **{"waits_for_store": True, "open_sections": ("setup",), "closed": (("setup", 0),), **known}
    )


@pytest.mark.parametrize(
    ("group", "others", "why"),
    [
        ([at_store(0), at_store(1)], False, "every rank waits for the store .*MASTER_ADDR:MASTER_PORT.* in time$"),
        ([at_store(0), at_store(1)], True, "every rank here waits for the store"),
        ([at_store(0), at_store(1, waits_at="train.py:31"), at_store(2)], False, "every rank waits for the store"),
        ([at_store(0), waiting(1)], False, "1 of 2 ranks waits for the store .*; it cannot be told which rank"),
        ([at_store(0), waiting(1), at_store(2)], True, "2 of 3 ranks here wait for the store .*; it cannot be told"),
        # The one that waits elsewhere may have passed the store, and wait for those that have not.
        ([at_store(0), waiting(1, waits_at="train.py:31"), at_store(2)], False, "2 of 3 ranks wait for the store"),
        ([at_store(0), waiting(1, waits_by_source=True)], False, "1 of 2 ranks waits for the store"),
        ([at_store(0), rank(1)], False, "1 of 2 ranks waits for the store .*; it cannot be told which rank"),
    ],
)
def test_where_ranks_wait_for_the_store_nobody_has_skipped_a_collective(
    group: list[Evidence], others: bool, why: str
) -> None:
    blame = attribute(group, has_others=others)
    assert blame.local_ranks == ()
    assert re.match(why, blame.why), blame.why
    assert "may be unreachable, or a rank has not come to it in time" in blame.why
    assert "collective" not in blame.why


STORE_MAY_BE_UNREACHABLE = "for the store of the process group .*; not certain, since that may be unreachable$"


@pytest.mark.parametrize(
    ("group", "why"),
    [
        (
            [rank(1, **OUTSIDE), at_store(0)],
            f"stands outside any collective, the others wait {STORE_MAY_BE_UNREACHABLE}",
        ),
        ([rank(1, **OUTSIDE), at_store(0), waiting(2)], f"the others wait in one or {STORE_MAY_BE_UNREACHABLE}"),
        ([rank(1, exit_code=0, has_left=True), at_store(0)], "ended with 0 while .* the store .* may be unreachable$"),
        (
            [rank(1, has_left=True, open_sections=("step",)), at_store(0)],
            "finished its training while .* the store .* may be unreachable$",
        ),
    ],
)
def test_a_rank_that_others_at_the_store_may_wait_for_is_named_as_likely(group: list[Evidence], why: str) -> None:
    blame = attribute(group)
    assert blame.local_ranks == (1,)
    assert re.match(f"likely: .*{why}", blame.why), blame.why


def test_who_is_last_to_come_to_the_store_has_called_no_collective_too_many() -> None:
    local_ranks, why = attribute([at_store(0), *(rank(n, exit_code=0, has_left=True) for n in (1, 2))])
    assert (local_ranks, "collective" in why, "as most have: it waits for the store" in why) == ((0,), False, True)


# ---- how far ranks are in their collectives --------------------------------------------------------------


def group_of(number: int, size: int, first_undone: int | None = None, **known: Any) -> GroupNumber:
    return GroupNumber("0", number, size, **{"backend": "nccl", "first_undone": first_undone, **known})


def in_nccl(local_rank: int, number: int, first_undone: int | None, size: int = 3, **known: Any) -> Evidence:
    """A rank that stands in ``loss.item()``: no line of Python shows whether its GPU is in a collective."""
    groups = (group_of(number, size, first_undone, operation="all_reduce" if first_undone else ""),)
    place = {"waits": None, "may_wait": True, "stands_at": f"train.py:{number}", "has_gpu": True}
    return rank(local_rank, **{"is_condemned": True, "groups": groups, "is_idle": first_undone == 0, **place, **known})


def test_who_has_not_entered_the_collective_that_all_others_are_in_is_named() -> None:
    group = (in_nccl(0, 1843, 1841), in_nccl(1, 1840, 0), in_nccl(2, 1841, 1841))
    found = attribute(group)
    assert found.local_ranks == (1,)
    assert found.why == (
        "likely: has not arrived: the others wait in collective 1841 of group 0 (all_reduce), and this rank has called "
        "1840 and is in none; not certain, since it may wait for another rank there in a way that no stack shows"
    )
    (sure,) = (e._replace(may_wait=False) for e in group if e.local_rank == 1)
    assert attribute([sure, *(e for e in group if e.local_rank != 1)]).why.startswith("has not arrived: ")
    assert "the other waits in" in attribute([in_nccl(0, 5, 5, 2), in_nccl(1, 4, 0, 2)]).why


@pytest.mark.parametrize(
    "behind",
    [
        in_nccl(1, 1840, 1840),  # its GPU has not done the one before: a link, say
        in_nccl(1, 1840, 0, is_idle=None),  # torch does not tell
        in_nccl(1, 1840, 0, is_idle=False),  # it waits in another group
        in_nccl(1, 1840, 0, waits=True),
        in_nccl(1, 1840, 0, groups=(group_of(1840, 3, 0, backend="cpu:gloo,cuda:nccl"),)),  # it may receive by gloo
        in_nccl(1, 1841, 0),  # it has called it, and left it
        in_nccl(1, 1840, 0, groups=()),  # it did not answer
        in_nccl(1, 1840, 0, groups=(group_of(1840, 4, 0),)),  # one is elsewhere
    ],
)
def test_who_is_behind_may_be_a_victim_and_then_nobody_is_named(behind: Evidence) -> None:
    assert culprits(in_nccl(0, 1841, 1841), behind, in_nccl(2, 1841, 1841)) == ()


@pytest.mark.parametrize(
    "other",
    [
        in_nccl(2, 1841, 0),  # it is done: nobody is waited for
        in_nccl(2, 1842, 1842),  # it is in another one
        in_nccl(2, 1840, 0),  # two have not arrived
        in_nccl(2, 1842, 1840),  # they are in one that this rank has left: a link, say
        in_nccl(2, 1841, 1841, waits=False, may_wait=True, has_gpu=False, is_condemned=False, groups=()),
    ],
)
def test_only_where_all_others_are_in_one_collective_the_last_one_is_named(other: Evidence) -> None:
    assert 1 not in culprits(in_nccl(0, 1841, 1841), in_nccl(1, 1840, 0), other)


def test_where_stacks_tell_numbers_change_nothing() -> None:
    outside = rank(1, **OUTSIDE, groups=(group_of(4, 2, 0, backend="gloo"),), is_idle=True)
    inside = waiting(0, groups=(group_of(5, 2, 5, backend="gloo"),), is_idle=False)
    bare = [e._replace(groups=(), is_idle=None) for e in (inside, outside)]
    assert attribute([inside, outside]) == attribute(bare)
    # Both wait by their stacks: one may have skipped a collective, and the numbers do not tell which.
    assert attribute([inside, outside._replace(waits=True)]).local_ranks == ()


numbers = st.lists(
    st.builds(
        GroupNumber,
        st.sampled_from("01"),
        st.integers(0, 3),
        st.integers(1, 4),
        st.sampled_from(["nccl", "gloo"]),
        st.just(""),
        st.sampled_from(["", "all_reduce"]),
        st.none() | st.integers(0, 3),
    ),
    max_size=2,
).map(tuple)


@pytest.mark.parametrize(("state", "is_named"), [("D", True), ("S", False)])
def test_a_rank_that_is_stuck_in_the_kernel_waits_for_nobody_by_gloo(state: str, is_named: bool) -> None:
    ahead = [in_nccl(n, 5, None, waits=True, waits_for_all=True, has_gpu=False) for n in (0, 2)]
    stuck = in_nccl(1, 4, 0, state=state, has_gpu=False, may_wait=False)
    ahead = [e._replace(groups=(group_of(5, 3, None, backend="gloo"),)) for e in ahead]
    stuck = stuck._replace(groups=(group_of(4, 3, 0, backend="gloo"),))
    found = has_not_arrived([*ahead, stuck])
    assert (found is not None and found.local_ranks == (1,)) is is_named


@given(st.lists(st.tuples(numbers, st.none() | st.booleans(), st.none() | st.booleans()), min_size=2, max_size=4))
def test_who_waits_or_has_called_what_is_not_done_is_never_named_for_its_number(
    facts: list[tuple[tuple[GroupNumber, ...], bool | None, bool | None]],
) -> None:
    group = [
        rank(n, is_condemned=True, waits=waits, groups=groups, is_idle=is_idle, stands_at="x", may_wait=True)
        for n, (groups, is_idle, waits) in enumerate(facts)
    ]
    if (found := has_not_arrived(group)) is not None:
        (named,) = (e for e in group if e.local_rank in found.local_ranks)
        assert not named.waits
        assert named.is_idle
        assert all(e.waits is not False for e in group if e is not named)


def test_a_collective_that_a_rank_has_called_is_none_in_which_it_has_not_arrived() -> None:
    """It has left it, and the others have not: a link, say."""
    ahead = [in_nccl(n, 1842, 1840) for n in (0, 2)]
    assert has_not_arrived([*ahead, in_nccl(1, 1840, 0)]) is None


# ---- in a collective by a thread ----------------------------------------------------------------------------


def in_gloo(number: int, first_undone: int, name: str = "0") -> dict[str, Any]:
    return {"groups": (GroupNumber(name, number, 2, "gloo", first_undone=first_undone),), "is_idle": first_undone == 0}


@pytest.mark.parametrize("stands", [{"waits": False}, {"waits": None}], ids=["outside", "not known"])
def test_a_rank_whose_thread_is_in_the_collective_of_the_others_holds_nobody_up(stands: dict[str, Any]) -> None:
    """Its main thread computes, or looks whether that thread has ended."""
    other = waiting(1, is_busy=False, **in_gloo(9, 9))
    busy = {"is_condemned": True, "state": "R", "may_wait": True, "is_busy": True, **stands}
    assert attribute([rank(0, **busy, **in_gloo(9, 9)), other]).local_ranks == ()
    for there in (in_gloo(8, 0), in_gloo(9, 0), in_gloo(9, 9, "1"), {**in_gloo(9, 9), "has_gpu": True}, {}):
        assert attribute([rank(0, **busy, **there), other]).local_ranks == (0,), there


def test_who_left_before_the_others_raised_alike_is_named_on_one_node_by_its_clock() -> None:
    error = ErrorRecord("TrainerError", "step failed", at_ns=50 * S, iteration=7)
    raised = [rank(n, error=error, exit_code=1, ended_ns=60 * S) for n in (1, 2)]
    left = {"exit_code": 0, "has_left": True, "ended_ns": 55 * S}
    assert attribute([rank(0, last_sign_ns=49 * S, **left), *raised]).local_ranks == (0,)
    assert attribute([rank(0, last_sign_ns=51 * S, **left), *raised]).local_ranks == (1, 2)


def test_who_ends_with_0_is_no_fact_while_a_rank_lives_that_may_have_failed() -> None:
    """It may have lost a peer that cleans up after an exception, have saved its state, and have left."""
    left = {"exit_code": 0, "has_left": True, "ended_ns": 20 * S}
    midst = {**left, "open_sections": ("step",)}
    for gone in (left, midst):
        known = attribute([rank(0, **gone), rank(1), rank(2, **LOST)])
        assert known.local_ranks == (0,)
        assert known.why.startswith("likely: ended with 0 while the others still needed it; not certain, since another")
    for other in (WAITS, LOST):
        assert not attribute([rank(0, **midst), rank(1, **other), rank(2, **LOST)]).why.startswith("likely")


def test_who_ends_with_0_just_after_another_has_raised_is_not_named() -> None:
    raised = rank(0, error=OWN._replace(at_ns=50 * S), exit_code=1, ended_ns=54 * S)
    gone = {"exit_code": 0, "has_left": True, "open_sections": ("step",)}
    just_after = attribute([raised, rank(1, ended_ns=50 * S + 80_000_000, **gone)])
    assert just_after.local_ranks == (0,)
    assert just_after.why.startswith("likely: raised ValueError; "), "its connections were closed before"
    assert attribute([raised, rank(1, ended_ns=52 * S + 1, **gone)]).why.startswith("raised ValueError")
    assert attribute([raised, rank(1, ended_ns=50 * S - 80_000_000, **gone)]).local_ranks == (1,)


def test_who_has_raised_first_is_no_fact_where_another_raised_while_it_lived() -> None:
    """That one's exception may be on record late, since it cleaned up before."""
    first = rank(0, error=OWN._replace(type="TrainError", at_ns=50 * S), exit_code=1, ended_ns=52 * S)
    late = rank(1, error=OWN._replace(at_ns=51 * S))
    known = attribute([first, late])
    assert known.local_ranks == (0, 1)
    assert known.why == (
        "likely: one rank raised ValueError, and another had raised TrainError before; "
        "not certain, since that one had not ended, and may go on after that"
    )
    assert first.error is not None
    left = attribute([first._replace(error=first.error._replace(is_uncaught=True)), late])
    assert left.local_ranks == (0,)
    assert left.why == (
        "likely: raised TrainError; not certain, since another rank raised ValueError before that one had ended"
    )
    after = rank(1, error=OWN._replace(at_ns=53 * S))
    assert attribute([first, after]).why == "raised TrainError before any other failure was seen"


def test_who_raised_is_no_fact_where_another_rank_sleeps_where_nobody_waits_for_others() -> None:
    """That one may clean up after an exception, which is on record once it leaves the script."""
    raised = rank(0, error=OWN, exit_code=1, ended_ns=60 * S)
    apart = attribute([raised, rank(1, kernel_wait="hrtimer_nanosleep")])
    assert apart.local_ranks == (0,)
    assert apart.why == (
        "likely: raised ValueError; not certain, since another rank sleeps in hrtimer_nanosleep, in no collective, and "
        "may have failed before"
    )
    innocent: tuple[dict[str, Any], ...] = (
        {"kernel_wait": "futex_do_wait"},
        {"kernel_wait": "ep_poll"},
        {"state": "R"},
        {**LOST, "kernel_wait": "hrtimer_nanosleep"},
        {"kernel_wait": "hrtimer_nanosleep", "is_lively": True},
    )
    for known in innocent:
        assert attribute([raised, rank(1, **known)]).why.startswith("raised ValueError"), known
    died = rank(0, exit_code=-9, ended_ns=60 * S)
    assert attribute([died, rank(1, kernel_wait="hrtimer_nanosleep")]).why == "killed by SIGKILL"


def test_who_has_ended_with_0_before_a_rank_raised_on_its_node_is_named_or_a_doubt() -> None:
    raised = rank(0, error=OWN._replace(at_ns=50 * S), exit_code=1, ended_ns=60 * S)
    gone = {"exit_code": 0, "has_left": True, "ended_ns": 55 * S, "last_sign_ns": 49 * S}
    assert attribute([raised, rank(1, iteration=6, **gone)]).local_ranks == (1,)
    known = attribute([raised, rank(1, **gone)])
    assert known.local_ranks == (0,)
    assert (
        known.why
        == "likely: raised ValueError; not certain, since another rank has ended with 0 before, or at the same time"
    )
    assert attribute([raised, rank(1, **{**gone, "last_sign_ns": 51 * S})]).why.startswith("raised ValueError")
