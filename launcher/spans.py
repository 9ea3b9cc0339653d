"""``python -m launcher.spans LOG_DIR``: the restarts of a run as spans of OpenTelemetry, from what the run wrote down.

One trace for each run: ``run``, with a child ``restart`` for each, with the children ``detection``, ``stop``,
``rendezvous`` and ``start`` (:mod:`launcher.records.restart_times`). Three shapes were considered:

* *Inside the launcher*: spans as they happen. The SDK would be imported into the process that must not wait: it starts
  threads (the launcher's restart shares the interpreter's lock with them), the exporters bring gRPC or requests, and a
  collector that hangs would be one more thing at the end of the job.
* *A consumer of* ``--ft-on-event``: a document tells how long a restart took, but not its parts, which are known later:
  the first sign of life of a rank comes after the restart was told.
* *A program of its own that reads the events*, during the run (``--follow``) or afterwards, on any machine that sees
  the log folder. Nothing of it can touch the job, and an export that has failed is repeated.

The last one was chosen. Numbers of traces and spans are derived from the run, so that what is exported twice has the
same number twice.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from launcher.processes.exit_codes import FAILED, REFUSED, SUCCEEDED
from launcher.records.event_files import dated_events
from launcher.records.restart_times import runs_of
from launcher.reports.folders import run_folders
from resilience_core.errors import ResilienceError

__all__ = ["main"]

_ROUND_SECONDS = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Export the restarts of a run; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m launcher.spans",
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
        from resilience_core.span_export import context_of, provider_of
    except ImportError as error:
        print(f"error: {error}; pip install 'torch-resilience[telemetry]'", file=sys.stderr)
        return REFUSED
    numbers = NumbersOfRun()
    try:
        provider = provider_of(os.environ, numbers)
        (folder,) = run_folders([arguments.log_folder])
        name = os.path.basename(folder)
        writer = SpanWriter(provider.get_tracer("torch-resilience"), numbers, name, context_of(os.environ))
        while True:
            runs = runs_of(dated_events(folder))
            is_last = not arguments.follow or (bool(runs) and runs[-1].ended_ns is not None)
            writer.write(runs, are_over=is_last)
            if is_last:
                break
            time.sleep(_ROUND_SECONDS)
    except (ResilienceError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    is_sent = provider.force_flush()
    provider.shutdown()
    print(f"{writer.restarts} restart(s) of {len(runs)} run(s) in {name}", file=sys.stderr)
    if not is_sent:
        print("error: not all spans could be sent in time", file=sys.stderr)
        return FAILED
    return SUCCEEDED


if __name__ == "__main__":
    sys.exit(main())
