"""ft_launcher's command line: torchrun's own parser plus one group of options; parse, then run.

Exit codes: 0 when every worker ended with 0; 1 when the job failed; 2 when it was not started because of how it
was asked for; ``--ft-no-restart-exit-code`` (93) when it was given up, for lack of progress or
for an error in its configuration; 128 and the signal's number when a signal came before a worker was started.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from launcher.command_line import early_signals
from launcher.processes import streams
from launcher.processes.exit_codes import FAILED, REFUSED
from launcher.processes.shortages import (  # here: later there may be no descriptor left to import it with
    explained,
    shortage,
)
from launcher.processes.stuck_threads import let_go_of_others, notice, stuck_threads
from launcher.records.console import CRITICAL, DEBUG, ERROR, announce, end_line, finish, follow

if TYPE_CHECKING:
    from launcher.command_line.options import LaunchJob
    from launcher.workers.script_settings import ImportSettings
    from launcher.workers.zygote_handle import ZygoteHandle
    from launcher.zygote.protocol import Handover

__all__ = ["console_main", "main"]

_LONGEST_FLUSH_SECONDS = 1.0
_LAST_PATIENCE_SECONDS = 5.0
"""How long to wait at the end for killed processes to be gone; on a busy machine that may take over a second."""


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run, and return the exit code. Workers are spawned: only a process of our own may be forked.

    Args:
        argv: Arguments without the program's name; those of the process when None.
    """
    outcome = _guarded(list(sys.argv[1:] if argv is None else argv), may_fork=False)
    assert isinstance(outcome, int)
    return outcome


def console_main() -> None:
    """Entry point of the process: run, and leave at once.

    Everything of ours is flushed and closed by then. Tearing down an interpreter that has imported torch takes a
    quarter of a second in which a finished job would still hold its machines.

    This function also returns in each warm worker, which is forked further down the call stack. So nothing around a
    call of it may have anything left to do.
    """
    streams.open_missing_descriptors()
    early_signals.watch()
    outcome = _guarded(sys.argv[1:], may_fork=True)
    if not isinstance(outcome, int):
        from launcher.zygote.worker_bootstrap import run_as_main

        run_as_main(outcome)
        return
    stuck = stuck_threads(_LONGEST_FLUSH_SECONDS)
    if lines := notice(stuck, outcome):
        announce(*lines, level=ERROR, event="stuck")
    end_line()
    finish(_LONGEST_FLUSH_SECONDS)
    streams.flush_standard_streams(_LONGEST_FLUSH_SECONDS)
    if stuck:
        let_go_of_others()
    os._exit(outcome)


def _guarded(arguments: list[str], may_fork: bool) -> int | Handover:
    from launcher.command_line import torch_versions
    from launcher.command_line.log_settings import log_settings

    # What is refused before it is parsed is said in the form that is asked for.
    follow(log_settings(["ft_launcher", *arguments]))
    torch = torch_versions.installed_version()
    problem = _platform_problem() or torch_versions.problem_with(torch)
    if problem is not None:
        return _refuse(problem)
    if (warning := torch_versions.warning_about(torch)) is not None:
        announce(warning, event="warning")
    from launcher.command_line.environment_checks import check_environment
    from resilience_core.errors import ResilienceError

    try:
        check_environment(os.environ)
        return _run(arguments, may_fork)
    except (ResilienceError, argparse.ArgumentTypeError) as error:
        return _refuse(explained(error))
    except Exception as error:  # noqa: BLE001 - the outermost loop of the process
        refused = shortage(error)
        trace = traceback.format_exc().splitlines()
        if refused is not None:
            announce(*trace, level=DEBUG, event="traceback")
            announce(refused, level=CRITICAL, event="refused")
        else:
            said = "this is a mistake in ft_launcher; please report it"
            announce(*trace, said, level=CRITICAL, event="traceback")
        return FAILED


def _run(arguments: list[str], may_fork: bool) -> int | Handover:
    if not may_fork:
        from launcher.agent.job import run
        from launcher.command_line.options import parse

        job = parse(arguments)
        follow(job.log_state)
        return run(job)

    from launcher.command_line.default_threads import set_default
    from launcher.processes.handles import become_subreaper

    become_subreaper()
    # From here to the fork nothing may start a thread, and what torch reads at import must be as workers get it.
    # A process that was started with SIGCHLD ignored could collect no worker and no zygote.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    inherited = streams.open_descriptors()
    set_default(arguments)
    from launcher.command_line.options import parse

    job = parse(arguments)
    follow(job.log_state)
    from launcher.workers.script_settings import ImportSettings

    script, options = job.arguments.training_script, job.arguments
    is_python = not (options.no_python or options.run_path)
    settings = ImportSettings.of_script(script, options.module, os.environ) if is_python else ImportSettings()
    outcome = _zygote(job, inherited, settings)
    from launcher.zygote.protocol import Handover

    if isinstance(outcome, Handover):
        return outcome
    from launcher.agent.job import run

    try:
        return run(job, outcome, settings)
    finally:
        if outcome is not None:  # a run that was refused has not come to taking it over
            outcome.close()
            _collect(outcome.pid)


def _collect(session: int) -> None:
    """Wait for what is left of a session, and collect what this process has adopted of it.

    A fork of the zygote may end a moment after it, and nobody else would collect it: during a run the agent does.
    """
    from launcher.processes.handles import let_end, wait_for_exit
    from launcher.processes.leftovers import Orphans
    from launcher.processes.proc import session_members

    let_end(session_members([session]), _LAST_PATIENCE_SECONDS, wait_for_exit)
    Orphans(lambda: ()).reap(())


def _zygote(job: LaunchJob, inherited: Collection[int], settings: ImportSettings) -> ZygoteHandle | Handover | None:
    """Fork the zygote, unless workers are to be spawned. Returns in the launcher and in every warm worker."""
    from launcher.agent.resources import preload
    from launcher.workers.zygote_handle import ZygoteHandle
    from launcher.zygote.import_time import import_environment

    if job.config.worker_start != "warm":
        return None
    why_not = _why_not_warm(job) or settings.why_not
    if why_not is not None:
        announce(f"warm start is off: {why_not}; workers are spawned instead (said once)", event="worker_start")
        return None
    if settings.change(os.environ):  # torch has been imported here without them
        return ZygoteHandle.by_exec(preload(job.config), {**import_environment(os.environ), **settings.values})
    early_signals.leave()  # a worker has the handlers that Python gives it
    outcome = ZygoteHandle.by_fork(preload(job.config), inherited)
    if isinstance(outcome, ZygoteHandle):
        early_signals.watch()
    return outcome


def _why_not_warm(job: LaunchJob) -> str | None:
    arguments = job.arguments
    if arguments.no_python:
        return "--no-python starts programs that are not Python"
    if arguments.run_path:
        return "--run-path asks for an interpreter of its own"
    if getattr(arguments, "numa_binding", None):
        return "--numa-binding binds a process when it is started"
    if os.getenv("PYTHON_EXEC", sys.executable) != sys.executable:
        return f"PYTHON_EXEC names another interpreter ({os.environ['PYTHON_EXEC']})"
    if sys.flags.inspect:
        return "PYTHONINSPECT is set, which asks for an interpreter that stays after the script"
    flags = [flag for flag in sys.orig_argv[1:] if flag.startswith("-")][:1]
    if flags and sys.orig_argv[1] == flags[0] and flags[0] != "-m":
        return f"the launcher's interpreter was started with {flags[0]}, which workers do not inherit"
    return None


def _platform_problem() -> str | None:
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return f"this system ({sys.platform}) has no pidfd; ft_launcher needs Linux 5.4 or newer"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        kernel = os.uname().release
        return f"this kernel ({kernel}) has no pidfd ({error.strerror}); ft_launcher needs Linux 5.4 or newer"
    return None


def _refuse(why: str) -> int:
    announce(f"error: {why}", level=CRITICAL, event="refused")
    return REFUSED
