"""The incidents of a page: who, where, why, what it cost, and the stacks of all ranks, folded."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.reports.formats import count, duration
from launcher.reports.model import FoldedStack, Incident, Report, Suspect
from launcher.reports.page_markup import Markup, Part, element
from launcher.reports.page_words import blamed, ranks_phrase, some, what_happened
from launcher.reports.phrases import cost_of

__all__ = ["headline", "incidents"]

_ALL_OPEN = 5
"""Up to so many incidents are open; of more, the last one is."""
_MOST_STACKS = 16
_MOST_FRAMES = 60
_MOST_CULPRITS = 8
_MOST_LINES = 40


def headline(incident: Incident) -> Markup:
    """Return who is to blame and what happened, as a link to the description."""
    return element(
        "a",
        element("span", f"#{incident.number}", class_="badge culprit"),
        " ",
        element("strong", blamed(incident, 60), class_="foreign"),
        f": {what_happened(incident)}",
        href=f"#incident-{incident.number}",
    )


def incidents(report: Report) -> Markup:
    """Return all incidents, oldest first, as in the timeline."""
    if not report.incidents:
        return element("p", "No incident was written down.", class_="soft")
    last = report.incidents[-1].number
    is_short = len(report.incidents) <= _ALL_OPEN
    return element(
        "div", [_incident(each, report, is_open=is_short or each.number == last) for each in report.incidents]
    )


def _incident(incident: Incident, report: Report, *, is_open: bool) -> Markup:
    summary = element(
        "summary",
        element("span", f"#{incident.number}", class_="badge culprit"),
        " ",
        element("strong", blamed(incident, 60), class_="foreign"),
        f": {what_happened(incident)}",
        element("span", f" after {duration(incident.at)}", class_="soft"),
    )
    return element(
        "details",
        summary,
        _facts(incident, report),
        element("p", incident.why, class_="foreign"),
        [_suspect(suspect, incident) for suspect in incident.culprits[:_MOST_CULPRITS]],
        _left(len(incident.culprits) - _MOST_CULPRITS, "culprits"),
        _stacks(incident),
        _machine(incident.machine),
        _more(incident, has_timeline=bool(report.ranks) and report.seconds > 0),
        id=f"incident-{incident.number}",
        class_="incident",
        open=is_open,
    )


def _more(incident: Incident, *, has_timeline: bool) -> Markup:
    report = ["Full report: ", element("code", incident.report), ". "] if incident.report else None
    place = element("a", "Show it in the timeline", href=f"#mark-{incident.number}") if has_timeline else None
    return element("p", report, place)


def _facts(incident: Incident, report: Report) -> Markup:
    several = len(report.runs) > 1
    generation = f"generation {incident.generation}"
    facts: list[tuple[str, str | None]] = [
        ("seen", incident.wall_time or None),
        ("in", f"{generation} of {report.runs[incident.run].name}" if several else generation),
        ("iteration", _iterations(incident.culprits)),
        ("past the limit", duration(incident.late_seconds) if incident.late_seconds is not None else None),
        ("cost each rank", cost_of(incident)),
        ("done again", _repeated(incident.repeated, is_about=report.ledger.is_count_about)),
        ("action", incident.action or None),
        ("victims", ranks_phrase(incident.victims) if incident.victims else None),
    ]
    shown = [(name, text) for name, text in facts if text is not None]
    return element(
        "dl", [element("div", element("dt", name), element("dd", text)) for name, text in shown], class_="facts"
    )


def _repeated(number: int | None, *, is_about: bool) -> str:
    if number is None:
        return "not known"
    if is_about:
        return f"~{some(number, 'iteration', 'iterations') or '0 iterations'}"
    return some(number, "iteration", "iterations") or "no iteration"


def _iterations(suspects: Sequence[Suspect]) -> str | None:
    known = sorted({suspect.iteration for suspect in suspects if suspect.iteration is not None})
    return None if not known else count(known[0]) if len(known) == 1 else f"{count(known[0])} to {count(known[-1])}"


def _suspect(suspect: Suspect, incident: Incident) -> Markup:
    certainty = element("span", "likely", class_="badge close") if incident.is_likely else None
    return element(
        "div",
        element("p", certainty, " " if certainty else None, suspect.headline, class_="foreign"),
        element("p", "at ", element("code", suspect.line)) if suspect.line else None,
        element("pre", suspect.message) if suspect.message else None,
        class_="suspect",
    )


def _stacks(incident: Incident) -> Part:
    if not incident.stacks:
        return None
    shown = incident.stacks[:_MOST_STACKS]
    return element(
        "div",
        [_stack(stack) for stack in shown],
        _left(len(incident.stacks) - len(shown), "different stacks"),
        class_="stacks",
    )


def _stack(stack: FoldedStack) -> Markup:
    place = stack.frames[0] if stack.frames else "no frame"
    own = stack.frames[stack.own] if stack.own is not None and stack.own > 0 else None
    who = ranks_phrase(stack.ranks)
    many = f" ({count(len(stack.ranks))})" if len(stack.ranks) > 3 else ""
    frames: list[Part] = []
    for number, frame in enumerate(stack.frames[:_MOST_FRAMES]):
        frames += [element("b", frame) if number == stack.own else frame, "\n"]
    left = len(stack.frames) - _MOST_FRAMES
    return element(
        "details",
        element(
            "summary",
            element("strong", who, many, class_="culprit-text" if stack.is_culprits else None),
            " at ",
            element("code", place),
            [", from ", element("code", own)] if own else None,
            element("span", f" {stack.thread}", class_="soft") if stack.thread not in ("", "MainThread") else None,
        ),
        element("pre", frames, f"… {count(left)} more" if left > 0 else None),
        class_="stack",
    )


def _machine(lines: Sequence[str]) -> Part:
    if not lines:
        return None
    shown = lines[-_MOST_LINES:]
    return [
        element("p", "The machine tells:" if len(shown) == len(lines) else f"The machine's last {len(shown)} lines:"),
        element("pre", "\n".join(shown)),
    ]


def _left(number: int, what: str) -> Part:
    return element("p", f"{count(number)} more {what}: see the full report.", class_="soft") if number > 0 else None
