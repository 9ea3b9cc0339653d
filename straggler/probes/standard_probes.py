"""The list of all probes, and the choice of those that work on this machine."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from straggler.probes.guarded import GuardedProbe
from straggler.probes.probe import Probe

__all__ = ["choose", "standard_probes"]

logger = logging.getLogger(__name__)


def standard_probes(profiling_interval: int) -> list[Probe]:
    """Return every probe there is, in the order in which they are asked."""
    from straggler.probes.cpu_wall import CpuWallProbe
    from straggler.probes.cuda_events import CudaEventsProbe
    from straggler.probes.cupti import CuptiProbe
    from straggler.probes.host_cpu import HostCpuProbe
    from straggler.probes.nvml import NvmlProbe

    return [CpuWallProbe(), CudaEventsProbe(), CuptiProbe(), NvmlProbe(), HostCpuProbe()]


def choose(candidates: Sequence[Probe]) -> list[Probe]:
    """Start the probes that work on this machine, and log the reason why each other one does not.

    Returns:
        Those that work, each behind a guard, so that none raises into training.
    """
    chosen: list[Probe] = []
    refused: list[str] = []
    for probe in candidates:
        guarded = GuardedProbe(probe)
        reason = guarded.unavailable_because()
        if not reason:
            guarded.start()
            reason = guarded.lost_because
        if reason:
            refused.append(f"{probe.name} ({reason})")
        else:
            chosen.append(guarded)
    without = f"; not {', '.join(refused)}" if refused else ""
    logger.info("straggler probes: %s%s", ", ".join(p.name for p in chosen) or "none", without)
    return chosen
