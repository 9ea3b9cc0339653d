"""What the monitor collects of each local rank on a verdict: processes, stacks, children."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Collection, Mapping, Sequence

from launcher.incidents.children import Child, with_awaited
from launcher.incidents.frames import (
    Frame,
    Thread,
    is_a_wait_for_the_gpu,
    is_of_an_ending_interpreter,
    own_frame,
)
from launcher.incidents.group_numbers import telling_groups
from launcher.incidents.incident import MOST_STACKS
from launcher.incidents.native_frames import native_stacks
from launcher.incidents.stacks import take_stacks
from launcher.incidents.waits import (
    is_entered_by_all,
    is_for_one,
    is_for_the_store,
    may_wait_unseen,
    tells_no_wait,
    waits_for_peers,
)
from launcher.monitor.messages import MonitorSettings
from launcher.monitor.rank_monitor import RankMonitor
from launcher.processes.evidence import Evidence, ProcessLook, look_at, uses_a_gpu
from launcher.records.console import DEBUG, announce
from resilience_core.protocol.cell_layout import STACK_SIGNAL
from resilience_core.protocol.cell_view import CellView
from resilience_core.protocol.group_numbers import GroupNumbers
from resilience_core.system.clock import NS_PER_SECOND

__all__ = [
    "can_be_asked",
    "evidence_of_rank",
    "mistake_phrase",
    "native_stacks_of",
    "stacks_of_ranks",
    "started_at",
    "with_stacks",
]

_LIVELY_NS = 2 * NS_PER_SECOND
"""A rank that has reported within it is getting on; its stack was taken meanwhile, which takes up to a second."""


def mistake_phrase(what: str, error: Exception) -> str:
    """Words for an error that nobody has foreseen; its traceback is for ``--ft-log-level DEBUG``."""
    announce(*traceback.format_exception(error), level=DEBUG, event="traceback")
    place = traceback.extract_tb(error.__traceback__)[-1]
    name = f"{os.path.basename(place.filename)}:{place.lineno}"
    return f"{what} ({type(error).__name__}: {error}, at {name}; this is a mistake in ft_launcher, please report it)"


def started_at(view: CellView) -> float:
    """Return when a rank's process was started, on ``time.time()``."""
    since_boot: float = view.start_time / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


def can_be_asked(look: ProcessLook | None) -> bool:
    """Return whether there is a process that could be asked for its stacks."""
    return look is None or look.exit_code is None


def stacks_of_ranks(
    interruptible: Collection[RankMonitor],
    views: dict[RankMonitor, CellView],
    children: Sequence[Child],
    settings: MonitorSettings,
    seconds: float,
    reasons: dict[int, str],
) -> dict[int, tuple[Thread, ...]]:
    """By local rank, and by the negative pid of a child; the ranks' come first where time or memory run out.

    Only those that are ``interruptible`` are asked by a signal, which may end a wait in C.
    """
    if not settings.config.capture_stacks:
        reasons.update((rank.order.local_rank, "none was taken (--ft-capture-stacks false)") for rank in views)
        return {}
    try:
        return take_stacks(
            {
                **{rank.order.local_rank: rank.pid(view) for rank, view in views.items() if rank.pid(view)},
                **{-child.pid: child.pid for child in children},
            },
            py_spy=settings.py_spy,
            timeout_seconds=seconds,
            fallback_files={rank.order.local_rank: rank.stack_file for rank, view in views.items() if view.pid},
            interruptible={rank.order.local_rank for rank in interruptible},
            fallback_signal=STACK_SIGNAL,
            reasons=reasons,
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, it costs the stacks and no more
        why = mistake_phrase("no stack could be taken", error)
        reasons.update((rank.order.local_rank, why) for rank in views)
        return {}


def native_stacks_of(
    pids: Mapping[int, int], stacks: Mapping[int, tuple[Thread, ...]], settings: MonitorSettings, end: float
) -> tuple[dict[int, tuple[Thread, ...]], dict[int, str]]:
    """Take the stacks of a few ranks once more, with their frames of C and C++.

    Args:
        pids: Local rank to process, of those that an incident is about, the culprits first.
        stacks: Those of Python, by local rank. Where py-spy has told none, it has no native frames either.
        settings: The monitor's.
        end: Of the time for evidence, on ``time.monotonic()``.

    Returns:
        Stacks by local rank, and why there are none.
    """
    told = [n for n in pids if any(not thread.was_asked for thread in stacks.get(n, ()))]
    if settings.py_spy is None or not settings.config.capture_stacks or not told:
        return {}, {}
    reasons: dict[int, str] = {}
    try:
        return native_stacks({n: pids[n] for n in told[:MOST_STACKS]}, settings.py_spy, end, reasons), reasons
    except Exception as error:  # noqa: BLE001 - whatever it is, it costs these frames and no more
        return {}, {told[0]: mistake_phrase("none could be taken", error)}


def with_stacks(
    family: Sequence[Child], stacks: dict[int, tuple[Thread, ...]], own: tuple[Thread, ...]
) -> tuple[Child, ...]:
    """Children of a rank, those first that it may wait for."""
    complete = with_awaited([child._replace(stack=stacks.get(-child.pid, ())) for child in family], own)
    return tuple(sorted(complete, key=lambda child: (not child.is_awaited, not child.is_suspect)))


def evidence_of_rank(
    rank: RankMonitor,
    view: CellView,
    look: ProcessLook | None,
    stack: tuple[Thread, ...],
    sources: Mapping[Frame, str],
    numbers: GroupNumbers,
    seen_ns: int,
) -> Evidence:
    """Return the evidence on one rank from its cell, as of an instant, its process, stack and process groups."""
    sign_ns = view.last_sign_ns
    later = look_at(rank.pid(view))
    has_gpu = uses_a_gpu(rank.pid(view))
    # It waits for a disk or a device, and not just in this moment.
    hangs_in_kernel = look is not None and later is not None and look.state == later.state == "D"
    waits: bool | None = None
    stands_at = str(own_frame(stack) or "")
    frame = waits_for_peers(stack, sources)
    if stack:
        sleeps = later is None or later.state == "S"
        tells = tells_no_wait(stack, sources, sleeps=sleeps)
        waits = frame is not None
        if not waits and (not tells or (has_gpu and is_a_wait_for_the_gpu(stack, sources))):
            waits = None
    is_busy = None
    if look is not None and later is not None and not has_gpu:
        is_busy = look.state == later.state == "R"
    return Evidence.of_cell(rank.order.local_rank, view, later, rank.error())._replace(
        waits=waits,
        is_finalizing=bool(stack) and is_of_an_ending_interpreter(stack),
        may_wait=not waits and not hangs_in_kernel and bool(stack) and may_wait_unseen(stack, sources),
        waits_by_source=frame is not None and waits_for_peers(stack, {}) is None,
        waits_at=stands_at if waits else "",
        stands_at=stands_at,
        waits_for_all=frame is not None and is_entered_by_all(frame),
        waits_for_one=frame is not None and is_for_one(frame, sources),
        waits_for_store=frame is not None and is_for_the_store(frame),
        closed=tuple(rank.sections_closed().items()),
        is_busy=is_busy,
        is_lively=0 <= time.monotonic_ns() - sign_ns < _LIVELY_NS,
        silent_ns=max(0, seen_ns - sign_ns) if sign_ns else -1,
        hangs_in_kernel=hangs_in_kernel,
        has_gpu=has_gpu,
        groups=telling_groups(numbers),
        is_idle=numbers.is_idle,
    )
