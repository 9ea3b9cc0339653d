"""What the two monitors share: a client for one run of the loop, from ``setup`` to ``teardown``."""

from __future__ import annotations

import logging
import os
import weakref

from resilience_core.errors import RankMonitorClientError
from resilience_core.hookspecs import CheckpointKind, LoadSource, RunContext
from resilience_core.monitoring.client import RankMonitorClient
from resilience_core.plugins.timeout_learning import RunHistory, TimeoutLearner

__all__ = ["MonitorPlugin", "Watch"]

logger = logging.getLogger(__name__)


class Watch:
    """A client's life around one run of the loop, with its history and its learner.

    Args:
        client: The client to use; one of its own when None. One that somebody else initialised is used as it is
            and left so: whoever initialised it shuts it down. Watches that share a client share its life, too: the
            first begins it, the last ends it.
        state_path: Where learned timeouts are kept.
        calculate_timeouts: Learn timeouts.
    """

    def __init__(
        self,
        client: RankMonitorClient | None,
        state_path: str | os.PathLike[str] | None,
        calculate_timeouts: bool,
    ) -> None:
        self.client = RankMonitorClient() if client is None else client
        self.history = RunHistory()
        self.learner = TimeoutLearner(state_path, calculate_timeouts)
        self.is_on = False
        self._is_ours = False

    def begin(self, context: RunContext) -> bool:
        """Begin to be monitored, where there is a monitor.

        Returns:
            Whether there is one. Without one, why is logged once, and training goes on unprotected.
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
            _watches[client] = 0
        self._is_ours = client in _watches
        if self._is_ours:
            _watches[client] += 1
        self.history = RunHistory(
            warmup_iterations=client.cfg.num_warmup_iterations, asynchronous_saves=context.asynchronous_saves
        )
        self.learner.begin(client, context)
        self.is_on = True
        return True

    def loaded(self, iteration: int, source: LoadSource) -> None:
        """Note that a checkpoint was loaded; training resumes from ``iteration``."""
        self.client.note_checkpoint_loaded(iteration)
        self.history.loaded(source)

    def saved(self, iteration: int, kind: CheckpointKind, error: BaseException | None) -> bool:
        """Note that saving, finalizing or removing is over.

        Returns:
            Whether this was a save that something can be learned after.
        """
        if error is None and kind != "remove":
            self.client.note_checkpoint_saved(iteration)
        return self.history.saved(kind, error)

    def end(self) -> None:
        """Shut down what :meth:`begin` has started; more than once is no error."""
        if self.is_on and self._is_ours:
            left = _watches.get(self.client, 1) - 1
            if left > 0:
                _watches[self.client] = left
            else:
                _watches.pop(self.client, None)
                self.client.shutdown_workload_monitoring()
        self.is_on = False


_watches: weakref.WeakKeyDictionary[RankMonitorClient, int] = weakref.WeakKeyDictionary()
"""How many watches live on a client that one of them has initialised."""

_refused: weakref.WeakSet[RankMonitorClient] = weakref.WeakSet()
"""Clients that found no monitor, which is said once for each."""


class MonitorPlugin:
    """What a person can reach of a monitor of the event bus, whichever API it uses."""

    _watch: Watch

    @property
    def client(self) -> RankMonitorClient:
        """The client that is used."""
        return self._watch.client

    @property
    def history(self) -> RunHistory:
        """What the run has seen so far."""
        return self._watch.history

    @property
    def state_path(self) -> str | os.PathLike[str] | None:
        """The file of learned timeouts."""
        return self._watch.learner.state_path

    @state_path.setter
    def state_path(self, path: str | os.PathLike[str] | None) -> None:
        self._watch.learner.state_path = path
