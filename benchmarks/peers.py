"""The contenders: how each is installed and how each is asked to run a script.

``nvidia-resiliency-ext`` gets an environment of its own (``.venv-peer``) that shares our torch: a ``.pth`` file leads
to our site-packages, so that nothing large is installed twice and both run on the same torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import attrs

__all__ = [
    "NVIDIA",
    "OURS",
    "SPAWN",
    "TORCHRUN",
    "Contender",
    "contenders",
    "launch_command",
    "launch_environment",
    "peer_version",
]

RANKS = Path(__file__).resolve().parent / "ranks"
PEER_FOLDER = Path(__file__).resolve().parents[1] / ".venv-peer"
PEER_REQUIREMENTS = (
    "nvidia-resiliency-ext==0.4.1",
    "psutil",
    "packaging",
    "pyyaml",
    "defusedxml",
    "setproctitle",
    "nvidia-ml-py",
)


@attrs.frozen
class Contender:
    """One column of the table.

    Args:
        title: Its heading.
        client: Which rank client its ranks use: ``ours``, ``nvidia`` or ``torchrun`` (none).
        program: The launcher's executable.
        options: What it is always started with.
    """

    title: str
    client: str
    program: str
    options: tuple[str, ...] = ()


_BIN = Path(sys.executable).parent

OURS = Contender("ours", "ours", str(_BIN / "ft_launcher"), ("--ft-worker-start", "warm"))
SPAWN = Contender("ours, spawn", "ours", str(_BIN / "ft_launcher"), ("--ft-worker-start", "spawn"))
TORCHRUN = Contender("torchrun", "torchrun", str(_BIN / "torchrun"), ("--standalone",))
NVIDIA = Contender(
    "nvidia 0.4.1",
    "nvidia",
    str(PEER_FOLDER / "bin" / "ft_launcher"),
    ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
)


def contenders() -> tuple[list[Contender], list[str]]:
    """Who can take part here.

    Returns:
        The contenders, ours first, and one sentence for each that is missing.
    """
    problem = _install_peer()
    return [OURS, SPAWN, TORCHRUN, *([] if problem else [NVIDIA])], [problem] if problem else []


def launch_command(
    contender: Contender, script: str, *arguments: str, ranks: int, folder: Path, restarts: int = 0, limit: float = 60.0
) -> list[str]:
    """The whole command line.

    Args:
        contender: Who launches.
        script: A file of ``benchmarks/ranks``.
        *arguments: The script's.
        ranks: How many on this node.
        folder: For logs and configuration; empty before.
        restarts: ``--max-restarts``.
        limit: Seconds that the section ``step`` may stay open.
    """
    watched = contender.client != "torchrun"
    options: list[str] = []
    if watched:
        config = folder / "ft.yaml"
        config.write_text(
            f"fault_tolerance:\n  rank_section_timeouts: {{setup: 600, step: {limit}, checkpointing: 600}}\n"
        )
        options = ["--ft-cfg-path", str(config)]
    if contender.client == "ours":
        options += ["--log-dir", str(folder / "logs")]
    counts = ["--nproc-per-node", str(ranks), "--max-restarts", str(restarts)]
    return [contender.program, *contender.options, *counts, *options, str(RANKS / script), *arguments]


def launch_environment(contender: Contender) -> dict[str, str]:
    """What it is started with."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FT_")}
    environment["OMP_NUM_THREADS"] = "1"
    if contender.client != "ours":
        # Without it the peers' restarts fail or hang more often than not (pytorch#135712); we need no help.
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    return environment


def peer_version() -> str | None:
    """The version in the peer's environment, None where it is not there."""
    if not (PEER_FOLDER / "bin" / "python").exists():
        return None
    asked = "import importlib.metadata as m; print(m.version('nvidia-resiliency-ext'))"
    answer = subprocess.run([PEER_FOLDER / "bin" / "python", "-c", asked], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


def _install_peer() -> str | None:
    """Make the peer's environment where it is missing; returns why it cannot be had."""
    if peer_version() == "0.4.1":
        return None
    python = PEER_FOLDER / "bin" / "python"
    try:
        subprocess.run([sys.executable, "-m", "venv", str(PEER_FOLDER)], check=True, capture_output=True)
        where = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        (Path(where) / "shared_torch.pth").write_text(sysconfig.get_path("purelib") + "\n")
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--no-deps", *PEER_REQUIREMENTS],
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return (
            f"nvidia-resiliency-ext 0.4.1 cannot be had here, so its column is missing: {said[-1] if said else error}"
        )
    return None
