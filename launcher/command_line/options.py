"""Parse and check ft_launcher's command line. This module starts nothing and changes nothing outside its result."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
from collections.abc import Sequence
from typing import Any, NoReturn

import attrs
import torch
from torch.distributed import run as torchrun
from torch.distributed.elastic import events as torch_events
from torch.distributed.elastic.events import handlers

from launcher.command_line.addresses import check_addresses
from launcher.command_line.option_values import check_values, problem_with_script, unknown_rendezvous_keys
from launcher.health.check import Context
from launcher.health.settings import HealthSettings, choose
from launcher.notices.target import parse_target, problem_with_target
from launcher.processes.exit_codes import EXPLANATION
from launcher.records.console import State, state
from launcher.workers.programs import problem_with
from resilience_core import __version__
from resilience_core.config import cli_options as config_options
from resilience_core.config.nodes import NodeSettings
from resilience_core.config.notice_values import quoted
from resilience_core.config.schema import FaultToleranceConfig
from resilience_core.errors import ConfigError
from resilience_core.suggestions import suggestion

__all__ = ["AGREEING_BACKENDS", "LaunchJob", "parse"]

AGREEING_BACKENDS = ("c10d", "static")
"""Values of ``--rdzv-backend`` whose endpoint the launchers can use to find each other without torch's rendezvous."""


@attrs.frozen(kw_only=True)
class LaunchJob:
    """A checked command line.

    Args:
        arguments: What torchrun's parser made of it; completed the way ``torchrun`` completes it.
        config: Ours.
        is_local: One node of fixed size: nobody to agree with.
        port: The port that the user wants the ranks' store on, 0 for any.
        warnings: For people, to be said once.
        argv: The command line itself, without the program's name.
    """

    arguments: Any
    config: FaultToleranceConfig
    is_local: bool
    port: int
    warnings: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()

    @property
    def agrees_by_itself(self) -> bool:
        """Return whether the launchers of several nodes agree without torch's rendezvous."""
        default = "elastic" if self.arguments.rdzv_backend in AGREEING_BACKENDS else "torch"
        return not self.is_local and (self.config.membership or default) != "torch"

    @property
    def log_state(self) -> State:
        """From which level on, and in which form, is said what this job has to say."""
        return State(self.config.log_level, self.config.log_format, not self.is_local)

    @property
    def addresses(self) -> dict[str, str]:
        """The options that name a host which ranks will look for; on one node torch ignores some of them."""
        arguments = self.arguments
        given: dict[str, str | None] = {"--local-addr": arguments.local_addr}
        is_static = arguments.rdzv_backend == "static" and not arguments.standalone and not arguments.rdzv_endpoint
        if is_static and (self.port or not self.is_local):
            given["--master-addr"] = arguments.master_addr
        return {option: text for option, text in given.items() if text}


def parse(argv: Sequence[str]) -> LaunchJob:
    """Parse and check.

    Args:
        argv: Without the program's name.

    Raises:
        ConfigError: Something cannot be run as asked.
        SystemExit: ``--help``, ``--version``, or an error that argparse itself reports (code 2).
    """
    parser = torchrun.get_args_parser()
    parser.prog = "ft_launcher"
    parser.description = "torchrun that sees hung, crashed and slow ranks, and brings the group back."
    if "PET_MASTER_PORT" not in os.environ:
        parser.set_defaults(
            master_port=None
        )  # some versions of torch say 29500: one job per host, and a port not asked for
    parser.add_argument(
        "--version", action="version", version=_versions(), help="print the versions of this, torch and Python"
    )
    config_options.add_options(parser)
    _lay_out_help(parser)
    _name_the_nearest(parser)
    config_options.check_arguments(parser, argv)
    arguments = parser.parse_args(list(argv))
    config = config_options.from_options(arguments)
    _check_script(arguments)
    _check_on_event(config.on_event)
    _check_event_log(getattr(arguments, "event_log_handler", "null"))
    nodes = _nodes(arguments.nnodes)
    check_values(arguments, nodes[1])
    if arguments.max_restarts < 0:
        raise ConfigError(f"--max-restarts {arguments.max_restarts}: must be 0 or more")
    is_local = nodes == (1, 1) and arguments.rdzv_backend in ("static", "c10d")
    job = LaunchJob(
        arguments=arguments,
        config=config,
        is_local=is_local,
        port=_checked_port(_wanted_port(arguments)) if is_local else 0,
        warnings=(*config.warnings, *config_options.options_after_script(arguments)),
        argv=tuple(argv),
    )
    check_addresses(job.addresses)
    return attrs.evolve(job, warnings=(*job.warnings, *_without_effect(job), *unknown_rendezvous_keys(arguments)))


def _without_effect(job: LaunchJob) -> list[str]:
    """Return what to say about settings that only matter where the launchers of several nodes agree by themselves."""
    if job.agrees_by_itself:
        has_spares = job.config.membership == "fixed" and job.config.newcomers == "checkpoint"
        return ["--ft-newcomers has no effect with --ft-membership fixed: newcomers are spares"] if has_spares else []
    names = [name for name in attrs.fields_dict(NodeSettings) if job.config.is_given(name)]
    # On one node nothing is lost with the others: there is no node to be lost, or to agree with.
    names = [name for name in names if name.startswith("health_" if job.is_local else _OF_NODES)]
    if not names:
        return []
    if job.is_local and job.config.health_checks:  # a mistake would be found where nodes are added
        known = tuple(check for check in job.config.health_checks if check != "nvml")  # installed where it is needed
        choose(HealthSettings.of(job.config)._replace(checks=known or None), Context())
    rendezvous = "--ft-membership torch" if job.config.membership else f"--rdzv-backend {job.arguments.rdzv_backend}"
    why = "in a job on one node" if job.is_local else f"with torch's rendezvous ({rendezvous})"
    given = ", ".join(f"--ft-{name.replace('_', '-')}" for name in names)
    return [f"{given} {'has' if len(names) == 1 else 'have'} no effect {why}"]


_OF_NODES = ("health_", "newcomers", "node_", "rank_key")
"""How the names of the settings begin that only matter where launchers agree by themselves."""
_EPILOG = f"""\
example:
  ft_launcher --nproc-per-node 8 --max-restarts 3 \\
      --ft-rank-section-timeouts setup:600,step:180,checkpointing:420 train.py --its --options

{EXPLANATION}"""


def _versions() -> str:
    return f"ft_launcher {__version__}, torch {torch.__version__}, Python {platform.python_version()}"


def _lay_out_help(parser: argparse.ArgumentParser) -> None:
    """Show what a person looks for: an example and the exit codes, our options, then torchrun's."""
    parser.usage = "ft_launcher [options] training_script [options of the script]"
    parser.description = f"{parser.description}\n\n{_EPILOG}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    in_torchs_order = parser.format_help

    def format_help() -> str:
        text = in_torchs_order()
        ours = text.find(f"\n{config_options.GROUP_TITLE}:\n")
        theirs = text.find("\npositional arguments:\n")
        if not 0 < theirs < ours:
            return text
        return text[:theirs] + text[ours:].rstrip("\n") + "\n" + text[theirs:ours] + "\n"

    setattr(parser, "format_help", format_help)  # noqa: B010 - of this one parser; its groups have no public order


def _name_the_nearest(parser: argparse.ArgumentParser) -> None:
    """Say which of torchrun's options a misspelt one is nearest to; ours say so themselves."""
    plain = parser.error

    def error(message: str) -> NoReturn:
        title, _, unknown = message.partition("unrecognized arguments: ")
        if not title and unknown:
            options = [option for action in parser._actions for option in action.option_strings]
            message += suggestion(unknown.split()[0].partition("=")[0], options)
        if state().format == "json":
            raise ConfigError(message)  # else argparse writes lines of its own
        plain(message)

    setattr(parser, "error", error)  # noqa: B010 - as above


def _nodes(text: str) -> tuple[int, int]:
    try:
        least, most = torchrun.parse_min_max_nnodes(text)
    except (ValueError, RuntimeError):
        raise ConfigError(f"--nnodes {text}: use a number, or MIN:MAX") from None
    if not 0 < least <= most:
        raise ConfigError(f"--nnodes {text}: must be at least 1, and MIN no more than MAX")
    return least, most


def _wanted_port(arguments: Any) -> int:
    """Return the port fixed by ``--master-port``, or by the endpoint of the static backend, as with torchrun."""
    if arguments.standalone or arguments.rdzv_backend != "static":
        return 0
    if arguments.rdzv_endpoint:
        _, _, port = arguments.rdzv_endpoint.rpartition(":")
        if not port.isdigit():
            raise ConfigError(f"--rdzv-endpoint {arguments.rdzv_endpoint}: the static backend needs HOST:PORT")
        return int(port)
    return arguments.master_port or 0


def _checked_port(port: int) -> int:
    if not 0 <= port < 2**16:
        raise ConfigError(
            f"port {port} (--master-port, --rdzv-endpoint): must be 1 to 65535, or 0 for any that is free"
        )
    return port


def _check_event_log(name: str) -> None:
    """Check where torch's own events go: to a logging handler that torch, or a plugin of it, has a name for."""
    try:
        torch_events.get_logging_handler(name)  # pyright: ignore[reportPrivateImportUsage] - documented
    except KeyError:
        known = getattr(handlers, "_log_handlers", {"console": None, "null": None})
        raise ConfigError(f"--event-log-handler {name}: torch has no such handler; it has {', '.join(known)}") from None


def _check_on_event(text: str | None) -> None:
    if text is not None and (problem := problem_with_target(parse_target(text))) is not None:
        raise ConfigError(f"--ft-on-event {quoted(text)}: {problem}")


def _check_script(arguments: Any) -> None:
    script = arguments.training_script
    if arguments.no_python and arguments.module:
        raise ConfigError("--no-python and --module cannot be used together")
    if arguments.no_python:
        if (problem := problem_with(script)) is not None:
            raise ConfigError(f"--no-python: {problem}")
    elif arguments.module:
        top = script.partition(".")[0]
        if not all(script.split(".")):
            raise ConfigError(f"-m {script}: no name of a module; write it as 'package.module'")
        if script.endswith(".py") and os.path.isfile(script) and not os.path.isdir(top):
            raise ConfigError(f"-m {script}: that is a file; leave -m out, or write {script.removesuffix('.py')}")
        # A worker's sys.path begins with its working folder; ours begins with the folder of this program.
        in_folder = any(os.path.exists(top + suffix) for suffix in ("", ".py"))
        if not in_folder and importlib.util.find_spec(top) is None:
            raise ConfigError(f"no module named '{top}' (-m {script}); is it installed in this environment?")
    elif (problem := problem_with_script(script)) is not None:
        raise ConfigError(f"the training script '{script}' {problem}")
