"""Settings for ending ranks that are overdue or have failed, and for restarting or ending the job."""

from __future__ import annotations

import signal

import attrs

from resilience_core.config import converters as values
from resilience_core.config.setting import described

__all__ = ["RestartSettings"]


@attrs.frozen(kw_only=True, slots=False)
class RestartSettings:
    """How ranks are ended, and when a job is given up."""

    rank_termination_signal: signal.Signals = attrs.field(
        default=signal.SIGKILL,
        converter=values.termination_signal,
        metadata=described("SIGNAL", "Sent to a rank that hangs, by name (SIGTERM, TERM) or number."),
    )
    failure_stop_timeout: float = attrs.field(
        default=2.0,
        converter=values.duration,
        metadata=described(
            "SECONDS",
            "What the peers of a failed rank get between SIGTERM and SIGKILL. They have nothing left to save. When "
            "the job is ended, or nodes join or leave, ranks get --shutdown-timeout instead.",
        ),
    )
    kill_timeout: float = attrs.field(
        default=60.0,
        converter=values.duration,
        metadata=described(
            "SECONDS",
            "Longest time to wait for killed processes to be gone before the next generation is started all the same. "
            "One that is stuck in a driver or a file system may take long, and holds its GPU memory until then.",
        ),
    )
    exit_barrier_timeout: float = attrs.field(
        default=300.0,
        converter=values.duration,
        metadata=described(
            "SECONDS",
            "Longest time that a node whose ranks have all ended waits for those of the other nodes.",
        ),
    )
    capture_stacks: bool = attrs.field(
        default=True,
        converter=values.boolean,
        metadata=described("true|false", "Take the Python stacks of all local ranks before a hung one is killed."),
    )
    stack_capture_timeout: float = attrs.field(
        default=0.5,
        converter=values.duration,
        metadata=described(
            "SECONDS",
            "Longest time that evidence (stacks, the source of their lines, other nodes that look at their ranks) may "
            "delay the signal.",
        ),
    )
    checkpoint_iteration_file: str | None = attrs.field(
        default=None,
        converter=values.path,
        metadata=described(
            "PATH",
            "A file holding one integer, the iteration of the newest checkpoint; read at each restart to tell whether "
            "the job makes progress.",
        ),
    )
    max_no_progress_cycles: int = attrs.field(
        default=3,
        converter=values.count,
        metadata=described(
            "COUNT",
            "Generations in a row without progress after which the job ends for good; 0: never. Progress is a new "
            "highest iteration, or a checkpoint, saved or loaded, that is newer than that of the generation before, "
            "as the events report them; or that of checkpoint_iteration_file alone. A generation counts as no progress "
            "if it fails near the iteration where the series began: within two iterations if it has loaded a "
            "checkpoint; if no checkpoint is reported, in a step of the same iteration. The following are not judged: "
            "a generation without any iteration; a job whose iterations decrease or repeat within a generation (for "
            "example numbers within an epoch, or of epochs) or begin below the checkpoint that was loaded.",
        ),
    )
    min_progress_iterations: int = attrs.field(
        default=1,
        converter=values.positive_count,
        metadata=described("COUNT", "Iterations that a generation must have gained to count as progress."),
    )
    no_restart_exit_code: int = attrs.field(
        default=93,
        converter=values.exit_code,
        metadata=described(
            "CODE",
            "What ft_launcher exits with when it gives a job up: no progress, or an error in its configuration.",
        ),
    )
    restart_backoff_after: int = attrs.field(
        default=3,
        converter=values.count,
        metadata=described(
            "COUNT",
            "Generations in a row that died early after which the launcher waits before the next; 0: never.",
        ),
    )
