"""Torch's ``SimpleElasticAgent`` without events where no event log was chosen."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch.distributed.elastic.agent.server.api import SimpleElasticAgent

__all__ = ["QuietAgent"]


class QuietAgent(SimpleElasticAgent):
    """An agent that makes no event, and so asks no resolver, unless an event log was chosen."""

    @contextlib.contextmanager
    def record_duration(self, state: str) -> Iterator[None]:
        """Time a phase for torch's event log, unless that goes nowhere, as it does by default.

        An event asks the resolver for this machine's full name each time, which takes seconds where a name server
        does not answer, and costs a millisecond where one does.
        """
        if not self._has_event_log:
            yield
            return
        with super().record_duration(state):
            yield

    @property
    def _has_event_log(self) -> bool:
        return getattr(self._worker_group.spec, "event_log_handler", "null") != "null"
