"""What an exception tells of its rank: whether it may have been raised for what another rank does."""

from __future__ import annotations

import re

from resilience_core.protocol.error_record import ErrorRecord

__all__ = ["gave_up", "may_be_of_another"]

# What torch raises while ranks communicate tells of another rank more often than not: the one that checks raises it.
_OF_COMMUNICATION = re.compile(r"torch/(distributed|nn/parallel)/")

_FRAME = re.compile(r'^(?: +\| )?  File "([^"]*)", line \d+, in ', re.MULTILINE)

_GIVES_UP = {
    "BrokenPipeError",
    "ConnectionAbortedError",
    "ConnectionError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "EOFError",
    "TimeoutError",
    "_queue.Empty",
    "concurrent.futures._base.TimeoutError",  # Python 3.10
    "asyncio.exceptions.TimeoutError",
    "http.client.IncompleteRead",
    "http.client.RemoteDisconnected",
    "multiprocessing.context.TimeoutError",
    "subprocess.TimeoutExpired",
    "urllib.error.URLError",
}

_CAUSE = re.compile(r"^(?: +\| )?([\w.]+)(?::|$)", re.MULTILINE)


def may_be_of_another(error: ErrorRecord) -> bool:
    """Return whether a rank also raises it for what another one does, such as a wait that ended.

    So may ``sys.exit()`` be with which a script ends that has caught the loss of a peer, unless it handles another one.
    """
    return _is_of_communication(error) or _ends_a_wait(error) or (error.type == "SystemExit" and error.earlier is None)


def gave_up(error: ErrorRecord) -> bool:
    """Return whether a wait has ended with it that need not have been one for another rank: for a disk or a server."""
    return _ends_a_wait(error) and not _is_of_communication(error)


def _is_of_communication(error: ErrorRecord) -> bool:
    frames = _FRAME.findall(error.traceback)
    in_communication = bool(frames) and _OF_COMMUNICATION.search(frames[-1]) is not None
    return in_communication or error.type.startswith("torch.distributed.")


def _ends_a_wait(error: ErrorRecord) -> bool:
    return error.type in _GIVES_UP or not _GIVES_UP.isdisjoint(_CAUSE.findall(error.traceback))
