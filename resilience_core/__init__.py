"""Events, monitor client, learned timeouts and configuration: what every other package stands on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resilience_core._lazy import attach

if TYPE_CHECKING:
    from resilience_core.bus import EventBus as EventBus
    from resilience_core.bus import bus as bus
    from resilience_core.client import RankMonitorClient as RankMonitorClient
    from resilience_core.config import FaultToleranceConfig as FaultToleranceConfig
    from resilience_core.control import WorkloadAction as WorkloadAction
    from resilience_core.control import WorkloadControlRequest as WorkloadControlRequest
    from resilience_core.errors import ConfigError as ConfigError
    from resilience_core.errors import RankMonitorClientError as RankMonitorClientError
    from resilience_core.errors import ResilienceError as ResilienceError
    from resilience_core.errors import SectionError as SectionError
    from resilience_core.errors import StopTraining as StopTraining
    from resilience_core.heartbeats import HeartbeatMonitor as HeartbeatMonitor
    from resilience_core.hookspecs import RunContext as RunContext
    from resilience_core.hookspecs import hookimpl as hookimpl
    from resilience_core.sections import SectionMonitor as SectionMonitor

_EXPORTS = {
    "ConfigError": "errors",
    "EventBus": "bus",
    "FaultToleranceConfig": "config",
    "HeartbeatMonitor": "heartbeats",
    "RankMonitorClient": "client",
    "RankMonitorClientError": "errors",
    "ResilienceError": "errors",
    "RunContext": "hookspecs",
    "SectionError": "errors",
    "SectionMonitor": "sections",
    "StopTraining": "errors",
    "WorkloadAction": "control",
    "WorkloadControlRequest": "control",
    "bus": "bus",
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
