"""How a report writes numbers."""

from __future__ import annotations

import pytest

from launcher.reports import formats


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0, "0 s"),
        (0.0042, "4.2 ms"),
        (0.0099, "9.9 ms"),
        (0.042, "42 ms"),
        (0.0994, "99 ms"),
        (0.0996, "0.10 s"),
        (1.005, "1.00 s"),
        (9.994, "9.99 s"),
        (9.996, "10.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (125.4, "2 min 05 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (86_369, "23 h 59 min"),
        (86_399, "1 d 00 h"),
        (7 * 86_400 + 3_600 * 5, "7 d 05 h"),
        (-3, "-3.00 s"),
    ],
)
def test_duration(value: float | None, text: str) -> None:
    assert formats.duration(value) == text


def test_shares_do_not_read_as_nothing_or_everything_unless_they_are() -> None:
    assert [formats.share(v) for v in (0, 0.0002, 0.0005, 0.5, 0.9994, 0.9999, 1.0, None)] == [
        *("0.0 %", "< 0.1 %", "0.1 %", "50.0 %", "99.9 %", "> 99.9 %", "100.0 %", "unknown")
    ]


def test_ranks_are_joined() -> None:
    assert formats.rank_list([3, 1, 2, 7, 9, 8, 11]) == "1-3, 7-9, 11"
    assert formats.rank_list(range(0, 40, 2), most=3) == "0, 2, 4 and 17 more"
    assert formats.rank_list([]) == ""


def test_limits_are_written_as_on_a_command_line() -> None:
    assert [formats.limit_of(v) for v in (None, 30.0, 0.25, 600)] == ["none", "30 s", "0.25 s", "600 s"]


def test_the_clock_is_that_of_the_time_zone_in_which_the_run_began() -> None:
    for zone in ("+0200", "+02:00"):
        assert formats.clock(f"2026-09-21T16:13:20{zone}", 1_790_000_000.0, 90.0) == "2026-09-21 16:14:50"
    assert formats.clock("2026-09-21T14:13:20Z", 1_790_000_000.0, 90.0) == "2026-09-21 14:14:50"
    assert formats.clock("a while ago", 1_790_000_000.0, 0.0) == "2026-09-21 14:13:20 UTC"


def test_ticks_of_an_axis() -> None:
    assert [formats.axis_time(v) for v in (0, 0.5, 90, 3_600, 5_400, 90_000)] == [
        *("0", "500 ms", "1 min 30 s", "1 h", "1 h 30 min", "1 d 1 h")
    ]
