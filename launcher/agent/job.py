"""Open what a job needs, run the agent, and close all of it again, also when the agent fails."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from typing import cast

from torch.distributed import DistError
from torch.distributed import run as torchrun
from torch.distributed.elastic import events as torch_events
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, get_error_handler
from torch.distributed.elastic.rendezvous.api import RendezvousError, RendezvousTimeoutError

from launcher.agent import announcements
from launcher.agent.agreement import GenerationRendezvous
from launcher.agent.elastic_agent import FaultTolerantAgent
from launcher.agent.plane_rendezvous import JobEndedError, UnhealthyNodeError
from launcher.agent.resources import AgentResources, open_resources
from launcher.agent.signals import SignalInbox
from launcher.agent.torchrun_settings import UNNAMED_RUN, complete, launch_config_of, worker_spec_of
from launcher.command_line import default_threads
from launcher.command_line.addresses import tell_unresolved
from launcher.command_line.option_values import exit_timeout, local_world_size
from launcher.command_line.options import LaunchJob
from launcher.processes.background import Background, NotDoneError
from launcher.processes.exit_codes import FAILED, SUCCEEDED, by_signal
from launcher.processes.proc import descriptors
from launcher.processes.shortages import explained, needed_descriptors, too_few_descriptors
from launcher.processes.working_folder import completed
from launcher.records import console, latest
from launcher.records.console import CRITICAL, ERROR, INFO, WARNING, announce
from launcher.records.log_folders import FolderError, make_log_folder, new_run_id, remove_if_empty
from launcher.records.log_records import take_over_logging
from launcher.records.retention import prune_in_background
from launcher.records.shared_output import share
from launcher.workers.script_settings import ImportSettings
from launcher.workers.zygote_handle import ZygoteHandle
from resilience_core.errors import ConfigError, ResilienceError

__all__ = ["run"]

_LOG_ROOM_BYTES = 1 << 20
_LONGEST_FIRST_WAIT_SECONDS = 30.0
_LONGEST_LAST_WAIT_SECONDS = 1.0
_NO_AGREEMENT = (RendezvousError, DistError)
"""What a rendezvous raises, and what the store below it lets through."""


def run(job: LaunchJob, zygote: ZygoteHandle | None = None, settings: ImportSettings | None = None) -> int:
    """Run a job on this node.

    Args:
        job: What to run.
        zygote: What warm workers come from; workers are spawned where there is none.
        settings: What the script sets before it imports torch.

    Returns:
        The exit code.

    Raises:
        ResilienceError: It could not be started.
    """
    workers = local_world_size(job.arguments.nproc_per_node)
    nodes = 1 if job.is_local else torchrun.parse_min_max_nnodes(job.arguments.nnodes)[1]
    needed = needed_descriptors(workers, nodes, are_copied=str(job.arguments.tee) != "0")
    if (problem := too_few_descriptors(needed, len(descriptors()) - 1)) is not None:
        raise ConfigError(problem)
    console.start()
    if str(job.arguments.tee) != "0":
        share()
    take_over_logging(job.config.log_level)
    for warning in job.warnings:
        announce(warning, event="warning")
    complete(job)
    with contextlib.ExitStack() as stack:
        signals = SignalInbox(getattr(job.arguments, "signals_to_handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"))
        signals.install()
        disk = Background("ft_log_folder", _LOG_ROOM_BYTES, completed(job.arguments.log_dir or "ft_logs"))
        disk.start()
        log_folder = _log_folder(job, disk)
        stack.callback(_remove_empty_log_folder, log_folder, disk)
        launch_config, entrypoint, arguments = launch_config_of(job, log_folder, workers)
        default_threads.settle(launch_config.nproc_per_node)
        resources = stack.enter_context(open_resources(job, launch_config, log_folder, zygote, settings, signals, disk))
        tell_unresolved(job.addresses)
        try:
            with signals.raised_at_once():
                spec = worker_spec_of(job, launch_config, entrypoint, arguments, resources)
        except SignalException as ended:
            code = by_signal(ended.sigval)
            said = f"ended by {ended.sigval.name} before a worker was started; exit code {code}"
            announce(said, level=CRITICAL, event="ended")
            return code
        except _NO_AGREEMENT as error:
            return _disagreed(error, launch_config.rdzv_endpoint)
        disk.submit(lambda: latest.lead_to(log_folder))  # not before: a job that is refused leaves nothing behind
        if job.config.keep_runs is not None:
            prune_in_background(log_folder, job.config.keep_runs)
        agent = FaultTolerantAgent(spec, resources, exit_timeout(job.arguments, os.environ))
        return _supervise(agent, spec, resources)


def _log_folder(job: LaunchJob, disk: Background) -> str:
    name = _run_name(job)
    try:
        return disk.call(lambda: make_log_folder(job.arguments.log_dir, name), _LONGEST_FIRST_WAIT_SECONDS)
    except NotDoneError as error:
        where = completed(job.arguments.log_dir or "ft_logs")
        raise FolderError(
            f"the log folder under {where} cannot be made: {error}; name another with --log-dir"
        ) from error


def _run_name(job: LaunchJob) -> str:
    """Return what the log folder is called: as the user calls the run, or something that no other run has.

    Nodes that were given no name for the run, torchrun's is "none" then, have nothing to derive one from before they
    have met; each has a folder of its own.
    """
    if job.arguments.rdzv_id != UNNAMED_RUN:
        return str(job.arguments.rdzv_id)
    return new_run_id() if job.is_local else f"{new_run_id()}-{os.uname().nodename}"


def _remove_empty_log_folder(log_folder: str, disk: Background) -> None:
    with contextlib.suppress(NotDoneError, OSError):
        disk.call(lambda: remove_if_empty(log_folder), _LONGEST_LAST_WAIT_SECONDS)


def _end_by_signal(agent: FaultTolerantAgent, job: GenerationRendezvous, number: signal.Signals) -> tuple[int, str]:
    """Return the exit code of a launcher that a signal ends, and what to say about its workers.

    A scheduler takes 0 for success. That is right for a spare, whose job does not need it, but not for a node of a job
    that has not begun.
    """
    if agent.ended_cleanly:
        return SUCCEEDED, "every worker ended with 0"
    if agent.has_started:
        return FAILED, "not every worker ended with 0"
    if job.job_has_begun():
        return SUCCEEDED, "no worker ran here"
    return by_signal(number), "no worker was started here, and the job is not known to have begun elsewhere"


def _supervise(agent: FaultTolerantAgent, spec: WorkerSpec, resources: AgentResources) -> int:
    """Let torch's loop run and turn every way it can end into an exit code."""
    code: int | None = None
    result: RunResult | None = None
    signalled: str | None = None
    destination = getattr(spec, "event_log_handler", "null")  # not in torch 2.4
    try:
        with resources.signals.raised_at_once():
            result = agent.run()  # pyright: ignore[reportAssignmentType] - torch's decorator
        torch_events.record(agent.get_event_succeeded(), destination)
        code = _exit_code(agent, spec, result)
        return code
    except SignalException as ended:
        torch_events.record(agent.get_event_failed(), destination)
        code, what = _end_by_signal(agent, cast(GenerationRendezvous, spec.rdzv_handler), ended.sigval)
        signalled = ended.sigval.name
        announce(f"ended by {signalled}; {what}", level=CRITICAL if code else WARNING, event="ended")
        return code
    except UnhealthyNodeError as error:
        agent.ended_because = str(error)
        agent.excludes_this_node_only = True
        announce(f"this node leaves the job: {error}", level=CRITICAL, event="leaving")
        code = FAILED
        return code
    except JobEndedError as ended:
        agent.incidents.tell_ended_elsewhere(agent.generation, str(ended))
        code = ended.exit_code
        return code
    except ResilienceError as error:
        if not agent.has_started:
            raise
        # Exit code 2 would say that another run could only end the same way.
        announce(f"the job has failed: {explained(error)}", level=CRITICAL, event="job_failed")
        code = FAILED
        return code
    except _NO_AGREEMENT as error:
        code = _disagreed(error)
        return code
    finally:
        if signalled is not None or agent.excludes_this_node_only:
            why = agent.ended_because or f"{signalled} to the launcher of {os.uname().nodename}"
            rendezvous = cast(GenerationRendezvous, spec.rdzv_handler)
            rendezvous.leave(why, is_excluded=agent.excludes_this_node_only)
        else:
            spec.rdzv_handler.shutdown()
        agent.stories.close()
        if (since_ns := resources.monitor.unprotected_since_ns) is not None:
            announce(announcements.ended_unprotected(since_ns), level=ERROR, event="monitor_lost")
        if code is not None and cast(GenerationRendezvous, spec.rdzv_handler).has_peers:
            why = "every rank has ended with 0; " if result is not None and not result.is_failed() else ""
            level = ERROR if code else INFO
            announce(f"{why}exit code {code}", level=level, event="exit", facts={"exit_code": code})
        unsaid = {"unsaid": count} if (count := console.unwritten_lines()) else {}
        resources.events.write(
            "ended",
            generation=agent.generation,
            **agent.furthest._asdict(),
            outcome=_outcome(code, signalled),
            exit_code=code,
            why=agent.ended_because,
            failures=agent.failures,
            has_left=agent.excludes_this_node_only,
            **unsaid,
        )


def _disagreed(error: Exception, endpoint: str = "") -> int:
    """Announce that the nodes could not agree, with the endpoint where given, and return the exit code."""
    inner = error.__cause__ or error.__context__
    because = f" ({_first_line(inner)})" if inner is not None and str(inner) else ""
    lines = [f"the nodes could not agree: {_first_line(error)}{because}"]
    if endpoint:
        lines.append(f"  every node must reach --rdzv-endpoint {endpoint} (--master-addr and --master-port)")
    announce(*lines, level=CRITICAL, event="no_agreement")
    return FAILED


def _first_line(error: BaseException) -> str:
    name, text = type(error).__name__, str(error).strip()
    if isinstance(error, RendezvousTimeoutError) and text:  # torch's have none: it is a sentence of ours
        return text.splitlines()[0]
    return f"{name}: {text.splitlines()[0]}" if text else name


def _outcome(code: int | None, signalled: str | None) -> str:
    """Return one word for programs: how a run has ended."""
    if signalled is not None:
        return f"ended by {signalled}"
    return {SUCCEEDED: "succeeded", None: "broken off"}.get(code, "failed")


def _exit_code(agent: FaultTolerantAgent, spec: WorkerSpec, result: RunResult | None) -> int:
    if result is None:  # torch's agent swallows a rendezvous that was closed by another node in good order
        return SUCCEEDED
    if not result.is_failed():
        return SUCCEEDED
    if result.failures:
        failure = ChildFailedError(name=spec.get_entrypoint_name(), failures=result.failures)
        _leave_error_file(failure, agent.incidents.culprits(agent.generation))
    if not agent.excludes_this_node_only:
        agent.tell_end()
    return agent.exit_code if agent.exit_code is not None else FAILED


def _leave_error_file(failure: ChildFailedError, culprits: Collection[int]) -> None:
    """Write the culprit's failure to ``TORCHELASTIC_ERROR_FILE``, where set; torchrun writes the first failure."""
    _, first = failure.get_first_failure()
    first = next((failure.failures[rank] for rank in culprits if rank in failure.failures), first)
    if os.environ.get("TORCHELASTIC_ERROR_FILE") and first.error_file and os.path.isfile(first.error_file):
        get_error_handler().dump_error_file(first.error_file, first.exitcode)
