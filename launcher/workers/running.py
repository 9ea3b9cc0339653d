"""Warm workers that run: heard until they have imported torch, for what they found set then."""

from __future__ import annotations

from collections.abc import Callable

from launcher.workers.parked import ParkedWorker
from launcher.workers.script_settings import ImportSettings

__all__ = ["RunningWorkers"]


class RunningWorkers:
    """The links to the workers of the present generation; their processes are somebody else's.

    Args:
        settings: What the script sets before it imports torch, corrected by what is heard.
        say: Told once of each correction.
    """

    def __init__(self, settings: ImportSettings, announce: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = announce
        self._workers: list[ParkedWorker] = []

    def add(self, worker: ParkedWorker) -> None:
        """Listen to a worker that has started."""
        self._workers.append(worker)
        worker.let_go()

    def hear(self) -> bool:
        """Take what the workers have said, and let go of those that have no more to say.

        Returns:
            Whether there was a correction.
        """
        was_corrected = False
        for worker in self._workers:
            worker.hear()
            for found in worker.imports:
                self._settings.learn(found.differences, found.applied, self._say)
                was_corrected = True
            worker.imports.clear()
        for worker in [worker for worker in self._workers if worker.is_gone]:
            self._workers.remove(worker)
            worker.close()
        return was_corrected

    def drop(self) -> None:
        """Listen no more: the generation is over."""
        for worker in self._workers:
            worker.close()
        self._workers = []
