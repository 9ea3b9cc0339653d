"""What the two monitors share: a client for one run of the loop, from ``setup`` to ``teardown``."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable
from threading import get_ident

from resilience_core.errors import ConfigError, RankMonitorClientError, StopTraining
from resilience_core.exception_text import text_of
from resilience_core.hookspecs import CheckpointKind, LoadSource, RunContext
from resilience_core.monitoring.client import RankMonitorClient
from resilience_core.plugins.timeout_learning import RunHistory, TimeoutLearner

__all__ = ["MonitorPlugin", "MonitorSession"]

logger = logging.getLogger(__name__)


def _check(state_path: object, calculate_timeouts: object) -> None:
    if state_path is not None and not isinstance(state_path, (str, os.PathLike)):
        raise ConfigError(f"state_path is {state_path!r} ({type(state_path).__name__}); it must be a path, or None")
    if not isinstance(calculate_timeouts, bool):
        name = type(calculate_timeouts).__name__
        raise ConfigError(f"calculate_timeouts is {calculate_timeouts!r} ({name}); it must be True or False")


class MonitorSession:
    """A client's life around one run of the loop, with its history and its learner.

    Args:
        client: The client to use; one of its own when None. One that somebody else initialised is used as it is
            and left so: whoever initialised it shuts it down. Sessions that share a client share its lifetime:
            the first initialises it, the last shuts it down.
        state_path: Where learned timeouts are kept.
        calculate_timeouts: Learn timeouts.

    Raises:
        ConfigError: One of the last two has the wrong type.
    """

    def __init__(
        self,
        client: RankMonitorClient | None,
        state_path: str | os.PathLike[str] | None,
        calculate_timeouts: bool,
    ) -> None:
        _check(state_path, calculate_timeouts)
        self.client = RankMonitorClient() if client is None else client
        self.history = RunHistory()
        self.learner = TimeoutLearner(state_path, calculate_timeouts)
        self.is_active = False
        self._is_ours = False
        self._has_refused_an_iteration = False
        self._begun: dict[int | None, tuple[int, int]] = {}
        """By thread: when its last save began, and how many steps were done by then."""

    def start(self, context: RunContext) -> bool:
        """Begin to be monitored, where there is a monitor.

        Returns:
            Whether there is one. If not, the reason is logged once, and training goes on unprotected.
        """
        client = self.client
        if not client.is_initialized:
            try:
                client.init_workload_monitoring()
            except RankMonitorClientError as error:
                if client not in _refused:
                    _refused.add(client)
                    logger.warning("training goes on without a rank monitor: %s", error)
                return False
            _sessions[client] = 0
        self._is_ours = client in _sessions
        if self._is_ours:
            _sessions[client] += 1
        self.history = RunHistory(
            warmup_iterations=client.cfg.num_warmup_iterations, asynchronous_saves=context.asynchronous_saves
        )
        self._begun = {}
        self.learner.begin(client, context)
        self.is_active = True
        return True

    def tell(self, note: Callable[[int], None], iteration: int) -> None:
        """Call ``note`` with a step's number; one that cannot be told is said once."""
        try:
            note(iteration)
        except (TypeError, ValueError) as error:
            self.note_no_iteration(error)

    def note_no_iteration(self, error: Exception) -> None:
        """Say once that a step's number cannot be told to the launcher; the step is watched as any other."""
        if not self._has_refused_an_iteration:
            self._has_refused_an_iteration = True
            logger.warning("%s. Limits apply all the same, but no progress is seen (said once)", error)

    def begin_steps(self, iteration: int) -> None:
        """Note that the first training step begins."""
        if self.is_active:
            self.client.note_first_step(iteration)

    def loaded(self, iteration: int, source: LoadSource) -> None:
        """Note that a checkpoint was loaded; training resumes from ``iteration``."""
        self.client.note_checkpoint_loaded(iteration)
        self.history.loaded(source)

    def save_begins(self, *, is_outermost: bool) -> None:
        """Note that this thread begins to save; steps may go on in another one meanwhile."""
        if is_outermost:
            self._begun[get_ident()] = time.monotonic_ns(), self.history.steps

    def saved(
        self, iteration: int, kind: CheckpointKind, error: BaseException | None, thread: int | None = None
    ) -> bool:
        """Note that saving, finalizing or removing is over.

        Args:
            iteration: Of the checkpoint.
            kind: What was done.
            error: What went wrong, or None.
            thread: In which it began; None where that is not known.

        Returns:
            Whether this was a save that something can be learned after.
        """
        if error is None and kind == "finalize":
            self.client.note_checkpoint_finalized(iteration)
        elif error is None and kind != "remove":
            began_ns, steps = self._begun.get(thread, (0, self.history.steps))
            self.client.note_checkpoint_saved(iteration, began_ns if self.history.steps > steps else None)
        if error is not None:
            self.learner.refuse()
        return self.history.saved(kind, error)

    def failed(self, error: BaseException) -> None:
        """Note that an exception is leaving the loop: nothing is learned from this run.

        The reason of :class:`StopTraining` is logged: it passes silently through Python, as ``SystemExit`` does.
        """
        self.history.has_failed = True
        self.learner.refuse()
        if isinstance(error, StopTraining):
            # Its text before its reason, which a subclass that does not call our __init__ leaves unset.
            logger.warning("training is stopped: %s", text_of(error) or error.reason)

    def stop(self) -> None:
        """Shut down what :meth:`start` has started; more than once is no error."""
        if self.is_active and self._is_ours:
            left = _sessions.get(self.client, 1) - 1
            if left > 0:
                _sessions[self.client] = left
            else:
                _sessions.pop(self.client, None)
                self.client.shutdown_workload_monitoring()
        self.is_active = False


_sessions: weakref.WeakKeyDictionary[RankMonitorClient, int] = weakref.WeakKeyDictionary()
"""How many sessions use a client that one of them has initialised."""

_refused: weakref.WeakSet[RankMonitorClient] = weakref.WeakSet()
"""Clients that found no monitor, which is said once for each."""


class MonitorPlugin:
    """The public attributes of a monitor of the event bus, whichever API it uses."""

    _session: MonitorSession

    @property
    def client(self) -> RankMonitorClient:
        """The client that is used."""
        return self._session.client

    @property
    def history(self) -> RunHistory:
        """What the run has seen so far."""
        return self._session.history

    @property
    def state_path(self) -> str | os.PathLike[str] | None:
        """The file of learned timeouts."""
        return self._session.learner.state_path

    @state_path.setter
    def state_path(self, path: str | os.PathLike[str] | None) -> None:
        self._session.learner.state_path = path
