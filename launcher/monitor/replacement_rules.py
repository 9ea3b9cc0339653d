"""When a monitor is to be replaced. Pure; ``launcher.agent.monitor_handle`` carries it out in the launcher."""

from __future__ import annotations

from typing import NamedTuple

from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["ReplacementRules", "Recovery", "StoppedLauncher"]

OVERSLEPT_NS = NS_PER_SECOND * 3 // 10
"""Longer than the longest sleep of the thread that looks: the launcher itself has not run."""
SETTLING_NS = NS_PER_SECOND
"""A whole tree that was stopped or frozen wakes one by one; the monitor gets so long after the launcher has woken."""
STUCK_NS = 3 * NS_PER_SECOND
"""The monitor beats at least twice a second, except while it is busy, which it announces."""
SHORT_LIFE_NS = 5 * NS_PER_SECOND
MOST_SHORT_LIVES = 5
FIRST_PAUSE_NS = NS_PER_SECOND
LONGEST_PAUSE_NS = 30 * NS_PER_SECOND
STOPPED_NS = 2 * NS_PER_SECOND
LONGEST_GAP_NS = NS_PER_SECOND
"""Between two looks of one who runs; after a longer one it has not run itself, and begins anew."""


class Recovery(NamedTuple):
    """How long protection was off; ``CLOCK_MONOTONIC`` nanoseconds."""

    off_ns: int
    on_ns: int
    """When the monitor that lives on was started."""


class ReplacementRules:
    """Decide about one monitor after the other.

    Args:
        now_ns: ``CLOCK_MONOTONIC``.
    """

    def __init__(self, now_ns: int) -> None:
        self._started_ns = now_ns
        self._died_ns: int | None = None
        self._looked_ns = now_ns
        self._woke_ns = now_ns - SETTLING_NS
        self._short_lives = 0
        self._next_start_ns = now_ns
        self._row_since_ns: int | None = None  # when the first one was lost whose successors have all died young
        self.off_since_ns: int | None = None
        """After ``monitor_lost``: since when one after the other is lost, and nobody is sure to watch; else None."""

    def started(self, now_ns: int) -> None:
        """Begin with a new monitor."""
        self._started_ns, self._died_ns = now_ns, None

    def what_is_wrong(self, now_ns: int, state: str | None, beat_ns: int, busy_until_ns: int) -> str | None:
        """Look at the monitor; whoever calls must do so more often than every ``OVERSLEPT_NS``.

        Args:
            now_ns: ``CLOCK_MONOTONIC``.
            state: None while it runs, ``stopped``, or how it has ended.
            beat_ns: When it has last noted that it runs.
            busy_until_ns: Until when it has announced not to.

        Returns:
            Why it is to be replaced now; None when it is not.
        """
        if now_ns - self._looked_ns > OVERSLEPT_NS:
            self._woke_ns = now_ns
        self._looked_ns = now_ns
        is_settling = now_ns - self._woke_ns < SETTLING_NS
        if state == "stopped":
            return None if is_settling else "was stopped"
        if state is not None:
            self._died_ns = self._died_ns or now_ns
            return state if now_ns >= self._next_start_ns else None
        silent_since_ns = max(beat_ns, busy_until_ns, self._started_ns, self._woke_ns)
        if now_ns - silent_since_ns > STUCK_NS:
            return f"was stuck for {(now_ns - max(beat_ns, self._started_ns)) / NS_PER_SECOND:.1f} s"
        return None

    def ended(self, now_ns: int) -> str | None:
        """Record that a monitor has ended, including one that was stuck.

        Returns:
            What to tell: ``monitor_replaced``, or ``monitor_lost`` when one after the other has died young; None when
            that was told already.
        """
        died_ns = self._died_ns or now_ns
        is_short = died_ns - self._started_ns < SHORT_LIFE_NS
        if not is_short or self._row_since_ns is None:
            self._row_since_ns = died_ns
        if self.off_since_ns is not None:
            # Lost until one has been seen to live on: one that has, unseen, only shortens the pauses again.
            self._short_lives = self._short_lives + 1 if is_short else MOST_SHORT_LIVES
        else:
            self._short_lives = self._short_lives + 1 if is_short else 0
        excess = self._short_lives - MOST_SHORT_LIVES
        if excess < 0:
            return "monitor_replaced"
        self._next_start_ns = now_ns + min(FIRST_PAUSE_NS << min(excess, 10), LONGEST_PAUSE_NS)
        if self.off_since_ns is not None:
            return None
        self.off_since_ns = self._row_since_ns
        return "monitor_lost"

    def recovered(self, now_ns: int, state: str | None) -> Recovery | None:
        """Look whether a monitor has lived long enough after ``monitor_lost``.

        Args:
            now_ns: ``CLOCK_MONOTONIC``.
            state: None while it runs; see :meth:`what_is_wrong`.

        Returns:
            From when to when nobody could be said to watch; once for each loss.
        """
        if self.off_since_ns is None or state is not None or now_ns - self._started_ns < SHORT_LIFE_NS:
            return None
        recovery = Recovery(self.off_since_ns, self._started_ns)
        self.off_since_ns = self._row_since_ns = None
        self._short_lives = 0
        self._next_start_ns = now_ns
        return recovery


class StoppedLauncher:
    """Decide whether the launcher is stopped: it then restarts nothing and cannot say so, so its monitor does."""

    def __init__(self) -> None:
        self._since_ns: int | None = None
        self._looked_ns = 0
        self._is_told = False

    def look(self, now_ns: int, is_stopped: bool) -> bool:
        """Look at the launcher; at least once a second.

        Args:
            now_ns: ``CLOCK_MONOTONIC``.
            is_stopped: Whether a signal has stopped it.

        Returns:
            Whether people should be told now; true once per stop.
        """
        has_slept = now_ns - self._looked_ns > LONGEST_GAP_NS
        self._looked_ns = now_ns
        if not is_stopped:
            self._since_ns, self._is_told = None, False
        elif self._since_ns is None or has_slept:
            self._since_ns = now_ns
        elif now_ns - self._since_ns >= STOPPED_NS and not self._is_told:
            self._is_told = True
            return True
        return False
