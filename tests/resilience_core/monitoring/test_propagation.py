"""An exception that something keeps was caught once its thread neither handles it nor is on the way out with it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from resilience_core.monitoring.propagation import Propagation


class Watcher:
    """Notes an exception, as a section that it leaves does, and asks from another thread whether it was caught."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.propagation: Propagation | None = None

    @contextlib.contextmanager
    def generator(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.note(error)
            raise

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.note(error)

    def note(self, error: BaseException) -> None:
        self.error, self.propagation = error, Propagation.of(error)

    def was_caught(self) -> bool:
        found: list[bool] = []
        assert self.propagation is not None
        ask = self.propagation.has_ended
        asking = threading.Thread(target=lambda: found.append(ask(lambda error: error is self.error)))
        asking.start()
        asking.join()
        return found[0]


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture(params=["class", "generator"])
def section(request: pytest.FixtureRequest, watcher: Watcher) -> Callable[[], contextlib.AbstractContextManager[None]]:
    return (lambda: watcher) if request.param == "class" else watcher.generator


Section = Callable[[], contextlib.AbstractContextManager[None]]


def raise_in(section: Section) -> None:
    with section():
        raise ValueError("a bad batch")


def test_what_was_caught_in_the_same_frame_and_kept_is_caught(watcher: Watcher, section: Section) -> None:
    try:
        with section():
            raise ValueError("a bad batch")
    except ValueError:
        assert not watcher.was_caught(), "it is being handled"
    assert watcher.was_caught()


def test_what_was_caught_further_out_and_kept_is_caught(watcher: Watcher, section: Section) -> None:
    def skips() -> None:
        try:
            raise_in(section)
        except ValueError:
            assert not watcher.was_caught()
        assert watcher.was_caught()

    skips()
    assert watcher.was_caught()


def test_what_a_finally_or_an_exit_is_on_the_way_of_is_not_caught(watcher: Watcher, section: Section) -> None:
    told: list[bool] = []

    class Closing:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            told.append(watcher.was_caught())

    def cleans_up() -> None:
        with Closing():
            try:
                raise_in(section)
            finally:
                told.append(watcher.was_caught())

    with contextlib.suppress(ValueError):
        cleans_up()
    assert told == [False, False]
    assert watcher.was_caught()


def test_what_is_raised_while_it_is_handled_is_on_the_way_with_it(watcher: Watcher, section: Section) -> None:
    try:
        try:
            raise_in(section)
        except ValueError:
            try:
                raise OSError("cannot save")
            except OSError:
                assert not watcher.was_caught(), "in the course of it"
            raise RuntimeError("cannot go on") from OSError("a disk")
    except RuntimeError:
        assert not watcher.was_caught(), "beside the cause that was named"
    assert watcher.was_caught()


def test_one_of_a_group_is_handled_with_the_group(watcher: Watcher, section: Section) -> None:
    groups = pytest.importorskip("builtins").__dict__.get("ExceptionGroup")
    if groups is None:
        pytest.skip("this Python has no groups of exceptions")
    try:
        raise_in(section)
    except ValueError as error:
        kept = error
    try:
        raise groups("several", [kept])
    except groups:
        assert not watcher.was_caught()
    assert watcher.was_caught()


def test_what_objects_do_that_are_finalized_on_the_way_out_is_no_handling(watcher: Watcher, section: Section) -> None:
    """As the iterator of a loader, which waits for its workers; it is on the stack of the loop that is left."""
    told: list[bool] = []

    class Batches:
        def __iter__(self) -> Batches:
            return self

        def __next__(self) -> int:
            return 0

        def __del__(self) -> None:
            told.append(watcher.was_caught())

    def trains_in_one_frame() -> None:
        for _ in Batches():
            with section():
                raise ValueError("a bad batch")

    def trains() -> None:
        for _ in Batches():
            raise_in(section)

    for each in (trains_in_one_frame, trains):
        with contextlib.suppress(ValueError):
            each()
        assert told.pop() is False, each.__name__
        assert told == []
        assert watcher.was_caught()


def test_a_wait_at_the_place_where_it_was_raised_tells_nothing(watcher: Watcher, section: Section) -> None:
    answers: list[bool] = []

    def attempt(number: int) -> None:
        if number == 0:
            raise_in(section)
        answers.append(watcher.was_caught())

    for number in range(2):
        try:
            attempt(number)
        except ValueError:
            continue
    assert answers == [False], "a second attempt is at the same instruction"
    assert watcher.was_caught()


def test_of_a_thread_that_has_ended_nothing_is_known(watcher: Watcher, section: Section) -> None:
    def work() -> None:
        with contextlib.suppress(ValueError):
            raise_in(section)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not watcher.was_caught()


def test_what_a_future_keeps_counts_as_caught_once_its_thread_does_something_else(
    watcher: Watcher, section: Section
) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(raise_in, section)
        assert future.exception(60) is not None
        pool.submit(int).result(60)
        end = time.monotonic() + 60
        while not watcher.was_caught() and time.monotonic() < end:
            time.sleep(0.001)  # the thread has yet to wait for its next task
        assert watcher.was_caught()


def test_of_a_task_of_asyncio_that_has_failed_nothing_is_known_while_another_one_runs(
    watcher: Watcher, section: Section
) -> None:
    async def train() -> None:
        raise_in(section)

    async def run() -> None:
        task = asyncio.ensure_future(train())
        await asyncio.wait([task])
        assert not watcher.was_caught(), "the loop calls all of them from one instruction"
        with contextlib.suppress(ValueError):
            task.result()

    asyncio.run(run())


def test_an_exception_that_was_not_raised_has_no_way_out() -> None:
    assert Propagation.of(ValueError("never raised")) is None


def test_frames_and_what_they_refer_to_are_let_go_of(watcher: Watcher, section: Section) -> None:
    class Tensor:
        pass

    def train() -> weakref.ref[Tensor]:
        large = Tensor()
        found = weakref.ref(large)
        try:
            raise_in(section)
        except ValueError:
            watcher.error = None
        return found

    found = train()
    gc.collect()
    assert found() is None
    assert watcher.propagation is not None
