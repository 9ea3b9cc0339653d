"""How long to wait before a restart when one generation after the other dies soon after its start. Pure."""

from __future__ import annotations

__all__ = ["EARLY_FAILURE_NS", "CrashLoop"]

EARLY_FAILURE_NS = 10_000_000_000
"""A generation that ends sooner after its start has died young."""
_LONGEST_BACK_OFF_SECONDS = 60.0


class CrashLoop:
    """Counts generations in a row that died young without a sign of life.

    Args:
        backoff_after: From how many on there is a wait (``restart_backoff_after``); 0 for never.
    """

    def __init__(self, backoff_after: int) -> None:
        self._backoff_after = backoff_after
        self.early_failures = 0
        """How many there were in a row."""

    def backoff_seconds(self, lifetime_ns: int, *, has_reported: bool) -> float | None:
        """Count a generation that has failed.

        Args:
            lifetime_ns: How long it ran.
            has_reported: Whether a rank came as far as a section, a heartbeat or an iteration.

        Returns:
            How long to wait before the next one; None for not at all. It doubles with each, up to a minute.
        """
        died_young = lifetime_ns < EARLY_FAILURE_NS and not has_reported
        self.early_failures = self.early_failures + 1 if died_young else 0
        excess = self.early_failures - self._backoff_after
        if not self._backoff_after or excess < 0:
            return None
        return min(2.0**excess, _LONGEST_BACK_OFF_SECONDS)
