"""Names of the sections that events become, and what a configuration that names sections must say of them."""

from __future__ import annotations

import logging
from collections.abc import Collection

from resilience_core.errors import UnconfiguredSectionError
from resilience_core.monitoring.client import RankMonitorClient
from resilience_core.suggestions import suggestion

__all__ = ["CHECKPOINTING", "SECTIONS", "SETUP", "STEP", "check_names"]

SETUP, STEP, CHECKPOINTING = SECTIONS = ("setup", "step", "checkpointing")

logger = logging.getLogger(__name__)


def check_names(client: RankMonitorClient, required: Collection[str], rank: int) -> None:
    """Refuse, before training starts, a configuration that names sections but not ours."""
    if not client.cfg.names_sections:
        return
    configured = client.cfg.rank_section_timeouts
    for name in (name for name in SECTIONS if name not in configured):
        hint = suggestion(name, [other for other in configured if other not in SECTIONS])
        fix = f"Add '{name}' with its seconds, or null for no limit; configured are: {', '.join(configured)}"
        if name in required or hint:
            raise UnconfiguredSectionError(
                f"section '{name}' is used but not in rank_section_timeouts{hint or '.'} {fix}"
            )
        if rank == 0:
            logger.warning(
                "section '%s' is not in rank_section_timeouts: training is refused where it is opened first. If this "
                "script opens it: %s",
                name,
                fix,
            )
    unused = [name for name in configured if name not in SECTIONS]
    if unused:
        logger.info("configured sections that only the training code itself can open: %s", ", ".join(unused))
