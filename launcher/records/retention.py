"""``--ft-keep-runs``: of the log folders of runs that have ended, the newest stay.

Careful on purpose: a folder goes only if it is one of ours (its ``events.jsonl`` says so), holds nothing that we do not
write, lies directly in the folder of log folders, is the very folder that each launcher which began in it has named
(:class:`launcher.records.log_folders.Place`), and all of them have said that they ended, or are known to have been
killed. A copy is kept, whatever it is called, and so is one that was renamed or moved, and one in which somebody has
put something. Where it is not known which folder a launcher has written to, as in those of earlier releases, the folder
may be a copy, and is kept: to remove it by hand is little work, and a copy that was removed is gone.

That a launcher was killed is known where it ran on this machine since its last start (the boot id and the name of the
node) and in this PID namespace: its pid is free then. Of another machine that shares the file system, before a restart
of this one, and in another container nothing is known of a pid, so such a folder is kept. A lock on a file of the log
folder would tell it of other containers, too; but some file systems have no locks, others lose them, and a running job
must not be removed because of that.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import threading
import time

from launcher.processes.proc import boot_id
from launcher.records.console import INFO, announce
from launcher.records.event_files import EventFile, event_files
from launcher.records.log_folders import place_of
from launcher.records.run_events import Began, Ended, RunEvent, typed_events_by_file
from resilience_core.system.clock import NS_PER_SECOND
from resilience_core.system.proc import own_pid_namespace

__all__ = ["prune", "prune_in_background"]

_SEEN = r"((incidents|job_incidents|near_misses)/\d{4,}|elsewhere/\d{4,}-[^/]+-\d+)"
_WORKERS = r"workers/[^/]*_[a-z0-9_]{8}"
_FILES = re.compile(
    r"(events|figures)(-[^/]+-\d+(-\d+)?)?\.jsonl|\.?nodes\.json(\.\w+)?"
    rf"|{_SEEN}/(report\.txt|\.?incident\.json|job_incident\.json)"
    rf"|{_WORKERS}/attempt_\d+/\d+/((filtered_)?std(out|err)\.log|error\.json)"
)
"""What we, and torch's part of the launcher, write into a log folder (``docs/log-folder.md``), by paths in it. A file
that somebody has given a name which the run would have given one counts as the run's."""
_FOLDERS = re.compile(
    rf"incidents|job_incidents|near_misses|elsewhere|{_SEEN}|workers|{_WORKERS}(/attempt_\d+(/\d+)?)?"
)


_SECONDS_AFTER_A_KILL = 60.0
"""How long after its last event a run whose launcher was killed stays: its ranks are still ended, and write."""


def prune_in_background(log_folder: str, keep: int) -> threading.Thread:
    """Do what :func:`prune` does in a thread that nobody waits for: the file system may be slow, or hang."""
    thread = threading.Thread(target=_prune_and_tell, args=(log_folder, keep), name="ft-keep-runs", daemon=True)
    thread.start()
    return thread


def prune(log_folder: str, keep: int) -> list[str]:
    """Remove the oldest log folders of ended runs beside this run's own.

    Args:
        log_folder: This run's own; it is never removed and counts as one.
        keep: How many folders of runs are to stay, this one included; at least 1.

    Returns:
        The names of those that were removed.
    """
    parent, own = os.path.split(os.path.abspath(log_folder))
    ended = []
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        if name != own and (last_ns := _ended_at(path)) is not None:
            ended.append((last_ns, name))
    removed = []
    for _, name in sorted(ended, reverse=True)[max(keep, 1) - 1 :]:
        try:
            shutil.rmtree(os.path.join(parent, name))
        except OSError:  # somebody else removes it, or nobody may
            continue
        removed.append(name)
    return removed


def _ended_at(path: str) -> int | None:
    """Return when events were written last, wall-clock nanoseconds; None where the folder stays."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):  # not through a link
            return None
        os.stat(os.path.join(path, "events.jsonl"))  # it is one of ours
        if not _is_all_ours(path):
            return None
        written = max(os.stat(file).st_mtime_ns for file in event_files(path))
        files = typed_events_by_file(path)
        place = place_of(path)
    except (OSError, ValueError, TypeError):  # not ours, damaged, or of an unknown version
        return None
    began = [event for _, events in files for event in events if isinstance(event, Began)]
    if any((event.log_folder, event.inode) != place for event in began):  # a copy, or not known
        return None
    return written if began and all(_has_ended(file, events) for file, events in files) else None


def _is_all_ours(path: str) -> bool:
    """Return whether a folder holds nothing that we do not write, at any depth.

    Raises:
        OSError: It cannot be read.
    """
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(os.path.join(path, folder)) as entries:
            for entry in entries:
                name = os.path.join(folder, entry.name)
                if entry.is_dir(follow_symlinks=False) and _FOLDERS.fullmatch(name):
                    pending.append(name)
                elif not (entry.is_file(follow_symlinks=False) and _FILES.fullmatch(name)):
                    return False
    return True


def _has_ended(file: EventFile, events: list[RunEvent]) -> bool:
    """Return whether every launcher that began in a file has said that it ended, or is known to be gone."""
    began = [event for event in events if isinstance(event, Began)]
    ends = sum(isinstance(event, Ended) for event in events)
    if ends and len(began) <= ends:
        return True
    is_here = file.boot == boot_id() and file.node == os.uname().nodename
    quiet_seconds = (time.monotonic_ns() - events[-1].t_ns) / NS_PER_SECOND
    return bool(began) and is_here and quiet_seconds >= _SECONDS_AFTER_A_KILL and all(map(_is_gone, began))


def _is_gone(launcher: Began) -> bool:
    """Return whether no process has the pid of a launcher that ran on this machine since its last start."""
    if launcher.launcher is None or launcher.launcher <= 0:
        return False
    if not launcher.pid_namespace or launcher.pid_namespace != own_pid_namespace():
        return False
    try:
        os.kill(launcher.launcher, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is another user's
        return False
    return False


def _prune_and_tell(log_folder: str, keep: int) -> None:
    try:
        removed = prune(log_folder, keep)
    except OSError as error:
        said = f"old log folders could not be looked at ({error.strerror}); nothing was removed (--ft-keep-runs)"
        announce(said, event="runs_removed")
        return
    if removed:
        names = ", ".join(sorted(removed))
        said = f"{len(removed)} log folder(s) of ended runs removed (--ft-keep-runs {keep}): {names}"
        announce(said, level=INFO, event="runs_removed")
