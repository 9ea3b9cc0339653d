"""The tables of a page: the ledger, limits against what was observed, near misses, slow ranks, what to set, notes."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

from launcher.reports.formats import UNKNOWN, count, duration, limit_of, seconds, share, signed_share
from launcher.reports.model import Ledger, LedgerEntry, Limit, Recommendation, Report
from launcher.reports.page_markup import Markup, Part, element
from launcher.reports.page_words import some
from launcher.reports.phrases import lateness_of, observed

__all__ = ["ledger", "limits", "near_misses", "notes", "recommendations", "slow_ranks", "table"]

_MOST_ROWS = 200
_LABELLED_EVERYWHERE, _LABELLED_IN_A_WIDE_WINDOW = 0.45, 0.16
"""Shares of the bar in which a name has room, on a phone, too, or on a wide window alone."""


def table(heads: Sequence[str], rows: Iterable[Sequence[Part]], numbers: Sequence[int] = ()) -> Markup:
    """Return a table that scrolls inside itself where it is too wide.

    Args:
        heads: Of the columns.
        rows: Cells; the first one of each row is its head.
        numbers: Which columns hold numbers.
    """
    all_rows = [*rows]
    shown = [
        element(
            "tr",
            [
                element(
                    "th" if column == 0 else "td",
                    cell,
                    scope="row" if column == 0 else None,
                    class_=_css(column in numbers),
                )
                for column, cell in enumerate(row)
            ],
        )
        for row in all_rows[:_MOST_ROWS]
    ]
    head = [element("th", text, scope="col", class_=_css(n in numbers)) for n, text in enumerate(heads)]
    left = len(all_rows) - len(shown)
    return element(
        "div",
        element("table", element("thead", element("tr", head)), element("tbody", shown)),
        element("p", f"{count(left)} more are not shown.", class_="soft") if left > 0 else None,
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=f"Table: {', '.join(heads)}",
    )


def _css(is_number: bool) -> str | None:
    return "number" if is_number else None


# ---- the ledger ------------------------------------------------------------------------------------------


def ledger(report: Report) -> Markup:
    """Return where the time went: one bar, and the same as a table."""
    known = report.ledger
    if not known.entries:
        return element("p", "Nothing was written down from which it could be told where the time went.", class_="soft")
    rows = [_entry(entry) for entry in known.entries]
    about = "~" if known.is_wall_about else ""
    total = element(
        "tr",
        element("th", "wall time", scope="row"),
        element("td", about, seconds(known.wall_seconds), class_="number"),
        element("td", share(1.0), class_="number"),
        element("td", about, duration(known.rank_seconds), class_="number"),
        element("td", _facts(known), class_="soft"),
        class_="total",
    )
    heads = (("", ""), ("per rank", "number"), ("of wall", "number"), ("all ranks", "number"), ("", ""))
    head = element("tr", [element("th", text, scope="col", class_=css or None) for text, css in heads])
    return element(
        "div",
        _bar(known),
        element(
            "div",
            element("table", element("thead", head), element("tbody", rows, total), class_="ledger"),
            class_="scroll",
            tabindex=0,
            role="region",
            aria_label="Table of where the time went",
        ),
        element("p", "~: an estimate is in it; the notes say why.", class_="soft")
        if known.is_count_about or known.is_wall_about or any(entry.is_about for entry in known.entries)
        else None,
    )


def _bar(known: Ledger) -> Markup:
    x = 0.0
    parts: list[Part] = []
    said: list[str] = []
    for entry in known.entries:
        wide = max(entry.share, 0.0) * 100
        about = "~" if entry.is_about else ""
        text = f"{entry.category.name} {about}{share(entry.share)}"
        title = element("title", f"{text}, {about}{seconds(entry.seconds)} per rank")
        parts.append(element("rect", title, x=f"{x:.3f}%", width=f"{wide:.3f}%", height="100%", class_=_colour(entry)))
        if entry.share >= _LABELLED_IN_A_WIDE_WINDOW:
            css = "on-fill" if entry.share >= _LABELLED_EVERYWHERE else "on-fill wide-only"
            parts.append(element("text", text, x=f"{x + wide / 2:.3f}%", y=21, text_anchor="middle", class_=css))
        x += wide
        said.append(text)
    label = ", ".join(said)
    return element("svg", parts, class_="bar", width="100%", height=32, role="img", aria_label=label)


def _entry(entry: LedgerEntry) -> Markup:
    swatch = element("svg", element("rect", width=12, height=12, class_=_colour(entry)), width=12, height=12,
                     class_="swatch", aria_hidden="true")  # fmt: skip
    about = "~" if entry.is_about else ""
    return element(
        "tr",
        element("th", swatch, entry.category.name, scope="row"),
        element("td", about, seconds(entry.seconds), class_="number"),
        element("td", about, share(entry.share), class_="number"),
        element("td", about, duration(entry.rank_seconds), class_="number"),
        element("td", entry.category.meaning, class_="soft"),
    )


def _colour(entry: LedgerEntry) -> str:
    return f"c-{entry.category.key.replace('_', '-')}"


def _facts(known: Ledger) -> str:
    about = "~" if known.is_count_about else ""
    facts = [
        f"{about}{count(known.steps)} iterations kept" if known.steps is not None else "iterations kept: not known",
        f"{about}{count(known.repeated)} done again" if known.repeated is not None else "done again: not known",
    ]
    if known.step_seconds is not None:
        facts.append(f"{about}{duration(known.step_seconds)} for each that was kept")
    return ", ".join(facts)


# ---- limits ----------------------------------------------------------------------------------------------


def limits(report: Report) -> Markup:
    """Return every limit against the longest that was observed: a bar as long as the limit, and what is left of it."""
    if not report.limits:
        return element("p", "No limit was in force, or none was written down.", class_="soft")
    return element("div", [_limit(limit) for limit in report.limits], class_="limits")


def _limit(limit: Limit) -> Markup:
    about = "~" if limit.is_about else ""
    badges = [
        element("span", text, class_="badge close")
        for text in (
            limit.close_calls and about + some(limit.close_calls, "close call", "close calls"),
            some(limit.near_misses, "near miss", "near misses"),
        )
        if text
    ]
    longest = about + duration(limit.longest) if limit.longest is not None else "none has ended by itself yet"
    by = f" (rank {limit.longest_rank})" if limit.longest_rank is not None else ""
    typical = f"{'~' if limit.is_typical_about else ''}{duration(limit.typical)}"
    room = f"{about}{signed_share(limit.room)} room" if limit.room is not None else "room unknown"
    return element(
        "div",
        element("div", element("strong", limit.kind, class_="foreign"), badges, class_="limit-name"),
        _limit_bar(limit),
        element("div", room, class_="limit-room close-text" if limit.is_close else "limit-room"),
        element(
            "div",
            f"longest {longest}{by}, typical {typical}, {observed(limit)} observed; ",
            f"limit {_limit_seconds(limit)}{f' ({limit.source})' if limit.source else ''}; ",
            element("code", limit.option),
            class_="limit-facts soft",
        ),
        class_="limit",
    )


def _limit_bar(limit: Limit) -> Markup:
    parts: list[Part] = [element("rect", width="100%", height=14, class_="track")]
    said = "the limit, or the longest that was observed, is not known"
    if limit.room is not None:
        used = min(max(1 - limit.room, 0.0), 1.0) * 100
        parts.append(
            element("rect", width=f"{used:.2f}%", height=14, class_="used-close" if limit.is_close else "used")
        )
        said = f"{'~' if limit.is_about else ''}{signed_share(1 - limit.room)} of the limit used"
        if limit.typical is not None and limit.seconds:
            at = f"{min(limit.typical / limit.seconds, 1.0) * 100:.2f}%"
            parts.append(element("line", x1=at, x2=at, y1=2, y2=12, class_="typical"))
    parts.append(element("line", x1="80%", x2="80%", y1=0, y2=14, class_="four-fifths"))
    return element("svg", parts, class_="limit-bar", width="100%", height=14, role="img", aria_label=said)


def _limit_seconds(limit: Limit) -> str:
    if not limit.is_known:
        return "not known"
    least, most = limit_of(limit.seconds), limit_of(limit.seconds_most)
    return least if limit.seconds_most is None or least == most else f"{least} to {most}"


# ---- the rest --------------------------------------------------------------------------------------------


def near_misses(report: Report) -> Markup | None:
    """Return the verdicts that were taken back; None without any."""
    if not report.near_misses:
        return None
    rows = [
        (
            duration(miss.at),
            f"rank {miss.rank}",
            miss.node,
            miss.kind,
            limit_of(miss.limit_seconds),
            lateness_of(miss),
        )
        for miss in report.near_misses
    ]
    return table(("after", "who", "node", "limit", "of", "missed by"), rows, (4, 5))


def slow_ranks(report: Report) -> Markup | None:
    """Return the ranks that the straggler detector has named; None without any."""
    if not report.slow_ranks:
        return None
    rows = [
        (
            f"rank {slow.rank}",
            slow.node,
            share(slow.slowdown),
            slow.section or "",
            f"{count(slow.reports)} of {count(slow.of_reports)}",
            duration(slow.since) if slow.since is not None else UNKNOWN,
            element("span", slow.because, class_="foreign"),
            element("code", slow.source),
        )
        for slow in report.slow_ranks
    ]
    heads = ("who", "node", "slower by", "in section", "in reports", "since", "because", "file")
    return table(heads, rows, (2, 4))


def _of_what(said: Recommendation) -> str:
    one, several = ("observation", "observations") if said.about == "limit" else ("failure", "failures")
    return some(said.samples, one, several) or f"no {one}"


def recommendations(report: Report) -> Markup | None:
    """Return what to set, and from how many observations that comes; None without any."""
    if not report.recommendations:
        return None
    samples = collections.Counter(each.about for each in report.recommendations)
    items = [
        element(
            "li",
            element("strong", each.about, class_="foreign") if samples[each.about] else None,
            element("p", each.text),
            element("p", element("code", each.option), class_="option") if each.option else None,
            element("p", f"from {'~' if each.is_about and each.samples else ''}"
                    f"{_of_what(each)}", class_="soft"),
        )
        for each in report.recommendations
    ]  # fmt: skip
    return element("ul", items, class_="cards")


def notes(report: Report) -> Markup | None:
    """Return what could not be read, and what that means; None where all could be."""
    return element("ul", [element("li", note) for note in report.notes], class_="notes") if report.notes else None
