"""Who votes: an odd number of at most five, the leader among them, one change at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.nodes.voters import next_voters

NODES = "abcdefgh"


@pytest.mark.parametrize(
    ("voters", "alive", "expected"),
    [
        ("a", "a", ("", "a")),
        ("a", "ab", ("", "a")),  # of two nodes one votes
        ("a", "abc", ("bc", "a")),  # never two, of which none may be lost
        ("a", "abcde", ("bc", "a")),
        ("ab", "abc", ("c", "ab")),
        ("abc", "abcd", ("", "abc")),
        ("abc", "abcde", ("d", "abc")),
        ("abcde", "abcdefgh", ("", "abcde")),
        ("abc", "ab", ("", "ab")),  # who is gone votes no more
        ("ab", "ab", ("", "a")),
        ("abcd", "abcd", ("", "abc")),
        ("abcde", "ade", ("", "acde")),  # one after the other
        ("abc", "", ("", "ac")),
    ],
)
def test_next_voters(voters: str, alive: str, expected: tuple[str, str]) -> None:
    learners, then = next_voters(tuple(voters), list(alive), "a")
    assert ("".join(learners), "".join(then)) == expected


def test_a_leader_that_leaves_goes_last() -> None:
    assert next_voters(("a", "b", "c"), ["b"], "a") == ((), ("a", "b"))
    assert next_voters(("a", "b"), ["b"], "a") == ((), ("b",))
    assert next_voters(("a",), ["b"], "a") == (("b",), ("a",))
    assert next_voters(("a",), [], "a") == ((), ("a",))


def test_a_leader_is_not_the_one_too_many() -> None:
    assert next_voters(("b", "a"), ["a", "b"], "a") == ((), ("a",))


@given(
    st.lists(st.sampled_from(NODES), unique=True, min_size=1, max_size=6),
    st.lists(st.sampled_from(NODES), unique=True, max_size=8),
)
def test_step_by_step_it_comes_to_an_odd_number_of_living_nodes(voters: list[str], alive: list[str]) -> None:
    leader, now = voters[0], tuple(voters)
    for _ in range(20):
        learners, then = next_voters(now, alive, leader)
        if learners:
            assert set(learners) <= set(alive)
            assert then == now
            then = (*now, *learners)
        if then == now:
            break
        assert len(set(then) ^ set(now)) == 1 or (len(now), len(then)) == (1, 3)
        now = then
        if leader not in now:
            leader = now[0]
    else:
        raise AssertionError(f"no end: {now}")
    if alive:
        wanted = min(5, len(alive))
        assert set(now) <= set(alive)
        assert len(now) == wanted - (wanted % 2 == 0)
