"""The finished flag: an empty file that tells a series of jobs that no further one is needed.

``FAULT_TOL_FINISHED_FLAG_FILE`` names it. ``ft_autoresume``, or a batch script, sets the variable, runs the
launcher, and checks whether the file exists.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat

from resilience_core.environment import FINISHED_FLAG_VARIABLE
from resilience_core.errors import ConfigError
from resilience_core.hookspecs import RunContext, hookimpl
from resilience_core.system.plain_files import only_plain

__all__ = ["FinishedFlag"]


logger = logging.getLogger(__name__)

_made_here: set[str] = set()
"""The files that runs of this process have made."""


class FinishedFlag:
    """A bus plugin: makes the file when training is complete, which is when its loop has ended by itself.

    A run that made no step is complete only if it was resumed from what must be the last checkpoint. Otherwise an
    empty dataset would count as a finished training.

    A further run in the same process removes the file when it begins, and makes it again at its end. Otherwise, if that
    run failed, the file of the first one would count for the whole training.

    Raises:
        ConfigError: The variable is not set, or names a file that nobody can make, or a pipe, a socket or a folder.
    """

    def __init__(self) -> None:
        path = os.environ.get(FINISHED_FLAG_VARIABLE)
        if not path:
            raise ConfigError(
                f"autoresume is on, but {FINISHED_FLAG_VARIABLE} is not set: nobody would learn that training is "
                "complete. Start the job with ft_autoresume, export the variable, or pass autoresume=False"
            )
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder):
            raise ConfigError(f"{FINISHED_FLAG_VARIABLE} is {path!r}, in a folder that does not exist; make it")
        try:
            self.path = os.path.abspath(path)
        except OSError as error:
            raise ConfigError(
                f"{FINISHED_FLAG_VARIABLE} is {path!r}, in a working folder that was deleted; give it an absolute path"
            ) from error
        if (what := _what_else_is_at(path)) is not None:
            raise ConfigError(
                f"{FINISHED_FLAG_VARIABLE} is {path!r}, which is {what}, not a plain file; remove it, or name another "
                "file"
            )
        self._makes_it = False
        self._has_trained = False

    @hookimpl
    def setup(self, context: RunContext) -> None:
        """Remove the file that an earlier run in this process has made."""
        # One rank of each node: the file may be on a disk that each node has for itself.
        self._makes_it = context.local_rank == 0
        self._has_trained = self.path in _made_here
        if self._makes_it and self._has_trained:
            with contextlib.suppress(OSError):
                os.unlink(self.path)

    @hookimpl
    def step_end(self) -> None:
        """Note that the run has trained."""
        self._has_trained = True

    @hookimpl
    def checkpoint_loaded(self) -> None:
        """Note that there is a training to resume."""
        self._has_trained = True

    @hookimpl(trylast=True)
    def teardown(self, reason: str) -> None:
        """Make the file where training is complete."""
        if reason != "completed" or not self._makes_it:
            return
        if not self._has_trained:
            logger.warning(
                "the run ended without a single step and without a checkpoint to resume from; %s is not made: a "
                "training that never began is not complete",
                self.path,
            )
            return
        try:
            with open(self.path, "a", encoding="utf-8", opener=only_plain):
                _made_here.add(self.path)
        except OSError as error:
            what = _what_else_is_at(self.path)  # it may have come since the start
            why = error.strerror if what is None else f"it is {what}, not a plain file"
            logger.error("training is complete, but %s cannot be made (%s): it will be started again", self.path, why)


def _what_else_is_at(path: str) -> str | None:
    """Return what stands in the place of a file and cannot become the flag; None where a file is or may be made."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return None
    for is_one, what in ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISDIR, "a folder")):
        if is_one(mode):
            return what
    return None
