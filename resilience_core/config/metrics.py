"""Settings for the metrics that each node serves."""

from __future__ import annotations

import attrs

from resilience_core.config import converters as values
from resilience_core.config.setting import described

__all__ = ["MetricsSettings"]

_NOTHING = frozenset({"", "null", "none", "~"})
_PORT = "give a port, 1 to 65535, or 0 for any that is free"


def _port(value: float | str | None) -> int | None:
    """Read a port; ``null`` and nothing are none."""
    if value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING):
        return None
    try:
        port = values.count(value)
    except ValueError:
        raise ValueError(_PORT) from None
    if port > 65535:
        raise ValueError(_PORT)
    return port


def _host(value: str) -> str:
    """Read a name or an address of this machine."""
    host = value.strip() if isinstance(value, str) else ""
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or any(character in host for character in "/[]\0 "):
        raise ValueError("give an address or a name of this machine, for example 127.0.0.1, or 0.0.0.0 for all of its")
    return host


@attrs.frozen(kw_only=True, slots=False)
class MetricsSettings:
    """Where a node serves its metrics."""

    metrics_port: int | None = attrs.field(
        default=None,
        converter=_port,
        metadata=described(
            "PORT",
            "Serve OpenMetrics of this node at http://HOST:PORT/metrics; 0 takes a free port, which is announced. "
            "Needs prometheus-client (the extra 'metrics'). null serves none.",
        ),
    )
    metrics_host: str = attrs.field(
        default="127.0.0.1",
        converter=_host,
        metadata=described(
            "HOST",
            "The address that metrics are served at; 0.0.0.0 is every IPv4 address of the node, :: also IPv6. Whoever "
            "reaches it may read them.",
        ),
    )
    metrics_straggler_log: str | None = attrs.field(
        default=None,
        converter=values.path,
        metadata=described(
            "PATH",
            "The file that Detector.initialize(log_path=...) writes on rank 0, for the straggler scores among the "
            "metrics of that node; null: none are served.",
        ),
    )
