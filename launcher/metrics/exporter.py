"""The process ``ft_metrics``: serves the metrics of one node until its launcher ends.

It reads only: cells, figures and what the launcher has counted by descriptors that cannot write, and what the launcher
writes to the log folder. It holds nothing that anybody waits for, so it may be stopped, killed, or asked for metrics
without pause.
"""

from __future__ import annotations

import os
import signal
import socket
import traceback

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST as PLAIN_TEXT
from prometheus_client.exposition import generate_latest as as_plain_text
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics

from launcher.agent.exporter_settings import ExporterSettings
from launcher.metrics.collector import Collector
from launcher.metrics.node import Node
from launcher.metrics.server import Answer, MetricsServer, Reused
from launcher.records.console import announce, follow
from launcher.records.shared_output import join
from resilience_core.system.prctl import die_with_parent, set_process_name
from resilience_core.system.proc import set_session_priority

__all__ = ["main", "serve"]


def main(text: str) -> None:
    """Serve until the launcher ends.

    Args:
        text: The settings, as :meth:`ExporterSettings.to_text` writes them.
    """
    settings = ExporterSettings.from_text(text)
    follow(settings.console)
    join(next(iter(settings.shared_output), None))
    set_process_name("ft_metrics")
    die_with_parent(signal.SIGKILL)
    if os.getppid() != settings.launcher:
        return
    set_session_priority(os.nice(0))
    serve(settings)


def serve(settings: ExporterSettings) -> None:
    """Serve for ever."""
    node = Node(settings)
    node.start()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(node, settings.run, settings.node))

    def page(is_openmetrics: bool) -> Answer:
        if is_openmetrics:
            return Answer(OPENMETRICS, as_openmetrics(registry))
        return Answer(PLAIN_TEXT, as_plain_text(registry))

    listener = socket.socket(fileno=settings.listener)
    MetricsServer(listener, Reused(page), _tell_error).serve()


def _tell_error(error: Exception) -> None:
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(place.filename)}:{place.lineno}"
    announce(f"the metrics cannot be made: {type(error).__name__}: {error} ({where}; said once)", event="metrics")
