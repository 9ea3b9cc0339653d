"""One look as text or as JSON, without rich."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from launcher.live.launcher_log import LauncherLog
from launcher.live.live_run import NodeLook, RunLook
from launcher.live.runs import STARTING, UNKNOWN
from launcher.top.header import HeaderLine
from launcher.top.other_nodes import OtherNode
from launcher.top.rows import Row
from launcher.top.table import Table

__all__ = ["VERSION", "as_json", "as_text"]

VERSION = 1
"""Of the JSON; raised when a field changes its meaning or goes."""
_WIDTH = 120


def as_text(header: Sequence[HeaderLine], rows: Sequence[Row]) -> str:
    """Return the whole table as text, without colours.

    Args:
        header: The lines above it.
        rows: In the order in which they are shown.
    """
    lines = [line.text for line in header]
    if rows:
        table = Table(rows, _WIDTH)
        lines += ["", table.heading, *(table.line(row) for row in rows)]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def as_json(look: RunLook, rows: Sequence[Row], others: Sequence[OtherNode] = ()) -> str:
    """Return one JSON document. Durations are in seconds, memory in bytes; null is unknown."""
    document = {
        "version": VERSION,
        "time": datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "t_ns": time.monotonic_ns(),
        "run": look.name,
        "log_folder": look.path,
        "nodes": [_node(node) for node in look.nodes],
        "other_nodes": [{"url": other.url, "problem": other.problem} for other in others],
        "ranks": [_rank(row) for row in rows],
    }
    return json.dumps(document, indent=1) + "\n"


def _node(node: NodeLook) -> dict[str, Any]:
    log = node.log
    return {
        "node": log.node,
        "state": None if node.state in (STARTING, UNKNOWN) else node.state,
        "generation": node.generation,
        "generation_started_ns": log.generation_ns if node.generation == log.generation else None,
        "began": log.began or None,
        "restarts": log.restarts,
        "max_restarts": log.max_restarts,
        "nodes": log.nodes,
        "monitor_replacements": log.monitor_replacements if log.is_whole else None,
        "is_protected": _is_protected(log),
        "problem": node.problem,
        "last_incident": None if log.incident is None else log.incident._asdict(),
        "ended": None if log.ending is None else log.ending._asdict(),
    }


def _is_protected(log: LauncherLog) -> bool | None:
    if log.unprotected_ns is not None:
        return False
    return True if log.is_whole else None  # that the monitor was lost may be among the events that are missing


def _rank(row: Row) -> dict[str, Any]:
    return {
        "rank": row.rank,
        "local_rank": row.local_rank,
        "node": row.node,
        "generation": row.generation,
        "section": row.activity,
        "remark": row.remark,
        "iteration": row.iteration,
        "age_seconds": row.age,
        "seconds_left": row.left,
        "used": row.used,
        "is_late": row.is_late,
        "steps_per_second": row.steps_per_second,
        "restarts": row.restarts,
        "caused": row.caused,
        "resident_memory_bytes": row.memory_bytes,
    }
