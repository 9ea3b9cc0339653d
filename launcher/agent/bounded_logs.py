"""Make the folders that a generation's workers log to: torch's layout, within a bound, elsewhere where that fails.

torch makes new folders for every generation, on the launcher's main thread. A log folder whose file system hangs
or is full would delay the restart.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, LogsSpecs

from launcher.processes.background import Background, NotDoneError
from launcher.records.log_folders import as_file_name

__all__ = ["BoundedLogs"]

_RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
_RUN_ID = "TORCHELASTIC_RUN_ID"
_LONGEST_WAIT_SECONDS = 1.0
_LONGEST_LAST_WAIT_SECONDS = 1.0


class BoundedLogs(LogsSpecs):
    """A ``LogsSpecs`` that has another one make the folders, in a thread.

    Args:
        inner: The other one.
        background: The thread.
        instead: Names a folder for the generations that the log folder cannot take.
        announce: Told once when that happens.
    """

    def __init__(
        self, inner: LogsSpecs, background: Background, instead: Callable[[], str], announce: Callable[[str], None]
    ) -> None:
        # Nothing of the base's own state is used; its constructor has changed between versions of torch.
        self._inner = inner
        self._background = background
        self._instead = instead
        self._announce = announce
        self._has_said = False
        self._made: set[str] = set()
        self._attempt = -1

    @property
    def root_log_dir(self) -> str:
        """See torch."""
        return str(self._inner.root_log_dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """See torch, which removes what an attempt of the same number has written.

        A generation that follows a hand-over is no restart by torch's count, so attempts are counted here, too.
        """
        counts = [int(env.get(_RESTART_COUNT, 0)) for env in envs.values()]
        self._attempt = attempt = max(self._attempt + 1, *counts)
        try:
            made = self._background.call(lambda: _reify(self._inner, envs, attempt), _LONGEST_WAIT_SECONDS)
            # One per rank: <the run's>/attempt_0/<local rank>/error.json
            self._made |= {
                os.path.dirname(os.path.dirname(os.path.dirname(file))) for file in made.error_files.values()
            }
            return made
        except (OSError, NotDoneError) as error:
            folder = self._instead()
            if not self._has_said:
                self._has_said = True
                why = getattr(error, "strerror", None) or error
                self._announce(
                    f"no folders for the workers' logs can be made under {self.root_log_dir} ({why}); until they can, "
                    f"workers write to the launcher's own output and error files go to {folder} (said once)"
                )
            return _reify(DefaultLogsSpecs(log_dir=folder), envs, attempt)

    def remove_empty(self) -> None:
        """Take away those of the folders that nothing was written to; most are never needed."""
        with contextlib.suppress(NotDoneError, OSError):
            self._background.call(lambda: _remove_empty(self._made), _LONGEST_LAST_WAIT_SECONDS)


def _reify(specs: LogsSpecs, envs: dict[int, dict[str, str]], attempt: int) -> LogsDest:
    """Have folders made that are named after the run; torch takes any run id for the name of a file."""
    named = {
        rank: {**env, _RUN_ID: as_file_name(env.get(_RUN_ID, "none")), _RESTART_COUNT: str(attempt)}
        for rank, env in envs.items()
    }
    made = specs.reify(named)
    files = [path for paths in (made.stdouts, made.stderrs) for path in paths.values() if path]
    if files and os.path.isdir(folder := os.path.dirname(files[0])) and os.statvfs(folder).f_bavail == 0:
        # Workers would be started with it all the same, and fail at their first line of output.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for rank, env in envs.items():
        # Torch has added the name of the error file.
        added = {name: value for name, value in named[rank].items() if name not in (_RUN_ID, _RESTART_COUNT)}
        env.update(added)
    return made


def _remove_empty(folders: set[str]) -> None:
    for top in folders:
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
