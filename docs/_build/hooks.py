"""Hooks of the documentation's build: pages made of files outside of ``docs/``, the settings, links into the checkout.

``PAGES`` are taken from where GitHub shows them, so that no text stands twice. A line ``<!-- generated: NAME -->`` is
replaced by what ``GENERATED[NAME]`` makes of the code. Information for tests behind a block's language, and blocks that
only tests see (``<!-- run ... -->``), are left out of the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from resilience_core.config.cli_options import options_table
from resilience_core.config.nvrx_keys import foreign_table
from resilience_core.config.schema import settings

__all__ = ["GENERATED", "PAGES", "on_files", "on_page_markdown", "render"]

ROOT = Path(__file__).parents[2]
PAGES = {
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "changelog.md": "CHANGELOG.md",
    "measurements.md": "benchmarks/README.md",
}
"""Pages of the site, and the files of the checkout that they are."""

_LINK = re.compile(r"(?<!!)\[(?P<text>(?:[^\]\[]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"^(?P<fence>\s*`{3,})(?P<language>\w+)[ \t]+[^\n`]*$", re.MULTILINE)


def settings_sections() -> str:
    """Return every setting as a section of its own, from the configuration itself."""
    rows = [row.strip("| ").split(" | ") for row in options_table().splitlines()[2:]]
    parts = []
    for setting, row in zip(settings(), rows, strict=True):
        _, option, form, default, *_ = row
        parts.append(
            f"### `{setting.name}`\n\n{option} {form.replace(chr(92), '')}, default {default}.\n\n{setting.meaning}\n"
        )
    return "\n".join(parts)


GENERATED: dict[str, Callable[[], str]] = {"settings": settings_sections, "nvrx keys": foreign_table}


def render(text: str) -> str:
    """Replace the markers of generated parts, and leave out what is for tests only."""
    text = re.sub(r"<!-- generated: ([\w ]+) -->", lambda found: GENERATED[found[1]](), text)
    text = re.sub(r"<!-- run\n.*?-->\n?", "", text, flags=re.DOTALL)
    return _FENCE.sub(r"\g<fence>\g<language>", text)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made of files outside of ``docs/``."""
    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Render one page's text, and lead its links to pages of the site; a link to another file becomes its path."""
    source = PAGES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    pages = {path: name for name, path in PAGES.items()}

    def led(found: re.Match[str]) -> str:
        target, hash_, anchor = found["target"].partition("#")
        if not target or "://" in target:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        wanted = pages.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        if wanted is None:
            if not (ROOT / path).exists():
                return found[0]  # MkDocs reports it
            text = found["text"]
            return text if path.strip("/") in text else f"{text} (`{path}`)"
        to = posixpath.relpath(wanted, posixpath.dirname(page.file.src_uri) or ".")
        return f"[{found['text']}]({to}{hash_}{anchor})"

    parts = re.split(r"(^ *```.*?^ *```$)", render(markdown), flags=re.DOTALL | re.MULTILINE)
    return "".join(part if index % 2 else _LINK.sub(led, part) for index, part in enumerate(parts))
