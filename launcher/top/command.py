"""What ft_top does: one snapshot, or the live table."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

from launcher.live.live_run import LiveRun, RunLook
from launcher.processes.exit_codes import FAILED, REFUSED, SUCCEEDED
from launcher.records.format_versions import UnknownVersionError
from launcher.top.header import Headers
from launcher.top.options import make_parser
from launcher.top.other_nodes import OtherNodes
from launcher.top.output import encoded
from launcher.top.phrases import one_line
from launcher.top.rows import all_rows, in_order
from launcher.top.snapshot import as_json, as_text
from launcher.top.source import NoRunError, open_run

__all__ = ["run"]

NO_RICH = (
    "the live table needs rich: pip install 'torch-resilience[top]'; "
    "ft_top --once and ft_top --json print one snapshot without it"
)


def run(arguments: Sequence[str] | None = None) -> int:
    """Do what :func:`launcher.top.main` does."""
    options = make_parser().parse_args(arguments)
    try:
        live = open_run(options.run)
        try:
            return _show(live, options)
        finally:
            live.close()
    except NoRunError as error:
        _complain(str(error))
        return error.exit_code
    except BrokenPipeError:
        # Whoever reads has seen enough. The interpreter would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return SUCCEEDED
    except (OSError, UnknownVersionError) as error:
        _complain(one_line(str(error)))
        return FAILED


def _show(live: LiveRun, options: argparse.Namespace) -> int:
    others = OtherNodes(options.metrics, options.interval) if options.metrics else None
    if others is not None:
        others.start()
    try:
        if options.once or options.json or not _is_terminal(1):
            _print(live.look(), others, as_document=options.json)
            return SUCCEEDED
        return _show_live(live, options, others)
    finally:
        if others is not None:
            others.stop()


def _show_live(live: LiveRun, options: argparse.Namespace, others: OtherNodes | None) -> int:
    first = live.look()
    if not first.goes_on:
        _print(first, None)
        return SUCCEEDED
    try:
        from launcher.top.screen import Screen, die_of
        from launcher.top.styles import Styles
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "rich":
            raise
        _complain(NO_RICH)
        return REFUSED
    from launcher.top.terminal import Terminal

    styles = Styles()
    if styles.is_dumb:
        _print(first, others)
        return SUCCEEDED
    screen = Screen(Terminal(1, 0 if _is_terminal(0) else None), styles, options.interval, others)
    last, number = screen.run(live.look)
    if number is not None:
        return die_of(number)
    if last is not None:
        _print(last, None)
    return SUCCEEDED


def _print(look: RunLook, others: OtherNodes | None, *, as_document: bool = False) -> None:
    """Print a snapshot to standard output.

    Raises:
        BrokenPipeError: Nobody reads it.
    """
    if others is not None:
        others.wait_for_first()
    found = others.look() if others is not None else ()
    rows = in_order(all_rows(look, (row for other in found for row in other.rows)))
    text = as_json(look, rows, found) if as_document else as_text(Headers().lines(look, found), rows)
    raw = encoded(text, "backslashreplace")
    while raw:
        raw = raw[os.write(1, raw) :]


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def _complain(text: str) -> None:
    if sys.stderr is not None:  # as it is where the descriptor is closed
        with contextlib.suppress(OSError, ValueError):  # nobody reads it
            print(f"ft_top: {text}", file=sys.stderr)
