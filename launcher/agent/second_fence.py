"""The launcher's handle of the second fence (:mod:`launcher.monitor.second_fence`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence

from launcher.nodes.fence import LeaseWord
from launcher.records.console import announce
from resilience_core.system.installation import HOME

__all__ = ["SecondFence"]

_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); from launcher.monitor.second_fence import main; main(sys.argv[2:])"
)
_LONGEST_END_SECONDS = 5.0


class SecondFence:
    """A process that kills the ranks of this node when its lease is over, should the monitor not.

    To be made in the thread that lives as long as this process: the fence ends with it.

    Args:
        lease: Until when ranks may run.
        run_folders: Returns what marks them: the run folders of this job, of which there are more when one was lost.
    """

    def __init__(self, lease: LeaseWord, run_folders: Callable[[], Sequence[str]]) -> None:
        self._lease, self._run_folders = lease, run_folders
        self._known: tuple[str, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._has_failed = False
        self.ensure()

    @property
    def pid(self) -> int | None:
        """The process, as of now; None where there is none."""
        return None if self._process is None else self._process.pid

    def ensure(self) -> None:
        """Start the process, unless it lives and knows every run folder."""
        folders = tuple(self._run_folders())
        if self._process is not None and self._process.poll() is None:
            if self._known == folders:
                return
            self.close()
        self._known = folders
        arguments = (HOME, str(self._lease.descriptor), str(os.getpid()), *folders)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[self._lease.descriptor],
                start_new_session=True,
            )
        except OSError as error:
            self._process = None
            if not self._has_failed:
                self._has_failed = True
                announce(
                    f"the second fence of this node cannot be started: {error}. Its monitor alone kills its "
                    "ranks when it is cut off (said once)",
                    event="fence",
                )

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            try:
                self._process.wait(_LONGEST_END_SECONDS)
            except subprocess.TimeoutExpired:
                said = f"the second fence of this node (pid {self._process.pid}) does not end"
                announce(said, event="fence")
