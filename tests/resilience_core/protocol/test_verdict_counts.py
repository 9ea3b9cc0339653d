"""How many verdicts learned limits have led to: from the launcher to the ranks of the next generation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_core.protocol.limit_kinds import MOST_VERDICTS
from resilience_core.protocol.verdict_counts import VERSION, VerdictCountsError, read_verdicts, write_verdicts


@given(counts=st.dictionaries(st.text(min_size=1), st.integers(1, MOST_VERDICTS)))
def test_what_the_launcher_writes_a_rank_reads(counts: dict[str, int]) -> None:
    assert read_verdicts(write_verdicts(counts)) == counts


def test_where_the_variable_is_not_set_there_was_no_verdict() -> None:
    assert read_verdicts(None) == {}


def test_no_count_makes_a_limit_that_cannot_be_computed() -> None:
    assert read_verdicts(write_verdicts({"section step": 3, "heartbeat": 100_000})) == {
        "section step": 3,
        "heartbeat": MOST_VERDICTS,
    }


def text(verdicts: Any, version: Any = VERSION, **more: Any) -> str:
    return json.dumps({"version": version, "verdicts": verdicts, **more})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no JSON"),
        ("x", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no object"),
        ("{}", "version None"),
        ('{"heartbeat": true}', "version None"),
        (text({"heartbeat": 1}, version=VERSION + 1), f"version {VERSION + 1}"),
        (text({"heartbeat": 1}, version=True), "version True"),
        (text({"heartbeat": 1}, new=1), "keys"),
        (text([]), "no mapping"),
        (text({"heartbeat": True}), "'heartbeat' has True"),
        (text({"heartbeat": 1.0}), "'heartbeat' has 1.0"),
        (text({"heartbeat": "1"}), "'heartbeat' has '1'"),
        (text({"heartbeat": 0}), "'heartbeat' has 0"),
        (text({"heartbeat": -1}), "'heartbeat' has -1"),
        (text({"heartbeat": 1, "section step": None}), "'section step' has None"),
    ],
)
def test_what_is_no_count_is_refused(text: str, why: str) -> None:
    with pytest.raises(VerdictCountsError, match=why):
        read_verdicts(text)
