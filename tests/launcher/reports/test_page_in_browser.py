"""The page as Chromium shows it; skipped where there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.reports.page import page
from tests.launcher.reports.page_browser import Browser, check, look_at, missing, started, view
from tests.launcher.reports.page_stories import story, write_page

pytestmark = [pytest.mark.long, pytest.mark.skipif(missing() is not None, reason=str(missing()))]


TAB, ENTER = "\ue004", "\ue007"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, str, Path]]:
    """A browser, the address of a folder, and the folder."""
    folder = tmp_path_factory.mktemp("pages")
    with started(folder) as (browser, address):
        yield browser, address, folder


def test_every_size_fits_in_light_and_dark_on_a_desktop_and_a_phone(tmp_path: Path) -> None:
    sizes = ((2, 1), (64, 1), (1024, 1), (2, 50), (64, 50), (1024, 50))
    assert check({f"{ranks}x{incidents}": story(ranks, incidents) for ranks, incidents in sizes}, tmp_path) == []


def test_what_is_rare_fits_too(tmp_path: Path) -> None:
    reports = {
        "hostile": story(64, 5, is_hostile=True),
        "running": story(8, 1, is_running=True),
        "quiet": story(2, 0),
        "forty-days": story(256, 3, 40 * 86_400.0),
        "three-seconds": story(4, 1, 3.2),
    }
    assert check(reports, tmp_path) == []


def test_the_culprit_is_in_the_first_window(opened: tuple[Browser, str, Path]) -> None:
    browser, address, folder = opened
    for ranks in (2, 64, 1024):
        write_page(story(ranks, 1), folder / "one.html")
        for device in ("desktop", "phone"):
            view(browser, device, "light")
            browser.go(f"{address}one.html?{ranks}")
            seen = browser.script(
                "const s = document.getElementById('plot-scroll').getBoundingClientRect();"
                "const inside = e => { const r = e.getBoundingClientRect();"
                "return r.left < s.right - 60 && r.right > s.left && r.bottom < innerHeight; };"
                "return [...document.querySelectorAll('.mark')].filter(m => inside(m.querySelector('.pill')))"
                ".map(m => m.querySelector('.pill-text').textContent)"
            )
            culprit = story(ranks, 1).incidents[0].culprits[0]
            assert seen == [f"#1 rank {culprit.rank} {culprit.node}: hang in backward"], (ranks, device)


@pytest.mark.parametrize("is_running", [False, True])
def test_in_a_window_that_is_too_narrow_a_run_that_is_over_is_shown_from_its_begin(
    opened: tuple[Browser, str, Path], is_running: bool
) -> None:
    browser, address, folder = opened
    write_page(story(64, 3, is_running=is_running), folder / f"narrow-{is_running}.html")
    browser.emulate(1_100, 800, "light")
    browser.go(f"{address}narrow-{is_running}.html")
    at, hidden, gap = browser.script(
        "const s = document.getElementById('plot-scroll'), r = s.getBoundingClientRect();"
        "const right = m => m.querySelector('.diamond').getBoundingClientRect().right;"
        "return [s.scrollLeft, s.scrollWidth - s.clientWidth,"
        "r.right - Math.max(...[...document.querySelectorAll('.mark')].map(right))]"
    )
    assert hidden > 20, "the whole fits, and nothing is tested"
    if is_running:
        assert at > 20
        assert gap > 0
    else:
        assert at == 0


def press(browser: Browser, key: str) -> None:
    """Press a key and let it go, as WebDriver names it."""
    strokes = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
    browser.post("/actions", actions=[{"type": "key", "id": "keyboard", "actions": strokes}])


def test_the_keyboard_leads_from_a_mark_to_its_description(opened: tuple[Browser, str, Path]) -> None:
    browser, address, folder = opened
    write_page(story(64, 50), folder / "keys.html")
    view(browser, "desktop", "light")
    browser.go(f"{address}keys.html")
    browser.script("document.getElementById('plot-scroll').focus()")
    press(browser, TAB)
    focused = browser.script("return document.activeElement.getAttribute('href')")
    number = int(focused.removeprefix("#incident-"))
    said = browser.script("return document.getElementById('said').textContent")
    assert said.startswith(f"#{number}, after ")
    press(browser, ENTER)
    is_open = browser.script(
        "return new Promise(done => { const look = () => { const d = document.querySelector(location.hash || 'html');"
        "if (d.open) done(d.id); else requestAnimationFrame(look); }; look(); })"
    )
    assert is_open == f"incident-{number}"


def test_the_pointer_is_told_what_it_is_on(opened: tuple[Browser, str, Path]) -> None:
    browser, address, folder = opened
    write_page(story(64, 1), folder / "pointer.html")
    view(browser, "desktop", "light")
    browser.go(f"{address}pointer.html")
    x, y = browser.script(
        "const p = document.querySelector('#areas [data-row^=\"ranks 40-47\"] path[data-n=backward]');"
        "const r = p.getBoundingClientRect(), plot = document.getElementById('plot').getBoundingClientRect();"
        "return [plot.left + 308.5, r.top + r.height * 0.6]"
    )
    browser.devtools("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    said = browser.script("return document.getElementById('said').textContent")
    assert said == "ranks 40-47, node-f, after 38 min 58 s: backward"


def test_a_wider_plot_keeps_marks_at_their_times(opened: tuple[Browser, str, Path]) -> None:
    browser, address, folder = opened
    write_page(story(64, 3), folder / "wide.html")
    view(browser, "desktop", "light")
    browser.go(f"{address}wide.html")
    place = (
        "const m = document.querySelector('#mark-1 .diamond').getBoundingClientRect(), p = document"
        ".getElementById('plot').getBoundingClientRect(); return (m.left + m.width / 2 - p.left - 8) / (p.width - 16)"
    )
    before = browser.script(place)
    browser.script("document.querySelector('.widths button[value=\"16\"]').click()")
    assert browser.script(place) == pytest.approx(before, abs=0.001)
    assert browser.script("return document.getElementById('plot').getBoundingClientRect().width") == 16 * 964 + 16
    assert browser.errors() == []


def test_can_be_read_without_a_script(opened: tuple[Browser, str, Path]) -> None:
    browser, address, folder = opened
    text = page(story(1024, 1))
    (folder / "still.html").write_text(text.replace("script-src &#x27;sha256-", "script-src &#x27;sha256-x"))
    view(browser, "desktop", "light")
    browser.go(f"{address}still.html")
    assert browser.script("return document.documentElement.classList.contains('has-script')") is False
    assert any("violates the following Content Security Policy" in error for error in browser.errors())
    shown = browser.script("return document.body.innerText")
    assert "rank 37 node-e04: hang in backward" in shown
    assert browser.script("return document.querySelectorAll('.pill-text').length") == 1


def test_nothing_gets_out_even_if_a_script_got_in(opened: tuple[Browser, str, Path]) -> None:
    browser, address, folder = opened
    injected = "<script>document.title = 'taken'</script><img src=/one.png><style>body{display:none}</style>"
    (folder / "injected.html").write_text(page(story(2, 1)).replace("</main>", f"{injected}</main>"))
    view(browser, "desktop", "light")
    browser.go(f"{address}injected.html")
    assert browser.script("return document.title") == "pretrain-7b: report"
    assert browser.script("return getComputedStyle(document.body).display") == "block"
    assert len([error for error in browser.errors() if "Content Security Policy" in error]) == 3


def test_a_page_that_is_wrong_is_found(opened: tuple[Browser, str, Path]) -> None:
    browser, address, folder = opened
    without_policy = re.sub(r"<meta http-equiv[^>]*>", "", page(story(2, 1)))
    twice = "<svg width='90' height='20'><text y='15'>one label</text><text y='15'>another</text></svg>"
    broken = (
        ("</main>", "<svg width='4000' height='9'></svg></main>", "pixels too wide"),
        ("</main>", f"{twice}</main>", "labels overlap: one label / another"),
        ("</main>", "<img src='/one.png'></main>", "there is an image"),
        ("</main>", "<link rel='stylesheet' href='/one.css'></main>", "loaded http"),
        ("</main>", "<script>throw Error('oh')</script></main>", "logged http"),
        ("--soft: #5a6068", "--soft: #a5a6a8", "contrast 2."),
        ("--culprit-mark: #d3412a", "--culprit-mark: #ff9b87", "text #1 rank 1"),
        (
            ": hang in backward</text>",
            ": hang in backward, or so</text>",
            "wider than what it stands on",
        ),
    )
    for number, (old, new, problem) in enumerate(broken):
        assert old in without_policy
        name = f"broken-{number}.html"  # of its own: a browser may show again what it has under a name
        (folder / name).write_text(without_policy.replace(old, new))
        problems = [each for look in look_at(browser, f"{address}{name}") for each in look.problems]
        assert any(problem in each for each in problems), (problem, problems)


def test_prints_every_incident(opened: tuple[Browser, str, Path]) -> None:
    browser, address, folder = opened
    write_page(story(64, 50), folder / "print.html")
    view(browser, "desktop", "light")
    browser.go(f"{address}print.html")
    browser.devtools("Emulation.setDeviceMetricsOverride", width=718, height=1000, deviceScaleFactor=1, mobile=False)
    browser.devtools("Emulation.setEmulatedMedia", media="print", features=[])
    try:
        plot = browser.script("return document.getElementById('plot').getBoundingClientRect().right")
        assert plot <= 718
        hidden = browser.script(
            "return [...document.querySelectorAll('.incident .facts')].filter(e => !e.checkVisibility("
            "{contentVisibilityAuto: true})).length"
        )
        assert hidden == 0
    finally:
        browser.devtools("Emulation.setEmulatedMedia", media="", features=[])
