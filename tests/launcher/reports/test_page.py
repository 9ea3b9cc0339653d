"""The page as a document: well formed, closed to the network, every text escaped, every figure the model's."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from launcher.reports.formats import count, duration, limit_of, seconds, share
from launcher.reports.model import Report
from launcher.reports.page import page
from tests.launcher.reports.page_stories import HOSTILE, story, write_page

WITHOUT_END = {"meta", "rect", "path", "line", "br", "use"}
LARGE = [pytest.param(*size, marks=pytest.mark.long) for size in ((64, 1), (64, 50), (1024, 1), (1024, 50))]
SIZES = [(2, 1), (16, 3), *LARGE]


class Read(HTMLParser):
    """A page as a browser takes it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute is given twice: {tag} {attrs}"
        self.tags.append((tag, dict(attrs)))
        if tag not in WITHOUT_END or (tag in ("rect", "line") and self.rawdata_has_end(tag)):
            self.open.append(tag)

    def rawdata_has_end(self, tag: str) -> bool:
        """Return whether a drawn element was not closed at once: then it has a title inside."""
        start = self.get_starttag_text()
        return start is not None and not start.endswith("/>")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> ends nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of all elements of a name."""
        return [attributes for name, attributes in self.tags if name == tag]

    def classed(self, name: str) -> list[dict[str, str | None]]:
        """Return the attributes of all elements of a class."""
        return [a for _, a in self.tags if name in (a.get("class") or "").split()]

    def text(self) -> str:
        """Return what a person can read, with single spaces."""
        shown = (text for tag, text in self.texts if tag not in ("script", "style"))
        return " ".join(" ".join(shown).split())


@pytest.mark.parametrize(("ranks", "incidents"), SIZES)
def test_is_one_closed_document_under_two_megabytes(ranks: int, incidents: int, tmp_path: Path) -> None:
    path = write_page(story(ranks, incidents), tmp_path / "report.html")
    assert path.stat().st_size < 2_000_000
    text = path.read_text(encoding="utf-8")
    read = Read(text)
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {a["href"] for a in read.named("a")}
    assert targets
    assert {f"#{name}" for name in ids} >= targets
    assert f"#incident-{incidents}" in targets
    assert f"#mark-{incidents}" in targets


def test_nothing_is_loaded_and_the_policy_lets_only_its_own_script_and_style_in() -> None:
    text = page(story())
    read = Read(text)
    assert not re.findall(r"https?:|[\"'(]//|@import|@font-face", text)
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {f"#p-{n}" for n in (
        "starting", "stopping", "down", "idle", "not-seen", "other")}  # fmt: skip
    for tag, attributes in read.tags:
        assert "src" not in attributes, tag
        assert "style" not in attributes, tag
        assert not [name for name in attributes if name.startswith("on")], tag
    (policy,) = [m["content"] for m in read.named("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        *_, content = [data for name, data in read.texts if name == tag]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy


def test_texts_from_the_job_stay_texts() -> None:
    text = page(story(16, 5, is_hostile=True))
    read = Read(text)
    assert not read.named("img")
    assert len(read.named("script")) == 2
    assert not re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
    assert "onerror=alert(1)>&" in read.text()
    assert "\\x00\\x1b[31m\\u202eevil\\u2066\\udcff" in read.text()
    usual = Read(page(story(16, 5)))
    assert {tag for tag, _ in read.tags} == {tag for tag, _ in usual.tags}
    assert HOSTILE not in text


@pytest.mark.parametrize(("ranks", "incidents"), SIZES)
def test_every_incident_is_named_beside_the_row_of_its_culprit(ranks: int, incidents: int) -> None:
    report = story(ranks, incidents)
    read = Read(page(report))
    labels = [text for tag, text in read.texts if tag == "text" and text.startswith("#")]
    rows = {text for tag, text in read.texts if tag == "text" and text.startswith("rank")}
    marked = {a.get("id") for a in read.classed("mark")} - {None}
    assert marked == {f"mark-{incident.number}" for incident in report.incidents}
    for incident in report.incidents:
        for suspect in incident.culprits:
            assert f"rank {suspect.rank}" in rows
    first = report.incidents[0].culprits[0]
    what = f"hang in {first.section}"
    assert f"#1 rank {first.rank} {first.node}: {what}" in labels or f"#1 {what}" in labels
    if incidents <= ranks:
        assert sum(": " in label for label in labels) >= min(incidents, 40)


def test_an_incident_without_a_culprit_is_marked_above_the_rows() -> None:
    report = story(16, 1)
    nobody = report.incidents[0]._replace(culprits=())
    read = Read(page(report._replace(incidents=(nobody,))))
    assert ("text", "#1 culprit unknown") in read.texts
    assert [a["href"] for a in read.classed("mark")] == ["#incident-1"]


def test_shows_the_figures_of_the_model() -> None:
    report = story(16, 3)
    html = page(report)
    text = Read(html).text()
    for entry in report.ledger.entries:
        about = "~" if entry.is_about else ""
        figures = (seconds(entry.seconds), share(entry.share), duration(entry.rank_seconds))
        expected = " ".join([entry.category.name, *(about + figure for figure in figures)])
        assert expected in text
        assert f"<title>{entry.category.name} {about}{share(entry.share)}, {about}{seconds(entry.seconds)} " in html
    said = ", ".join(
        f"{entry.category.name} {'~' if entry.is_about else ''}{share(entry.share)}" for entry in report.ledger.entries
    )
    assert f'aria-label="{said}"' in html
    assert {entry.is_about for entry in report.ledger.entries} == {True, False}
    assert f"wall time {seconds(report.ledger.wall_seconds)} 100.0 %" in text
    for limit in report.limits:
        if limit.longest is not None:
            assert f"longest {duration(limit.longest)} (rank {limit.longest_rank})" in text
        assert f"limit {limit_of(limit.seconds)}" in text
        assert limit.option in text
    for incident in report.incidents:
        assert f"after {duration(incident.at)}" in text
        assert incident.report is not None
        assert incident.report in text
        for suspect in incident.culprits:
            assert suspect.headline in text
    for each in report.recommendations:
        assert each.text in text
        what = "observations" if each.about == "limit" else "failures"
        assert f"from {count(each.samples)} {what}" in text
    for slow in report.slow_ranks:
        assert f"rank {slow.rank} {slow.node} {share(slow.slowdown)}" in text
    assert report.notes[0] in text


def test_folds_stacks_and_names_the_ranks_of_each() -> None:
    read = Read(page(story(64, 1)))
    summaries = read.text()
    assert "ranks 0-36, 38-63 (63) at all_reduce (torch/distributed/distributed_c10d.py:2501)" in summaries
    assert len(read.classed("stack")) == 2
    assert ("b", "load_batch (train.py:31)") in read.texts


def test_many_incidents_are_closed_but_the_last() -> None:
    is_open = ["open" in attributes for attributes in Read(page(story(16, 50))).classed("incident")]
    assert is_open == [False] * 49 + [True]
    assert all("open" in attributes for attributes in Read(page(story(16, 3))).classed("incident"))


def test_says_that_a_run_goes_on_and_how_one_has_ended() -> None:
    running = Read(page(story(is_running=True))).text()
    assert "still running" in running
    assert "and it still goes on" in running
    ended = Read(page(story())).text()
    assert "succeeded (exit code 0)" in ended
    assert "still" not in ended


def test_several_runs_have_a_table() -> None:
    report = story()
    second = report.runs[0]._replace(name="pretrain-7b-again", outcome="failed", exit_code=1, why="no restart is left")
    text = Read(page(report._replace(runs=(*report.runs, second)))).text()
    assert "pretrain-7b-again 2026-09-21 14:13:20" in text
    assert text.count("failed (exit code 1)") == 2
    assert "generation 0 of pretrain-7b" in text


def test_a_report_of_nothing_is_a_page() -> None:
    report = story(2, 0)
    nothing: Report = report._replace(
        runs=(), nodes=(), generations=(), ranks=(), near_misses=(), limits=(), slow_ranks=(), recommendations=(),
        notes=(), seconds=0.0, ledger=report.ledger._replace(entries=(), by_rank=()),
    )  # fmt: skip
    text = Read(page(nothing)).text()
    assert "No rank has been started" in text
    assert "No incident was written down." in text
    assert "0 ranks on 0 nodes" in text


def test_values_that_are_not_known_are_said_to_be_unknown() -> None:
    report = story(2, 1)
    suspect = report.incidents[0].culprits[0]._replace(section=None, iteration=None, line=None, open_seconds=None)
    incident = report.incidents[0]._replace(
        culprits=(suspect,), late_seconds=None, cost_seconds=None, repeated=None, report=None, stacks=()
    )
    limit = report.limits[0]._replace(room=None, longest=None, seconds=None, typical=None, longest_rank=None)
    text = Read(page(report._replace(incidents=(incident,), limits=(limit,)))).text()
    assert "hang out of section" in text
    assert "room unknown" in text
    assert "longest none has ended by itself yet, typical unknown" in text
    assert "None" not in text
