"""The HTML picture as Chromium shows it; skipped where there is none."""

import pytest

from straggler.reporting.heatmap_html import write_html
from straggler.reporting.picture import picture_of
from straggler.reporting.report_log import records
from straggler.simulation.reports import write_log
from straggler.simulation.simulator import SimulatedJob, SimulatedSlowdown
from tests.docs import browser

SEEN = """
const canvases = [...document.querySelectorAll('#blocks canvas')];
const colours = canvases.map(c => { const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
    const found = new Set(); for (let i = 0; i < p.length; i += 4) found.add([p[i], p[i + 1], p[i + 2]].join());
    return found.size; });
const all = canvases[1], box = all.getBoundingClientRect();
all.dispatchEvent(new PointerEvent('pointermove', {clientX: box.right - 2, clientY: box.top + box.height * 17.5 / 40}));
return {
    named: [...document.querySelectorAll('#named tr')].map(row => [...row.children].map(cell => cell.textContent)),
    labels: [...document.querySelectorAll('.left span, .right span')].map(e => e.textContent),
    said: document.getElementById('said').textContent,
    ticks: [...document.querySelectorAll('.tick')].length,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    paper: getComputedStyle(document.body).backgroundColor,
    elsewhere: performance.getEntriesByType('resource').filter(e => !e.name.startsWith(location.origin)).length,
    colours,
};
"""


@pytest.mark.long
@pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))
def test_the_picture_shows_who_was_named_in_light_and_dark(tmp_path):
    slow = SimulatedSlowdown(kind="slow_rank", rank=17, slowdown=0.5, onset=2)
    write_log(SimulatedJob(ranks=40, windows=12, slowdowns=(slow,)), tmp_path / "reports.jsonl")
    write_html(picture_of(records(tmp_path / "reports.jsonl")), tmp_path / "index.html")
    with browser.started(tmp_path) as (page, address):
        for scheme, paper in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 26)")):
            for width in (1280, 390):
                page.emulate(width, 800, scheme)
                page.go(address + "index.html")
                seen = page.script(SEEN)
                assert [error for error in page.errors() if "favicon" not in error] == []
                assert (seen["overflow"], seen["elsewhere"], seen["paper"]) == (0, 0, paper)
                assert seen["named"][1][:2] == ["rank 17", "node-0002"]
                assert "rank 17 · node-0002" in seen["labels"]
                assert "(report 4)" in seen["named"][1][5]
                assert "report 11: rank 17 on node-0002: " in seen["said"]
                assert seen["said"].endswith("slower than its peers, named slow")
                assert seen["ticks"] > 2
                assert min(seen["colours"][:2]) > 3
