"""Settings for telling people what happens to a job while it runs."""

from __future__ import annotations

import attrs

from resilience_core.config import notice_values as values
from resilience_core.config.node_values import health_timeout
from resilience_core.config.setting import described

__all__ = ["NoticeSettings"]


@attrs.frozen(kw_only=True, slots=False)
class NoticeSettings:
    """Whom to tell of failures, restarts and the end of a job."""

    on_event: str | None = attrs.field(
        default=None,
        converter=values.on_event,
        metadata=described(
            "COMMAND|URL",
            "Called with one JSON document for each failure, restart, near miss, loss of protection, and for the end "
            "of the job. A command gets it on standard input; it is split into words as by a shell, but no shell runs "
            "it. A URL (http, https) gets it as a POST. Nothing waits for it.",
            values.quoted,
        ),
    )
    on_event_timeout: float = attrs.field(
        default=10.0,
        converter=health_timeout,
        metadata=described(
            "SECONDS",
            "Longest time that one call of on_event may take, 0.1 to 3600; then it is killed with everything that it "
            "has started.",
        ),
    )
