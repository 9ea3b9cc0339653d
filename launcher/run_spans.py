"""Spans of OpenTelemetry for the runs of a log folder; see :mod:`launcher.spans`. Needs the extra ``telemetry``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Status, StatusCode, Tracer, set_span_in_context

from launcher.records.restart_times import PARTS, Restart, Run

__all__ = ["NumbersOfRun", "SpanWriter"]


class NumbersOfRun(IdGenerator):
    """Numbers derived from names: the same for the same span of the same run, whoever exports it and how often."""

    def __init__(self) -> None:
        self.trace = ""
        self.span = ""

    def generate_trace_id(self) -> int:
        """Return 128 bits for the run."""
        return _number(self.trace, 16)

    def generate_span_id(self) -> int:
        """Return 64 bits for the span of the run."""
        return _number(f"{self.trace}\n{self.span}", 8)


def _number(name: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", errors="replace")).digest()[:size], "big") or 1


class SpanWriter:
    """Makes spans of runs, each once.

    Args:
        tracer: Whose provider numbers spans by ``numbers``.
        numbers: See there.
        name: Of the run: its log folder's.
        outer: The context that runs belong to.
    """

    def __init__(self, tracer: Tracer, numbers: NumbersOfRun, name: str, outer: Context) -> None:
        # A folder's name need not be text, and exporters refuse an attribute that is none.
        self._name = name.encode("utf-8", errors="replace").decode()
        self._tracer, self._numbers, self._outer = tracer, numbers, outer
        self._done: set[tuple[int, int]] = set()
        self.restarts = 0
        """How many were written."""

    def write(self, runs: Sequence[Run], *, are_over: bool) -> None:
        """Write what is new.

        Args:
            runs: All of the folder.
            are_over: Nothing will be added: what is not complete is written as it is.
        """
        for run in runs:
            # The root first: children are numbered after it, and may be exported long before it.
            self._numbers.trace = f"{self._name}\n{run.began_ns}"
            for restart in run.restarts:
                if (restart.is_complete or are_over) and (run.began_ns, restart.generation) not in self._done:
                    self._done.add((run.began_ns, restart.generation))
                    self._write_restart(run, restart)
                    self.restarts += 1
            if (run.ended_ns is not None or are_over) and (run.began_ns, -1) not in self._done:
                self._done.add((run.began_ns, -1))
                self._write_run(run)

    def _write_run(self, run: Run) -> None:
        self._numbers.span = "run"
        about: dict[str, str | int] = {
            "ft.run": self._name,
            "ft.outcome": run.outcome or "unknown",
            "ft.nodes": run.nodes,
            "ft.restarts": len(run.restarts),
        }
        if run.exit_code is not None:
            about["ft.exit_code"] = run.exit_code
        span = self._tracer.start_span("run", self._outer, attributes=about, start_time=run.began_ns)
        if run.outcome == "failed":
            span.set_status(Status(StatusCode.ERROR, run.why or None))
        span.end(run.ended_ns or run.last_ns)

    def _write_restart(self, run: Run, restart: Restart) -> None:
        root = self._context_of_run(run)
        about: dict[str, str | int | Sequence[int]] = {
            "ft.run": self._name,
            "ft.generation": restart.generation,
            "ft.kind": restart.kind,
            "ft.cause": restart.cause,
            "ft.culprit.ranks": restart.culprits,
        }
        if len(restart.culprits) == 1:
            about["ft.culprit.rank"] = restart.culprits[0]
        self._numbers.span = f"restart {restart.generation}"
        span = self._tracer.start_span("restart", root, attributes=about, start_time=restart.times_ns[0])
        inner = set_span_in_context(span, root)
        for index, part in enumerate(PARTS):
            self._numbers.span = f"{part} {restart.generation}"
            begin_ns, end_ns = restart.times_ns[index : index + 2]
            child = self._tracer.start_span(
                part, inner, attributes={"ft.generation": restart.generation}, start_time=begin_ns
            )
            child.end(end_ns)
        span.end(restart.times_ns[-1])

    def _context_of_run(self, run: Run) -> Context:
        """Return the context of the root, which need not have been written: its number is known."""
        self._numbers.span = "run"
        root = self._tracer.start_span("run", self._outer, start_time=run.began_ns)
        return set_span_in_context(root, self._outer)  # never ended, so never exported
