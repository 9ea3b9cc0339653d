"""ft_autoresume: run the launcher again and again until training says that it is complete.

    ft_autoresume --max-failures 10 -- ft_launcher --nproc-per-node 8 train.py

Training says so by making the file that ``FAULT_TOL_FINISHED_FLAG_FILE`` names; the adapters do, with
``autoresume=True``. Each run is one job; restarts within a job are the launcher's own business.

Exit codes: 0 when the file has come into being; 1 when too many runs failed, or the training has stopped itself on
purpose (``StopTraining``); 128 and the signal's number when a signal ended it; the launcher's own code where another
run would only end the same way.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

from launcher.agent.progress import NOTHING_REACHED, Reached
from launcher.agent.run_tally import RunOutcome, Tally
from launcher.command_line.autoresume_options import make_parser
from launcher.command_line.log_settings import log_settings, value_of
from launcher.incidents.incident_files import read_incidents
from launcher.processes.exit_codes import FAILED, REFUSED, SUCCEEDED, by_signal
from launcher.processes.working_folder import completed
from launcher.records import console
from launcher.records.console import CRITICAL, INFO, announce
from launcher.records.format_versions import UnknownVersionError
from launcher.records.log_records import take_over_logging, warn_once
from launcher.records.run_events import Began, Ended, OtherEvent, Requested, RunEvent, StoppedOnPurpose, typed_events
from resilience_core.environment import FINISHED_FLAG_VARIABLE
from resilience_core.protocol.control import WorkloadAction
from resilience_core.system.prctl import die_with_parent

__all__ = ["main"]

_END_OF_THE_WORKLOAD = WorkloadAction.ShutdownWorkload.value
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class AutoResume:
    """The loop, with its child and its signals.

    Args:
        options: The parsed command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._tally = Tally(options.max_failures, options.max_without_progress)
        self._child: subprocess.Popen[bytes] | None = None
        self._heard: list[int] = []

    def run(self) -> int:
        """Run until it is over.

        Returns:
            The exit code.
        """
        flag = self._options.flag_file
        began = time.monotonic()
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)
        if os.path.exists(flag):
            announce(
                f"training is complete already: {flag} exists. Delete it, or name another --flag-file, to train anew",
                level=INFO,
                event="complete",
            )
            return SUCCEEDED
        code, why = self._loop(flag)
        tally = self._tally
        announce(
            f"{why} (after {tally.runs} run(s), {tally.failures} failed, {time.monotonic() - began:.0f} s; "
            f"last iteration {'unknown' if tally.best is None else tally.best})",
            level=INFO if code == SUCCEEDED else CRITICAL,
            event="complete" if code == SUCCEEDED else "given_up",
        )
        return code

    def _loop(self, flag: str) -> tuple[int, str]:
        while (outcome := self._run_once()) is not None:
            if os.path.exists(flag):
                self._tally.add(outcome)
                return SUCCEEDED, "training is complete"
            facts = {"run": self._tally.runs + 1, "exit_code": outcome.exit_code}
            announce(_told(self._tally.runs + 1, outcome, flag), event="run_ended", facts=facts)
            why = self._tally.add(outcome)
            if self._heard:
                break
            if outcome.exit_code in self._options.final_exit_codes:
                return outcome.exit_code, f"given up: exit code {outcome.exit_code} would only come again"
            if why is not None:
                return FAILED, f"given up: {why}"
            self._back_off()
        return by_signal(self._heard[0]), f"ended by {signal.Signals(self._heard[0]).name}; not run again"

    def _run_once(self) -> RunOutcome | None:
        """Run the launcher once; return None where a signal came before it began."""
        began, began_ns = time.monotonic(), time.monotonic_ns()
        environment = {**os.environ, FINISHED_FLAG_VARIABLE: self._options.flag_file}
        # A signal comes before there is a child, or once there is one to pass it to, but not between.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            if self._heard or signal.sigpending() & set(_SIGNALS):
                return None
            child = subprocess.Popen(self._options.command, env=environment, preexec_fn=_live_and_die_with_us)
            self._child = child
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        code = child.wait()
        self._child = None
        code = code if code >= 0 else by_signal(-code)
        seconds = time.monotonic() - began
        return RunOutcome(code, seconds, *_summary(_log_folder(self._options.command), child.pid, began_ns))

    def _back_off(self) -> None:
        """Wait before the next run, the longer the more runs in a row have failed."""
        if self._tally.failures_in_a_row:
            seconds = self._options.backoff * 2.0 ** min(self._tally.failures_in_a_row - 1, 30)
            seconds = min(seconds, self._options.max_backoff)
            announce(f"the next run begins in {seconds:g} s", level=INFO, event="waiting")
            # A handler that comes in the moment before a call that waits does not end it; what is blocked waits for us.
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            try:
                came = None if self._heard else signal.sigtimedwait(_SIGNALS, seconds)
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            if came is not None:
                self._heard.append(came.si_signo)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._heard.append(number)
        if self._child is not None:
            self._child.send_signal(number)


def _live_and_die_with_us() -> None:
    """Put the child into a process group of its own, so that Ctrl-C comes once, and let it die with its parent."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    os.setpgid(0, 0)
    die_with_parent(signal.SIGTERM)


# ---- what the launcher has left -------------------------------------------------------------------------


def _log_folder(command: Sequence[str]) -> str:
    """Return where that launcher makes its log folders."""
    return value_of(command, "log_dir") or "ft_logs"


class _Left(NamedTuple):
    """What a run has left: the last fields of a :class:`RunOutcome`."""

    reached: Reached = NOTHING_REACHED
    is_final: bool = False
    failed_in_a_step: bool = False
    stopped: str | None = None


def _summary(parent: str, launcher: int, began_ns: int) -> _Left:
    """Return how far a run came, and what it says of its end; what is damaged is left out, with a warning.

    Args:
        parent: The folder of log folders.
        launcher: The launcher's pid; where the command wraps it, the newest run since ``began_ns`` is taken.
        began_ns: ``CLOCK_MONOTONIC`` when the command was started.
    """
    runs: list[tuple[bool, int, str, list[RunEvent]]] = []
    for name in os.listdir(parent) if os.path.isdir(parent) else ():
        folder = os.path.join(parent, name)
        try:
            events = typed_events(folder)
        except UnknownVersionError as error:
            warn_once(f"what a run has reached is not known: {error}")
            continue
        except OSError:  # not a run's folder
            continue
        # One folder may hold several runs of one id.
        starts = [event for event in events if isinstance(event, Began) and event.t_ns >= began_ns]
        if starts:
            last = starts[-1]
            events = [event for event in events if event.t_ns >= last.t_ns]
            runs.append((last.launcher == launcher, last.t_ns, folder, events))
    if not runs:
        return _Left()
    _, _, folder, events = max(runs, key=lambda run: run[:2])
    iterations = [event.iteration for event in events if isinstance(event, (Ended, OtherEvent))]
    reported = [iteration for iteration in iterations if iteration is not None]
    incidents = []
    with contextlib.suppress(OSError):  # somebody has removed the folder meanwhile
        incidents = [incident for incident in read_incidents(folder) if incident.seen_ns >= began_ns]
    reported += [rank.iteration for incident in incidents for rank in incident.ranks if rank.iteration is not None]
    reached = Reached(iteration=max(reported, default=None))
    if (ended := next((event for event in events if isinstance(event, Ended)), None)) is not None:
        reached = reached._replace(resumed_from=ended.resumed_from, saved=ended.saved, went_back=ended.went_back)
    return _Left(
        reached,
        is_final=any(isinstance(e, Requested) and e.action == _END_OF_THE_WORKLOAD for e in events),
        failed_in_a_step=bool(incidents) and incidents[-1].is_in_a_step,
        stopped=next((event.why for event in events if isinstance(event, StoppedOnPurpose)), None),
    )


# ---- command line ---------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run, and return the exit code.

    Args:
        argv: Arguments without the program's name; those of the process when None.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    console.follow(log_settings(arguments), "autoresume", "ft_autoresume")
    try:
        return _main(arguments)
    finally:
        console.finish()


def _main(arguments: list[str]) -> int:
    parser = make_parser()
    if console.state().format == "json":  # else argparse writes lines of its own
        setattr(parser, "error", lambda why: sys.exit(_refused(why)))  # noqa: B010 - mypy allows no assignment
    if "--" not in arguments:
        if {"-h", "--help", "--version"} & set(arguments):
            parser.parse_args(arguments)
        return _refused("write the launcher's command after '--'")
    split = arguments.index("--")
    options = parser.parse_args(arguments[:split])
    options.command = arguments[split + 1 :]
    options.flag_file = completed(options.flag_file or os.environ.get(FINISHED_FLAG_VARIABLE) or "ft_finished")
    if not options.command:
        return _refused("there is no command after '--'")
    folder = os.path.dirname(options.flag_file)
    if not os.path.isdir(folder):
        return _refused(f"{options.flag_file}: there is no folder {folder}; make it")
    if os.path.isdir(options.flag_file):
        return _refused(f"{options.flag_file} is a folder; name a file with --flag-file")
    take_over_logging(console.threshold())
    try:
        return AutoResume(options).run()
    except OSError as error:
        return _refused(f"{options.command[0]} cannot be run: {error.strerror}")


def _refused(why: str) -> int:
    announce(f"error: {why}", level=CRITICAL, event="refused")
    return REFUSED


def _told(run: int, outcome: RunOutcome, flag: str) -> str:
    last = outcome.reached.iteration
    reached = "no iteration reported" if last is None else f"last iteration {last}"
    missed = "" if outcome.exit_code else f": nobody has made {flag}"
    return (
        f"run {run} ended with {outcome.exit_code} after {outcome.seconds:.1f} s, {reached}; "
        f"training is not complete{missed}"
    )
