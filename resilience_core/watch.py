"""What the two monitors share: a client for one run of the loop, from ``setup`` to ``teardown``."""

from __future__ import annotations

import logging
import os

from resilience_core.client import RankMonitorClient
from resilience_core.errors import RankMonitorClientError
from resilience_core.hookspecs import RunContext
from resilience_core.learning import RunHistory, TimeoutLearner

__all__ = ["Watch"]

logger = logging.getLogger(__name__)


class Watch:
    """A client's life around one run of the loop, with its history and its learner.

    Args:
        client: The client to use; one of its own when None. One that is initialised already is used as it is
            and left so: whoever initialised it shuts it down.
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
        self._reason_was_said = False

    def begin(self, context: RunContext) -> bool:
        """Begin to be monitored, where there is a monitor.

        Returns:
            Whether there is one. Without one, why is logged once, and training goes on unprotected.
        """
        client = self.client
        self._is_ours = not client.is_initialized
        if self._is_ours:
            try:
                client.init_workload_monitoring()
            except RankMonitorClientError as error:
                if not self._reason_was_said:
                    self._reason_was_said = True
                    logger.warning("training goes on without a rank monitor: %s", error)
                return False
        self.history = RunHistory(
            warmup_iterations=client.cfg.num_warmup_iterations, asynchronous_saves=context.asynchronous_saves
        )
        self.learner.begin(client, context)
        self.is_on = True
        return True

    def end(self) -> None:
        """Shut down what :meth:`begin` has started; more than once is no error."""
        if self.is_on and self._is_ours:
            self.client.shutdown_workload_monitoring()
        self.is_on = False
