"""One check, run again and again, each time in a daemon thread of its own and within its bound.

A check that does not answer (a server of NFS that is gone, a driver that hangs) cannot be ended: its thread may wait in
the kernel, where nothing reaches it. It has failed when its time is up, nobody waits for it any more, and it is not
started again before that thread has ended.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from launcher.health.check import Check, Context

__all__ = ["Answer", "Watch"]

_LONGEST_BOUND_SECONDS = 86400.0
_LONGEST_REASON = 2000


class Answer(NamedTuple):
    """What came of one run; no reason where the node is healthy."""

    reason: str | None


class _Run:
    """One run of a check."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.step = ""
        self.answer: Answer | None = None
        self.is_cancelled = False


class Watch:
    """Runs one check.

    Args:
        check: The check.
        context: What it gets.
        changed: Notified when it has answered. Whoever calls a method here holds it.
    """

    def __init__(self, check: Check, context: Context, changed: threading.Condition) -> None:
        self.name = check.name
        self._check, self._context, self._changed = check, context, changed
        self._run: _Run | None = None
        self._is_refused = False

    @property
    def is_busy(self) -> bool:
        """Return whether the thread of the last run has not ended."""
        return self._run is not None and self._run.answer is None

    @property
    def is_ending(self) -> bool:
        """Return whether its last run was cancelled, and has not ended yet."""
        return self._run is not None and self._run.answer is None and self._run.is_cancelled

    @property
    def bound_seconds(self) -> float:
        """How long an answer may take, as the check has it now; an installed one may change it in its first run."""
        return min(max(0.0, float(self._check.bound_seconds)), _LONGEST_BOUND_SECONDS)

    def begin(self) -> None:
        """Start the check, unless it runs already; one that is overdue counts as failed at once."""
        run = self._run
        if run is not None and run.answer is None:
            self._is_refused = run.is_cancelled or not self.seconds_left()
            return
        self._is_refused = False
        self._run = run = _Run()
        thread = threading.Thread(target=self._work, args=(run,), name=f"ft_health_{self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # pids.max, RLIMIT_NPROC
            run.answer = Answer(f"the system refuses a thread to run it ({error}); see ulimit -u and pids.max")

    def answer(self) -> Answer | None:
        """Return what has come of the run that was begun last; None as long as there is time left for it."""
        run = self._run
        assert run is not None
        if run.answer is not None and not self._is_refused:
            return run.answer
        if self._is_refused or not self.seconds_left():
            return Answer(self._stuck(run))
        return None

    def seconds_left(self) -> float:
        """Return for how long there may be no answer yet."""
        return 0.0 if self._run is None else max(0.0, self._run.began + self.bound_seconds - time.monotonic())

    def cancel(self) -> None:
        """Tell the check, if it runs, that its answer is not wanted any more."""
        if self._run is not None and self._run.answer is None:
            self._run.is_cancelled = True

    def _stuck(self, run: _Run) -> str:
        at = f", and was last at: {run.step}" if run.step else ""
        return (
            f"no answer for {time.monotonic() - run.began:.1f} s (it has {self.bound_seconds:g} s){at}; what it looks "
            "at is stuck or very slow. If that is normal there, raise health_check_timeout"
        )

    def _work(self, run: _Run) -> None:
        context = self._context._replace(
            tell=lambda step: setattr(run, "step", step), is_cancelled=lambda: run.is_cancelled
        )
        try:
            found = self._check.check(context)
            answer = Answer(None if found is None else _as_reason(found))
        except BaseException as error:  # noqa: BLE001 - SystemExit, too: this is a thread of ours
            answer = Answer(f"the check itself has failed: {type(error).__name__}: {_as_reason(error)}")
        with self._changed:
            run.answer = answer
            self._changed.notify_all()


def _as_reason(found: object) -> str:
    """Return one line; what is no text is told as such."""
    if not isinstance(found, (str, BaseException)):
        return f"the check has returned {found!r}, neither a reason nor None; mend the check"
    return " ".join(str(found).split())[:_LONGEST_REASON] or "no reason was given"
