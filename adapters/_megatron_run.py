"""The run of the Megatron module that belongs to a global state, found by its ``rank_monitor_client``."""

from __future__ import annotations

from typing import Any, NamedTuple

from resilience_core.errors import RankMonitorClientError
from resilience_core.monitoring.client import RankMonitorClient
from resilience_core.plugins.section_monitor import SectionMonitor
from resilience_core.translator import Translator

__all__ = ["MegatronRun", "add_run", "all_runs", "find_run", "remove_run"]


class MegatronRun(NamedTuple):
    """What lives from ``setup`` to ``shutdown`` or ``abort``."""

    translator: Translator
    monitor: SectionMonitor
    autoresume: bool


_runs: dict[RankMonitorClient, MegatronRun] = {}


def add_run(global_state: Any, run: MegatronRun) -> None:
    """Let a run belong to a global state; its ``rank_monitor_client`` is set."""
    _runs[run.translator.client] = run
    global_state.rank_monitor_client = run.translator.client


def all_runs() -> list[MegatronRun]:
    """Return the runs that have neither been shut down nor aborted, the one that began last at the end."""
    return list(_runs.values())


def find_run(global_state: Any) -> MegatronRun | None:
    """Return the run of a global state, None where it has none.

    Raises:
        RankMonitorClientError: Its ``rank_monitor_client`` was not made by ``adapters.megatron.setup``.
    """
    client = getattr(global_state, "rank_monitor_client", None)
    if client is None:
        return None
    try:
        return _runs[client]
    except (KeyError, TypeError):
        raise RankMonitorClientError(
            f"global_state.rank_monitor_client is {client!r}, which adapters.megatron.setup() did not make; leave it "
            "None and call setup(config, global_state)"
        ) from None


def remove_run(global_state: Any) -> MegatronRun | None:
    """Return the run of a global state, which has none from now on; None where it had none."""
    run = find_run(global_state)
    if run is not None:
        _runs.pop(run.translator.client, None)
        global_state.rank_monitor_client = None
    return run
