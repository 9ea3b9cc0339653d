"""From what was named on the command line to the run that is shown."""

from __future__ import annotations

import os

from launcher.live.live_run import LiveRun
from launcher.live.runs import (
    ELSEWHERE,
    ENDED,
    LOST,
    UNKNOWN,
    FoundRun,
    find_runs,
    folder_problem,
    holds_runs,
    read_run,
)
from launcher.processes.exit_codes import FAILED, REFUSED
from launcher.records.event_files import event_files
from launcher.records.figures_log import FIGURES
from launcher.records.log_folders import as_file_name
from launcher.records.private_folders import FOLDER_PREFIX
from launcher.records.run_folders import DEFAULT_PARENT
from launcher.top.header import GONE, why_unknown
from launcher.top.phrases import one_line
from resilience_core.errors import ResilienceError

__all__ = ["DEFAULT_LOG_DIR", "NoRunError", "open_run"]

DEFAULT_LOG_DIR = "ft_logs"


class NoRunError(ResilienceError):
    """There is nothing to show; the message says why, and what was found.

    Args:
        message: For people.
        exit_code: Of the command.
    """

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def open_run(named: str | None) -> LiveRun:
    """Find the run that is meant.

    Args:
        named: A run's log folder, a folder of such, a run's id, or a run folder or its id; None for the newest run
            under ``./ft_logs``.

    Raises:
        NoRunError: There is none, none goes on, or it may not be read.
        OSError: A folder cannot be read.
    """
    if named is None:
        if not os.path.isdir(DEFAULT_LOG_DIR):
            raise NoRunError(
                f"there is no folder {DEFAULT_LOG_DIR} here ({one_line(os.getcwd())}); name a run's log folder, or go "
                "to where ft_launcher was started",
                REFUSED,
            )
        return _newest_below(DEFAULT_LOG_DIR)
    if os.path.isdir(named):
        if os.path.isdir(os.path.join(named, "cells")):
            return _of_run_folder(os.path.abspath(named))
        return _opened(read_run(named)) if holds_runs(named) else _newest_below(named)
    if os.sep not in named:
        if os.path.isdir(path := os.path.join(DEFAULT_LOG_DIR, as_file_name(named))) and holds_runs(path):
            return _opened(read_run(path))
        for name in (named, f"{FOLDER_PREFIX}{os.getuid()}-{named}"):
            if os.path.isdir(path := os.path.join(DEFAULT_PARENT, name)):
                return _of_run_folder(path)
    raise NoRunError(
        f"{named!r} is no run: there is neither such a folder, nor {DEFAULT_LOG_DIR}/{one_line(named)}, nor a run "
        f"folder of that id in {DEFAULT_PARENT}",
        REFUSED,
    )


def _newest_below(parent: str) -> LiveRun:
    found, shown = find_runs(parent), one_line(parent)
    for run in found:
        if run.goes_on:
            return _opened(run)
    if not found and event_files(parent, FIGURES):
        raise NoRunError(
            f"{shown} is the log folder of a run whose file of events is missing, so whether it goes on is not known; "
            "ft_report tells what is left of it"
        )
    if not found:
        raise NoRunError(f"there is no run in {shown}: none of its folders has a file of events")
    raise NoRunError("\n".join([f"no run in {shown} goes on; the newest:", *(f"  {_fate(run)}" for run in found)]))


def _opened(run: FoundRun) -> LiveRun:
    if run.goes_on:
        for log in run.logs:
            problem = None if log.run_folder is None or log.ending is not None else folder_problem(log.run_folder)
            if problem is not None:
                raise NoRunError(one_line(problem))
    return LiveRun(run.path)


def _of_run_folder(folder: str) -> LiveRun:
    """Return the run that has a run folder: with its log folder where that is below ``./ft_logs``."""
    if (problem := folder_problem(folder)) is not None:
        raise NoRunError(one_line(problem))
    if os.path.isdir(DEFAULT_LOG_DIR):
        for run in find_runs(DEFAULT_LOG_DIR):
            if any(log.run_folder == folder for log in run.logs):
                return _opened(run)
    return LiveRun.of_run_folder(folder)


def _fate(run: FoundRun) -> str:
    """Return one line: a run, when it began, and how it ended."""
    log, state = run.logs[-1], run.states[-1]
    began = f", began {one_line(log.began[:19].replace('T', ' '))}" if log.began else ""
    if state == ENDED and log.ending is not None:
        code = f", exit code {log.ending.exit_code}" if log.ending.exit_code is not None else ""
        how = f"{one_line(log.ending.outcome)}{code}"
    elif state == UNKNOWN:
        how = why_unknown(log, state)
    else:
        how = {LOST: GONE, ELSEWHERE: f"ran on {one_line(log.node or '?')}"}[state]
    return f"{one_line(run.name)}{began}: {how}"
