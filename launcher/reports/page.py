"""A report as one self-contained HTML page: no script, style, font or image from elsewhere, and none is allowed.

It can be read without a script; the one inside tells what the pointer is on, and widens the timeline. A policy in the
page forbids everything but its own style and script, known by their hashes: even where a text from the job got past the
escaping, nothing could run or be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections.abc import Callable

from launcher.reports.formats import UNKNOWN, clock, count, duration
from launcher.reports.model import Report, Run, wall_seconds
from launcher.reports.page_incidents import headline, incidents
from launcher.reports.page_markup import Markup, Part, element, plain
from launcher.reports.page_tables import ledger, limits, near_misses, notes, recommendations, slow_ranks, table
from launcher.reports.page_timeline import timeline
from launcher.reports.phrases import length_of, length_of_run, outcome, restarts_of, size_of

__all__ = ["page"]

_MOST_NAMED = 3
"""How many incidents the head of the page names, the newest."""


def page(report: Report) -> str:
    """Return the page."""
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{plain(report.title, 120)}: report"),
        element("style", Markup(style)),
    )
    body = element("body", _head(report), element("main", _sections(report)), element("script", Markup(script)))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _asset(name: str) -> str:
    return (importlib.resources.files("launcher.reports") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# ---- the head --------------------------------------------------------------------------------------------


def _head(report: Report) -> Markup:
    return element(
        "header",
        element("h1", report.title, " ", _state(report)),
        element("dl", [element("div", element("dt", n), element("dd", text)) for n, text in _facts(report)],
                class_="facts"),
        _named(report),
        _runs(report.runs) if len(report.runs) > 1 else None,
    )  # fmt: skip


def _state(report: Report) -> Markup:
    if report.is_running:
        return element("span", "still running", class_="badge running")
    last = report.runs[-1] if report.runs else None
    if last is None or last.is_unread or last.outcome is None:
        return element("span", "no end was written" if last is None else outcome(last), class_="badge close")
    return element("span", outcome(last), class_="badge good" if last.exit_code == 0 else "badge culprit")


def _facts(report: Report) -> list[tuple[str, str]]:
    last = report.runs[-1] if report.runs else None
    mean = ", mean of the ranks" if duration(report.seconds) != duration(wall_seconds(report)) else ""
    facts = [
        ("job", size_of(report)),
        (f"{'lasts until now' if report.is_running else 'lasted'}{mean}", length_of(report)),
        (
            "began",
            ("~" if report.runs and report.runs[0].is_begin_about else "")
            + clock(report.began_at, report.began_epoch, 0.0),
        ),
        ("restarts", restarts_of(report).partition(" ")[0]),
        ("incidents", f"{'~' if report.is_end_about else ''}{count(len(report.incidents))}"),
    ]
    if report.near_misses:
        facts.append(("near misses", f"{'~' if report.is_end_about else ''}{count(len(report.near_misses))}"))
    if last is not None and last.why:
        facts.append(("ended because", last.why))
    facts.append(("report made", report.made_at.replace("T", " ")[:19]))
    return facts


def _named(report: Report) -> Part:
    """Return the newest incidents: what a person comes for."""
    if not report.incidents:
        return None
    newest = report.incidents[: -_MOST_NAMED - 1 : -1]
    left = len(report.incidents) - len(newest)
    items = [element("li", headline(each), element("span", f" {each.wall_time.replace('T', ' ')[:19]}", class_="soft"))
             for each in newest]  # fmt: skip
    more = element("li", element("a", f"and {count(left)} before", href="#incidents", class_="more")) if left else None
    return element("ul", items, more, class_="named")


def _runs(runs: tuple[Run, ...]) -> Markup:
    rows = [
        (
            run.name,
            UNKNOWN if run.began_at is None else ("~" * run.is_begin_about) + run.began_at.replace("T", " ")[:19],
            length_of_run(run),
            UNKNOWN if run.is_unread else f"{about}{count(run.world_size)} on {about}{count(run.nodes)}",
            UNKNOWN if run.is_unread else f"{'~' if run.is_end_about else about}{count(run.restarts)}",
            outcome(run),
            run.why or "",
        )
        for run in runs
        for about in ("~" if run.is_about or (run.is_end_about and not run.world_size) else "",)
    ]
    return table(("run", "began", "wall time", "ranks on nodes", "restarts", "end", "because"), rows, (2, 4))


# ---- the sections ----------------------------------------------------------------------------------------


def _sections(report: Report) -> list[Markup]:
    parts: tuple[tuple[str, str, Callable[[Report], Markup | None]], ...] = (
        ("timeline", "Ranks over time", timeline),
        ("ledger", "Where the time went", ledger),
        ("incidents", "Incidents", incidents),
        ("recommendations", "What to set", recommendations),
        ("limits", "Limits against what was observed", limits),
        ("near-misses", "Near misses", near_misses),
        ("slow-ranks", "Slow ranks", slow_ranks),
        ("notes", "What could not be read", notes),
    )
    sections = []
    for name, title, made in parts:
        content = made(report)
        if content is not None:
            heading = element("h2", title, id=f"{name}-title")
            sections.append(element("section", heading, content, id=name, aria_labelledby=f"{name}-title"))
    return sections
