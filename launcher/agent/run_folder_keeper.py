"""Keep what ranks find by path: the run folder, the configuration and the control socket in it, and their cells.

Somebody may remove all that, damage it, or fill the file system, while the job runs. The monitor looks twice a second
whether it is there, and before each generation all of it is compared with what it should be; what is missing or
damaged is made again in the same place, and where that fails, the next generation gets another place.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from launcher.agent.control_socket import ControlSocket
from launcher.agent.monitor_handle import MonitorHandle
from launcher.agent.worker_cells import Cells
from launcher.records.console import announce
from launcher.records.log_folders import FolderError
from launcher.records.run_folders import RunFolder
from resilience_core.protocol.cell import CellError

__all__ = ["CONFIG_FILE", "CONTROL_SOCKET", "RunFolderKeeper"]

CONFIG_FILE = "config.json"
CONTROL_SOCKET = "control.sock"
LONGEST_TRY_SECONDS = 0.5
"""How long a folder may be full at a restart before another is taken."""
_PAUSE_SECONDS = 0.02


class RunFolderKeeper:
    """One run folder and its contents.

    Args:
        folder: With the configuration written.
        control: Bound in it.
        monitor: Told where it is.
        tell: Called with an event and its facts, for the log.
        parents: Where to go where the folder cannot stay; see :meth:`RunFolder.move`.
    """

    def __init__(
        self,
        folder: RunFolder,
        control: ControlSocket,
        monitor: MonitorHandle,
        tell: Callable[..., Any],
        parents: Iterable[str] | None = None,
    ) -> None:
        self.folder = folder
        self.control = control
        self._monitor = monitor
        self._tell = tell
        self._parents = parents
        self._has_complained = False
        self._is_in_use = False
        self._show_monitor()

    @property
    def config_file(self) -> str:
        """Where ranks read their configuration."""
        return self.folder.file(CONFIG_FILE)

    def make_cells(self, generation: int, ranks: Mapping[int, int]) -> Cells:
        """Make the cells of a generation, elsewhere if they cannot be made in the run folder for a while.

        The first ones are not made elsewhere: where the run folder cannot be used at all, the job is refused.

        Args:
            generation: Whose.
            ranks: Local rank to global rank.

        Raises:
            ResilienceError: They cannot be made anywhere.
        """
        end = time.monotonic() + LONGEST_TRY_SECONDS
        while True:
            try:
                self._mend()
                cells = Cells(self.folder, generation, ranks)
                self._is_in_use = True
                return cells
            except (FolderError, CellError) as error:
                if not self._is_in_use:
                    raise
                problem = error
            if time.monotonic() >= end:
                break
            time.sleep(_PAUSE_SECONDS)
        former = self.folder.path
        self.folder.move(self._parents)
        try:
            self.control.move(self._socket_path)
        except FolderError as error:
            announce(f"requests of ranks are not heard from now on: {error}", event="run_folder")
        self._show_monitor()
        said = f"{problem}; going on in {self.folder.path}. On a disk, monitoring may delay ranks"
        announce(said, event="run_folder")
        self._tell("run_folder_moved", former=former, run_folder=self.folder.path, why=str(problem))
        return Cells(self.folder, generation, ranks)

    def mend(self, cells: Cells | None) -> list[int]:
        """Make anew what was removed or damaged, as far as that is possible now.

        Args:
            cells: Those of the generation that runs, if one does.

        Returns:
            Local ranks that have another cell now, for the monitor to be told.
        """
        try:
            self._mend()
            return cells.replace_lost() if cells is not None else []
        except (FolderError, CellError) as error:
            if not self._has_complained:
                self._has_complained = True
                said = f"{error}; ranks that run are protected, the next generation gets another folder"
                announce(said, event="run_folder")
        return []

    def _mend(self) -> None:
        missing, damaged = self.folder.mend()
        if self.control.path == self._socket_path and not self.control.is_in_place:
            (damaged if os.path.lexists(self._socket_path) else missing).append(self._socket_path)
            self.control.move(self._socket_path)
        done = " and ".join(
            f"{what} {', '.join(os.path.relpath(path, self.folder.path) for path in paths)}"
            for what, paths in (("removed", missing), ("damaged", damaged))
            if paths
        )
        if done:
            said = f"in {self.folder.path} somebody has {done}; made anew, no rank was touched"
            announce(said, event="run_folder")
            self._tell("run_folder_mended", run_folder=self.folder.path, missing=missing, damaged=damaged)

    @property
    def _socket_path(self) -> str:
        return self.folder.file(CONTROL_SOCKET)

    def _show_monitor(self) -> None:
        sockets = [self._socket_path] if self.control.path == self._socket_path else []
        self._monitor.show_run_folders(self.folder.paths, [*self.folder.parts, *sockets])
