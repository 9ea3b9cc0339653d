"""Read from running warm workers which settings they found when they imported torch."""

from __future__ import annotations

from collections.abc import Callable

from launcher.workers.parked import ParkedWorker
from launcher.workers.script_settings import ImportSettings

__all__ = ["RunningWorkers"]


class RunningWorkers:
    """The links to the workers of the present generation; their processes are somebody else's.

    Args:
        settings: What the script sets before it imports torch, corrected by what workers report.
        announce: Told once of each correction.
    """

    def __init__(self, settings: ImportSettings, announce: Callable[[str], None]) -> None:
        self._settings = settings
        self._announce = announce
        self._workers: list[ParkedWorker] = []

    def add(self, worker: ParkedWorker) -> None:
        """Listen to a worker that has started."""
        self._workers.append(worker)
        worker.let_go()

    def receive(self) -> bool:
        """Read what the workers have sent, and close the links to those that have closed theirs.

        Returns:
            Whether there was a correction.
        """
        was_corrected = False
        for worker in self._workers:
            worker.receive()
            for found in worker.imports:
                self._settings.learn(found.differences, found.applied, self._announce)
                was_corrected = True
            worker.imports.clear()
        for worker in [worker for worker in self._workers if worker.is_gone]:
            self._workers.remove(worker)
            worker.close()
        return was_corrected

    def drop(self) -> None:
        """Close all links: the generation is over."""
        for worker in self._workers:
            worker.close()
        self._workers = []
