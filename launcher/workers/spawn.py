"""Start one worker by fork and exec."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import attrs

from launcher.processes.exit_codes import LOST_PARENT
from launcher.processes.process_marks import leave_mark
from launcher.workers.numa import bound_to_numa_node
from launcher.workers.programs import cannot_start
from resilience_core.environment import CELL_VARIABLE
from resilience_core.system import prctl
from resilience_core.system.plain_files import only_plain

__all__ = ["Launch", "python_command", "spawn_worker"]


@attrs.frozen(kw_only=True)
class Launch:
    """How to start one worker.

    Args:
        command: Program and arguments.
        environment: What is set on top of this process's own environment.
        stdout: File for its standard output, empty to inherit ours.
        stderr: Likewise.
        local_rank: Its number on this node.
        numa_options: Torch's ``NumaOptions``, or None.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    stdout: str = ""
    stderr: str = ""
    local_rank: int = 0
    numa_options: Any = None


def spawn_worker(launch: Launch) -> int:
    """Start a worker by fork and exec.

    Raises:
        CannotStartError: Its program cannot be started.
    """
    parent = os.getpid()

    def arm() -> None:
        # When the launcher is killed, the kernel kills the worker, even where no monitor lives to do so.
        prctl.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(LOST_PARENT)
        leave_mark(launch.environment.get(CELL_VARIABLE, ""))

    with contextlib.ExitStack() as files:
        paths = (launch.stdout, launch.stderr)
        streams = [files.enter_context(open(path, "w", opener=only_plain)) if path else None for path in paths]
        command = bound_to_numa_node(launch.command, launch.local_rank, launch.numa_options)
        try:
            process = subprocess.Popen(
                command,
                env={**os.environ, **launch.environment},
                stdout=streams[0],
                stderr=streams[1],
                start_new_session=True,
                preexec_fn=arm,
            )
        except OSError as error:
            if (explained := cannot_start(error, command[0])) is not None:
                raise explained from error
            raise
    # We collect the exit by pidfd; Popen must neither do so nor complain that nobody did.
    process.returncode = 0
    return process.pid


def python_command() -> str:
    """Return the interpreter that torchrun would start workers with."""
    return os.getenv("PYTHON_EXEC", sys.executable)
