"""Whether a job that is restarted again and again gets anywhere.

Progress is what the job itself reports: the iteration on the event bus (from the ranks' cells), or the integer
in ``checkpoint_iteration_file``. A job that reports neither is never judged.
"""

from __future__ import annotations

import logging
import os

from resilience_core.config import FaultToleranceConfig
from resilience_core.plain_files import only_plain

__all__ = ["ProgressRule"]

logger = logging.getLogger(__name__)

_LARGEST_BYTES = 100


class ProgressRule:
    """Counts generations in a row that ended without progress.

    A generation has made progress when it carried the best iteration ever reported on by at least
    ``min_progress_iterations``.
    """

    def __init__(self, config: FaultToleranceConfig) -> None:
        self._limit = config.max_no_progress_cycles
        self._least = config.min_progress_iterations
        self._file = config.checkpoint_iteration_file
        self._warned = False
        self.best: int | None = self._checkpointed()
        self.without_progress = 0

    @property
    def reads_a_file(self) -> bool:
        """Whether a call may have to wait for a disk."""
        return self._file is not None

    def note(self, reported_iteration: int | None) -> None:
        """Remember how far a generation came that ended in good order."""
        reached = self._checkpointed() if self._file is not None else reported_iteration
        if reached is not None:
            self.best = reached if self.best is None else max(self.best, reached)

    def generation_ended(self, reported_iteration: int | None) -> str | None:
        """Judge a generation that ended in a failure.

        Args:
            reported_iteration: The highest iteration any of its ranks reported, None when none did.

        Returns:
            Why the job is given up, None while it may go on.
        """
        reached = self._checkpointed() if self._file is not None else reported_iteration
        if reached is None and self.best is None:
            return None
        gained = 0 if reached is None else reached - (-1 if self.best is None else self.best)
        if gained >= self._least:
            self.without_progress = 0
        else:
            self.without_progress += 1
        if reached is not None:
            self.best = reached if self.best is None else max(self.best, reached)
        if self._limit and self.without_progress >= self._limit:
            return (
                f"{self.without_progress} generations in a row ended without {self._least} new iteration(s); "
                f"the best so far is {self.best}. The same failure would only come again"
            )
        return None

    def _checkpointed(self) -> int | None:
        if self._file is None or not os.path.exists(self._file):
            return None
        try:
            with open(self._file, "rb", opener=only_plain) as file:
                raw = file.read(_LARGEST_BYTES + 1)
            if len(raw) > _LARGEST_BYTES:  # a checkpoint, perhaps; read whole, it would fill the launcher's memory
                raise ValueError(f"it has more than {_LARGEST_BYTES} bytes")
            return int(raw.decode("utf-8"))
        except (OSError, ValueError) as error:
            if not self._warned:
                self._warned = True
                logger.warning("checkpoint_iteration_file %s: %s; expected one integer", self._file, error)
            return None
