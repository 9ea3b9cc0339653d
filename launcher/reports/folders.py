"""The folders of runs that a report is about, from what stands on its command line."""

from __future__ import annotations

import os
from collections.abc import Sequence

from launcher.records import latest
from launcher.records.event_files import EVENTS, event_files, runs_below
from launcher.records.figures_log import FIGURES
from resilience_core.errors import ResilienceError

__all__ = ["NoRunError", "run_folders"]

_MOST_NAMES = 10
_OF_RUNS = (EVENTS, FIGURES)
"""Files by which a run is known; those of events are gone for a moment where somebody has removed them."""
_LEFT_OVERS = ("incidents", "elsewhere", "job_incidents", "workers", "nodes.json")
"""What else lies in the log folder of a run; where these are left alone, nothing tells what it did."""


class NoRunError(ResilienceError):
    """There is no run to report on; the message says where, and what to name instead."""


def run_folders(paths: Sequence[str]) -> list[str]:
    """Return the log folders of runs that are meant by some paths, each once.

    A path may be a run's log folder, or the folder of log folders (``ft_logs``), which stands for its newest run.
    One may be that of a run of which only incidents are left; beside others that of a node, too, or an empty one.

    Raises:
        NoRunError: A path leads to no run, or it is not clear to which.
    """
    found: dict[str, None] = {}
    for path in paths:
        found[os.path.realpath(_run_folder(path, is_alone=len(paths) == 1))] = None
    return list(found)


def _run_folder(path: str, *, is_alone: bool) -> str:
    if not path:
        raise NoRunError("an empty name leads to no run; name the log folder of a run, such as ft_logs/latest")
    if not os.path.isdir(path):
        there = "is no folder" if os.path.lexists(path) else "is not there"
        raise NoRunError(f"{path} {there}; name the log folder of a run, such as ft_logs/latest")
    try:
        if _files(path):
            return path
        runs = [os.path.basename(run) for run in reversed(runs_below(path, *_OF_RUNS))]  # the newest last
    except OSError as error:
        raise NoRunError(f"{path} cannot be read: {error.strerror}") from error
    newest = os.path.join(path, latest.NAME)
    if _is_run(newest):
        return newest
    if len(runs) == 1:
        return os.path.join(path, runs[0])
    left = _LEFT_OVERS if not is_alone else _LEFT_OVERS[:1]  # alone, incidents are told of, and nothing else
    if not runs and any(os.path.lexists(os.path.join(path, name)) for name in left):
        return path
    if not is_alone and not os.listdir(path):  # as where its files were lost; beside others a note names it
        return path
    if not runs:
        raise NoRunError(
            f"{path} holds no run: there is neither events.jsonl nor figures.jsonl in it, nor in a folder below it"
        )
    shown = ", ".join(runs[-_MOST_NAMES:])
    more = f" (and {len(runs) - _MOST_NAMES} more)" if len(runs) > _MOST_NAMES else ""
    raise NoRunError(f"{path} holds {len(runs)} runs and no link '{latest.NAME}'; name one of them: {shown}{more}")


def _files(path: str) -> list[str]:
    return [file for stem in _OF_RUNS for file in event_files(path, stem)]


def _is_run(path: str) -> bool:
    try:
        return bool(_files(path))
    except OSError:  # no folder, or one that we may not read
        return False
