"""The version of this distribution: the installed metadata's, which has it from ``setup.cfg``."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["installed_version"]


def installed_version() -> str:
    """Return the installed version; in a checkout that is not installed, that of its ``setup.cfg``."""
    import importlib.metadata  # here, since it takes longer to import than all of ours together

    try:
        return importlib.metadata.version("torch-resilience")
    except importlib.metadata.PackageNotFoundError:
        return _checkout_version(Path(__file__).parents[1] / "setup.cfg")


def _checkout_version(setup: Path) -> str:
    try:
        text = setup.read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^name = torch-resilience\nversion = (\S+)$", text, re.MULTILINE)
    return found[1] if found else "0+unknown"
