"""The plugins that an adapter subscribes for a run: its monitor, the finished flag, the exception policy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from resilience_core.errors import ConfigError
from resilience_core.monitoring.client import RankMonitorClient
from resilience_core.plugins.exception_policy import ExceptionHandling, ExceptionPolicy
from resilience_core.plugins.finished_flag import FinishedFlag
from resilience_core.plugins.heartbeat_monitor import HeartbeatMonitor
from resilience_core.plugins.section_monitor import SectionMonitor
from resilience_core.suggestions import nearest

__all__ = ["check_api", "listeners", "make_monitor"]

_MONITORS: dict[str, Callable[..., SectionMonitor | HeartbeatMonitor]] = {
    "sections": SectionMonitor,
    "heartbeats": HeartbeatMonitor,
}


def check_api(api: str) -> None:
    """Check that there is a monitor for an adapter's argument ``api``.

    Raises:
        ConfigError: There is none.
    """
    if api not in _MONITORS:
        raise ConfigError(f"api is {api!r}; it must be sections or heartbeats{nearest(str(api), _MONITORS)}")


def make_monitor(
    api: str,
    client: RankMonitorClient,
    *,
    state_path: str | os.PathLike[str] | None,
    calculate_timeouts: bool,
    required: Iterable[str] | None = None,
) -> SectionMonitor | HeartbeatMonitor:
    """Make the monitor that an adapter's argument ``api`` asks for.

    Args:
        api: ``sections`` or ``heartbeats``.
        client: The rank's client.
        state_path: A file that keeps learned timeouts from job to job.
        calculate_timeouts: Learn timeouts from what is observed.
        required: Sections that the configuration must have; None: those of :class:`SectionMonitor`.

    Raises:
        ConfigError: ``api`` is neither.
    """
    check_api(api)
    given = {} if required is None or api != "sections" else {"required": tuple(required)}
    return _MONITORS[api](client, state_path=state_path, calculate_timeouts=calculate_timeouts, **given)


def listeners(
    monitor: SectionMonitor | HeartbeatMonitor,
    client: RankMonitorClient,
    *,
    autoresume: bool,
    exception_policy: ExceptionHandling | None = None,
) -> list[object]:
    """Return the plugins of a run, in the order in which they are subscribed.

    Args:
        monitor: As :func:`make_monitor` made it.
        client: The rank's client.
        autoresume: Make the finished flag when training is complete.
        exception_policy: What to ask of the launcher when an exception ends training.

    Raises:
        ConfigError: ``autoresume`` is no bool: a text such as "no" would turn it on.
    """
    given: object = autoresume
    if not isinstance(given, bool):
        raise ConfigError(f"autoresume is {given!r} ({type(given).__name__}); it must be True or False")
    plugins: list[object] = [monitor]
    if autoresume:
        plugins.append(FinishedFlag())
    if exception_policy is not None:
        plugins.append(ExceptionPolicy(exception_policy, client))
    return plugins
