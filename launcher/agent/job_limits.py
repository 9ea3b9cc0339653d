"""What a job teaches about its limits, kept by the launcher from one generation to the next.

Ranks begin anew in each generation, with the same state file; a limit that was wrong would kill each of them at the
same place. The launcher remembers which learned limits have led to a verdict (the ranks get the counts in their
environment and make those limits longer), and how long ranks took to initialise monitoring.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from launcher.incidents.incident import Incident
from launcher.monitor.verdict import STARTUP
from resilience_core.config.schema import FaultToleranceConfig
from resilience_core.environment import RELAXED_VARIABLE
from resilience_core.monitoring.interval_evidence import NO_RESTART_FACTOR
from resilience_core.protocol.limit_kinds import RELAXATION
from resilience_core.protocol.verdict_counts import write_verdicts
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["JobLimits", "StartupLimit", "spared", "unmonitored"]


class StartupLimit(NamedTuple):
    """By when a rank must have initialised monitoring."""

    seconds: float
    origin: str
    advice: str
    is_learned: bool


class JobLimits:
    """One per job and node.

    Args:
        config: The configured limits and the rules.
    """

    def __init__(self, config: FaultToleranceConfig) -> None:
        self._config = config
        self._relaxed: dict[str, int] = {}
        self._longest_start_ns = 0
        self._initialised: set[int] = set()
        self.has_noted_the_unmonitored = False
        self.has_noted_the_leaving = False

    # ---- learned limits that have led to a verdict --------------------------------------------------------

    def note_verdict(self, incident: Incident) -> list[str]:
        """Remember the learned limits of an incident; returns what to say about them."""
        kinds = sorted({rank.limit_learned for rank in incident.condemned if rank.limit_learned is not None})
        for kind in kinds:
            self._relaxed[kind] = self._relaxed.get(kind, 0) + 1
        return [
            f"the learned limit '{kind}' has led to {self._relaxed[kind]} verdict(s); in the next generations of this "
            f"job what is learned for it is multiplied by {RELAXATION ** self._relaxed[kind]}"
            for kind in kinds
        ]

    def environment(self) -> dict[str, str]:
        """Return the variables that tell the ranks of the next generation."""
        return {RELAXED_VARIABLE: write_verdicts(self._relaxed)} if self._relaxed else {}

    # ---- how long ranks take to initialise monitoring -----------------------------------------------------

    @property
    def has_used_the_client(self) -> bool:
        """Return whether a rank of this job has initialised monitoring here."""
        return bool(self._initialised)

    def note_starts(self, started_ns: int, initialised_ns: Mapping[int, int | None]) -> None:
        """Remember when the local ranks of a generation have initialised monitoring.

        Args:
            started_ns: When the generation was started.
            initialised_ns: By local rank; None for one that has not.
        """
        for local_rank, at_ns in initialised_ns.items():
            if at_ns is not None:
                self._initialised.add(local_rank)
                self._longest_start_ns = max(self._longest_start_ns, at_ns - started_ns)

    def startup(self, local_rank: int, uses_client: bool, is_last: bool = False) -> StartupLimit | None:
        """Return the limit that a local rank of the next generation is held to.

        A configured one counts once something tells that the job uses the client at all; else it would kill a job that
        never meant to be monitored. Without one, a rank whose predecessor has initialised monitoring must do so, too.
        Where no restart is left, a verdict costs the job, and a few starts are too little evidence for that: one that
        loads a checkpoint for the first time may take a hundred times as long as the one before.

        Args:
            local_rank: Which.
            uses_client: Whether the script, or what it imports, names the client.
            is_last: No restart is left.
        """
        config = self._config
        if config.rank_startup_timeout is not None:
            if not (uses_client or self._initialised):
                return None
            option = "--ft-rank-startup-timeout"
            advice = f"If this is legitimately slow, raise the limit: {option} SECONDS"
            return StartupLimit(config.rank_startup_timeout, f"configured: {option}", advice, is_learned=False)
        if local_rank not in self._initialised or config.learned_limits == "off":
            return None
        longest = self._longest_start_ns / NS_PER_SECOND
        relaxed = self._relaxed.get(STARTUP, 0)
        seconds = max(config.safety_factor * longest, config.thin_evidence_floor, 1.0) * RELAXATION**relaxed
        after = f", {RELAXATION**relaxed} times as long after {relaxed} verdict(s)" if relaxed else ""
        at_least = config.thin_evidence_floor * NO_RESTART_FACTOR
        if is_last and config.learned_limits == "relax" and seconds < at_least:
            after += f", and {at_least:g} s since no restart is left"
            seconds = at_least
        origin = (
            f"learned: {config.safety_factor:g} x {longest:.3g} s, the longest start in this job, at least "
            f"{config.thin_evidence_floor:g} s{after}; --ft-learned-limits off switches it off"
        )
        advice = (
            "If this is legitimately slow, configure a limit: --ft-rank-startup-timeout SECONDS; or switch learned "
            "limits off: --ft-learned-limits off"
        )
        return StartupLimit(seconds, origin, advice, is_learned=True)


def unmonitored(ranks: Collection[int], is_nobody: bool, seconds: float) -> list[str]:
    """Return what to say about ranks that run, and have not initialised monitoring.

    Args:
        ranks: Which.
        is_nobody: None of the node's has, those that have ended included.
        seconds: For how long they have run.
    """
    names = ", ".join(map(str, sorted(ranks)))
    if not is_nobody:
        return [
            f"rank {names} has not called init_workload_monitoring() for {seconds:g} s, while others have: "
            "hangs of it are not detected until it does (said once)"
        ]
    return [
        f"no rank has reported anything for {seconds:g} s: crashes are detected, hangs are not "
        "until a rank reports. If none ever will, add three lines,",
        "  client = resilience_core.RankMonitorClient()",
        "  client.init_workload_monitoring()   # before the loop",
        "  client.send_heartbeat()             # in each step",
        "or the adapter of your framework (docs/adapters.md); --ft-unmonitored-notice-after null leaves this out",
    ]


def spared(ranks: Collection[int], seconds: float, script: str) -> str:
    """Return what to say about ranks that a configured startup limit would have hit."""
    names = ", ".join(map(str, sorted(ranks)))
    return (
        f"rank {names} has not called init_workload_monitoring() within --ft-rank-startup-timeout {seconds:g}, and is "
        f"spared: nothing tells that this job uses it (no rank here has called it, and neither {script} nor what it "
        "imports from beside it names resilience_core or adapters). The limit counts once a rank has called it"
    )
