"""The log: entries by index, voters by entry, and a snapshot in place of the oldest ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from launcher.nodes.raft_log import Entry, RaftLog, Snapshot
from launcher.nodes.raft_progress import Progress, reached_by_majority


def make(*terms: int) -> RaftLog:
    log = RaftLog(Snapshot(0, 0, ("a",), "empty"))
    for term in terms:
        log.append(Entry(term, "command", term))
    return log


def test_entries_are_counted_from_one() -> None:
    log = make(1, 1, 2)
    assert (len(log), log.last_index, log.last_term) == (3, 3, 2)
    assert [log.term_at(index) for index in range(-1, 6)] == [None, 0, 1, 1, 2, None, None]
    assert log.entry(3) == Entry(2, "command", 2)
    assert [entry.term for entry in log.after(1, 9)] == [1, 2]
    assert [entry.term for entry in log.after(0, 2)] == [1, 1]


def test_an_empty_log_ends_with_its_snapshot() -> None:
    log = RaftLog(Snapshot(7, 3, ("a",), None))
    assert (log.last_index, log.last_term, log.term_at(7), log.term_at(6)) == (7, 3, 3, None)


def test_voters_are_in_force_from_their_entry_on_and_no_longer_than_it_stands() -> None:
    log = make(1)
    assert log.append(Entry(1, "voters", ["a", "b"])) == 2
    assert (log.voters, log.voters_index) == (("a", "b"), 2)
    log.merge(1, [Entry(2, "noop", None)])
    assert (log.voters, log.voters_index, log.last_index) == (("a",), 0, 2)


def test_what_agrees_is_kept_and_what_contradicts_is_dropped_with_all_that_follows() -> None:
    log = make(1, 1, 1, 1)
    log.merge(1, [Entry(1, "command", 1)])
    assert log.last_index == 4
    log.merge(1, [Entry(1, "command", 1), Entry(2, "command", 2)])
    assert (log.last_index, log.last_term) == (3, 2)


def test_entries_that_a_snapshot_covers_are_passed_over() -> None:
    log = RaftLog(Snapshot(2, 1, (), None))
    log.merge(0, [Entry(1, "noop", None), Entry(1, "noop", None), Entry(1, "command", "x")])
    assert (log.last_index, log.entry(3).data) == (3, "x")


def test_a_compacted_log_answers_as_before_for_what_it_holds() -> None:
    log = make(1, 1)
    log.append(Entry(2, "voters", ("a", "b")))
    log.append(Entry(2, "voters", ("a", "b", "c")))
    log.compact(3, "state")
    assert log.snapshot == Snapshot(3, 2, ("a", "b"), "state")
    assert (log.voters, log.voters_index) == (("a", "b", "c"), 4)
    assert [log.term_at(index) for index in (2, 3, 4)] == [None, 2, 2]
    log.merge(3, [Entry(3, "noop", None)])
    assert (log.voters, log.voters_index) == (("a", "b"), 3)


@given(st.lists(st.integers(1, 3), max_size=8).map(sorted), st.data())
def test_compaction_anywhere_keeps_what_follows(terms: list[int], data: st.DataObject) -> None:
    log, whole = make(*terms), make(*terms)
    index = data.draw(st.integers(0, len(terms)))
    log.compact(index, None)
    for at in range(index, len(terms) + 1):
        assert log.term_at(at) == whole.term_at(at)
        assert log.after(at, 99) == whole.after(at, 99)
    assert (log.last_index, log.last_term) == (whole.last_index, whole.last_term)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7))
def test_a_majority_has_reached_what_is_answered_and_none_has_reached_more(values: list[int]) -> None:
    reached = reached_by_majority(values)
    assert 2 * sum(value >= reached for value in values) > len(values)
    assert 2 * sum(value > reached for value in values) <= len(values)


def test_answers_in_another_order_do_not_turn_time_back() -> None:
    progress = Progress(1)
    for stamp in (5, 9, 7):
        progress.answered(stamp)
    assert progress.acknowledged_ns == 9
