"""Agreement: all ranks do what rank 0 proposes at the end of the same iteration, or none does.

Two-phase commit (Gray, Notes on Data Base Operating Systems, 1978), with rank 0 as its coordinator. Rank 0 proposes an
iteration that is far enough ahead. Every rank answers on a thread of its own: yes, if it has not reached that
iteration. When all have, rank 0 makes the proposal final. A rank that reaches the iteration waits for the final word,
which nearly always is there already; so the wait costs time only where training is about to stop, or a rank does not
answer. A refusal, and an answer that does not come within the bound, end the proposal for all; rank 0 proposes a later
iteration then, three times in all.

As with every two-phase commit, a rank that has said yes and never hears the final word cannot know it. It goes on after
the bound, and says so. That happens where rank 0 hangs or ends in that moment.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from straggler.exchange.board import Proposal

__all__ = ["Agreement", "Ballots"]

logger = logging.getLogger(__name__)

_TRIES = 3
_LEAST_AHEAD_SECONDS = 0.05
_WAIT_FACTOR = 2.0
"""A rank waits longer for the final word than rank 0 for the answers."""


class Ballots:
    """The answers to one proposal, counted by rank 0."""

    REFUSAL = 1 << 32
    """What a refusal adds to the counter, to which a consent adds 1."""

    @staticmethod
    def outcome(count: int, others: int) -> bool | None:
        """Return True where all others agree, False where one refuses, None while answers are missing."""
        if count >= Ballots.REFUSAL:
            return False
        return True if count >= others else None


class Agreement:
    """Carries proposals from rank 0 to all ranks.

    Args:
        rank: This rank.
        others: Ranks beside rank 0.
        bound_seconds: How long rank 0 waits for answers; twice that, any rank for the final word.
        put: Show a proposal to all others; on rank 0, on the thread of reports.
        answer: Send this rank's answer (an amount, see :class:`Ballots`) to a proposal; on the thread of reports.
        count: Return the sum of the answers to a proposal; on rank 0, on the thread of reports.
        iteration: The iteration that this rank has begun last.
        steps_in: How many steps take so many seconds.
        heard_within: Seconds that others need to learn of a proposal.
    """

    def __init__(
        self,
        *,
        rank: int,
        others: int,
        bound_seconds: float,
        put: Callable[[Proposal], None],
        answer: Callable[[int, int], None],
        count: Callable[[int], int],
        iteration: Callable[[], int],
        steps_in: Callable[[float], int],
        heard_within: float,
    ) -> None:
        self._rank = rank
        self._others = others
        self._bound = bound_seconds
        self._put = put
        self._answer = answer
        self._count = count
        self._iteration = iteration
        self._steps_in = steps_in
        self._ahead_seconds = max(3.0 * heard_within, _LEAST_AHEAD_SECONDS)
        self._waits_since = math.inf
        self._changed = threading.Condition()
        self._open: Proposal | None = None
        self._number = self._agreed = -1
        self._tries = 0
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        """Return whether a proposal waits for its end."""
        return self._open is not None

    def has_waited(self, seconds: float) -> bool:
        """Return whether the training thread waits for the final word, and has for so many seconds."""
        return time.monotonic() - self._waits_since >= seconds

    def propose(self, decision: Mapping[str, Any]) -> None:
        """Propose, on rank 0, what all ranks are to do; while another proposal is open this one is dropped."""
        if self._open is None:
            self._tries = 0
            self._try(decision)

    def _try(self, decision: Mapping[str, Any]) -> None:
        self._tries += 1
        self._number += 1
        ahead = max(3, self._steps_in(self._ahead_seconds)) << (self._tries - 1)
        proposal = Proposal(self._number, self._iteration() + ahead, decision, agreed=self._agreed)
        self._until = time.monotonic() + self._bound
        self._put(proposal)
        self._set(proposal)
        if self._iteration() >= proposal.iteration:  # rank 0 itself has passed it meanwhile
            self._end(proposal, False)

    def settle(self) -> None:
        """Count the answers, on rank 0, and make the open proposal final, or end it, once that can be said."""
        proposal = self._open
        if self._rank != 0 or proposal is None or proposal.is_final is not None:
            return
        outcome = Ballots.outcome(self._count(proposal.number), self._others)
        if outcome is None and time.monotonic() >= self._until:
            outcome = False
        if outcome is not None:
            self._end(proposal, outcome)

    def _end(self, proposal: Proposal, outcome: bool) -> None:
        if outcome:
            self._agreed = proposal.number
        self._put(attrs.evolve(proposal, is_final=outcome))
        self._finish(attrs.evolve(proposal, is_final=outcome))
        if not outcome and self._tries < _TRIES:
            self._try(proposal.decision)

    def learn(self, proposal: Proposal) -> None:
        """Take what rank 0 shows, on every other rank, and answer it once."""
        if proposal.is_final is not None:
            self._finish(proposal)
            return
        if proposal.number <= self._number:
            return
        if (former := self._open) is not None:  # rank 0 shows the next one already
            if former.number == proposal.agreed:
                self._finish(attrs.evolve(former, is_final=True))
                return  # the next one is answered at a later look, once that is done
            self._set(None)
        self._number = proposal.number
        self._set(proposal)
        # Seen by the training thread before its iteration is read here: it waits there, or this refuses.
        can = self._iteration() < proposal.iteration
        if not can:
            self._set(None)
        self._answer(proposal.number, 1 if can else Ballots.REFUSAL)

    def _finish(self, proposal: Proposal) -> None:
        """Give the final word on the open proposal; once only, since training may have done it meanwhile."""
        with self._changed:
            if self._open is not None and self._open.number == proposal.number and self._open.is_final is None:
                self._set(proposal)

    def _set(self, proposal: Proposal | None) -> None:
        with self._changed:
            is_over = proposal is not None and proposal.is_final is False
            self._open = None if is_over else proposal
            self._changed.notify_all()

    def due(self, iteration: int) -> Mapping[str, Any] | None:
        """Return, on the training thread, what all ranks do now; None in nearly all iterations.

        Waits for the final word where this rank has agreed to this iteration.
        """
        if self._open is None or iteration < self._open.iteration:
            return None
        with self._changed:
            number = self._open.number if self._open is not None else None
            self._waits_since = time.monotonic()
            try:
                is_known = self._changed.wait_for(
                    lambda: self._open is None or self._open.number != number or self._open.is_final is not None,
                    timeout=_WAIT_FACTOR * self._bound,
                )
            finally:
                self._waits_since = math.inf
            proposal = self._open
            if proposal is None or proposal.number != number:  # it was not agreed to
                return None
            self._open = None
        if not is_known:
            logger.warning(
                "straggler: rank 0 did not say within %g s whether all ranks agree to stop at iteration %d; "
                "this rank goes on",
                _WAIT_FACTOR * self._bound,
                iteration,
            )
            return None
        return proposal.decision
