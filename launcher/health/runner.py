"""Run the checks of a node for its launcher: once before it joins, then again and again while it waits or ranks run.

A node is unhealthy when the same check fails twice in a row, since a node that is busy may be slow once. Where no rank
runs, the second look follows within seconds, while ranks run after ``interval_seconds``.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection

from launcher.health.check import Context, Unhealthy
from launcher.health.settings import HealthSettings, choose
from launcher.health.watch import Answer, Watch
from launcher.records.console import INFO, WARNING, announce

__all__ = ["HealthRunner"]

_FAILURES_IN_A_ROW = 2
_AGAIN_SECONDS = 1.0
"""Where no rank runs: from the first failure to the second look."""
_STOP_SECONDS = 1.0
_CANCEL_SECONDS = 3.0
"""What a check that was cancelled gets to end before it is asked anew; a command is killed meanwhile."""


class _Watched:
    """One check while ranks run."""

    def __init__(self, watch: Watch, due: float) -> None:
        self.watch, self.due = watch, due
        self.is_asked = False
        self.failures = 0

    def advance(self, interval_seconds: float, again_seconds: float) -> Unhealthy | None:
        """Ask if it is time, and judge what has come; return a finding once, when it has become one.

        Args:
            interval_seconds: From one look to the next.
            again_seconds: The same after a failure.
        """
        if not self.is_asked:
            if time.monotonic() < self.due:
                return None
            self.watch.begin()
            self.is_asked = True
        answer = self.watch.answer()
        if answer is None:
            return None
        self.is_asked = False
        seconds = interval_seconds if answer.reason is None else again_seconds
        if self.watch.is_busy:  # else the look that has not ended would count as the second one, too
            seconds = max(seconds, self.watch.bound_seconds)
        self.due = time.monotonic() + seconds
        return self._judged(answer)

    def put_off(self, interval_seconds: float) -> None:
        """Make the second look after a failure due an interval from now."""
        if self.failures and not self.is_asked:
            self.due = max(self.due, time.monotonic() + interval_seconds)

    def seconds_left(self) -> float:
        """Return in how many seconds to advance at the latest."""
        return self.watch.seconds_left() if self.is_asked else max(0.0, self.due - time.monotonic())

    def _judged(self, answer: Answer) -> Unhealthy | None:
        if answer.reason is None:
            self.failures = 0
            return None
        self.failures += 1
        finding = Unhealthy(self.watch.name, answer.reason)
        if self.failures == 1:
            announce(f"{finding}; looking again", level=INFO, event="health")
        return finding if self.failures == _FAILURES_IN_A_ROW else None


class _Session:
    """From ``start`` to ``stop``."""

    def __init__(self, watched: list[_Watched], on_unhealthy: Callable[[Unhealthy], object]) -> None:
        self.watched, self.on_unhealthy = watched, on_unhealthy
        self.is_over = False
        self.thread: threading.Thread | None = None


class HealthRunner:
    """The checks of this node. May be used from any thread.

    Args:
        settings: What to check, and when.
        context: What checks get.

    Attributes:
        names: What is checked; nothing where no check is wanted.
        notes: What was left out, and why: for people, once.

    Raises:
        ConfigError: The settings name a check or an argument that cannot be used.
    """

    def __init__(self, settings: HealthSettings, context: Context) -> None:
        chosen = choose(settings, context)
        self._interval = settings.interval_seconds
        self._changed = threading.Condition()
        self._watches = [
            Watch(check, context._replace(arguments=arguments), self._changed) for check, arguments in chosen.checks
        ]
        self.names = tuple(watch.name for watch in self._watches)
        self.notes = chosen.notes
        self._session: _Session | None = None
        self._is_waiting = False

    @property
    def bound_seconds(self) -> float:
        """The longest time that :meth:`before_joining` takes.

        It is three times that of the longest check, and some seconds. An installed check may have a bound of its own,
        which counts from when it is loaded.
        """
        return 3 * max((watch.bound_seconds for watch in self._watches), default=0.0) + _AGAIN_SECONDS + _CANCEL_SECONDS

    def before_joining(self) -> Unhealthy | None:
        """Run all checks at once, those that fail a second time, and return the first that has failed twice.

        Without a failure this takes as long as the slowest check. A check that did not answer gets once more its time
        to come back, and is then asked anew.
        """
        with self._changed:
            self._changed.wait_for(lambda: not any(watch.is_ending for watch in self._watches), _CANCEL_SECONDS)
        failed = self._look(self._watches)
        if not failed:
            return None
        for watch, reason in failed.items():
            announce(f"{Unhealthy(watch.name, reason)}; looking again", level=INFO, event="health")
        self._let_come_back(failed)
        failed = self._look(failed)
        return next((Unhealthy(watch.name, reason) for watch, reason in failed.items()), None)

    def start(self, on_unhealthy: Callable[[Unhealthy], object], *, is_waiting: bool = False) -> None:
        """Begin to look while ranks run, or this node waits; go on if that is on already; nothing if it is not wanted.

        Args:
            on_unhealthy: Called from a thread of the runner, once for each check that has failed twice in a row; again
                only after it was healthy in between. It must not block for long, and may call :meth:`stop`.
            is_waiting: No rank runs: the second look follows within seconds, as before joining.
        """
        interval, was_waiting, self._is_waiting = self._interval, self._is_waiting, is_waiting
        if interval is None or not self._watches:
            return
        if (session := self._session) is not None:
            with self._changed:
                for each in session.watched if was_waiting and not is_waiting else ():
                    each.put_off(interval)
            return
        # Nodes begin together, and what they share (storage, a service that a command asks) should not be asked by all
        # of them at once.
        now = time.monotonic()
        watched = [_Watched(watch, now + interval * random.uniform(0.5, 1.0)) for watch in self._watches]
        session = self._session = _Session(watched, on_unhealthy)
        session.thread = threading.Thread(target=self._run, args=(session, interval), name="ft_health", daemon=True)
        try:
            session.thread.start()
        except RuntimeError as error:  # pids.max, RLIMIT_NPROC
            self._session = None
            said = f"this node is not checked while its ranks run: the system refuses a thread ({error})"
            announce(said, level=WARNING, event="health")

    def stop(self) -> None:
        """Stop looking, and end a command that runs; :meth:`start` begins anew.

        Returns within a second. ``on_unhealthy`` is not called any more, except that a call which has begun may outlast
        that second.
        """
        session, self._session = self._session, None
        with self._changed:
            for watch in self._watches:
                watch.cancel()
            if session is not None:
                session.is_over = True
            self._changed.notify_all()
        if session is not None and session.thread is not None and session.thread is not threading.current_thread():
            session.thread.join(_STOP_SECONDS)

    def _look(self, watches: Collection[Watch]) -> dict[Watch, str]:
        """Run checks, all at once, and return the reasons of those that have failed."""
        with self._changed:
            for watch in watches:
                watch.begin()
            answers: dict[Watch, Answer] = {}
            while waiting := [watch for watch in watches if watch not in answers]:
                new = {watch: answer for watch in waiting if (answer := watch.answer()) is not None}
                answers.update(new)
                if not new:
                    self._changed.wait(min(watch.seconds_left() for watch in waiting))
        return {watch: reason for watch in watches if (reason := answers[watch].reason) is not None}

    def _let_come_back(self, watches: Collection[Watch]) -> None:
        seconds = max([_AGAIN_SECONDS, *(watch.bound_seconds for watch in watches if watch.is_busy)])
        end = time.monotonic() + _AGAIN_SECONDS
        with self._changed:
            self._changed.wait_for(lambda: not any(watch.is_busy for watch in watches), seconds)
            while (left := end - time.monotonic()) > 0:
                self._changed.wait(left)

    def _run(self, session: _Session, interval_seconds: float) -> None:
        while True:
            with self._changed:
                again = _AGAIN_SECONDS if self._is_waiting else interval_seconds
                watched = [] if session.is_over else session.watched
                findings = [each.advance(interval_seconds, again) for each in watched]
                if not any(findings) and not session.is_over:
                    self._changed.wait(min(each.seconds_left() for each in session.watched))
            for finding in findings:
                if session.is_over:
                    return
                if finding is not None:
                    self._tell(session, finding)
            if session.is_over:
                return

    def _tell(self, session: _Session, finding: Unhealthy) -> None:
        try:
            session.on_unhealthy(finding)
        except Exception as error:  # noqa: BLE001 - the next finding is to be told all the same
            announce(f"{finding} - and what should act on it has failed: {error!r}", level=WARNING, event="health")
