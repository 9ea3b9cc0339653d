"""The text that says where limits come from: what one side writes the other reads, and anything else says nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from resilience_core.protocol.limit_entry import LimitEntry, LimitsDocument
from resilience_core.protocol.limit_kinds import CONFIGURED, DEFAULT, LEARNED, MOST_VERDICTS
from resilience_core.protocol.limit_messages import origin_of
from resilience_core.protocol.limits_text import VERSION, read_limits, write_limits

LEARNED_ENTRY = LimitEntry(60.0, LEARNED, 180.0, False, 5.0, 0.64, 812, 60.0, 0, None)
DOCUMENT = LimitsDocument(
    "relax",
    "ft_state.json",
    True,
    {"section step": LEARNED_ENTRY, "section a": LimitEntry(9.0, CONFIGURED), "heartbeat": LimitEntry(2700.0, DEFAULT)},
    {"section b": LimitEntry(9.0, CONFIGURED), "section c": LimitEntry(20.0, CONFIGURED)},
)
PLAIN: dict[str, Any] = json.loads(write_limits(DOCUMENT, 8192))
ROW = [60.0, "learned", 180.0, False, 5.0, 0.64, 812, 60.0, 0, None]

seconds = st.floats(0, 1e9).map(lambda number: float(f"{number:.9g}"))
entries = st.tuples(seconds, st.sampled_from([CONFIGURED, DEFAULT])).map(
    lambda fields: LimitEntry(*fields)
) | st.builds(
    LimitEntry,
    seconds,
    st.just(LEARNED),
    st.none() | seconds,
    st.booleans(),
    seconds,
    seconds,
    st.integers(0, 10**12),
    seconds,
    st.integers(0, MOST_VERDICTS),
    st.none() | seconds,
)


@given(limits=st.dictionaries(st.text(st.characters(codec="utf-8")), entries, max_size=5))
def test_what_a_rank_writes_its_monitor_reads(limits: dict[str, LimitEntry]) -> None:
    read = read_limits(write_limits(DOCUMENT._replace(limits=limits), 1 << 20))

    assert read is not None
    assert (read.mode, read.state_file, read.names_sections) == ("relax", "ft_state.json", True)
    assert read.limits == {kind: (entry,) for kind, entry in limits.items()}
    assert read.shared == ((CONFIGURED, CONFIGURED, (9.0, 20.0)),)


@pytest.mark.parametrize(
    "change",
    [
        {"version": VERSION + 1},
        {"version": True},
        {"version": "1"},
        {"new": 1},
        {"mode": "other"},
        {"mode": None},
        {"state_file": 7},
        {"names_sections": 1},
        {"limits": []},
        {"shared": {}},
        {"shared": [["configured", "configured"]]},
        {"shared": [["other", "configured", [1.0]]]},
        {"shared": [["configured", "other", [1.0]]]},
        {"shared": [["configured", "configured", [None]]]},
    ],
)
def test_a_text_of_another_version_or_shape_says_nothing(change: dict[str, Any]) -> None:
    """Rather than a guess: the keys that are known may mean something else there."""
    text = json.dumps(PLAIN | change)

    assert read_limits(text) is None
    assert origin_of(text, "section", "step", 60.0) is None
    assert origin_of(json.dumps(PLAIN), "section", "step", 60.0) is not None


@pytest.mark.parametrize("key", list(PLAIN))
def test_a_text_that_lacks_a_key_says_nothing(key: str) -> None:
    assert read_limits(json.dumps({name: value for name, value in PLAIN.items() if name != key})) is None


@pytest.mark.parametrize(
    "row",
    [
        [],
        [1.0],
        [1.0, "learned"],
        [1.0, "nonsense"],
        [True, "configured"],
        [-1.0, "configured"],
        ["1", "configured"],
        [1.0, ["configured"]],
        [float("nan"), "configured"],
        [float("inf"), "configured"],
        [10**400, "configured"],
        [*ROW, 1],
        [60.0, "configured", *ROW[2:]],
        *([*ROW[:field], value, *ROW[field + 1 :]] for field in range(10) for value in ("x", [], -1)),
        [*ROW[:3], 0, *ROW[4:]],
        [*ROW[:6], 812.5, *ROW[7:]],
        [*ROW[:8], MOST_VERDICTS + 1, None],
        [*ROW[:8], True, None],
        [*ROW[:8], 99999, None],
    ],
)
def test_a_row_that_no_rank_writes_says_nothing(row: list[Any]) -> None:
    """A monitor read such rows and raised, or told the rubbish in them."""
    text = json.dumps(PLAIN | {"limits": {"section step": [row]}})

    assert read_limits(text) is None
    assert origin_of(text, "section", "step", 60.0) is None


@pytest.mark.parametrize("text", ["[" * 16_000, '{"version": 1e999}', '{"version": NaN}', "1" * 5000, "null", '"x"'])
def test_no_text_makes_the_monitor_raise(text: str) -> None:
    assert origin_of(text, "section", "step", 60.0) is None


@given(text=st.text(max_size=300), cut=st.integers(0, 400))
@example(text=" ", cut=400)
def test_a_text_that_was_cut_or_scribbled_over_says_nothing(text: str, cut: int) -> None:
    whole = write_limits(DOCUMENT, 8192)
    scribbled = whole[:cut] + text
    # What may stand around a text in JSON is no part of it.
    assert read_limits(scribbled) is None or scribbled.strip(" \t\r\n") == whole
