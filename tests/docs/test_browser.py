"""The site as Chromium shows it; skipped where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import browser

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))
def test_every_page_fits_and_the_search_works(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    assert browser.check(tmp_path) == []


@pytest.mark.long
@pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))
def test_a_page_that_is_too_wide_is_found(tmp_path: Path) -> None:
    page = '<body data-md-color-scheme="default"><main class="md-content md-typeset"><p style="width: 2000px">wide</p>'
    (tmp_path / "index.html").write_text(f"<!doctype html>{page}<input class='md-search__input' id='__search'>")
    problems = browser.check(tmp_path)
    assert any("index.html, phone, light" in problem and "too wide" in problem for problem in problems)
    assert any("search, desktop, light: found only []" in problem for problem in problems)
