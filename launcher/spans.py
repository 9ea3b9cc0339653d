"""``python -m launcher.spans LOG_DIR``: the restarts of a run as spans of OpenTelemetry, from what the run wrote down.

One trace for each run: ``run``, with a child ``restart`` for each, with the children ``detection``, ``stop``,
``rendezvous`` and ``start`` (:mod:`launcher.records.restart_times`). Three shapes were considered:

* *Inside the launcher*: spans as they happen. The SDK would be imported into the process that must not wait: it starts
  threads (the launcher's restart shares the interpreter's lock with them), the exporters bring gRPC or requests, and a
  collector that hangs would be one more thing at the end of the job.
* *A consumer of* ``--ft-on-event``: a document tells how long a restart took, but not its parts, which are known later:
  the first sign of life of a rank comes after the restart was told.
* *A program of its own that reads the events*, during the run (``--follow``) or afterwards, on any machine that sees
  the log folder. Nothing of it can touch the job, and an export that has failed can be repeated.

The last one was chosen. Numbers of traces and spans are derived from the run, so that what is exported twice has the
same number twice.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

from launcher.live.runs import ELSEWHERE, GOES_ON, read_run
from launcher.processes.exit_codes import FAILED, REFUSED, SUCCEEDED, by_signal
from launcher.records.event_files import dated_events
from launcher.records.restart_times import runs_of
from launcher.reports.folders import run_folders
from resilience_core.errors import ResilienceError

__all__ = ["main"]

_NAME = "launcher.spans"
_ROUND_SECONDS = 1.0
_LONGEST_END_SECONDS = 30.0
_MOST_SPANS = 1 << 17
"""That may wait for the exporter: all of a run that is over are made at once."""


def main(argv: Sequence[str] | None = None) -> int:
    """Export the restarts of a run; return the exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {_NAME}",
        description="Export the restarts of a run as OpenTelemetry spans. OTEL_TRACES_EXPORTER and the other variables "
        "of OpenTelemetry say where to; TRACEPARENT, if set, is the parent.",
    )
    parser.add_argument(
        "log_folder", metavar="LOG_DIR", help="the log folder of a run, or the folder of log folders for its newest run"
    )
    parser.add_argument("--follow", action="store_true", help="go on until the run has ended")
    arguments = parser.parse_args(argv)
    try:  # here: whoever only asks for help needs no OpenTelemetry
        from launcher.run_spans import NumbersOfRun, SpanWriter
        from resilience_core.span_export import Ending, context_of, provider_of
    except ImportError as error:
        return _refused(f"{error}; pip install 'torch-resilience[telemetry]'")
    numbers = NumbersOfRun()
    try:
        provider = provider_of(os.environ, numbers, _MOST_SPANS)
        ending = Ending(provider)
        (folder,) = run_folders([arguments.log_folder])
        name = os.path.basename(folder)
        writer = SpanWriter(provider.get_tracer("torch-resilience"), numbers, name, context_of(os.environ))
        with _interruptible() as interrupted:
            while True:
                is_last = not (arguments.follow and _may_go_on(folder))  # first: what comes later is read, too
                runs = runs_of(dated_events(folder))
                writer.write(runs, are_over=is_last)
                if is_last or interrupted.wait(_ROUND_SECONDS):
                    break
    except (ResilienceError, OSError) as error:
        return _refused(str(error))
    ended = ending.finish(_LONGEST_END_SECONDS)
    print(f"{writer.restarts} restart(s) of {len(runs)} run(s) in {name}", file=sys.stderr)
    if not ended.is_over:
        print(f"{_NAME}: error: not all spans could be sent within {_LONGEST_END_SECONDS:g} s", file=sys.stderr)
        sys.stderr.flush()
        os._exit(FAILED)  # an exporter that hangs may have threads of its own that are waited for at the exit
    if ended.lost:
        print(f"{_NAME}: error: an exporter has failed: {ended.lost} span(s) were not exported", file=sys.stderr)
        return FAILED
    return by_signal(interrupted.number) if interrupted.number else SUCCEEDED


class _Interrupted:
    """Which signal has asked for the end, if one has."""

    def __init__(self) -> None:
        self.number = 0
        self._event = threading.Event()

    def note(self, number: int, _frame: object) -> None:
        """Note a signal, as its handler."""
        self.number = number
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Wait for one; return whether one has come."""
        return self._event.wait(seconds)


@contextlib.contextmanager
def _interruptible() -> Iterator[_Interrupted]:
    """Have SIGINT and SIGTERM noted in a block: what was made until then is still exported."""
    interrupted = _Interrupted()
    heeded = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    former = {number: signal.signal(number, interrupted.note) for number in heeded}
    try:
        yield interrupted
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _may_go_on(folder: str) -> bool:
    """Return whether a launcher may still write events: it has not ended, and is not known to have been killed."""
    return any(state in (GOES_ON, ELSEWHERE) for state in read_run(folder).states)


def _refused(why: str) -> int:
    print(f"{_NAME}: error: {why}", file=sys.stderr)
    return REFUSED


if __name__ == "__main__":
    sys.exit(main())
