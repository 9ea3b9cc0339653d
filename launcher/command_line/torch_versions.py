"""The versions of torch that the launcher works with, in one place; ``make matrix`` tries them all."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re

__all__ = ["NEWEST", "OLDEST", "problem_with", "supported", "warning_about", "installed_version"]

OLDEST = (2, 4)
"""Before, rendezvous handlers returned something else, and agents chose the ranks' port by themselves."""
NEWEST = (2, 15)
"""The newest that the matrix has been run with. A newer one is tried, with a warning."""


def supported() -> str:
    """Return the range, for people."""
    return f"torch {_text(OLDEST)} to {_text(NEWEST)}"


def installed_version() -> str | None:
    """Return what is installed, without importing it; None when torch is missing, empty when it does not say."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None if importlib.util.find_spec("torch") is None else ""


def problem_with(installed: str | None) -> str | None:
    """Return why the launcher cannot work with this version, None when it can.

    Args:
        installed: As :func:`installed_version` returns it.
    """
    if installed is None:
        return f"torch is not installed; ft_launcher works with {supported()}"
    version = _parsed(installed)
    if version is None or version >= OLDEST:
        return None
    return (
        f"torch {installed} is too old: ft_launcher works with {supported()}; "
        f"install a newer one (pip install 'torch>={_text(OLDEST)}')"
    )


def warning_about(installed: str | None) -> str | None:
    """Return what to say about a version that nobody has tried, None where it was.

    Args:
        installed: As :func:`installed_version` returns it.
    """
    version = _parsed(installed or "")
    if version is None or version <= NEWEST:
        return None
    return f"torch {installed} is newer than what this ft_launcher was tried with ({supported()})"


def _parsed(version: str) -> tuple[int, int] | None:
    """Return major and minor; builds such as 2.6.0a0+ecf3bae.nv25.1 count as what they are to become."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
