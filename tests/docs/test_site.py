"""The documentation site: built strictly, complete, and without anything from elsewhere."""

from __future__ import annotations

import html
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from resilience_core.config.nvrx_keys import foreign_table
from resilience_core.config.schema import settings

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it as ``make docs`` does; a warning ends the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def text_of(page: Path) -> str:
    """The words of a page, without its tags."""
    text = html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))).replace("\N{PILCROW SIGN}", "")
    return " ".join(text.split())


def test_the_documentation_has_every_setting_as_it_is(site: Path) -> None:
    page = text_of(site / "configuration.html")
    for setting in settings():
        option = f"--ft-{setting.name.replace('_', '-')}"
        assert re.search(rf"{option} {re.escape(setting.metavar)}, default \S+\. ", page), option
        assert " ".join(setting.meaning.split()) in page, setting.name
    assert page.count(", default ") == len(settings())


def test_the_documentation_names_every_ignored_key(site: Path) -> None:
    page = text_of(site / "how-to" / "from-nvidia-resiliency-ext.html")
    for row in foreign_table().splitlines()[2:]:
        for cell in row.strip("|").split(" | "):
            assert cell.replace("`", "").strip() in page, cell


@pytest.mark.parametrize("package", ["resilience_core", "adapters.ddp", "straggler", "launcher"])
def test_every_public_name_has_its_reference(site: Path, package: str) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html"))
    names = set(importlib.import_module(package).__all__) - {"hookimpl"}
    assert {name for name in names if not re.search(rf'id="{package.split(".")[0]}[\w.]*\.{name}"', pages)} == set()


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = path.read_text(encoding="utf-8")
        loaded = re.findall(r'(?:<script[^>]*src|<link[^>]*href|<img[^>]*src)="?(https?:[^"> ]+)', text)
        loaded += re.findall(r"url\([\"']?(https?:[^)]+)\)|@import [\"']?(https?:[^\"';]+)", text)
        assert loaded == [], path.name


def test_hidden_blocks_are_not_on_the_site(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert "&lt;!-- run" not in path.read_text(encoding="utf-8")
        assert "not-run" not in path.read_text(encoding="utf-8"), path.name
