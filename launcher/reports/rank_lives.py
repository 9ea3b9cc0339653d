"""What a rank has done in a generation, from the lines of figures that were written meanwhile.

The last figures are kept, which hold all before them, and samples far enough apart for a picture. Times are
``CLOCK_MONOTONIC`` nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.records.figures_log import FiguresLine, LimitInForce, RankLine
from launcher.reports.samples import Sample, Wait
from resilience_core.protocol.figures import CHECKPOINTING, SETUP
from resilience_core.protocol.figures_read import Save, SectionFigures

__all__ = ["RankLife"]


class RankLife:
    """One rank in one generation; None for what it has not told."""

    def __init__(self, number: int) -> None:
        self.rank = number
        self.local_rank: int | None = None
        self.first_iteration: int | None = None
        self.lowest_iteration: int | None = None
        """The lowest that a line has named; it may have begun with a lower one."""
        self.done: int | None = None
        self.passed: int | None = None
        """How many steps had ended when the last one that is done had; None from earlier releases."""
        self.iteration: int | None = None
        self.resumed_from: int | None = None
        """The checkpoint that was loaded before its first step, as far as that is known."""
        self.has_reloaded = False
        """It has loaded one after that."""
        self.first_step_ns: int | None = None
        self.first_sign_ns: int | None = None
        self.signs_ns: list[int] = []
        """The last signs of progress of the last few lines, oldest first."""
        self.saves: dict[int, Save] = {}
        """By iteration; what was saved twice is there as it was the last time."""
        self.sections: dict[str, SectionFigures] = {}
        """Without durations."""
        self.durations: dict[str, Mapping[int, int]] = {}
        """As of the last full line."""
        self.sections_before: dict[str, SectionFigures] = {}
        """As of the line before the last one of the generation."""
        self.open_since: dict[str, tuple[int, int]] = {}
        """When a section was opened that a line has shown open, and how often it had been closed until then."""
        self.open: Mapping[str, int] = {}
        """The sections that are open in the last line, and since when."""
        self.grew: dict[str, tuple[int, int]] = {}
        """When the line before that was written in which a section's longest duration grew last, and how often the
        section had been closed by the line in which it grew."""
        self.beside_ns = 0
        """How long saves were under way while steps went on."""
        self.limits: Mapping[str, LimitInForce] = {}
        self.longest_gap_ns = 0
        self.longest_heartbeat_gap_ns = 0
        self.samples: list[Sample] = []
        self.began_ns: int | None = None
        """When its first line was written."""
        self.last_ns = 0
        self.went_back = False
        """Its iterations do not count on through the run."""
        self.is_over = False
        """The last line of the generation is among those read."""

    def add(self, line: FiguresLine, known: RankLine, least_ns: int) -> None:
        """Take up a line.

        Args:
            line: Which.
            known: What it says of this rank.
            least_ns: How far apart samples are at least.
        """
        if self.began_ns is None:
            self.began_ns = line.t_ns
        if line.is_last:
            self.sections_before = dict(self.sections)
        if known.iteration is not None:
            self.went_back |= self.iteration is not None and known.iteration < self.iteration
            self.iteration = known.iteration
            if self.lowest_iteration is None or known.iteration < self.lowest_iteration:
                self.lowest_iteration = known.iteration
        self.done = known.done if known.done is not None else self.done
        self.passed = known.passed if known.passed is not None else self.passed
        for name, each in known.sections.items():
            former = self.sections.get(name)
            if former is not None and each.longest_ns > former.longest_ns:
                self.grew[name] = self.last_ns, each.closed + each.left
        self.sections.update({name: each._replace(durations={}) for name, each in known.sections.items()})
        for name, since_ns in known.open.items():
            self.open_since[name] = since_ns, self.times(name)
        self.open, self.beside_ns = known.open, known.beside_ns
        self.saves.update({save.iteration: save for save in known.saves})
        self.last_ns, self.is_over = line.t_ns, line.is_last
        if (details := known.details) is not None:
            self.local_rank, self.went_back = details.local_rank, self.went_back or details.went_back
            self._take_loaded(details.resumed_from, details.first_iteration)
            self.first_iteration, self.first_step_ns = details.first_iteration, details.first_step_ns
            self.first_sign_ns = details.first_sign_ns
            self.durations = {name: each.durations for name, each in known.sections.items()}
            self.limits = details.limits
            self.longest_gap_ns = details.longest_gap_ns
            self.longest_heartbeat_gap_ns = details.longest_heartbeat_gap_ns
            if details.last_sign_ns is not None:
                self.signs_ns.append(details.last_sign_ns)
        elif known.open:
            self.signs_ns.append(max(known.open.values()))
        del self.signs_ns[:-4]
        if not self.samples or line.is_last or line.t_ns - self.samples[-1].t_ns >= least_ns:
            last_sign_ns = known.details.last_sign_ns if line.is_last and known.details is not None else None
            self.samples.append(self._sample(line.t_ns, known.open, last_sign_ns))

    def _take_loaded(self, loaded: int | None, first: int | None) -> None:
        """Take the highest checkpoint that was loaded; what was loaded once steps are taken is no resume.

        Args:
            loaded: Its number.
            first: The iteration of the first step, if it has begun by now.
        """
        if self.first_step_ns is not None:
            is_later = loaded is not None and first is not None and loaded > first
            self.has_reloaded |= is_later and loaded != self.resumed_from
        elif first is not None and loaded is not None and loaded > first and loaded in self.saves:
            self.has_reloaded = True  # it has saved that itself
        else:
            self.resumed_from = loaded

    def _sample(self, t_ns: int, is_open: Mapping[str, int], last_sign_ns: int | None) -> Sample:
        inside = {name: each.took_ns + each.left_ns for name, each in self.sections.items()}
        for name, since_ns in is_open.items():
            inside[name] = inside.get(name, 0) + max(0, t_ns - since_ns)
        closed = {name: each.closed for name, each in self.sections.items()}
        return Sample(t_ns, self.iteration, self.done, inside, closed, self.saving_ns, last_sign_ns)

    @property
    def has_begun_to_save(self) -> bool:
        """An exception has left a save, or one is open in the last line."""
        figures = self.sections.get(CHECKPOINTING)
        return CHECKPOINTING in self.open or (figures is not None and figures.left > 0)

    @property
    def saving_ns(self) -> int:
        """How long saves that are over have held up the steps in all."""
        saves = self.sections.get(CHECKPOINTING)
        return max(0, saves.took_ns + saves.left_ns - self.beside_ns) if saves is not None else 0

    @property
    def is_saving_unknown(self) -> bool:
        """Whether it has saved, and how long that took is not known: with heartbeats, saves are no sections."""
        return bool(self.saves) and CHECKPOINTING not in self.sections

    @property
    def was_in_setup_alone(self) -> bool:
        """Whether it tells of nothing but its setup: of no iteration, heartbeat, save or other section."""
        has_others = bool({*self.sections, *self.open} - {SETUP}) or self.iteration is not None or bool(self.saves)
        return not has_others and SETUP in {*self.sections, *self.open} and not self.longest_heartbeat_gap_ns

    def last_sign_ns(self, until_ns: int) -> int | None:
        """Return the last sign of progress that is known until then; later ones come from how it was ended."""
        return max((sign for sign in self.signs_ns if sign <= until_ns), default=None)

    def times(self, section: str) -> int:
        """Return how often a section was closed, and left by an exception."""
        known = self.sections.get(section)
        return known.closed + known.left if known is not None else 0

    def times_left(self, section: str) -> int:
        """Return how often exceptions have left a section since the line before the last one of the generation."""
        before = self.sections_before.get(section)
        return self.sections[section].left - (before.left if before is not None else 0)

    def left_opened_ns(self, section: str | None, at_ns: int) -> int | None:
        """Return when a section was opened that the exception noted then has left; None where that counts as closed.

        The client has noted it while the section was open. Those of earlier releases wrote down the time before: then
        the rank has given no sign since it has left the section.
        """
        if section is None or (known := self.sections.get(section)) is None or not known.left:
            return None
        has_gone_on = not self.signs_ns or self.signs_ns[-1] != known.left_at_ns
        is_that = known.left_opened_ns <= at_ns and (at_ns <= known.left_at_ns or not has_gone_on)
        return known.left_opened_ns if is_that else None

    def last_opened_ns(self, section: str, closed_ns: int) -> int | None:
        """Return when a section was opened that was closed last then; None where that is not known.

        A line has shown it open, or it took longer than any before, which lines tell of.
        """
        if (shown_ns := self.shown_open_ns(section)) is not None or section not in self.sections:
            return shown_ns
        line_ns, grown = self.grew.get(section, (0, -1))
        is_last = grown == self.times(section)
        return max(closed_ns - self.sections[section].longest_ns, line_ns) if is_last else None

    def shown_open_ns(self, section: str) -> int | None:
        """Return when a section was opened that was closed last then; None where no line has shown it open."""
        since_ns, before = self.open_since.get(section, (0, -1))
        return since_ns if section in self.sections and before + 1 == self.times(section) else None

    def checkpointing_ns(self, until_ns: int, wait: Wait | None = None) -> tuple[int, int]:
        """Return how long saves had held up the steps in all until then: at least, and at most.

        It is known when a save is noted and when a line is written. All saves of which the last line of a generation
        tells were over by the last sign of progress, since to close a section is such a sign; or, where the rank waited
        for one that had failed, when that began. A save in which it waited is none.
        """
        known = [(save.t_ns, save.checkpointing_ns) for save in self.saves.values()]
        known += [(sample.t_ns, sample.saving_ns) for sample in self.samples]
        if wait is not None and any(save.t_ns > wait.until_ns for save in self.saves.values()):
            # It has saved while it handled the exception. That is none of the time until then.
            least_ns = max((spent_ns for t_ns, spent_ns in known if t_ns <= min(until_ns, wait.since_ns)), default=0)
            return least_ns, least_ns
        over = [(s.last_sign_ns, s.saving_ns) for s in self.samples if s.last_sign_ns is not None]
        least_ns = max((spent_ns for t_ns, spent_ns in (*known, *over) if t_ns <= until_ns), default=0)
        # What is open while it goes on was opened after the saves before it were over.
        is_in_another = self.open and not self.is_over and CHECKPOINTING not in self.open
        over_ns = max(self.open.values()) if is_in_another else self.last_ns
        if until_ns >= min(over_ns, wait.since_ns if wait is not None else over_ns):
            least_ns = max(least_ns, self.saving_ns)
        most_ns = min((spent_ns for t_ns, spent_ns in known if t_ns >= until_ns), default=self.saving_ns)
        all_ns = self.saving_ns
        if wait is not None and wait.section == CHECKPOINTING:
            all_ns -= wait.until_ns - wait.since_ns
        least_ns = min(least_ns, all_ns)
        return least_ns, max(least_ns, min(most_ns, all_ns))

    def reached_ns(self, iteration: int) -> int | None:
        """Return about when it had done an iteration, between the samples around that; None where it is not known."""
        before: tuple[int, int] | None = None
        if self.first_step_ns is not None and self.first_iteration is not None:
            before = self.first_step_ns, self.first_iteration - 1
        for sample in self.samples:
            if sample.done is None:
                continue
            if sample.done >= iteration:
                if before is None or sample.done <= before[1]:
                    return sample.t_ns
                part = max(0.0, (iteration - before[1]) / (sample.done - before[1]))
                return before[0] + int((sample.t_ns - before[0]) * min(part, 1.0))
            before = sample.t_ns, sample.done
        return None
