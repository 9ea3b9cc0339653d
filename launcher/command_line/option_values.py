"""Check values of torchrun's options that torch would accept silently, or refuse with an unclear message."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Mapping
from typing import Any

from torch.distributed import run as torchrun

from launcher.processes.proc import largest_pid
from launcher.processes.working_folder import working_folder_phrase
from resilience_core.errors import ConfigError
from resilience_core.suggestions import suggestion

__all__ = [
    "check_local_ranks",
    "check_values",
    "exit_timeout",
    "local_world_size",
    "problem_with_script",
    "unknown_rendezvous_keys",
]

SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_STREAMS = re.compile(r"[0-3]")
_STREAMS_BY_RANK = re.compile(r"\d+:[0-3](,\d+:[0-3])*")
_TIMES = frozenset(
    {"timeout", "read_timeout", "join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout"}
)
_RENDEZVOUS_KEYS = _TIMES | {
    *("is_host", "store_type", "rank", "use_libuv", "keep_alive_interval", "keep_alive_max_attempt")
}
"""That torch's static and c10d rendezvous read in some version that we support, and ours."""
_LARGEST_WAIT_SECONDS = 1e9


def check_values(arguments: Any, most_nodes: int) -> None:
    """Check what can be checked without asking for devices, which a process that is to be forked must not do.

    Args:
        arguments: What torchrun's parser made of it; names of signals are tidied.
        most_nodes: The upper bound of ``--nnodes``.

    Raises:
        ConfigError: The option, its value and what to write.
    """
    for name in ("redirects", "tee"):
        _check_streams(f"--{name}", str(getattr(arguments, name)))
    if not 0 < arguments.monitor_interval <= _LARGEST_WAIT_SECONDS:
        raise ConfigError(f"--monitor-interval {arguments.monitor_interval:g}: must be a number of seconds above 0")
    exit_timeout(arguments, os.environ)
    _check_rendezvous(arguments.rdzv_conf, is_known=arguments.rdzv_backend in ("static", "c10d"))
    if arguments.rdzv_backend == "static" and not arguments.standalone and not 0 <= arguments.node_rank < most_nodes:
        raise ConfigError(
            f"--node-rank {arguments.node_rank}: must be 0 to {most_nodes - 1}, since --nnodes is {arguments.nnodes}"
        )
    if hasattr(arguments, "signals_to_handle"):  # not in torch 2.4
        names = [name.strip() for name in arguments.signals_to_handle.split(",") if name.strip()]
        if not names:
            raise ConfigError("--signals-to-handle is empty: name the signals that end the job, as SIGTERM,SIGINT")
        arguments.signals_to_handle = ",".join(names)
    if re.fullmatch(r"\s*[-+]?\d+\s*", arguments.nproc_per_node):
        check_local_ranks(arguments, local_world_size(arguments.nproc_per_node))


def local_world_size(text: str) -> int:
    """Return how many workers ``--nproc-per-node`` asks for.

    Raises:
        ConfigError: It is no number of workers that could run here.
    """
    try:
        number = int(torchrun.determine_local_world_size(text))
    except ValueError as error:
        if text in ("gpu", "xpu"):
            raise ConfigError(f"--nproc-per-node {text}: {error}") from None
        raise ConfigError(
            f"--nproc-per-node {text}: use a number of 1 or more, or one of auto, cpu, gpu, xpu"
        ) from None
    if number < 1:
        raise ConfigError(f"--nproc-per-node {text}: must be 1 or more")
    if (most := largest_pid()) is not None and number > most:
        raise ConfigError(f"--nproc-per-node {text}: there can be {most} processes on this machine (kernel.pid_max)")
    return number


def check_local_ranks(arguments: Any, workers: int) -> None:
    """Check options that name local ranks.

    Args:
        arguments: What torchrun's parser made of the command line.
        workers: How many there are on this node.

    Raises:
        ConfigError: One is named that there is not, or is named twice.
    """
    for option, text, example in (
        ("--redirects", arguments.redirects, ""),
        ("--tee", arguments.tee, ""),
        ("--local-ranks-filter", arguments.local_ranks_filter, "numbers with commas between them, as 0,1"),
    ):
        if not text or (not example and _STREAMS.fullmatch(text)):
            continue
        named = [part.partition(":")[0].strip() for part in text.split(",")]
        if not all(number.isdecimal() for number in named):
            raise ConfigError(f"{option} {text}: use {example}")
        ranks = [int(number) for number in named]
        for rank in ranks:
            if rank >= workers:
                raise ConfigError(
                    f"{option} {text}: there is no local rank {rank}; --nproc-per-node {arguments.nproc_per_node} "
                    f"makes {'rank 0 alone' if workers == 1 else f'0 to {workers - 1}'}"
                )
            if not example and ranks.count(rank) > 1:
                raise ConfigError(f"{option} {text}: local rank {rank} is named twice")


def exit_timeout(arguments: Any, environment: Mapping[str, str]) -> float:
    """Return how long workers get between a request to end and SIGKILL, seconds.

    Args:
        arguments: What torchrun's parser made of the command line; older torch has no ``--shutdown-timeout``.
        environment: Where ``TORCH_ELASTIC_SHUTDOWN_TIMEOUT`` may be set.

    Raises:
        ConfigError: It is no number of seconds.
    """
    given = getattr(arguments, "shutdown_timeout", None)
    place, raw = "--shutdown-timeout", given
    if given is None:
        place, raw = f"the environment variable {SHUTDOWN_VARIABLE}", environment.get(SHUTDOWN_VARIABLE, "30")
    return _seconds(place, raw)


def problem_with_script(script: str) -> str | None:
    """Return what is wrong with a file that Python is to run, as far as that can be told without running it.

    Returns:
        The problem and the fix; None where it may well run.
    """
    try:
        status = os.stat(script)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            if script == "-":
                return "would be read from standard input, which a restart finds empty; write it to a file"
            return f"does not exist ({working_folder_phrase()})"
        return f"cannot be found: {error.strerror}"
    if stat.S_ISDIR(status.st_mode):
        if os.path.isfile(os.path.join(script, "__main__.py")):
            return None
        return "is a folder without a __main__.py; name the script in it"
    if stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
        return (
            "is a pipe, which can be read once, and each worker and each restart reads the script; write it to a file"
        )
    if not os.access(script, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        return f"cannot be read: Permission denied for uid {os.geteuid()}; chmod +r {script}"
    return None


def _check_streams(option: str, text: str) -> None:
    if not _STREAMS.fullmatch(text) and not _STREAMS_BY_RANK.fullmatch(text):
        raise ConfigError(
            f"{option} {text}: use 0 (none), 1 (standard output), 2 (standard error) or 3 (both) for all workers, or "
            "one of these for each local rank, as 0:3,1:1"
        )


def _check_rendezvous(text: str, is_known: bool) -> None:
    for part in text.split(",") if text.strip() else ():
        key, _, value = (each.strip() for each in part.partition("="))
        if not key or not value:
            raise ConfigError(f"--rdzv-conf {text}: {part.strip()!r} is not KEY=VALUE")
        if (is_known or key == "read_timeout") and key in _TIMES and _seconds(f"--rdzv-conf {key}", value) == 0:
            raise ConfigError(f"--rdzv-conf {key}={value}: must be a number of seconds above 0")


def unknown_rendezvous_keys(arguments: Any) -> list[str]:
    """Return what to say about keys of ``--rdzv-conf`` that nothing reads; torchrun says nothing."""
    if arguments.rdzv_backend not in ("static", "c10d"):
        return []
    keys = [part.partition("=")[0].strip() for part in arguments.rdzv_conf.split(",") if part.strip()]
    return [
        f"--rdzv-conf {key}: unknown, and has no effect{suggestion(key, _RENDEZVOUS_KEYS)}"
        for key in keys
        if key not in _RENDEZVOUS_KEYS
    ]


def _seconds(place: str, raw: object) -> float:
    try:
        seconds = float(str(raw))
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _LARGEST_WAIT_SECONDS:
        raise ConfigError(f"{place} is {raw}: must be a number of seconds, 0 or more")
    return seconds
