"""The last lines that ranks have written, where their output goes to files (``--redirects``, ``--tee``)."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from launcher.incidents.incident import Incident
from launcher.incidents.rank_report import RankReport
from launcher.processes.proc import descriptor_path
from resilience_core.system.plain_files import only_plain

__all__ = ["OutputTail", "output_tail", "with_output"]

MOST_LINES = 50
LONGEST_BYTES = 16 << 10


class OutputTail(NamedTuple):
    """The last lines of a rank's standard output and standard error; none of what is not a file."""

    stdout: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()


def output_tail(stdout: str, stderr: str) -> OutputTail:
    """Read the last lines of two files."""
    return OutputTail(_tail(stdout), _tail(stderr))


def with_output(incident: Incident, log_folder: str) -> Incident:
    """Return an incident with the output of its ranks, which must be alive, as far as that goes to the log folder.

    Ranks whose output goes elsewhere share it with each other and with the launcher.
    """
    folder = os.path.realpath(log_folder)
    return incident._replace(ranks=tuple(_with_output(rank, folder) for rank in incident.ranks))


def _with_output(rank: RankReport, folder: str) -> RankReport:
    stdout, stderr = _written_by(rank.pid, 1, folder), _written_by(rank.pid, 2, folder)
    return rank._replace(stdout_tail=stdout, stderr_tail=stderr)


def _written_by(pid: int, descriptor: int, folder: str) -> tuple[str, ...]:
    try:
        path = os.readlink(descriptor_path(descriptor, pid))
    except OSError:
        return ()
    return _tail(path) if path.startswith(f"{folder}/") else ()


def _tail(path: str) -> tuple[str, ...]:
    try:
        with open(path, "rb", opener=only_plain) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return ()
            file.seek(max(0, status.st_size - LONGEST_BYTES))
            lines = file.read(LONGEST_BYTES).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(lines[-MOST_LINES:])
