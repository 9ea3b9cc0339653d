"""Make this node's part of the control plane: where it listens, who begins, what launchers prove to each other."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.agent.listening import is_host, listen
from launcher.agent.node_memory import MEMORY_FILE, MemoryWriter, NodeMemory, forget, read_memory
from launcher.agent.plane_rendezvous import PlaneRendezvous
from launcher.agent.resources import AgentResources
from launcher.agent.run_folder_keeper import CONFIG_FILE
from launcher.command_line.option_values import exit_timeout
from launcher.command_line.options import AGREEING_BACKENDS, LaunchJob
from launcher.health.check import Context
from launcher.health.runner import HealthRunner
from launcher.health.settings import HealthSettings
from launcher.nodes.farewell import Farewell
from launcher.nodes.plane import Plane, PlaneSettings
from launcher.nodes.policy import Policy
from launcher.nodes.session import Address
from launcher.records.console import announce, announcer
from resilience_core.environment import CONFIG_VARIABLE
from resilience_core.errors import ConfigError
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["given_node_rank", "open_plane", "order_of", "parse_contacts", "secret_of", "with_terms"]

_DEFAULT_PORT = 29400
"""As torch's c10d rendezvous has it."""
_LEAST_SECRET_BYTES = 16
SECRET_VARIABLE = "FT_NODE_SECRET"


def open_plane(job: LaunchJob, launch_config: Any, resources: AgentResources) -> PlaneRendezvous:
    """Listen, and make the rendezvous; nothing is sent before it is asked for the first generation.

    Raises:
        ConfigError: An endpoint, a secret or an option cannot be used.
        RendezvousRefusedError: This node cannot listen where it has to.
    """
    config, arguments, rdzv = job.config, job.arguments, launch_config.rdzv_configs
    if launch_config.rdzv_backend not in AGREEING_BACKENDS:
        raise ConfigError(
            f"--rdzv-backend {launch_config.rdzv_backend} cannot be used with --ft-membership {config.membership}: "
            "launchers agree by themselves then; give --rdzv-backend c10d, or --ft-membership torch"
        )
    endpoint = launch_config.rdzv_endpoint or f"{arguments.master_addr}:{arguments.master_port}"
    contacts = parse_contacts(endpoint)
    health = _health(job, resources)
    name = f"{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(6)}"
    join_seconds = float(rdzv.get("join_timeout", 600))
    policy = Policy(
        least=launch_config.min_nodes,
        most=launch_config.max_nodes,
        is_fixed=config.membership == "fixed",
        max_restarts=launch_config.max_restarts,
        lease_ns=int(config.node_lease * NS_PER_SECOND),
        # At least until a leader that is elsewhere would have shown itself, twice.
        last_call_ns=int(max(float(rdzv.get("last_call_timeout", 30)), config.node_lease / 2) * NS_PER_SECOND),
        join_ns=int(join_seconds * NS_PER_SECOND),
        joins_at_checkpoint=config.newcomers == "checkpoint",
    )
    secret = with_terms(secret_of(config.node_secret_file, os.environ, launch_config.run_id), policy)
    identity = (launch_config.run_id, secret, name)
    node_rank = given_node_rank(arguments, job.argv, os.environ)
    hosts = is_host(launch_config.rdzv_backend, rdzv, node_rank)
    transport, address, own = listen(contacts, launch_config.local_addr, identity, hosts)
    others = tuple(contact for at, contact in enumerate(contacts) if at != own)
    folder = resources.log_folder
    memory = resources.on_disk("what this node remembers", lambda: read_memory(folder), NodeMemory(False, ()))
    founds = own == 0 and not _may_live_elsewhere(memory, launch_config)
    if own == 0 and not founds:
        announce(
            f"the job '{launch_config.run_id}' was begun here before and has not ended: this node looks for it, for "
            f"{join_seconds:g} s at most, and begins none of its own. If there is none, remove "
            f"{os.path.join(folder, MEMORY_FILE)}, or give another --rdzv-id",
            event="waiting",
        )
    known = [*others, *memory.contacts]
    if own is not None:
        known.append((address, contacts[own][1]))
    settings = PlaneSettings(
        run_id=launch_config.run_id,
        secret=secret,
        name=name,
        host=os.uname().nodename,
        address=address,
        order=order_of(config.rank_key, node_rank, os.environ),
        slots=launch_config.nproc_per_node,
        contacts=tuple(dict.fromkeys(known)),
        policy=policy,
        founds=founds,
        last_stop_ns=_last_stop_ns(job),
    )
    farewell = Farewell(lambda: resources.run_folder_keeper.folder.path)
    assert resources.lease is not None
    memories = MemoryWriter(folder, announcer("log_folder"))

    def on_voters(voters: Sequence[Address], payload: bytes) -> None:
        farewell.write(voters, settings.run_id, secret, name, payload)
        resources.disk.submit(lambda: memories.remember(voters))

    plane = Plane(settings, transport, resources.lease.grant, on_voters)
    timeout = float(rdzv.get("read_timeout", 60))

    def on_end() -> None:
        resources.disk.submit(lambda: forget(folder))

    return PlaneRendezvous(
        *(plane, launch_config.run_id, endpoint, 0, timeout, join_seconds, health, on_end),
        tend=resources.tend_helpers,
        tells_saves=policy.joins_at_checkpoint,
    )


def _last_stop_ns(job: LaunchJob) -> int:
    """Return how long ranks may run on once the job has ended, should their launcher not end them before."""
    config = job.config
    seconds = max(exit_timeout(job.arguments, os.environ), config.failure_stop_timeout)
    return int((config.stack_capture_timeout + seconds + config.node_lease) * NS_PER_SECOND)


def _may_live_elsewhere(memory: NodeMemory, launch_config: Any) -> bool:
    """Return whether the job that was begun here may live on elsewhere, so that there could be two.

    With more than half of all nodes in each generation there cannot be two. A run without a name remembers nothing.
    """
    return memory.was_begun and 2 * launch_config.min_nodes <= launch_config.max_nodes


def _health(job: LaunchJob, resources: AgentResources) -> HealthRunner:
    folder = resources.run_folder_keeper.folder
    # What a command starts is found by this variable should the launcher be killed, as what ranks start is.
    context = Context(
        log_dir=resources.log_folder, environment=lambda: {CONFIG_VARIABLE: os.path.join(folder.path, CONFIG_FILE)}
    )
    runner = HealthRunner(HealthSettings.of(job.config), context)
    for note in runner.notes:
        announce(note, event="health")
    return runner


def parse_contacts(text: str) -> tuple[Address, ...]:
    """Read one or more HOST[:PORT] with commas between.

    Raises:
        ConfigError: One of them is not that.
    """
    contacts = []
    for each in text.split(","):
        host, port = _split(each.strip())
        if not host or not port.isdigit() or not 0 < int(port) < 2**16:
            raise ConfigError(f"--rdzv-endpoint {text}: '{each}' is not HOST or HOST:PORT with a port of 1 to 65535")
        contacts.append((host, int(port)))
    return tuple(contacts)


def _split(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":") or str(_DEFAULT_PORT)
    if text.count(":") > 1:  # an IPv6 address alone
        return text, str(_DEFAULT_PORT)
    host, _, port = text.partition(":")
    return host, port or str(_DEFAULT_PORT)


def given_node_rank(arguments: Any, argv: tuple[str, ...], environ: Mapping[str, str]) -> int | None:
    """Return the node rank that the user gave; None where it is torch's default, which is 0 on every node."""
    own = argv[: len(argv) - len(arguments.training_script_args)]  # the script may have an option of that name
    is_given = any(each.partition("=")[0] in ("--node-rank", "--node_rank") for each in own)
    return int(arguments.node_rank) if is_given or "PET_NODE_RANK" in environ else None


def order_of(given: str | None, node_rank: int | None, environ: Mapping[str, str]) -> str:
    """Return what nodes are sorted by, its numbers padded so that text sorts them by value."""
    if given is None and node_rank is not None:
        given = str(node_rank)
    if given is None:
        given = environ.get("SLURM_NODEID", "")
    return re.sub(r"\d+", lambda number: number[0].zfill(20), given)


def with_terms(secret: bytes, policy: Policy) -> bytes:
    """Return a secret that only launchers with the same secret and the same terms share.

    A node whose lease is longer than the leader's would run its ranks for longer than the others wait for their end.
    How many nodes take part, and how many restarts there are, would depend on who leads.
    """
    terms = policy._replace(last_call_ns=0, join_ns=0)  # how long one waits for the others may be one's own choice
    return hmac.digest(secret, repr(tuple(terms)).encode(), "sha256")


def secret_of(path: str | None, environ: Mapping[str, str], run_id: str) -> bytes:
    """Return what launchers of the job prove to each other.

    Raises:
        ConfigError: The secret cannot be read, or is too short.
    """
    if path is not None:
        try:
            with open(path, "rb") as file:
                secret = file.read(4096).strip()
        except OSError as error:
            raise ConfigError(f"--ft-node-secret-file {path} cannot be read: {error.strerror}") from None
        where = f"--ft-node-secret-file {path}"
    elif environ.get(SECRET_VARIABLE):
        secret, where = environ[SECRET_VARIABLE].encode(), SECRET_VARIABLE
    else:
        return hashlib.sha256(f"torch-resilience run {run_id}".encode()).digest()
    if len(secret) < _LEAST_SECRET_BYTES:
        raise ConfigError(f"{where} has {len(secret)} bytes; a secret needs {_LEAST_SECRET_BYTES} or more")
    return secret
