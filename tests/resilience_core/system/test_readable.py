"""Waits for descriptors of any number."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from resilience_core.system.readable import wait_until_readable


@pytest.fixture(params=[3, 1500])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[int, socket.socket]]:
    """Return a descriptor of at least that number, and the other end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        descriptor = fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD, request.param)
        yield descriptor, theirs
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_it_says_whether_something_has_come(pair: tuple[int, socket.socket]) -> None:
    descriptor, theirs = pair
    assert not wait_until_readable(descriptor, 0.001)
    assert not wait_until_readable(descriptor, -5)
    theirs.send(b"x")
    assert wait_until_readable(descriptor, None)


def test_a_closed_end_is_read_from(pair: tuple[int, socket.socket]) -> None:
    descriptor, theirs = pair
    theirs.close()
    assert wait_until_readable(descriptor, 60)
