"""The monitor's rules in time: when to look, whom to believe to be late, whom to spare at the last moment.

No clock, no process and no file of its own: the monitor gives it real ones, the simulation
(``benchmarks.simulate_monitor``) a clock that jumps and ranks that are invented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from launcher.monitor.deadline_keys import word
from launcher.monitor.lost_time import Freeze
from launcher.monitor.renewed_limits import RenewedLimits
from launcher.monitor.verdict import Deadline, HangVerdict, Sighting, deadlines_in_force, verdict_on
from launcher.monitor.withheld_verdicts import PATIENCE_NS, WithheldVerdicts
from resilience_core.protocol.cell_layout import SHUT_DOWN, UNUSED
from resilience_core.protocol.cell_view import CellView
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["DUE_TOGETHER_NS", "Case", "DeadlineRules", "Findings", "Watched"]

LONGEST_SLEEP_NS = NS_PER_SECOND // 2
"""How long a limit that was just learned may go unnoticed; costs two looks a second."""
DUE_TOGETHER_NS = NS_PER_SECOND // 10
SECOND_LOOK_NS = 1_000_000


class Watched(Protocol):
    """What the rounds need of a rank."""

    kill_at_ns: int | None

    def view(self) -> CellView | None:
        """Return what the rank says now; None when it cannot be read."""

    def sight(self, view: CellView, now_ns: int, freezes: Sequence[Freeze]) -> Sighting:
        """Return what follows from the snapshot."""
        ...

    def is_watched(self, view: CellView) -> bool:
        """Return whether there is a process to be terminated, and it has not been condemned yet."""
        ...

    def basis(self, deadline: Deadline) -> str | None:
        """Return what the limit of one of its deadlines rests on, for :mod:`launcher.monitor.withheld_verdicts`."""


R = TypeVar("R", bound=Watched)


# Plain classes: the monitor runs without site-packages, hence without attrs, and a named tuple is generic from 3.11 on.
class Case(Generic[R]):
    """A rank that is to be terminated, and why: the view it was judged by travels with the verdict.

    Args:
        rank: The rank.
        view: What it said.
        deadlines: What it has not met, or will not have met in a moment.
        is_late: Whether it is overdue by itself; else it is due together with one that is.
        held: Those of its deadlines that have passed before, and were no verdict then
            (:mod:`launcher.monitor.withheld_verdicts`, :mod:`launcher.monitor.renewed_limits`).
    """

    def __init__(
        self,
        rank: R,
        view: CellView,
        deadlines: tuple[Deadline, ...],
        is_late: bool,
        held: tuple[Deadline, ...] = (),
    ) -> None:
        self.rank = rank
        self.view = view
        self.deadlines = deadlines
        self.is_late = is_late
        self.held = held
        self.was_late = is_late
        """Whether any look has found it overdue by itself, the looks since the verdict included."""
        self.answered_by_ns: int | None = None
        """The moment of the look that found it to have answered."""

    @property
    def verdict(self) -> HangVerdict:
        """On the deadline that passed first, or will."""
        verdict = verdict_on(self.view, self.deadlines)
        assert verdict is not None
        return verdict

    def is_answered_by(self, view: CellView | None) -> bool:
        """Return whether the rank has since met or closed everything that it was condemned for.

        The words themselves are compared: a section that was closed and opened anew is another deadline.
        """
        if view is None:
            return False
        if (view.pid, view.start_time) != (self.view.pid, self.view.start_time):
            return True  # another process has taken over the cell; whoever was late is gone
        return not set(map(word, self.deadlines)).intersection(map(word, _in_force(view, self.deadlines)))


class Findings(Generic[R]):
    """What a look that found somebody late has found.

    Args:
        cases: Who is late, or due so soon that it is condemned together.
        views: What every rank that could be read said in that same look.
        seen_ns: When.
    """

    def __init__(self, cases: list[Case[R]], views: dict[R, CellView], seen_ns: int) -> None:
        self.cases = cases
        self.views = views
        self.seen_ns = seen_ns

    @property
    def deadline_ns(self) -> int | None:
        """The deadline that led to the verdict; None where all of them had passed before."""
        return min((c.verdict.deadline_ns for c in self.cases if c.is_late and not c.held), default=None)


class DeadlineRules(Generic[R]):
    """Decides; touches nothing.

    Args:
        clock: ``CLOCK_MONOTONIC`` in nanoseconds; notes a beat of the monitor.
        pause: Waits for so many nanoseconds.
        freezes: When everybody lost time, as of an instant.
        smallest_configured_ns: The smallest limit that a rank may be under from the start; 0 for none.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        pause: Callable[[int], Any],
        freezes: Callable[[int], Sequence[Freeze]],
        smallest_configured_ns: int,
    ) -> None:
        self._clock = clock
        self._pause = pause
        self._freezes = freezes
        self._smallest_configured_ns = smallest_configured_ns
        self._withheld: WithheldVerdicts[R] = WithheldVerdicts()
        self._renewed: RenewedLimits[R] = RenewedLimits()
        self.smallest_limit_ns = 0
        """The smallest limit in force, of the ranks that were asked for last; 0 for none."""

    def time_until_next_look(self, ranks: Iterable[R], now_ns: int) -> int:
        """Return how long to sleep: to the nearest deadline, and never past one that a rank may set meanwhile."""
        freezes = self._freezes(now_ns)
        wake_ns = now_ns + LONGEST_SLEEP_NS
        smallest_ns = 0
        for rank in ranks:
            if rank.kill_at_ns is not None:
                wake_ns = min(wake_ns, rank.kill_at_ns)
            view = rank.view()
            if view is None or not rank.is_watched(view):
                continue  # a successor that takes over the cell is found at one of the regular looks
            wake_ns = min(wake_ns, self._sight(rank, view, now_ns, freezes).next_ns)
            if view.state == SHUT_DOWN:
                continue
            # A rank that has not claimed its cell yet may open a section at any moment, under the configured limits.
            limit_ns = view.smallest_limit_ns if view.state != UNUSED else self._smallest_configured_ns
            if limit_ns and (limit_ns < smallest_ns or not smallest_ns):
                smallest_ns = limit_ns
        self.smallest_limit_ns = smallest_ns
        if smallest_ns:
            wake_ns = min(wake_ns, now_ns + smallest_ns // 2)
        return max(0, wake_ns - now_ns)

    def look(self, ranks: Sequence[R]) -> Findings[R] | None:
        """Look once, and where somebody is late, once more; only what is seen twice is believed.

        Returns:
            Who is late, and who is due so soon after that it is condemned together; None when all is well.
        """
        first = self._see(ranks)
        if not any(sighting.late for sighting in first.values()):
            return None
        self._pause(SECOND_LOOK_NS)
        second = self._see(ranks)
        seen_ns = self._clock()
        cases = []
        for rank, sighting in second.items():
            before = first[rank].late if rank in first else ()
            late = tuple(deadline for deadline in sighting.late if deadline in before)
            if late:
                held = self._had_passed(rank, sighting.view, late)
                cases.append(Case(rank, sighting.view, late, is_late=True, held=held))
        if not cases:
            return None
        # In a synchronous job it is a coin whose deadline passes first; those due with it are condemned with it.
        late_ranks = [case.rank for case in cases]
        for rank, sighting in second.items():
            due = sighting.due_by(seen_ns + DUE_TOGETHER_NS)
            if rank not in late_ranks and due:
                held = (*sighting.held, *self._had_passed(rank, sighting.view, due))
                cases.append(Case(rank, sighting.view, due, is_late=False, held=held))
        views = {rank: sighting.view for rank, sighting in second.items()}
        return Findings(cases, views, seen_ns)

    def still_due(self, cases: Sequence[Case[R]]) -> tuple[list[Case[R]], list[tuple[Case[R], CellView | None]]]:
        """Look once more before the signal.

        Returns:
            The cases that stand, and those that are withdrawn with what the rank says now: it has met or closed what
            it was condemned for, or it was only due together with others of whom none is late any more.
        """
        views = [case.rank.view() for case in cases]
        answered = [case.is_answered_by(view) for case, view in zip(cases, views, strict=True)]
        now_ns = self._clock()
        freezes = self._freezes(now_ns)
        someone_is_late = False
        for case, view, is_answered in zip(cases, views, answered, strict=True):
            if is_answered:
                case.answered_by_ns = now_ns
                continue
            is_late = case.is_late or (view is not None and bool(self._sight(case.rank, view, now_ns, freezes).late))
            case.was_late |= is_late
            someone_is_late |= is_late
        stand, withdrawn = [], []
        for case, view, is_answered in zip(cases, views, answered, strict=True):
            if is_answered or not someone_is_late:
                withdrawn.append((case, view))
            else:
                stand.append(case)
        return stand, withdrawn

    def renew(self, cases: Iterable[Case[R]]) -> None:
        """Have the limits of ranks run anew from now on: who they waited for came back.

        So do other limits of theirs, of heartbeats, say, that would pass before: the same wait has used them up.
        """
        now_ns = self._clock()
        for case in cases:
            until_ns = now_ns + max(deadline.at_ns - deadline.since_ns for deadline in case.deadlines)
            others = [each for each in deadlines_in_force(case.view) if each.at_ns <= until_ns]
            self._renewed.renew(case.rank, case.view, {*case.deadlines, *others}, now_ns)

    def has_patience(self, cases: Iterable[Case[R]]) -> bool:
        """Return whether the limits that led to these cases may run anew (:data:`.PATIENCE_NS`)."""
        now_ns = self._clock()
        return all(now_ns < each.at_ns + PATIENCE_NS for case in cases for each in case.deadlines)

    def run_since_ns(self, cases: Iterable[Case[R]]) -> int:
        """Return from when on the limits run that led to these cases, renewals included: the last one to begin."""
        return max(self._renewed.since_ns(case.rank, case.view, each) for case in cases for each in case.deadlines)

    def _had_passed(self, rank: R, view: CellView, deadlines: Iterable[Deadline]) -> tuple[Deadline, ...]:
        """Return those of them that had passed before, and were no verdict then."""
        withheld = self._withheld.had(rank, view, deadlines)
        return tuple(d for d in deadlines if d in withheld or self._renewed.was_renewed(rank, view, d))

    def _see(self, ranks: Sequence[R]) -> Mapping[R, Sighting]:
        """Take one snapshot of all ranks and judge it as of one instant."""
        views = [(rank, rank.view()) for rank in ranks]
        now_ns = self._clock()
        freezes = self._freezes(now_ns)
        sightings = {
            rank: rank.sight(view, now_ns, freezes)
            for rank, view in views
            if view is not None and rank.is_watched(view)
        }
        self._renewed.forget(ranks, sightings)
        judged = {rank: self._renewed.apply(rank, sighting, now_ns, freezes) for rank, sighting in sightings.items()}
        return self._withheld.weigh(judged, now_ns, freezes)

    def _sight(self, rank: R, view: CellView, now_ns: int, freezes: Sequence[Freeze]) -> Sighting:
        sighting = self._renewed.apply(rank, rank.sight(view, now_ns, freezes), now_ns, freezes)
        return self._withheld.apply(rank, sighting, now_ns, freezes)


def _in_force(view: CellView, otherwise: Iterable[Deadline]) -> list[Deadline]:
    """Return the deadlines that run; a startup limit runs until the cell is claimed, and is in no cell."""
    if view.pid == 0 and view.state != SHUT_DOWN:
        return [*deadlines_in_force(view), *(d for d in otherwise if d.cause == "startup")]
    return deadlines_in_force(view)
