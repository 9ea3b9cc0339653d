"""What several tests do in threads of their own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def in_a_thread(call: Callable[[], Any]) -> Any:
    """Return what ``call`` returns in a new thread, or raise what it raises."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result(60)


@contextlib.contextmanager
def writer(block: Callable[[], contextlib.AbstractContextManager[Any]]) -> Iterator[Callable[[], None]]:
    """Enter a block in a new thread, and yield a function that leaves it there, once."""
    may_leave, is_entered = threading.Event(), threading.Event()

    def run() -> None:
        with block():
            is_entered.set()
            assert may_leave.wait(60)

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run)

        def leave() -> None:
            may_leave.set()
            running.result(60)

        assert is_entered.wait(60)
        try:
            yield leave
        finally:
            leave()
