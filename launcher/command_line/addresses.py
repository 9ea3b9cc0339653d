"""Check addresses that the user gives: refuse malformed ones, and warn of names that cannot be resolved.

These are ``--master-addr`` and ``--local-addr``. A name that this node cannot resolve now may still be valid: another
node may know it, and a cluster often publishes a name only when its node is up. torch therefore goes on trying until
its timeout, so this is a warning. An error is only what no resolver can accept.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Mapping

from launcher.records.console import WARNING, announce
from resilience_core.errors import ConfigError

__all__ = ["check_addresses", "tell_unresolved"]

_NAME = re.compile(r"[\w.-]+")
"""torch's own rule for the host of an endpoint."""


def check_addresses(given: Mapping[str, str]) -> None:
    """Refuse what is neither an address nor a name.

    Args:
        given: Options and their values.

    Raises:
        ConfigError: The option, its value and what to write.
    """
    for option, text in given.items():
        host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        if ":" in host:
            is_possible = _is_numeric(host.partition("%")[0])
        elif re.fullmatch(r"[\d.]+", host):
            is_possible = _is_numeric(host)
        else:
            is_possible = bool(_NAME.fullmatch(host))
        if not is_possible:
            raise ConfigError(
                f"{option} {text}: that is neither a name nor an address. Give the name or the address of a node "
                "alone, as node1 or 10.0.0.1; the port is --master-port"
            )


def tell_unresolved(given: Mapping[str, str]) -> threading.Thread | None:
    """Warn of names that cannot be resolved here, from a thread: a name server may take its time.

    Args:
        given: Options and their values.

    Returns:
        The thread; None where there is nothing to resolve.
    """
    names = {
        option: text
        for option, text in given.items()
        if text != "localhost" and not _is_numeric(text.partition("%")[0])
    }
    if not names:
        return None
    thread = threading.Thread(target=_tell, args=(names,), name="ft_resolve", daemon=True)
    thread.start()
    return thread


def _tell(names: dict[str, str]) -> None:
    for option, name in names.items():
        try:
            socket.getaddrinfo(name, None)
        except (OSError, UnicodeError) as error:
            announce(
                f"{option} {name} cannot be resolved on this node ({getattr(error, 'strerror', None) or error}): ranks "
                "look for the first one there, and torch goes on trying until its timeout. If it is misspelt, end the "
                "job and give an address of the node of rank 0",
                level=WARNING,
                event="warning",
            )


def _is_numeric(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return False
    return True
