"""What an agent works with: made for one job, closed with it."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import attrs
from torch.distributed.elastic.multiprocessing import LogsSpecs

from launcher.agent import announcements
from launcher.agent.bounded_logs import BoundedLogs
from launcher.agent.control_socket import ControlSocket
from launcher.agent.exporter_settings import ExporterSettings
from launcher.agent.figures_recorder import FiguresRecorder
from launcher.agent.job_limits import JobLimits
from launcher.agent.metrics_exporter import CannotListenError, MetricsExporter, listen, serve, tell_not_served
from launcher.agent.monitor_handle import MonitorHandle
from launcher.agent.notices import Notices
from launcher.agent.run_folder_keeper import CONFIG_FILE, CONTROL_SOCKET, RunFolderKeeper
from launcher.agent.second_fence import SecondFence
from launcher.agent.shared_history import SharedHistory
from launcher.agent.signals import SignalInbox
from launcher.command_line.options import LaunchJob
from launcher.incidents.machine import MachineEvidence
from launcher.nodes.fence import LeaseWord
from launcher.notices.target import arguments_shown
from launcher.processes.background import Background, NotDoneError
from launcher.processes.handles import is_subreaper
from launcher.processes.leftovers import Orphans
from launcher.processes.working_folder import completed
from launcher.records import console, latest
from launcher.records.console import announce, announcer
from launcher.records.event_files import EVENTS
from launcher.records.event_log import EventLog
from launcher.records.figures_log import FIGURES
from launcher.records.log_folders import FolderError, place_facts
from launcher.records.run_folders import RunFolder
from launcher.workers.script_settings import ImportSettings
from launcher.workers.starters import SpawnStarter, WorkerStarter
from launcher.workers.tee import finish_copies
from launcher.workers.warm_pool import WarmPool
from launcher.workers.warm_starter import WarmStarter
from launcher.workers.zygote_handle import ZygoteHandle
from resilience_core.config.notice_values import shown
from resilience_core.config.schema import FaultToleranceConfig
from resilience_core.system.proc import own_pid_namespace

__all__ = ["AgentResources", "open_resources", "preload"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


_LONGEST_DISK_SECONDS = 0.5


@attrs.frozen(kw_only=True)
class AgentResources:
    """What an agent works with; made by ``launcher.agent.job``, closed by it."""

    config: FaultToleranceConfig
    run_folder_keeper: RunFolderKeeper
    log_folder: str
    monitor: MonitorHandle
    signals: SignalInbox
    events: EventLog
    disk: Background
    """Whatever touches the log folder is done by this one."""
    starter: WorkerStarter
    logs_specs: LogsSpecs
    log_line_prefix_template: str | None = None
    lease: LeaseWord | None = None
    """Where the monitor finds until when this node may run ranks; None on one node."""
    second_fence: SecondFence | None = None
    """None on one node."""
    exporter: MetricsExporter | None = None
    """None where no metrics are served."""
    machine: MachineEvidence = attrs.field(factory=MachineEvidence)
    figures: FiguresRecorder = attrs.field(factory=FiguresRecorder)
    notices: Notices = attrs.field(factory=Notices)
    """What people are told by ``--ft-on-event``; nothing without one."""
    limits: JobLimits = attrs.field(
        default=attrs.Factory(lambda resources: JobLimits(resources.config), takes_self=True), init=False
    )

    orphans: Orphans | None = attrs.field(
        default=attrs.Factory(
            lambda resources: Orphans(lambda: resources.run_folder_keeper.folder.paths) if is_subreaper() else None,
            takes_self=True,
        ),
        init=False,
    )
    """None where this process adopts nobody: a launcher inside somebody else's process."""

    @property
    def control(self) -> ControlSocket:
        """The socket at which the launcher takes requests of ranks."""
        return self.run_folder_keeper.control

    def helpers(self) -> set[int]:
        """Return the processes of ours that are no ranks, and that whoever collects orphans must leave alone."""
        fence = None if self.second_fence is None else self.second_fence.pid
        pids = {*self.monitor.pids, *self.notices.pids, *self.starter.children()}
        pids |= set() if self.exporter is None else self.exporter.pids
        return pids if fence is None else pids | {fence}

    def dues_of_helpers(self) -> list[float | None]:
        """Return in how many seconds to call :meth:`tend_helpers`; None for what needs nothing."""
        return [self.notices.due_seconds(), None if self.exporter is None else self.exporter.due_seconds()]

    def tend_helpers(self) -> None:
        """Replace what tells events or serves metrics where it has ended or is stopped."""
        self.notices.tend()
        if self.exporter is not None:
            self.exporter.tend()

    def on_disk(self, what: str, call: Callable[[], T], otherwise: T) -> T:
        """Return the result of what must touch a disk; ``otherwise`` where it does not answer or fails."""
        try:
            return self.disk.call(call, _LONGEST_DISK_SECONDS)
        except (NotDoneError, OSError, ValueError, LookupError, TypeError) as error:
            logger.warning("%s: %s; going on without", what, error)
            return otherwise


def preload(config: FaultToleranceConfig) -> tuple[str, ...]:
    """Return what a zygote imports: torch, what a rank needs of ours, and whatever ``--ft-preload`` names."""
    return (
        "torch",
        "torch.distributed",
        "resilience_core.monitoring.client",
        "resilience_core.config.schema",
        *(config.preload or ()),
    )


@contextlib.contextmanager
def open_resources(
    job: LaunchJob,
    launch_config: Any,
    log_folder: str,
    zygote: ZygoteHandle | None,
    settings: ImportSettings | None,
    signals: SignalInbox,
    disk: Background,
) -> Iterator[AgentResources]:
    """Open a job's resources and close them when the block is left."""
    with contextlib.ExitStack() as stack:
        if hasattr(launch_config, "signals_to_handle"):  # torch's launch_agent sets it for the workers, too
            os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = launch_config.signals_to_handle
        listener, history, not_served = None, None, ""
        try:
            if job.config.metrics_port is not None:
                history = stack.enter_context(SharedHistory.opened())
            if (listener := listen(job.config)) is not None:
                stack.callback(listener.close)
        except (CannotListenError, OSError) as error:
            not_served = str(error)
        run_folder = RunFolder(job.config.run_dir)
        stack.callback(run_folder.remove)
        control = ControlSocket(run_folder.file(CONTROL_SOCKET))
        stack.callback(control.close)
        notices = Notices(os.path.basename(log_folder), is_alone=job.is_local)
        events = EventLog(
            log_folder,
            disk,
            on_made_anew=lambda: latest.restore(log_folder),
            listener=notices.heard,
            **_hooks(history, EVENTS),
        )
        stack.callback(events.close)
        figures_log = _figures_log(log_folder, disk, history)
        figures = FiguresRecorder(figures_log, disk)
        stack.callback(figures.close)
        notices.start(job.config, lambda text: _tell_problem(events, text))
        stack.callback(notices.close)
        run_folder.write(CONFIG_FILE, job.config.to_json())

        def on_change(change: str, reason: str) -> None:
            announce(announcements.monitor_changed(change, reason), level=announcements.level_of(change), event=change)
            events.write(change, reason=reason)

        lease = LeaseWord(run_folder.file("lease")) if job.agrees_by_itself else None
        if lease is not None:
            stack.callback(lease.close)
        monitor = MonitorHandle(
            job.config,
            run_folder=run_folder.path,
            log_folder=log_folder,
            owns_ranks=True,
            on_change=on_change,
            lease=lease,
        )
        stack.callback(monitor.close)
        second_fence = None
        if lease is not None:
            second_fence = SecondFence(lease, lambda: run_folder.paths)
            stack.callback(second_fence.close)
        starter: WorkerStarter = SpawnStarter()
        if zygote is not None:
            tell = announcer("worker_start")
            starter = WarmStarter(WarmPool(zygote, preload(job.config), tell, settings), tell)
        stack.callback(starter.close)
        machine = MachineEvidence([log_folder])
        stack.callback(machine.close)
        starter.ensure_ready(launch_config.nproc_per_node)
        instead = os.path.join(run_folder.path, "workers")
        logs = BoundedLogs(launch_config.logs_specs, disk, lambda: instead, announcer("log_folder"))
        stack.callback(logs.remove_empty)
        events.write(
            "began",
            run=os.path.basename(log_folder),
            **place_facts(log_folder, disk),
            run_folder=run_folder.path,
            monitor=monitor.pid,
            launcher=os.getpid(),
            max_restarts=launch_config.max_restarts,
            pid_namespace=own_pid_namespace(),
            arguments=arguments_shown(job.argv),
            configuration=_configuration_shown(job.config),
        )
        exporter = None
        if listener is not None and history is not None:
            settings_of_exporter = ExporterSettings(
                listener=listener.fileno(),
                launcher=os.getpid(),
                run=os.path.basename(log_folder),
                node=os.uname().nodename,
                run_folder=run_folder.path,
                history=history.reader,
                figures=None if figures_log is None else figures_log.path,
                straggler_log=completed(job.config.metrics_straggler_log) if job.config.metrics_straggler_log else None,
                console=console.state(),
                shared_output=tuple(each for each in (console.shared_descriptor(),) if each is not None),
            )
            exporter = serve(listener, settings_of_exporter, events.write)
            stack.callback(exporter.close)
        elif not_served:
            tell_not_served(not_served, events.write)
        stack.callback(finish_copies, lambda: signals.first is not None)
        yield AgentResources(
            config=job.config,
            run_folder_keeper=RunFolderKeeper(run_folder, control, monitor, events.write),
            log_folder=log_folder,
            monitor=monitor,
            signals=signals,
            events=events,
            figures=figures,
            starter=starter,
            disk=disk,
            logs_specs=logs,
            log_line_prefix_template=launch_config.log_line_prefix_template,
            lease=lease,
            second_fence=second_fence,
            exporter=exporter,
            machine=machine,
            notices=notices,
        )


def _hooks(history: SharedHistory | None, stem: str) -> dict[str, Any]:
    """Return what an :class:`EventLog` tells where metrics are served."""
    if history is None:
        return {}
    on_lost = functools.partial(history.note_lost, stem)
    return {"on_lost": on_lost, "on_line": history.heard} if stem == EVENTS else {"on_lost": on_lost}


def _configuration_shown(config: FaultToleranceConfig) -> dict[str, Any]:
    """Return the configuration as it is written to the log folder: of whom to tell events no secret."""
    plain: dict[str, Any] = json.loads(config.to_json())
    return plain if config.on_event is None else {**plain, "on_event": shown(config.on_event)}


def _figures_log(log_folder: str, disk: Background, history: SharedHistory | None) -> EventLog | None:
    """Return the file of figures; None where it cannot be made, which costs reports and no protection."""
    try:
        return EventLog(log_folder, disk, stem=FIGURES, **_hooks(history, FIGURES))
    except FolderError as error:
        if history is not None:
            history.note_lost(FIGURES, 1)
        announce(f"the figures of this run are not kept: {error}", event="log_folder")
        return None


def _tell_problem(events: EventLog, text: str) -> None:
    announce(text, event="on_event")
    events.write("note", text=text)
