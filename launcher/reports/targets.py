"""Which files a report may be written into: none of those that it is made from, nor another one of their run."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from resilience_core.system.plain_files import only_plain

__all__ = ["why_not_into"]

_HEAD = 4096
_PAGE = re.compile(rb'<!doctype html>\n<html lang="en"><head>.*: report</title>', re.DOTALL)
_DOCUMENT = re.compile(rb'\{\n "version": \d+,\n "title": ')
"""How reports begin, those of earlier releases, too."""


def why_not_into(path: str, folders: Sequence[str], logs: Sequence[str]) -> str | None:
    """Return why a report is not to be written into a file; None where it may be.

    A file that is not there yet may be, and one that holds a report.

    Args:
        path: Of the file, by whatever links.
        folders: The log folders, as they were named and as they were found.
        logs: The logs of the straggler detector that were named.
    """
    own = os.path.realpath(path)
    if not os.path.isfile(own) or _is_report(own):
        return None
    if any(own == os.path.realpath(log) for log in logs):
        return "it is the log of the straggler detector that the report is made from"
    # A link in the log folder may lead out of it.
    places = (own, os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)))
    folder = next((each for each in folders if any(_is_below(at, os.path.realpath(each)) for at in places)), None)
    return None if folder is None else f"it is a file in the log folder {folder} that ft_report has not written"


def _is_below(path: str, folder: str) -> bool:
    return os.path.commonpath((path, folder)) == folder


def _is_report(path: str) -> bool:
    try:
        with open(path, "rb", opener=only_plain) as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    return (_PAGE.match(head) or _DOCUMENT.match(head)) is not None
