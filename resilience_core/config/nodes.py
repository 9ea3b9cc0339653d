"""Settings for a job on several nodes: who belongs to it, and when a silent node is lost."""

from __future__ import annotations

import attrs

from resilience_core.config import node_values as values
from resilience_core.config.setting import described

__all__ = ["NodeSettings"]


@attrs.frozen(kw_only=True, slots=False)
class NodeSettings:
    """How the launchers of several nodes hold together; has no effect on one node, or with torch's rendezvous."""

    membership: str | None = attrs.field(
        default=None,
        converter=values.membership,
        metadata=described(
            "elastic|fixed|torch",
            "How the launchers of several nodes hold together. elastic and fixed: they agree by themselves, so that "
            "the job outlives any single node; a generation has whoever is there, from MIN to MAX of --nnodes "
            "(elastic), or exactly MIN nodes, and the others are spares (fixed). torch: they meet through torch's "
            "rendezvous, as under torchrun. null is elastic with the backends c10d and static, else torch.",
        ),
    )
    newcomers: str = attrs.field(
        default="restart",
        converter=values.newcomers,
        metadata=described(
            "restart|checkpoint",
            "When nodes that come later take part in an elastic job: at the next restart, or once all ranks have saved "
            "their next checkpoint, for which a generation that runs well is ended. Checkpoints are what the ranks "
            "report with an iteration (checkpoint_end), as the adapters do.",
        ),
    )
    node_lease: float = attrs.field(
        default=5.0,
        converter=values.node_lease,
        metadata=described(
            "SECONDS",
            "A node that is silent for so long is lost, and by then has stopped its ranks.",
        ),
    )
    rank_key: str | None = attrs.field(
        default=None,
        converter=values.optional_text,
        metadata=described(
            "TEXT",
            "What nodes are sorted by, as text with numbers in it by their value; null is "
            "--node-rank where given, else the scheduler's number of the node, else the order of joining.",
        ),
    )
    node_secret_file: str | None = attrs.field(
        default=None,
        converter=values.optional_text,
        metadata=described(
            "FILE",
            "A file with the secret that launchers of the job prove to each other, 16 bytes or "
            "more; FT_NODE_SECRET in the environment does the same. null derives it from --rdzv-id, which keeps jobs "
            "apart but proves nothing.",
        ),
    )
    health_checks: tuple[str, ...] | None = attrs.field(
        default=None,
        converter=values.health_checks,
        metadata=described(
            "NAME,...",
            "What each node is checked for before it joins the job and while its ranks run: paths, shm, memory, nic, "
            "nvml, command, or names of installed checks; some take an argument, as paths:/data=10G or nic:ib0. "
            "default stands for paths,shm,memory, all installed ones, and nvml where there are GPUs; so does null. "
            "none: no check.",
        ),
    )
    health_check: str | None = attrs.field(
        default=None,
        converter=values.command,
        metadata=described(
            "COMMAND",
            "A command for the shell that checks the node: 0 is healthy, otherwise its last line of output is the "
            "reason. It is run with whatever else is checked, unless health_checks is none.",
        ),
    )
    health_check_interval: float | None = attrs.field(
        default=60.0,
        converter=values.health_interval,
        metadata=described(
            "SECONDS",
            "Time between two looks at the node while its ranks run, or it waits; null: only before it takes part.",
        ),
    )
    health_check_timeout: float = attrs.field(
        default=10.0,
        converter=values.health_timeout,
        metadata=described(
            "SECONDS",
            "Longest time that a check of the node may take; one that takes longer has failed. An installed check may "
            "have a bound of its own.",
        ),
    )
