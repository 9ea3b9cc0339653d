"""How much is known about an interval, and what follows from it for a learned limit. Pure: no clock, no torch.

A learned limit must not end a healthy rank. Five times the longest observed interval is safe only if the longest
possible interval has been observed. In three cases that is doubtful, and each of them keeps the generous floor
(``thin_evidence_floor``, 60 s) in force:

* *Little evidence*: fewer than 300 intervals, or less than an hour of observation, all runs of the state file
  together.
* *Another run's evidence*: a state file outlives the run that wrote it, and the next may train a larger model. It
  counts once this process has seen 100 intervals of its own and learned from them, too.
* *Rare intervals*: out-of-section time and heartbeat intervals span whatever the loop does between its steps: the
  start of DataLoader workers once per epoch, metrics, an export at the end. Ordinary intervals, however many, do not
  tell how long the next rare one takes, so these limits always keep the floor.

If no restart is left, a wrong verdict ends the job. The generous floor is then :data:`NO_RESTART_FACTOR` times as long,
an hour by default. A hang is still found within that limit; to have it found sooner, configure the limit or a shorter
floor. Four times the floor, as after a verdict, would not be enough: an evaluation of five minutes between two sections
would still end the job. Without any verdict, a job that hangs would hang for ever.

A long interval is remembered although the next few updates do not contain one: for a day of observation the limit is no
shorter than the factor times the longest interval of that day.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from resilience_core.errors import RankMonitorClientError
from resilience_core.protocol.limit_kinds import FIRST_HEARTBEAT, HEARTBEAT, OUT_OF_SECTION

__all__ = [
    "ENOUGH_INTERVALS",
    "ENOUGH_OF_ITS_OWN",
    "ENOUGH_SECONDS",
    "LARGEST_NUMBER",
    "MEMORY_SECONDS",
    "NO_RESTART_FACTOR",
    "Evidence",
    "shown_value",
]

ENOUGH_INTERVALS = 300
ENOUGH_SECONDS = 3600.0
ENOUGH_OF_ITS_OWN = 100
"""Intervals that a process must have seen itself before it trusts what an earlier one has learned."""
MEMORY_SECONDS = 24 * 3600.0
"""Observation time for which the longest interval is remembered."""
NO_RESTART_FACTOR = 60
"""How many times longer the generous floor is if no restart is left; with the default floor, :data:`ENOUGH_SECONDS`."""

LARGEST_NUMBER = 1e12
"""The largest number that a state may hold."""
LONGEST_SHOWN = 200
"""Characters of a value in a message."""

_ALWAYS_RARE = frozenset({FIRST_HEARTBEAT, HEARTBEAT, OUT_OF_SECTION})


def shown_value(value: object) -> str:
    """Spell out a value for a message: cut where it is long, and only its size of an integer with too many digits."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # it holds such an integer, or more levels than Python descends
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}... ({len(text)} characters)"


@attrs.frozen(kw_only=True)
class Evidence:
    """What a learned limit rests on.

    Args:
        intervals: How many were seen on one rank, all calculations together.
        seconds: For how long they were observed.
        longest: The longest of them within the last :data:`MEMORY_SECONDS` of observation, seconds.
        seen_at: Observation time at which that one was reported, seconds.
        factor: The safety factor of the last calculation.
    """

    intervals: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    seen_at: float = 0.0
    factor: float = 5.0

    def grown(self, *, intervals: int, seconds: float, longest: float, factor: float) -> Evidence:
        """With what one more calculation has seen."""
        now = self.seconds + seconds
        is_new = longest >= self.longest or now - self.seen_at > MEMORY_SECONDS
        return Evidence(
            intervals=self.intervals + intervals,
            seconds=now,
            longest=longest if is_new else self.longest,
            seen_at=now if is_new else self.seen_at,
            factor=factor,
        )

    def is_thin(self, kind: str, own_intervals: int) -> bool:
        """Return whether a limit of this kind must keep the generous floor.

        Args:
            kind: Which limit.
            own_intervals: How many intervals of it this process has itself seen and learned from.
        """
        return (
            kind in _ALWAYS_RARE
            or self.intervals < ENOUGH_INTERVALS
            or self.seconds < ENOUGH_SECONDS
            or own_intervals < ENOUGH_OF_ITS_OWN
        )

    def protective(self, learned: float, floor: float) -> float:
        """Return the learned limit as ``relax`` puts it in force, seconds: never below the floor that applies."""
        return max(learned, self.factor * self.longest, floor)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return attrs.asdict(self)

    @classmethod
    def from_json(cls, document: Any, place: str) -> Evidence:
        """Return the inverse of :meth:`to_json`; keys of later versions are ignored.

        Raises:
            RankMonitorClientError: It is not that; the message names the place.
        """
        if not isinstance(document, Mapping):
            raise RankMonitorClientError(f"learned timeouts: '{place}' must be a mapping, not {shown_value(document)}")
        for field in attrs.fields(cls):
            value = document.get(field.name, 0)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_NUMBER:
                raise RankMonitorClientError(
                    f"learned timeouts: '{place}.{field.name}' must be a number from 0 to {LARGEST_NUMBER:.0f}, not "
                    f"{shown_value(value)}"
                )
        return cls(
            intervals=int(document.get("intervals", 0)),
            **{name: float(document.get(name, 0.0)) for name in ("seconds", "longest", "seen_at", "factor")},
        )
