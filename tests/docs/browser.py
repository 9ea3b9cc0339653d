"""``make docs-browser``: look at the built site in headless Chromium, light and dark, on a desktop and a phone.

    python -m tests.docs.browser site [--pictures FOLDER]

Checks for every page that nothing is wider than the window, that text stands out from its background, that nothing is
loaded from elsewhere and no error is logged; and that the search finds a setting. Speaks WebDriver's protocol itself:
Debian's packages chromium and chromium-driver are all it needs. Without them it says so and ends with 0.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import functools
import http.server
import json
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Browser", "check", "main", "missing", "started"]

WIDTHS = {"desktop": (1280, 800), "phone": (390, 844)}
SCHEMES = {"light": "default", "dark": "slate"}
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
SEARCH_SECONDS = 10.0
LEAST_CONTRAST = 4.5  # WCAG 2.2, level AA, for text

LOOK = """
const width = document.documentElement.clientWidth;
const scrolls = e => { for (; e && e !== document.body; e = e.parentElement)
    if (/auto|scroll|hidden/.test(getComputedStyle(e).overflowX)) return true; return false; };
const wide = [...document.querySelectorAll('.md-content *, .md-header *, .md-footer *')].filter(e => {
    const r = e.getBoundingClientRect();
    return r.width > 0 && r.height > 0 && r.right > width + 1 && !scrolls(e.parentElement); });
const channels = c => c.match(/[\\d.]+/g).map(Number);
const luminance = c => { const [r, g, b] = channels(c).map(v => { v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const over = (c, below) => { const [r, g, b, a = 1] = channels(c), under = channels(below);
    return `rgb(${[r, g, b].map((v, i) => v * a + under[i] * (1 - a)).join()})`; };
const body = getComputedStyle(document.body).backgroundColor;
const text = luminance(over(getComputedStyle(document.querySelector('.md-typeset')).color, body));
const back = luminance(body);
return {
    overflow: document.documentElement.scrollWidth - width,
    wide: wide.slice(0, 3).map(e => `${e.tagName} ${e.className} ${(e.textContent || '').trim().slice(0, 60)}`),
    scheme: document.body.dataset.mdColorScheme,
    contrast: (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05),
    elsewhere: performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith(location.origin)),
};
"""


def missing() -> str | None:
    """Return why no browser can be started, or None."""
    absent = [name for name in ("chromium", "chromedriver") if _program(name) is None]
    return f"{' and '.join(absent)} not found (Debian: chromium, chromium-driver)" if absent else None


def _program(name: str) -> str | None:
    names = {"chromium": ("chromium", "chromium-browser", "google-chrome")}.get(name, (name,))
    return next((path for path in map(shutil.which, names) if path), None)


class Browser:
    """One session of chromedriver."""

    def __init__(self, driver: str, profile: str) -> None:
        self._driver = driver
        options = {"binary": _program("chromium"), "args": [*ARGUMENTS, f"--user-data-dir={profile}"]}
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "SEVERE"}}
        answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._session = f"/session/{answer['sessionId']}"

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._driver + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"].splitlines()[0]) from None

    def post(self, path: str, **body: Any) -> Any:
        """Give one command of WebDriver."""
        return self._call("POST", self._session + path, body)

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Give one command of Chromium's own protocol."""
        return self.post("/goog/cdp/execute", cmd=command, params=parameters)

    def script(self, text: str) -> Any:
        """Return what a script in the page returns."""
        return self.post("/execute/sync", script=text, args=[])

    def errors(self) -> list[str]:
        """Return what the page has logged since it was last asked."""
        return [entry["message"] for entry in self.post("/se/log", type="browser")]

    def emulate(self, width: int, height: int, scheme: str) -> None:
        """Take another window and another preference of colours."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def go(self, address: str) -> None:
        """Open a page and wait until it is loaded, which the driver of a busy machine does not always do."""
        self.post("/url", url=address)
        end = time.monotonic() + 60
        while self.script("return document.readyState") != "complete":
            assert time.monotonic() < end, f"{address} is not loaded within 60 s"
            select.select([], [], [], 0.05)

    def picture(self, path: Path) -> None:
        """Keep what is seen now."""
        path.write_bytes(base64.b64decode(self._call("GET", self._session + "/screenshot")))

    def close(self) -> None:
        """End the browser."""
        self._call("DELETE", self._session)


@contextlib.contextmanager
def started(site: Path) -> Iterator[tuple[Browser, str]]:
    """Serve a site and open a browser; yields it and the site's address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with contextlib.ExitStack() as stack:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
        stack.callback(server.server_close)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        profile = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        driver = subprocess.Popen([str(_program("chromedriver")), "--port=0"], stdout=subprocess.PIPE, text=True)
        stack.callback(driver.wait)
        stack.callback(driver.kill)
        assert driver.stdout is not None
        stack.callback(driver.stdout.close)
        port = next(found[1] for line in driver.stdout if (found := re.search(r"successfully on port (\d+)", line)))
        browser = Browser(f"http://127.0.0.1:{port}", profile)
        stack.callback(browser.close)
        yield browser, f"http://127.0.0.1:{server.server_port}/"


def check(site: Path, pictures: Path | None = None) -> list[str]:
    """Return what is wrong with a built site, one line each."""
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if path.name != "404.html")
    problems = []
    for device, (width, height) in WIDTHS.items():
        for scheme, name in SCHEMES.items():
            # A fresh profile for each: the theme keeps the scheme that it chose first, and stores it at any time.
            with started(site) as (browser, address):
                browser.emulate(width, height, scheme)
                for page in pages:
                    browser.go(address + page)
                    problems += [f"{page}, {device}, {scheme}: {problem}" for problem in _seen(browser, name)]
                    if pictures is not None:
                        pictures.mkdir(parents=True, exist_ok=True)
                        browser.picture(pictures / f"{page.replace('/', '-')}-{device}-{scheme}.png")
                problems += [f"search, {device}, {scheme}: {problem}" for problem in _searched(browser, address)]
    return problems


def _seen(browser: Browser, scheme: str) -> list[str]:
    seen = browser.script(LOOK)
    problems = [f"logged {text}" for text in browser.errors()]
    problems += [f"loaded from elsewhere: {name}" for name in seen["elsewhere"]]
    if seen["overflow"] > 0 or seen["wide"]:
        problems.append(f"{seen['overflow']} pixels too wide: {seen['wide']}")
    if seen["scheme"] != scheme:
        problems.append(f"the scheme is {seen['scheme']}")
    if seen["contrast"] < LEAST_CONTRAST:
        problems.append(f"contrast {seen['contrast']:.1f}")
    return problems


def _searched(browser: Browser, address: str) -> list[str]:
    """Search for a setting, as a person does: open the search, type, look at the results."""
    browser.go(address + "index.html")
    browser.script(
        "document.querySelector('#__search').click(); const q = document.querySelector('.md-search__input');"
        "q.focus(); q.value = 'rank_section_timeouts'; q.dispatchEvent(new Event('keyup', {bubbles: true}));"
        "q.dispatchEvent(new Event('input', {bubbles: true}));"
    )
    found: list[str] = []
    deadline = time.monotonic() + SEARCH_SECONDS
    while not found and time.monotonic() < deadline:
        found = browser.script("return [...document.querySelectorAll('.md-search-result__link')].map(e => e.href)")
        time.sleep(0.05)
    overflow, settled = 1, time.monotonic() + 3  # the theme's animation is wider than the window while it lasts
    while overflow > 0 and time.monotonic() < settled:
        overflow = browser.script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        time.sleep(0.05)
    problems = [] if any("configuration.html" in link for link in found) else [f"found only {found}"]
    return problems + ([f"{overflow} pixels too wide"] if overflow > 0 else [])


def main() -> int:
    """Check a site and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path)
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="keep a picture of every page")
    options = parser.parse_args()
    why = missing()
    if why is not None:
        print(f"not looked at in a browser: {why}")
        return 0
    problems = check(options.site, options.pictures)
    print("\n".join(problems) or "every page fits, in light and dark, at 1280 and 390 pixels; the search works")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
