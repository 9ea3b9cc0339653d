"""The names of the environment variables that are ours. ``FT_PY_SPY`` and the like are documented in docs/."""

from __future__ import annotations

__all__ = [
    "PREFIX",
    "CELL_VARIABLE",
    "CONFIG_VARIABLE",
    "CONTROL_VARIABLE",
    "EVENT_VARIABLE",
    "FAULTS_VARIABLE",
    "FINISHED_FLAG_VARIABLE",
    "LAUNCHER_VARIABLE",
    "PLUGINS_VARIABLE",
    "PY_SPY_VARIABLE",
    "REHEARSAL_VARIABLE",
    "RELAXED_VARIABLE",
    "RESTART_COUNT_VARIABLE",
]

PREFIX = "FT_"
"""The prefix of our variables, except :data:`FINISHED_FLAG_VARIABLE`."""
CELL_VARIABLE = "FT_CELL"
"""The path of the rank's cell."""
CONFIG_VARIABLE = "FT_CONFIG_FILE"
"""The path of the configuration that the launcher hands to its ranks, as JSON."""
CONTROL_VARIABLE = "FT_CONTROL_SOCKET"
"""The path of the socket at which the launcher takes workload control requests."""
LAUNCHER_VARIABLE = "FT_LAUNCHER_PID"
RESTART_COUNT_VARIABLE = "FT_RESTART_COUNT"
"""Which generation this is, from 0."""
RELAXED_VARIABLE = "FT_RELAXED_LIMITS"
"""How many verdicts each learned limit has led to in earlier generations of the job, as JSON."""
EVENT_VARIABLE = "FT_EVENT"
"""The name of the event that a command of ``on_event`` is called for."""
FAULTS_VARIABLE = "FT_SIMULATED_FAULTS"
FINISHED_FLAG_VARIABLE = "FAULT_TOL_FINISHED_FLAG_FILE"
"""The path of the file that tells ``ft_autoresume`` that training is complete; the name is nvidia-resiliency-ext's."""
PLUGINS_VARIABLE = "FT_LOAD_PLUGINS"
"""Whether ranks load installed plugins; ``0`` or ``false`` switches that off."""
PY_SPY_VARIABLE = "FT_PY_SPY"
"""The path of the py-spy to take stacks with, instead of the one that is found."""
REHEARSAL_VARIABLE = "FT_REHEARSAL"
"""Set in a parked worker while it rehearses, which is before any script runs."""
