"""The decision to stop training for a straggler, as rank 0 sends it to every rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from straggler.errors import WireError

__all__ = ["StopDecision"]


@attrs.frozen
class StopDecision:
    """Rank 0 has decided that every rank stops.

    Args:
        verdicts: What is known of the slow ranks, for people.
        ranks: The slow ranks, global numbers.
    """

    verdicts: str
    ranks: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the mapping of JSON values that travels as the decision on a report."""
        return {"stop": self.verdicts, "ranks": list(self.ranks)}

    @classmethod
    def from_json(cls, decision: Mapping[str, Any], world_size: int) -> StopDecision | None:
        """Read the decision on a report.

        Args:
            decision: As ``Detector.last_decision`` returns it.
            world_size: Ranks in the job.

        Returns:
            The decision to stop; None where rank 0 has decided nothing of the kind.

        Raises:
            WireError: It is no decision that :meth:`as_json` could have made.
        """
        if "stop" not in decision:
            return None
        verdicts, ranks = decision["stop"], decision.get("ranks")
        if not isinstance(verdicts, str):
            raise WireError(f'rank 0 sent a decision whose "stop" is {verdicts!r} and no text')
        if not isinstance(ranks, list) or not ranks or not all(_is_rank(rank, world_size) for rank in ranks):
            raise WireError(f'rank 0 sent a decision whose "ranks" are {ranks!r}; expected ranks below {world_size}')
        return cls(verdicts, tuple(ranks))


def _is_rank(value: object, world_size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < world_size
