"""Windows as bytes, names as hashes, and the matrix that rank 0 builds of them."""

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from straggler.exchange.gathered import assemble
from straggler.exchange.wire import HEADER, ROW, decode_all, encode
from straggler.measurement.measured import Family, Measured, measured, top_k
from straggler.measurement.name_table import NameTable, hash_name
from straggler.measurement.summary import summarise


def row(name="a", seconds=(1.0,), family=Family.SECTION, synchronous=False):
    return Measured(family, name, summarise(list(seconds)), (0.0, 0.0), synchronous)


def payload(rank=0, world_size=2, sequence=0, rows=(), node=b"n"):
    head = {"sequence": sequence, "rank": rank, "world_size": world_size, "elapsed": 1.0, "node": node}
    return encode(head, [(hash_name(r.name), r) for r in rows])


@settings(deadline=None)  # a busy machine fails no property
@given(st.text(), st.text())
def test_a_hash_is_eight_bytes_and_tells_names_apart(one, other):
    assert 0 <= hash_name(one) < 2**64
    assert (hash_name(one) == hash_name(other)) == (one == other)


def test_the_hash_is_part_of_the_wire_format():
    assert hash_name("forward") == 0xA1DE9EA5B59FA2F3


def test_a_collision_is_said(monkeypatch, caplog):
    monkeypatch.setattr("straggler.measurement.name_table.hash_name", lambda name: 7)
    table = NameTable()
    table.add("one")
    with caplog.at_level(logging.ERROR):
        table.add("two")
    assert "'one' and 'two' have the same hash" in caplog.text


@settings(deadline=None)  # a busy machine fails no property
@given(st.lists(st.floats(min_value=1e-9, max_value=1e6), min_size=1, max_size=20))
def test_a_row_travels_unchanged(seconds):
    windows = decode_all([None, payload(rank=1, rows=[row("a", seconds, synchronous=True)])])
    (head,), rows = windows.heads, windows.rows_of(windows.ranks >= 0)
    summary = summarise(seconds)
    values = [float(value) for key, value in summary.items() if str(key) in ("MED", "NUM")]
    assert [float(rows[0]["med"]), float(rows[0]["num"])] == values
    assert int(rows[0]["synchronous"]) == 1
    assert int(head["rank"]) == 1


def test_sizes_are_part_of_the_wire_format():
    assert (HEADER.itemsize, ROW.itemsize) == (208, 40)
    how_to = Path(__file__).parents[2] / "docs" / "how-to" / "stragglers.md"
    assert f"{HEADER.itemsize} + {ROW.itemsize} x rows bytes" in how_to.read_text()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda b: b[:50], "a window has at least 208 bytes, not 50"),
        (lambda b: b[:-1], "a window of 1 rows has 248 bytes, not 247"),
        (lambda b: b + b"1", "a window of 1 rows has 248 bytes, not 249"),
        (lambda b: b"x" * len(b), "a window begins with 0x53545247, not 0x78787878"),
        (lambda b: b[:4] + b"\x09" + b[5:], "window version 9, and this rank reads 6: mixed installations?"),
        (lambda b: payload(rank=0, world_size=3), "a window of rank 0 of 3 came as rank 1"),
    ],
)
def test_what_is_no_window_is_refused_and_the_others_are_read(spoil, why):
    others = [payload(rank=rank, world_size=4, rows=[row("a", [1.0 + rank])]) for rank in range(4)]
    windows = decode_all([others[0], spoil(payload(rank=1, world_size=4, rows=[row()])), None, others[3]])
    assert windows.refused == {1: why}
    assert windows.ranks.tolist() == [0, 3]
    assert windows.rows_of(windows.ranks >= 0)["med"].tolist() == [1.0, 4.0]


@pytest.mark.parametrize(
    "lengths", [[2], [1, 2], [0], [3] * 700 + [1]], ids=["alike", "in turn", "none", "one differs"]
)
def test_the_rows_of_many_ranks_come_in_their_order(lengths):
    counts = [lengths[rank % len(lengths)] for rank in range(1100)]  # more ranks than are read in one go
    made = [
        payload(rank, len(counts), rows=[row(f"r{i}", [rank + 1 + i / 4]) for i in range(n)])
        for rank, n in enumerate(counts)
    ]
    windows = decode_all(made)
    even = windows.ranks % 2 == 0
    for chosen, step in ((even, 2), (windows.ranks >= 0, 1)):
        told = [rank + 1 + i / 4 for rank in range(0, len(counts), step) for i in range(counts[rank])]
        assert windows.rows_of(chosen)["med"].tolist() == told


@settings(deadline=None)  # a busy machine fails no property
@given(st.binary(max_size=400))
def test_no_bytes_at_all_bring_it_down(noise):
    assert list(decode_all([noise]).refused) == [0]
    gathered = assemble([noise, payload(rank=1, rows=[row()])], 0)
    assert gathered.present.tolist() == [False, True]


def test_top_k_keeps_the_rows_that_cost_most_of_each_family():
    rows = [row(f"s{n}", [float(n + 1)]) for n in range(5)] + [row("k", [0.1], Family.KERNEL)]
    assert [r.name for r in top_k(rows, 2)] == ["s3", "s4", "k"]


def test_equal_times_choose_equal_rows_on_every_rank():
    rows = [row(f"s{n}") for n in range(5)]
    assert [r.name for r in top_k(rows, 2)] == [r.name for r in top_k(rows[::-1], 2)] == ["s0", "s1"]


def test_an_empty_window_has_no_row():
    assert measured(Family.SECTION, "a", np.zeros(0)) is None


def test_ranks_are_lined_up_and_missing_cells_are_nan():
    gathered = assemble([payload(0, rows=[row("a"), row("b", [3.0])]), payload(1, rows=[row("b", [4.0])])], 0)
    block = gathered.blocks[Family.SECTION]
    by_name = dict(zip(block.names.tolist(), block.med.tolist(), strict=True))
    assert by_name[hash_name("b")] == [3.0, 4.0]
    assert by_name[hash_name("a")][0] == 1.0
    assert np.isnan(by_name[hash_name("a")][1])


KINDS = (Family.SECTION, Family.KERNEL)
CELLS = st.tuples(
    st.sampled_from(KINDS),
    st.sampled_from("abc"),
    st.floats(min_value=0.001, max_value=9.0),
    st.booleans(),
    st.sampled_from([None, None, np.nan, np.inf, -1.0]),
)
SAME = st.lists(CELLS, max_size=5, unique_by=lambda cell: cell[:2])
WINDOWS = st.one_of(
    st.tuples(st.lists(st.booleans(), min_size=1, max_size=6), SAME).map(
        lambda drawn: [drawn[1] if there else None for there in drawn[0]]
    ),
    st.lists(st.none() | SAME, min_size=1, max_size=6),
)


@settings(deadline=None)  # a busy machine fails no property
@given(WINDOWS)
def test_the_matrices_hold_what_the_ranks_have_sent_whether_or_not_all_send_the_same_rows(windows):
    """Where all send the same, as they nearly always do, another and faster way is taken."""
    sent = []
    for rank, cells in enumerate(windows):
        if cells is None:
            sent.append(None)
            continue
        rows = [row(name, [seconds * (1 + rank)], family, sync) for family, name, seconds, sync, _ in cells]
        spoilt = bytearray(payload(rank, len(windows), rows=rows))
        written = np.frombuffer(spoilt, dtype=ROW, offset=HEADER.itemsize)
        for place, (*_, bad) in enumerate(cells):
            if bad is not None:
                written["med"][place] = bad
        sent.append(bytes(spoilt))

    gathered = assemble(sent, 0)

    assert gathered.present.tolist() == [cells is not None for cells in windows]
    for family in KINDS:
        truth = {
            (hash_name(name), rank): (seconds * (1 + rank), sync)
            for rank, cells in enumerate(windows)
            for kind, name, seconds, sync, bad in cells or ()
            if kind == family and bad is None
        }
        block = gathered.blocks[family]
        assert block.names.tolist() == sorted({name for name, _ in truth})
        for place, name in enumerate(block.names.tolist()):
            of_name = [truth.get((name, rank), (0.0, False)) for rank in range(len(windows))]
            times = [seconds for seconds, _ in of_name]
            for matrix in (block.med, block.mean, block.total):
                assert np.nan_to_num(matrix[place]).tolist() == times
            assert np.isnan(block.med[place]).tolist() == [seconds == 0.0 for seconds in times]
            assert block.num[place].tolist() == [float(seconds > 0.0) for seconds in times]
            votes = sum(sync for _, sync in of_name)
            assert bool(block.synchronous[place]) == (votes > 0 and 2 * votes >= sum(s > 0.0 for s in times))


def test_a_rank_that_sends_a_row_twice_is_heard_once():
    gathered = assemble([payload(rank, rows=[row("a"), row("a", [2.0])]) for rank in range(2)], 0)
    assert gathered.blocks[Family.SECTION].med.tolist() == [[2.0, 2.0]]


def test_two_ranks_that_share_the_rows_of_another_are_two():
    sent = [payload(0, 3, rows=[row("a"), row("b")]), payload(1, 3, rows=[row("a")]), payload(2, 3, rows=[row("b")])]
    assert sorted(assemble(sent, 0).blocks[Family.SECTION].num.tolist()) == [[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]


def test_a_late_window_counts_as_missing():
    gathered = assemble([payload(0, sequence=5), payload(1, sequence=4)], 5)
    assert gathered.present.tolist() == [True, False]


def test_the_window_before_counts_where_it_came_too_late_for_its_own_report_and_only_once():
    late = [payload(0, sequence=5), payload(1, sequence=4)]
    never = np.array([4, 3])
    assert assemble(late, 5, heard=never).present.tolist() == [True, True]
    assert assemble(late, 5, heard=never).numbers.tolist() == [5, 4]
    assert assemble(late, 5, heard=np.array([4, 4])).present.tolist() == [True, False]
    assert assemble(late, 6, heard=never).present.tolist() == [True, False]
    assert assemble(late, 5).numbers.tolist() == [5, -1]


def test_a_window_of_another_rank_or_job_is_refused_and_says_why():
    gathered = assemble([payload(1), payload(1, world_size=3)], 0)
    assert gathered.present.tolist() == [False, False]
    assert "rank 1 of 2 came as rank 0" in gathered.refused[0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0, 0.0])
def test_a_time_that_is_none_stays_unknown(value):
    spoilt = bytearray(payload(0, world_size=1, rows=[row("a")]))
    rows = np.frombuffer(spoilt, dtype=ROW, offset=HEADER.itemsize)
    rows["med"] = value
    gathered = assemble([bytes(spoilt)], 0)
    assert gathered.blocks[Family.SECTION].med.size == 0


def test_the_vote_on_synchronous_is_a_majority():
    payloads = [payload(r, 3, rows=[row("a", synchronous=r < 2)]) for r in range(3)]
    assert assemble(payloads, 0).blocks[Family.SECTION].synchronous.tolist() == [True]
    payloads = [payload(r, 3, rows=[row("a", synchronous=r < 1)]) for r in range(3)]
    assert assemble(payloads, 0).blocks[Family.SECTION].synchronous.tolist() == [False]
