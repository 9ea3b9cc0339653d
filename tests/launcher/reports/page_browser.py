"""Look at a report's page in headless Chromium: light and dark, on a desktop and a phone, with and without a script.

    python -m tests.launcher.reports.page_browser FOLDER [--stories 2x1,64x1,1024x50] [--tall 3000]

writes the pages and their pictures into a folder, and prints what is wrong, how large they are and how long they took
to open. Speaks to the browser as ``tests.docs.browser`` does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

from launcher.reports.model import Report
from tests.docs.browser import LEAST_CONTRAST, WIDTHS, Browser, missing, started
from tests.launcher.reports.page_stories import story, write_page

__all__ = ["Look", "look_at", "missing", "problems_of", "view"]

SCHEMES = ("light", "dark")
LARGEST_BYTES = 2_000_000

LOOK = """
const width = document.documentElement.clientWidth;
const scrolls = e => { for (; e && e !== document.body; e = e.parentElement)
    if (/auto|scroll|hidden/.test(getComputedStyle(e).overflowX)) return true; return false; };
const seen = e => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0; };
const all = [...document.querySelectorAll('body *')];
const wide = all.filter(e => seen(e) && e.getBoundingClientRect().right > width + 1 && !scrolls(e.parentElement)
    && !e.ownerSVGElement);
const channels = c => (c.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
const luminance = c => { const [r, g, b] = c.map(v => { v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const over = (c, below) => { const [r, g, b, a = 1] = c; return [r, g, b].map((v, i) => v * a + below[i] * (1 - a)); };
const back = e => { if (!e) return [255, 255, 255];
    const c = channels(getComputedStyle(e).backgroundColor), a = c.length < 4 ? 1 : c[3];
    return a === 1 ? c.slice(0, 3) : over(c, back(e.parentElement)); };
// The background of a text in a drawing is the filled rectangle that it stands on, painted before it; else the page's.
const under = e => { const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;
    let found = null;
    for (const s of e.ownerSVGElement.querySelectorAll('rect')) {
        if (!(s.compareDocumentPosition(e) & 4) || s.closest('defs')) continue;
        const q = s.getBoundingClientRect();
        if (q.left <= x && x <= q.right && q.top <= y && y <= q.bottom && getComputedStyle(s).fill.startsWith('rgb'))
            found = s; }
    return found ? channels(getComputedStyle(found).fill).slice(0, 3) : back(e.ownerSVGElement.parentElement); };
const own = e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
const pale = [];
let least = 21;
for (const e of all) {
    if (!own(e) || !seen(e) || /^(title|script|style)$/i.test(e.tagName)) continue;
    const drawn = e.tagName === 'text', style = getComputedStyle(e);
    const below = drawn ? under(e) : back(e);
    const text = luminance(over(channels(drawn ? style.fill : style.color), below)), paper = luminance(below);
    const contrast = (Math.max(text, paper) + 0.05) / (Math.min(text, paper) + 0.05);
    least = Math.min(least, contrast);
    if (contrast < arguments_least) pale.push(`${contrast.toFixed(2)} ${e.tagName} ${e.textContent.slice(0, 40)}`);
}
const overlap = [];
for (const svg of document.querySelectorAll('svg')) {
    const boxes = [...svg.querySelectorAll('text')].filter(seen).map(e => [e.getBoundingClientRect(), e.textContent]);
    for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
        const [a, s] = boxes[i], [b, t] = boxes[j];
        if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
            overlap.push(`${s} / ${t}`); } }
const pills = [...document.querySelectorAll('.pill')].filter(p => {
    const t = p.nextElementSibling.getBoundingClientRect(), r = p.getBoundingClientRect();
    return t.right > r.right || t.left < r.left; }).map(p => p.nextElementSibling.textContent);
const plot = document.getElementById('plot'), cut = [];
if (plot) { const box = plot.getBoundingClientRect();
    for (const e of plot.querySelectorAll('text')) { const r = e.getBoundingClientRect();
        if (r.left < box.left - 1 || r.right > box.right + 1 || r.bottom > box.bottom + 1) cut.push(e.textContent); } }
return {
    overflow: document.documentElement.scrollWidth - width,
    wide: wide.slice(0, 3).map(e => `${e.tagName} ${e.className} ${(e.textContent || '').trim().slice(0, 60)}`),
    pale: pale.slice(0, 5), least: least, overlap: overlap.slice(0, 5), pills: pills.slice(0, 5), cut: cut.slice(0, 5),
    loaded: performance.getEntriesByType('resource').map(e => e.name),
    opened: performance.getEntriesByType('navigation')[0].loadEventEnd || performance.now(),
    dark: matchMedia('(prefers-color-scheme: dark)').matches,
    script: document.documentElement.classList.contains('has-script'),
    labels: [...document.querySelectorAll('.pill-text')].map(e => e.textContent),
    images: document.images.length,
};
""".replace("arguments_least", str(LEAST_CONTRAST))


class Look(NamedTuple):
    """One view of one page."""

    device: str
    scheme: str
    seen: dict[str, Any]
    problems: tuple[str, ...]


def view(browser: Browser, device: str, scheme: str, height: int | None = None) -> None:
    """Take the window and the preference of colours of one view."""
    width, usual = WIDTHS[device]
    browser.emulate(width, height or usual, scheme)


def look_at(browser: Browser, address: str, pictures: Path | None = None, tall: int | None = None) -> list[Look]:
    """Open a page in all four views.

    Args:
        browser: Which.
        address: Of the page.
        pictures: Where pictures go, with this beginning of a name; nowhere by default.
        tall: A second picture is so many pixels high.
    """
    looks = []
    for device in WIDTHS:
        for scheme in SCHEMES:
            view(browser, device, scheme)
            browser.go(address)
            seen = browser.script(LOOK)
            looks.append(Look(device, scheme, seen, tuple(problems_of(seen, scheme, browser.errors()))))
            if pictures is not None:
                browser.picture(pictures.with_name(f"{pictures.name}-{device}-{scheme}.png"))
            if pictures is not None and tall is not None:
                view(browser, device, scheme, tall)
                browser.picture(pictures.with_name(f"{pictures.name}-{device}-{scheme}-tall.png"))
    return looks


def problems_of(seen: dict[str, Any], scheme: str, errors: list[str]) -> list[str]:
    """Return what is wrong with a view, one line each."""
    problems = [f"logged {text}" for text in errors]
    problems += [f"loaded {name}" for name in seen["loaded"]]
    if seen["overflow"] > 0 or seen["wide"]:
        problems.append(f"{seen['overflow']} pixels too wide: {seen['wide']}")
    problems += [f"contrast {text}" for text in seen["pale"]]
    problems += [f"labels overlap: {text}" for text in seen["overlap"]]
    problems += [f"wider than what it stands on: {text}" for text in seen["pills"]]
    problems += [f"cut off: {text}" for text in seen["cut"]]
    if seen["dark"] != (scheme == "dark"):
        problems.append("the scheme was not taken")
    if not seen["script"]:
        problems.append("the script did not run")
    if seen["images"]:
        problems.append("there is an image")
    return problems


def check(reports: dict[str, Report], folder: Path, tall: int | None = None) -> list[str]:
    """Write pages and look at them; returns what is wrong, and prints figures."""
    problems = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, report in reports.items():
        size = write_page(report, folder / f"{name}.html").stat().st_size
        if size >= LARGEST_BYTES:
            problems.append(f"{name}: {size:,} bytes")
    with started(folder) as (browser, address):
        for name in reports:
            looks = look_at(browser, f"{address}{name}.html", folder / name, tall)
            problems += [f"{name}, {look.device}, {look.scheme}: {text}" for look in looks for text in look.problems]
            opened = ", ".join(f"{look.seen['opened']:.0f}" for look in looks)
            least = min(look.seen["least"] for look in looks)
            size = (folder / f"{name}.html").stat().st_size
            print(f"{name}: {size:,} bytes, opened in {opened} ms, contrast at least {least:.1f}")
    return problems


def main() -> int:
    """Look at pages of invented reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stories", default="2x1,64x1,1024x1,2x50,64x50,1024x50", help="ranks x incidents")
    parser.add_argument("--tall", type=int, help="also keep pictures so many pixels high")
    options = parser.parse_args()
    why = missing()
    if why is not None:
        print(f"not looked at in a browser: {why}")
        return 0
    sizes = {name: tuple(map(int, name.split("x"))) for name in options.stories.split(",")}
    problems = check({name: story(*size) for name, size in sizes.items()}, options.folder, options.tall)
    print("\n".join(problems) or "every page fits, in light and dark, at 1280 and 390 pixels")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
