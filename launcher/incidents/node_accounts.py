"""What a node has seen of its ranks, and who of them has failed by itself, by that node's own clock. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from launcher.incidents.attributed import Attribution
from launcher.incidents.incident import Incident
from launcher.incidents.rules_of_exits import died_or_raised
from launcher.processes.evidence import Evidence

__all__ = ["Failures", "NodeAccount", "failure_of_its_own", "named_by"]


class NodeAccount(NamedTuple):
    """What one node has seen of its ranks.

    Args:
        incident: With the node's name. Its kind tells whether it has failed itself, or was told that another one has.
        was_told: It had been told that the generation was over before a rank of its own failed, by its own clock.
    """

    incident: Incident
    was_told: bool = False

    @property
    def node(self) -> str:
        """Its name."""
        return self.incident.node

    def evidence(self) -> list[Evidence]:
        """Return what is known of each rank, as the rules take it: numbered by the job, free of this node's clock."""
        return [_without_clock(e) for e in self.own_evidence()]

    def own_evidence(self) -> list[Evidence]:
        """Return what is known of each rank, numbered by the job, with the times of this node's clock."""
        ranks = self.incident.ranks
        return [report.evidence._replace(local_rank=report.rank) for report in ranks if report.evidence is not None]


Failures = Sequence[tuple[NodeAccount, Attribution]]
"""Of nodes: what each has seen, and whom its own clock names."""


def failure_of_its_own(account: NodeAccount) -> Attribution | None:
    """Return who has died, raised or exited on a node, by that node's own clock; None where only victims have."""
    group = [_calm(e) if e.may_be_upset else e for e in account.own_evidence()]
    found = died_or_raised(group, has_others=True) if group else None
    incident = account.incident
    if (
        found is not None
        and incident.kind == "failure"
        and {r.rank for r in incident.culprits} == set(found.local_ranks)
    ):
        return found._replace(why=incident.why)  # it knows more, such as that a process was killed since it overstayed
    return found


def named_by(account: NodeAccount, found: Attribution) -> list[Evidence]:
    """Return the evidence on those whom a node names."""
    return [e for e in account.evidence() if e.local_rank in found.local_ranks]


def _calm(e: Evidence) -> Evidence:
    """Return the evidence without a failure that may be due to our asking for the stack."""
    return e._replace(error=None, exit_code=None, ended_ns=0, has_left=False)


def _without_clock(e: Evidence) -> Evidence:
    """Return the evidence with all that a rule might compare with another machine's clock taken out."""
    if e.may_be_upset:
        e = _calm(e)
    error = e.error._replace(at_ns=1, noted_ns=1) if e.error is not None else None
    return e._replace(
        error=error, ended_ns=min(e.ended_ns, 1), asked_ns=0, last_sign_ns=0, left_group_ns=min(e.left_group_ns, 1)
    )
