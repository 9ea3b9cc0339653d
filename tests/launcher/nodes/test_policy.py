"""Which nodes make a generation, and which of them vote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.nodes.membership import Membership, NodeInfo
from launcher.nodes.policy import Policy, choose_members, why_no_part


def policy(least: int, most: int, *, is_fixed: bool = False) -> Policy:
    return Policy(least, most, is_fixed, 3, 1, 1, 1)


def job(*names: str, members: tuple[str, ...] = (), orders: dict[str, str] | None = None) -> Membership:
    membership = Membership()
    for name in names:
        membership.nodes[name] = NodeInfo(f"host {name}", name, 1, (orders or {}).get(name, ""), 2)
    membership.members, membership.slots = members, (2,) * len(members)
    membership.generation = 0 if members else -1
    return membership


def strike(membership: Membership, name: str, count: int) -> None:
    membership.strikes[f"host {name}"] = (count, membership.generation)


def test_without_a_named_order_nodes_stand_as_they_have_joined() -> None:
    assert choose_members(job("b", "a", "c"), {"a", "b", "c"}, policy(1, 3)) == ["b", "a", "c"]


def test_nodes_stand_in_the_order_that_they_have_named() -> None:
    membership = job("b", "a", "c", orders={"a": "2", "b": "3", "c": "1"})
    assert choose_members(membership, {"a", "b", "c"}, policy(1, 3)) == ["c", "a", "b"]


def test_no_more_than_the_most_and_of_fixed_ones_no_more_than_the_least() -> None:
    membership = job("a", "b", "c", "d")
    assert choose_members(membership, set("abcd"), policy(1, 3)) == ["a", "b", "c"]
    assert choose_members(membership, set("abcd"), policy(2, 4, is_fixed=True)) == ["a", "b"]


def test_only_who_is_ready_is_taken() -> None:
    assert choose_members(job("a", "b", "c"), {"b"}, policy(1, 3)) == ["b"]
    assert choose_members(job("a", "b", "c"), set(), policy(1, 3)) == []


def test_members_are_taken_before_newcomers() -> None:
    membership = job("a", "b", "c", members=("b", "c"))
    assert choose_members(membership, set("abc"), policy(1, 2)) == ["b", "c"]


def test_fixed_members_keep_their_places_and_spares_fill_the_gaps() -> None:
    membership = job("a", "b", "c", "s", members=("c", "a", "b"))
    assert choose_members(membership, {"c", "b", "s"}, policy(3, 4, is_fixed=True)) == ["c", "s", "b"]
    assert choose_members(membership, {"c", "b"}, policy(3, 4, is_fixed=True)) == ["c", "b"]


def test_a_spare_takes_only_the_place_of_a_node_with_as_many_ranks() -> None:
    membership = job("a", "b", "c", "s", "t", members=("a", "b", "c"))
    membership.slots = (2, 4, 2)
    membership.nodes["t"] = membership.nodes["t"]._replace(slots=4)
    fixed = policy(3, 5, is_fixed=True)
    assert choose_members(membership, {"b", "c", "s", "t"}, fixed) == ["s", "b", "c"]
    assert choose_members(membership, {"a", "c", "s", "t"}, fixed) == ["a", "t", "c"]
    assert choose_members(membership, {"c", "s", "t"}, fixed) == ["s", "t", "c"]
    assert choose_members(membership, {"a", "c", "s"}, fixed) == ["a", "c"]


def test_in_an_elastic_job_every_number_of_ranks_takes_part() -> None:
    membership = job("a", "b", members=("a",))
    membership.nodes["b"] = membership.nodes["b"]._replace(slots=5)
    assert why_no_part(membership, "b", membership.nodes["b"], policy(1, 2)) == ""
    assert choose_members(membership, {"a", "b"}, policy(1, 2)) == ["a", "b"]


@pytest.mark.parametrize(("strikes", "chosen"), [(1, ["a", "b"]), (2, ["b", "c"])])
def test_a_host_that_was_lost_twice_comes_last(strikes: int, chosen: list[str]) -> None:
    membership = job("a", "b", "c")
    strike(membership, "a", strikes)
    assert choose_members(membership, set("abc"), policy(2, 2)) == chosen


def test_a_host_that_was_lost_twice_is_taken_where_there_is_no_other() -> None:
    membership = job("a", "b")
    strike(membership, "a", 2)
    assert choose_members(membership, {"a", "b"}, policy(1, 2)) == ["b"]
    assert choose_members(membership, {"a", "b"}, policy(2, 2)) == ["a", "b"]


def test_of_two_spares_the_one_that_was_not_lost_is_taken() -> None:
    membership = job("a", "b", "s", "t", members=("a", "b"))
    strike(membership, "s", 2)
    assert choose_members(membership, {"a", "s", "t"}, policy(2, 4, is_fixed=True)) == ["a", "t"]


@given(
    st.sets(st.sampled_from("abcdef"), min_size=1),
    st.lists(st.sampled_from("abcdef"), unique=True, max_size=4),
    st.integers(1, 4),
    st.integers(0, 2),
    st.booleans(),
)
def test_members_are_ready_and_different_and_not_too_many(
    ready: set[str], members: list[str], least: int, more: int, is_fixed: bool
) -> None:
    members = members[:least] if is_fixed else members
    membership = job(*"abcdef", members=tuple(members))
    chosen = choose_members(membership, ready, policy(least, least + more, is_fixed=is_fixed))
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= ready
    assert len(chosen) <= (least if is_fixed else least + more)
    if not is_fixed or not members or len(members) == least:
        assert len(chosen) >= min(least, len(ready))
