"""What rank 0 has announced: the next report, and what it proposes to do about the last one.

Rank 0 alone writes it, all others read it, and only the latest counts. One text, so that a reader sees the plan and the
proposal that belong together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from straggler.errors import WireError

__all__ = ["Board", "Plan", "Proposal"]


@attrs.frozen
class Plan:
    """The next report.

    Args:
        number: Of the report.
        iteration: The window ends with this one.
        within_seconds: It ends after this time at the latest, counted on each rank from where it learns of the plan: a
            rank that is slower, or behind, does not make the others' report wait for its iteration.
    """

    number: int
    iteration: int
    within_seconds: float


@attrs.frozen
class Proposal:
    """What rank 0 proposes that all ranks do at the end of the same iteration.

    Args:
        number: Counts the proposals.
        iteration: When.
        decision: What, a mapping of JSON values.
        is_final: True: all ranks have agreed, and do it. False: they do not. None: not yet known.
        agreed: Number of the last one before this that all have agreed to, -1 where there is none: a rank may not have
            seen that it was final.
    """

    number: int
    iteration: int
    decision: Mapping[str, Any]
    is_final: bool | None = None
    agreed: int = -1


@attrs.frozen
class Board:
    """The latest plan and the latest proposal, None where there is none.

    Args:
        plan: The next report.
        proposal: What is to be done by all.
    """

    plan: Plan | None = None
    proposal: Proposal | None = None

    def encode(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(attrs.asdict(self)).encode()

    @classmethod
    def decode(cls, text: bytes) -> Board:
        """Read what :meth:`encode` returned.

        Raises:
            WireError: It is nothing of the kind.
        """
        try:
            found = json.loads(text)
            plan, proposal = found["plan"], found["proposal"]
            return cls(
                None
                if plan is None
                else Plan(int(plan["number"]), int(plan["iteration"]), float(plan["within_seconds"])),
                None if proposal is None else _proposal(proposal),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise WireError(
                f"rank 0 announced {text[:80]!r}, which this rank cannot read: mixed installations?"
            ) from error


def _proposal(found: Mapping[str, Any]) -> Proposal:
    is_final = found["is_final"]
    if not (is_final is None or isinstance(is_final, bool)) or not isinstance(found["decision"], dict):
        raise ValueError("not a proposal")
    number, iteration, agreed = (int(found[key]) for key in ("number", "iteration", "agreed"))
    return Proposal(number, iteration, found["decision"], is_final, agreed)
