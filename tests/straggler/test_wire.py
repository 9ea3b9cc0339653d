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
    return Measured(family, name, summarise(list(seconds)), 0.0, synchronous)


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
    (head,), rows = windows.heads, windows.rows_of(windows.ranks)
    summary = summarise(seconds)
    values = [float(value) for key, value in summary.items() if str(key) in ("MED", "NUM")]
    assert [float(rows[0]["med"]), float(rows[0]["num"])] == values
    assert int(rows[0]["synchronous"]) == 1
    assert int(head["rank"]) == 1


def test_sizes_are_part_of_the_wire_format():
    assert (HEADER.itemsize, ROW.itemsize) == (200, 40)
    how_to = Path(__file__).parents[2] / "docs" / "how-to" / "stragglers.md"
    assert f"{HEADER.itemsize} + {ROW.itemsize} x rows bytes" in how_to.read_text()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda b: b[:50], "a window has at least 200 bytes, not 50"),
        (lambda b: b[:-1], "a window of 1 rows has 240 bytes, not 239"),
        (lambda b: b + b"1", "a window of 1 rows has 240 bytes, not 241"),
        (lambda b: b"x" * len(b), "a window begins with 0x53545247, not 0x78787878"),
        (lambda b: b[:4] + b"\x09" + b[5:], "window version 9, and this rank reads 5: mixed installations?"),
        (lambda b: payload(rank=0, world_size=3), "a window of rank 0 of 3 came as rank 1"),
    ],
)
def test_what_is_no_window_is_refused_and_the_others_are_read(spoil, why):
    others = [payload(rank=rank, world_size=4, rows=[row("a", [1.0 + rank])]) for rank in range(4)]
    windows = decode_all([others[0], spoil(payload(rank=1, world_size=4, rows=[row()])), None, others[3]])
    assert windows.refused == {1: why}
    assert windows.ranks.tolist() == [0, 3]
    assert windows.rows_of(windows.ranks)["med"].tolist() == [1.0, 4.0]


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
