"""Whether a child process still runs, without collecting it."""

from __future__ import annotations

import os
import subprocess

__all__ = ["state_of"]


def state_of(process: subprocess.Popen[bytes]) -> str | None:
    """Return how a child has ended, ``stopped``, or None while it runs."""
    if process.returncode is not None:
        return "could not be started"
    try:
        state = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return "was waited for by somebody else"
    if state is None:
        return None
    if state.si_code == os.CLD_STOPPED:
        return "stopped"
    return f"ended ({'signal' if state.si_code != os.CLD_EXITED else 'exit code'} {state.si_status})"
