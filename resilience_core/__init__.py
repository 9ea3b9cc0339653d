"""Events, monitor client, learned timeouts and configuration: what every other package stands on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resilience_core._lazy import attach

if TYPE_CHECKING:
    from resilience_core.config.schema import FaultToleranceConfig as FaultToleranceConfig
    from resilience_core.errors import ConfigError as ConfigError
    from resilience_core.errors import RankMonitorClientError as RankMonitorClientError
    from resilience_core.errors import ResilienceError as ResilienceError
    from resilience_core.errors import SectionError as SectionError
    from resilience_core.errors import StopTraining as StopTraining
    from resilience_core.event_bus import EventBus as EventBus
    from resilience_core.event_bus import bus as bus
    from resilience_core.hookspecs import RunContext as RunContext
    from resilience_core.hookspecs import hookimpl as hookimpl
    from resilience_core.monitoring.client import RankMonitorClient as RankMonitorClient
    from resilience_core.plugins.heartbeat_monitor import HeartbeatMonitor as HeartbeatMonitor
    from resilience_core.plugins.section_monitor import SectionMonitor as SectionMonitor
    from resilience_core.protocol.control import WorkloadAction as WorkloadAction
    from resilience_core.protocol.control import WorkloadControlRequest as WorkloadControlRequest

    __version__: str

_EXPORTS = {
    "ConfigError": "errors",
    "EventBus": "event_bus",
    "FaultToleranceConfig": "config.schema",
    "HeartbeatMonitor": "plugins.heartbeat_monitor",
    "RankMonitorClient": "monitoring.client",
    "RankMonitorClientError": "errors",
    "ResilienceError": "errors",
    "RunContext": "hookspecs",
    "SectionError": "errors",
    "SectionMonitor": "plugins.section_monitor",
    "StopTraining": "errors",
    "WorkloadAction": "protocol.control",
    "WorkloadControlRequest": "protocol.control",
    "bus": "event_bus",
    "hookimpl": "hookspecs",
}

__distribution__ = "torch-resilience"

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one that is there
    __getattr__, __dir__ = attach(__name__, _EXPORTS)

__all__ = [
    "ConfigError",
    "EventBus",
    "FaultToleranceConfig",
    "HeartbeatMonitor",
    "RankMonitorClient",
    "RankMonitorClientError",
    "ResilienceError",
    "RunContext",
    "SectionError",
    "SectionMonitor",
    "StopTraining",
    "WorkloadAction",
    "WorkloadControlRequest",
    "bus",
    "hookimpl",
]
