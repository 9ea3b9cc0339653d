"""What to set: an interval between checkpoints, and limits; each with how many observations it rests on.

Sources: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974); J. T. Daly, "A
higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006), equation 37. Both assume
failures that come at random at a constant rate. How little a few failures say about the rate is shown by the exact 95 %
interval of a Poisson count (F. Garwood, Biometrika 28, 1936).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from launcher.reports.doubts import is_doubtful
from launcher.reports.formats import duration, signed_share
from launcher.reports.launches import SAFETY_FACTOR, THIN_EVIDENCE_FLOOR
from launcher.reports.ledger import last_sign_ns
from launcher.reports.lineage import first_after_a_save, has_unnoted_saves
from launcher.reports.model import Ledger, Limit, Recommendation
from launcher.reports.story import JobGeneration, Member, Story
from launcher.reports.strides import counts_in_strides
from resilience_core.protocol.figures import CHECKPOINTING
from resilience_core.protocol.limit_kinds import LEARNED, section_name
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["daly", "poisson_interval", "recommendations", "young"]

_MUCH_ROOM = 10.0
_FEWEST_SAMPLES = 5
"""To call a limit too long; one that is too short is called so from the first."""
_THIN_EVIDENCE = 300
_THIN_SECONDS = 3600.0
"""From fewer durations or less time than these, and where only the longest of each rank is known, no limit below the
configured ``thin_evidence_floor`` is recommended; limits that are learned in the job keep to the same."""
_LEAST_LIMIT_SECONDS = 1.0
_UNSEEN = " As the notes say, longer durations than that may have ended by themselves."


_FEWEST_FAILURES = 3
_FEWEST_SAVES = 3
_FEWEST_SECONDS = 60.0
"""From less than these no interval between saves is recommended; from fewer failures, bounds alone."""


class _Saves(NamedTuple):
    seconds: float
    """For how long one holds up the steps, on the ranks that it holds up longest."""
    took_seconds: float
    """How long one takes there."""
    number: int
    steps: int | None
    """Between two, the median; None where that is not known."""
    about: str
    """A ``~`` where figures are missing: there may have been more."""

    @property
    def measured(self) -> str:
        """What the recommendation rests on."""
        about, took = self.about, f"{self.about}{duration(self.took_seconds)}"
        if self.took_seconds - self.seconds < 0.01 * self.took_seconds:
            return f"{about}{self.number} save(s) that took {took} each"
        return f"{about}{self.number} save(s) that held up the steps for {about}{duration(self.seconds)} of {took} each"

    def at_least(self, interval: float) -> float:
        """Return an interval in which one that goes on beside the steps is complete before the next one begins."""
        return max(interval, self.took_seconds - self.seconds)


def young(save_seconds: float, between_failures: float) -> float:
    """Return the best interval between checkpoints in first order; seconds."""
    return math.sqrt(2 * save_seconds * between_failures)


def daly(save_seconds: float, between_failures: float) -> float:
    """Return the best time of work between two checkpoints in higher order; seconds."""
    if save_seconds >= 2 * between_failures:
        return between_failures
    part = save_seconds / (2 * between_failures)
    return young(save_seconds, between_failures) * (1 + math.sqrt(part) / 3 + part / 9) - save_seconds


def poisson_interval(count: int, missed: float = 0.05) -> tuple[float, float]:
    """Return between which the expected number of events lies, where ``count`` were observed.

    Args:
        count: Observed.
        missed: With which probability it lies outside; for a count of 0 above, else half of it on either side.
    """
    if count == 0:
        return 0.0, -math.log(missed)
    low = _root(lambda mean: 1 - _at_most(count - 1, mean) - missed / 2, 0.0, float(count))
    high = _root(lambda mean: missed / 2 - _at_most(count, mean), float(count), 2.0 * count + 20.0)
    return low, high


def _at_most(count: int, mean: float) -> float:
    """Return the probability of at most so many events."""
    if mean <= 0:
        return 1.0
    return math.fsum(math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in range(count + 1))


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


def recommendations(story: Story, ledger: Ledger, limits: Sequence[Limit]) -> tuple[Recommendation, ...]:
    """Return what to set."""
    factor = max((launch.safety_factor for launch in story.launches), default=SAFETY_FACTOR)
    floor = max((launch.thin_evidence_floor for launch in story.launches), default=THIN_EVIDENCE_FLOOR)
    interval = _interval(story, ledger)
    return (*([interval] if interval is not None else []), *_limits(limits, factor, floor, _ran_seconds(story)))


# ---- checkpoints ----------------------------------------------------------------------------------------


def _interval(story: Story, ledger: Ledger) -> Recommendation | None:
    saves = _saves(story)
    ran = _ran_seconds(story)
    if saves is None or saves.took_seconds <= 0 or ran <= 0:
        return None
    failures = sum(_is_unwanted(generation) for generation in story.generations)
    about = "~" if is_doubtful(story) else ""
    low, high = poisson_interval(failures)
    step = ledger.step_seconds
    now = f" Now it is every {saves.about}{saves.steps} steps." if saves.steps is not None else ""
    # When ranks gave their last sign is told by an incident, too.
    lacks = any(m.lacks_incident or m.is_ending for generation in story.generations for m in generation.members)
    took_in, is_about = f"{'~' if lacks else saves.about}{duration(ran)}", bool(about or saves.about or lacks)
    if saves.number < _FEWEST_SAVES or ran < _FEWEST_SECONDS:
        text = (
            f"How often to save cannot be told from so little: {saves.about}{saves.number} save(s) and "
            f"{about}{failures} failure(s) in {took_in}. It takes {_FEWEST_SAVES} saves in {duration(_FEWEST_SECONDS)} "
            f"at least.{now}"
        )
        return Recommendation("checkpoint interval", text, None, None, "s", failures, None, None, is_about)
    if saves.seconds <= 0:
        text = (
            f"Save as often as one is complete, every {saves.about}{duration(saves.took_seconds)}"
            f"{_steps(saves.took_seconds, step)}: in {saves.measured}, steps went on all the time; whether they took "
            f"longer is not known.{now}"
        )
        return Recommendation(
            "checkpoint interval", text, None, None, "s", failures, saves.took_seconds, None, is_about
        )
    least = saves.at_least(daly(saves.seconds, ran / high))
    if not failures:
        known = "is known of" if about else "was seen"
        text = (
            f"Save no more often than every {duration(least)}{_steps(least, step)}: in {took_in} no failure "
            f"{known}, so there are at least {duration(ran / high)} between two (95 %), from {saves.measured}. How "
            f"much longer the interval may be, only failures can tell.{now}"
        )
        return Recommendation("checkpoint interval", text, None, None, "s", 0, least, None, is_about)
    between, most = ran / failures, saves.at_least(daly(saves.seconds, ran / low))
    rests = (
        f"It rests on {about}{failures} failure(s) in {took_in}, so {duration(between)} between two (95 %: "
        f"{duration(ran / high)} to {duration(ran / low)}), and on {saves.measured}."
    )
    if failures < _FEWEST_FAILURES:
        text = (
            f"Save at intervals of {duration(least)}{_steps(least, step)} to {duration(most)}{_steps(most, step)}. "
            f"{rests} For one value it takes {_FEWEST_FAILURES} failures.{now}"
        )
        return Recommendation("checkpoint interval", text, None, None, "s", failures, least, most, is_about)
    by_formula = daly(saves.seconds, between)
    best = saves.at_least(by_formula)
    by = f"Daly; Young: {duration(young(saves.seconds, between))}"
    if best > by_formula:
        by = f"Daly: {duration(by_formula)}, in which none is complete"
    text = (
        f"Save every {duration(best)}{_steps(best, step)} ({by}). "
        f"{rests} With that uncertainty, anything from {duration(least)} to {duration(most)} may be best.{now}"
    )
    return Recommendation("checkpoint interval", text, None, best, "s", failures, least, most, is_about)


def _is_unwanted(generation: JobGeneration) -> bool:
    """Return whether a generation has failed, as with its machine, and not because the training has stopped itself."""
    members = generation.members
    # A launcher that has written the last figures of a generation was there when that had ended.
    is_gone = all(m.is_silent and not any(life.is_over for life in m.lives.values()) for m in members)
    # What has ended a generation that another one has followed was a failure as far as is known.
    is_untold = not generation.is_last and any(m.is_end_missing and m.own.finished_ns is None for m in members)
    return (generation.has_failed or is_gone or is_untold) and not generation.is_stopped_on_purpose


def _steps(seconds: float, step_seconds: float | None) -> str:
    return f" ({max(1, round(seconds / step_seconds)):,} steps)" if step_seconds else ""


def _saves(story: Story) -> _Saves | None:
    """Return what saves have cost: of each generation, on the rank that they have held up longest."""
    held_ns, took_ns, count = 0, 0, 0
    apart: list[int] = []
    after_a_save = first_after_a_save(story)
    for generation in story.generations:
        lives = [life for member in generation.members for life in member.lives.values()]
        rows = [(life, section) for life in lives if (section := life.sections.get(CHECKPOINTING))]
        if not rows:
            continue
        life, section = max(rows, key=lambda row: (row[0].saving_ns, row[1].took_ns))
        # To finalize a save and to remove an old one belong to what a save costs.
        held_ns, took_ns = held_ns + life.saving_ns - section.left_ns, took_ns + section.took_ns
        count += len(life.saves) or section.closed
        launches = [story.launches[member.launch] for member in generation.members]
        if not any(launch.went_back or launch.has_other_numbers for launch in launches):
            for life in lives:
                begun = [] if life.first_iteration is None else [life.first_iteration - after_a_save]
                apart += [later - former for former, later in itertools.pairwise(sorted({*begun, *life.saves}))]
    if not count:
        return None
    # One that ends a training comes after fewer steps, so of two the larger one is nearer to what was asked for.
    steps = statistics.median_high(apart) if apart and not counts_in_strides(story) else None
    about = "~" if is_doubtful(story) or has_unnoted_saves(story) else ""
    return _Saves(held_ns / count / NS_PER_SECOND, took_ns / count / NS_PER_SECOND, count, steps, about)


def _ran_seconds(story: Story) -> float:
    """Return for how long ranks ran, until their last sign of progress: the time in which failures may come."""
    ran = 0.0
    for generation in story.generations:
        lengths = [last_sign_ns(member) - _began_ns(member) for member in generation.members]
        ran += max(lengths, default=0) / NS_PER_SECOND
    return ran


def _began_ns(member: Member) -> int:
    """Return when a generation began, which may be before the first line that is left of it.

    Its figures tell of all that its ranks did, the saves before that line, too.
    """
    if member.own.is_start_known:
        return member.own.started_ns
    signs = (at_ns for life in member.lives.values() for at_ns in (life.first_sign_ns, life.first_step_ns))
    return min([member.own.started_ns, *(at_ns for at_ns in signs if at_ns is not None)])


# ---- limits ---------------------------------------------------------------------------------------------


def _limits(limits: Sequence[Limit], factor: float, floor: float, ran_seconds: float) -> Iterator[Recommendation]:
    for limit in limits:
        if limit.longest is None or limit.longest <= 0:
            continue
        is_thin = limit.samples < _THIN_EVIDENCE or ran_seconds < _THIN_SECONDS or section_name(limit.kind) is None
        least = max(floor, _LEAST_LIMIT_SECONDS) if is_thin else _LEAST_LIMIT_SECONDS
        value = max(_rounded_up(limit.longest * factor), least)
        if (what := _what_to_do(limit, value)) is None:
            continue
        of_what = "maxima, one for each rank and generation" if limit.are_maxima else "sample(s)"
        about = "~" if limit.is_about else ""
        text = (
            f"{what} From {about}{limit.samples:,} {of_what}, the longest of which took "
            f"{about}{duration(limit.longest)} (rank {limit.longest_rank}), times a safety factor of {factor:g}"
            f"{f', and no less than {least:g} s from so little' if value == least and is_thin else ''}."
            f"{_UNSEEN if limit.is_about else ''}"
        )
        option = limit.option.replace("SECONDS", f"{value:g}")
        yield Recommendation("limit", text, option, value, "s", limit.samples, limit.longest, None, limit.is_about)


def _what_to_do(limit: Limit, value: float) -> str | None:
    """Return one sentence or two about a limit that should be another one; None where it may stay."""
    if limit.seconds is None:
        has_none = limit.is_known and section_name(limit.kind) is not None
        return f"Set a limit for {limit.kind}, which has none: {value:g} s." if has_none else None
    change = f"the limit of {limit.kind} from {limit.seconds:g} s ({limit.source}) to {value:g} s"
    about = "~" if limit.is_about else ""
    if limit.is_close:
        close = f", and {about}{limit.close_calls} took 80 % of it or more" if limit.close_calls else ""
        return (
            f"Raise {change}: {about}{signed_share(limit.room)} room is left{close}." if value > limit.seconds else None
        )
    is_long = limit.longest is not None and limit.seconds > max(_MUCH_ROOM * limit.longest, value)
    if is_long and limit.samples >= _FEWEST_SAMPLES and limit.source != LEARNED:
        return f"Lower {change}: a hang would be found {duration(limit.seconds - value)} earlier."
    return None


def _rounded_up(seconds: float) -> float:
    """Return two significant digits, and no less."""
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return float(f"{math.ceil(seconds / unit - 1e-9) * unit:.6g}")
