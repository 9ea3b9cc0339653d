"""The rank's client of each contender, under one name; imported by the scripts of this folder only."""

from __future__ import annotations

import os
from typing import Any


def make_client(contender: str) -> Any:
    """An initialised monitor client, or None where the contender has none.

    Args:
        contender: ``ours``, ``nvidia`` or ``torchrun``.
    """
    if contender == "ours":
        from resilience_core import RankMonitorClient

        client = RankMonitorClient()
    elif contender == "nvidia":
        from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient as TheirClient

        client = TheirClient()
    else:
        return None
    client.init_workload_monitoring()
    return client


def generation() -> int:
    """Restarts so far, as each launcher counts them."""
    return int(os.environ.get("FT_RESTART_COUNT", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
