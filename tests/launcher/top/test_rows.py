"""Rows, their order, and how they are laid out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from launcher.live.live_run import LiveRun
from launcher.top.phrases import duration, one_line, rate, size
from launcher.top.rows import Row, all_rows, in_order, late_ones, local_rows
from launcher.top.table import Table

PLAIN = Row(
    rank=0, local_rank=0, node="n", generation=0, activity="step", remark=None, iteration=5, age=1.0, left=9.0,
    used=0.1, steps_per_second=2.0, restarts=0, caused=0, memory_bytes=1 << 30,
)  # fmt: skip


def row(rank: int, **facts: object) -> Row:
    return PLAIN._replace(rank=rank, **facts)  # type: ignore[arg-type]


def order(*rows: Row) -> list[int | None]:
    return [each.rank for each in in_order(rows)]


def test_ranks_at_ease_keep_the_order_of_their_numbers() -> None:
    assert order(row(2, used=0.01), row(0, used=0.2), row(1, used=0.1, iteration=3)) == [0, 1, 2]


def test_less_time_left_relative_to_the_limit_comes_first() -> None:
    assert order(row(0, used=0.3), row(1, used=0.9, left=50.0), row(2, used=0.6, left=1.0)) == [1, 2, 0]


def test_late_ones_come_first_the_latest_of_all() -> None:
    assert order(row(0, used=0.99), row(1, used=1.1, left=-1.0), row(2, used=3.0, left=-2.0)) == [2, 1, 0]


def test_what_is_wrong_comes_before_what_is_only_near() -> None:
    assert order(row(0, used=0.9), row(1, remark="its process is stopped"), row(2, used=2.0, left=-1.0)) == [2, 1, 0]


def test_of_equally_late_ones_the_lower_iteration_comes_first() -> None:
    assert order(row(0, used=0.5, iteration=8), row(1, used=0.5, iteration=7)) == [1, 0]


def test_ranks_of_this_machine_are_shown_once(make_run: Callable[..., Any]) -> None:
    """Where the metrics of this node are among those that are read."""
    run = make_run()
    run.begin()
    run.start([0, 1])
    live = LiveRun(str(run.path))
    rows = all_rows(live.look(), [row(1, iteration=77), row(2, iteration=78)])
    live.close()
    assert [(each.rank, each.iteration) for each in rows] == [(0, None), (1, None), (2, 78)]


def test_restarts_that_cost_none_of_the_budget_are_counted(make_run: Callable[..., Any]) -> None:
    """As a report and the metrics do: a lost node, a rank that asks for it."""
    run = make_run()
    run.begin()
    for restarts in (0, 0, 1):
        run.start([0, 1], restarts=restarts)
    live = LiveRun(str(run.path))
    look = live.look()
    live.close()
    assert {each.restarts for each in local_rows(look)} == {2}
    assert [node.log.restarts for node in look.nodes] == [1]


def test_by_rank() -> None:
    rows = [row(1, used=2.0, left=-1.0), row(0), row(None)]  # type: ignore[arg-type]
    assert [each.rank for each in in_order(rows, by_rank=True)] == [None, 0, 1]
    assert late_ones(rows) == 1


def test_durations() -> None:
    texts = {0: "0.0 s", 9.94: "9.9 s", 9.96: "10 s", 119.4: "119 s", 120: "2 min", 7100: "118 min", 7300: "2 h"}
    texts |= {180000: "2 d", 1e30: "9999 d", -3: "0.0 s"}
    assert {seconds: duration(seconds) for seconds in texts} == texts


@given(st.floats(min_value=0, max_value=1e40))
def test_texts_of_columns_are_short(value: float) -> None:
    assert len(duration(value)) <= 7
    assert len(rate(value)) <= 7
    assert len(size(min(int(value), 1 << 50))) <= 10


def test_sizes() -> None:
    assert [size(n) for n in (0, 1023 * 1024, 1 << 20, 5 << 29, 1 << 37)] == [
        "0 B", "1 MiB", "1 MiB", "2.5 GiB", "128 GiB",
    ]  # fmt: skip


def test_names_of_sections_cannot_control_the_terminal() -> None:
    assert one_line("a\x1b[2Jb\nc\td") == "a\\x1b[2Jb c d"
    assert one_line("größe") == "größe"


ROWS = st.builds(
    Row,
    rank=st.none() | st.integers(0, 10**6),
    local_rank=st.none() | st.integers(0, 100),
    node=st.sampled_from(["", "a", "node-with-a-very-long-name-0001"]),
    generation=st.integers(0, 5),
    activity=st.text(st.characters(min_codepoint=32, max_codepoint=0x3FF), max_size=60),
    remark=st.none() | st.just("its cell was removed"),
    iteration=st.none() | st.integers(0, 2**63),
    age=st.none() | st.floats(0, 1e9),
    left=st.none() | st.floats(-1e9, 1e9),
    used=st.floats(0, 100),
    steps_per_second=st.none() | st.floats(0, 1e9),
    restarts=st.none() | st.integers(0, 1000),
    caused=st.none() | st.integers(0, 1000),
    memory_bytes=st.none() | st.integers(0, 1 << 50),
)


@given(st.lists(ROWS, max_size=5), st.integers(1, 300))
def test_every_line_is_as_wide_as_the_terminal(rows: list[Row], width: int) -> None:
    table = Table(rows, width)
    assert {len(line) for line in [table.heading, *map(table.line, rows)]} == {width}


def test_narrow_terminals_lose_columns_and_keep_what_matters() -> None:
    long = row(0, activity="a" * 30)
    headings = {width: Table([long], width).heading.split() for width in (120, 80, 60, 40)}
    assert headings[80] == headings[120]
    assert headings[60] == ["rank", "section", "iteration", "age", "left", "steps/s"]
    assert headings[40] == ["rank", "section", "iteration", "age"]


def test_what_is_wrong_is_shown_where_there_is_no_room_for_all() -> None:
    stopped = row(0, activity="checkpointing", remark="its process is stopped")
    assert "is stopped: chec" in Table([stopped], 80).line(stopped)
    assert "checkpointing: its process is stopped" in Table([stopped], 120).line(stopped)
    removed = row(0, iteration=None, age=None, activity="unreadable", remark="its cell was removed")
    assert "unreadable: its cell was removed" in Table([removed], 80).line(removed)
    unknown = removed._replace(rank=None, local_rank=3)
    assert Table([unknown], 80).line(unknown).split(None, 1)[1].rstrip() == "local rank 3: its cell was removed"
    deep = row(0, activity="step > optimizer > allreduce")
    assert "> allreduce" in Table([deep], 80).line(deep)


def test_the_node_is_a_column_where_there_are_several() -> None:
    assert "node" not in Table([row(0), row(1)], 120).heading
    table = Table([row(0), row(1, node="other")], 120)
    assert table.heading.split()[:3] == ["rank", "node", "section"]
    assert table.line(row(1, node="other")).split()[:3] == ["1", "other", "step"]
