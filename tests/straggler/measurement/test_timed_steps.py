"""Wrapped coroutine functions and generators stay what they are, and each of their steps is timed."""

import asyncio
import functools
import gc
import inspect
import time
import types
import weakref

import pytest

from straggler import CallableId, Statistic


class Plain:
    """What each test wraps; the log says what the originals have seen."""

    def __init__(self):
        self.log = []

    async def coroutine(self, value, *, error=None):
        await asyncio.sleep(0)
        if error is not None:
            raise error
        return value

    def generator(self, count=2):
        try:
            for number in range(count):
                self.log.append((yield number))
        except ValueError as error:
            self.log.append(error)
            yield "caught"
        finally:
            self.log.append("closed")
        return "returned"

    async def both(self, count=2):
        try:
            for number in range(count):
                await asyncio.sleep(0)
                self.log.append((yield number))
        except ValueError as error:
            self.log.append(error)
            yield "caught"
        finally:
            await asyncio.sleep(0)
            self.log.append("closed")

    @staticmethod
    async def static(value):
        return value

    @classmethod
    def of_class(cls, value):
        yield cls, value

    part = functools.partialmethod(generator, 1)


class AsyncCallee:
    async def __call__(self, value):
        return value


NAMES = ("coroutine", "generator", "both", "static", "of_class", "part")


def kinds(function):
    return (
        inspect.iscoroutinefunction(function),
        inspect.isgeneratorfunction(function),
        inspect.isasyncgenfunction(function),
    )


def calls(detector):
    return {name: int(of[Statistic.NUM]) for name, of in detector.generate_report().local_section_summaries.items()}


@pytest.fixture(params=["object", "class"])
def plain(request, detector):
    made = Plain()
    owner = made if request.param == "object" else Plain
    detector.wrap_callables([CallableId(owner, name) for name in NAMES])
    return made


@pytest.mark.parametrize("is_of_class", [False, True])
def test_a_function_keeps_its_kind(detector, is_of_class):
    plain = Plain()
    owner = Plain if is_of_class else plain
    before = [kinds(getattr(plain, name)) for name in NAMES]
    assert [kind.index(True) for kind in before] == [0, 1, 2, 0, 1, 1]
    detector.wrap_callables([CallableId(owner, name) for name in NAMES])
    assert [kinds(getattr(plain, name)) for name in NAMES] == before
    assert [kinds(getattr(Plain, name)) for name in NAMES] == before
    assert plain.generator.__qualname__ == plain.generator().__qualname__ == "Plain.generator"
    assert inspect.signature(plain.coroutine) == inspect.signature(Plain().coroutine)
    detector.restore_original_callables()
    assert not hasattr(Plain.coroutine, "__wrapped__")


def test_what_objects_and_modules_have_of_their_own_keeps_its_kind(detector):
    async def loose(value):
        await asyncio.sleep(0)
        return value

    module, space = types.ModuleType("m"), types.SimpleNamespace()
    module.loose = loose
    space.loose, space.part, space.bound, space.callee = loose, functools.partial(loose, 3), Plain().generator, None
    space.callee = AsyncCallee()
    names = ("loose", "part", "bound", "callee")
    before = [kinds(getattr(space, name)) for name in names]
    detector.wrap_callables([CallableId(module, "loose"), *(CallableId(space, name) for name in names)])
    assert [kinds(getattr(space, name)) for name in names] == before
    assert kinds(module.loose) == (True, False, False)
    assert asyncio.run(module.loose(1)) == asyncio.run(space.loose(1)) == asyncio.run(space.callee(1)) == 1
    assert (asyncio.run(space.part()), list(space.bound())) == (3, [0, 1])
    assert list(calls(detector).values()) == [2, 2, 2, 3, 1], "steps: one more than it waits or yields"


def test_results_and_exceptions_pass_through(plain):
    assert asyncio.run(plain.coroutine(5)) == 5
    assert asyncio.run(plain.static(6)) == 6
    assert list(plain.of_class(7)) == [(Plain, 7)]
    assert list(plain.part()) == [0]
    with pytest.raises(KeyError, match="mine"):
        asyncio.run(plain.coroutine(5, error=KeyError("mine")))
    with pytest.raises(TypeError, match=r"coroutine\(\) missing 1 required positional argument: 'value'"):
        asyncio.run(plain.coroutine())
    with pytest.raises(TypeError, match=r"generator\(\) missing 1 required positional argument: 'self'"):
        next(Plain.generator())


def test_a_generator_gets_what_is_sent_and_thrown_and_is_closed(plain):
    running = plain.generator()
    error = ValueError("x")
    assert (next(running), running.send("a"), running.throw(error)) == (0, 1, "caught")
    with pytest.raises(StopIteration) as ended:
        next(running)
    assert ended.value.value == "returned"
    assert plain.log == ["a", error, "closed"]
    closed = plain.generator()
    next(closed)
    closed.close()
    assert plain.log[3:] == ["closed"]
    stopped = plain.generator()
    next(stopped)
    with pytest.raises(RuntimeError, match="generator raised StopIteration"):
        stopped.throw(StopIteration())


def test_a_generator_that_is_given_up_is_closed(plain):
    running = plain.generator()
    next(running)
    del running
    gc.collect()
    assert plain.log == ["closed"]


def test_a_generator_that_ignores_its_end_is_told_so(detector):
    def stubborn():
        try:
            yield
        except GeneratorExit:
            yield

    module = types.ModuleType("m")
    module.stubborn = stubborn
    detector.wrap_callables([CallableId(module, "stubborn")])
    running = module.stubborn()
    next(running)
    with pytest.raises(RuntimeError, match="generator ignored GeneratorExit"):
        running.close()


def test_an_asynchronous_generator_gets_what_is_sent_and_thrown_and_is_closed(plain):
    async def use():
        assert [number async for number in plain.both(3)] == [0, 1, 2]
        plain.log.clear()
        running = plain.both()
        error = ValueError("x")
        assert (await anext(running), await running.asend("a"), await running.athrow(error)) == (0, 1, "caught")
        with pytest.raises(StopAsyncIteration):
            await anext(running)
        assert plain.log == ["a", error, "closed"]
        closed = plain.both()
        await anext(closed)
        await closed.aclose()
        assert plain.log[3:] == ["closed"]
        given_up = plain.both()
        await anext(given_up)
        del given_up
        for _ in range(5):
            await asyncio.sleep(0)
        assert plain.log[4:] == ["closed"]

    asyncio.run(use())


def test_the_last_step_of_either_generator_counts(detector):
    class Steps:
        def plain(self, count):
            yield from range(count)

        async def asynchronous(self, count):
            for number in range(count):
                yield number

    async def use():
        return [number async for number in Steps().asynchronous(5)]

    detector.wrap_callables([CallableId(Steps, "plain"), CallableId(Steps, "asynchronous")])
    assert list(Steps().plain(5)) == asyncio.run(use()) == [0, 1, 2, 3, 4]
    assert {name.rpartition(".")[2]: count for name, count in calls(detector).items()} == {
        "plain": 6,
        "asynchronous": 6,
    }


def test_a_loop_that_ends_closes_an_asynchronous_generator_once(plain):
    said = []

    async def use():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        running = plain.both()
        await anext(running)
        return running

    running = asyncio.run(use())
    assert (said, plain.log) == ([], ["closed"])
    assert isinstance(running, types.AsyncGeneratorType)


def test_an_exception_that_was_thrown_into_an_asynchronous_generator_is_freed_at_once(plain):
    class Own(Exception):
        pass

    async def use():
        running = plain.both()
        await anext(running)
        error = Own()
        gone = weakref.ref(error)
        try:
            await running.athrow(error)
        except Own:
            pass
        del error
        return gone

    gc.disable()
    try:
        assert asyncio.run(use())() is None
    finally:
        gc.enable()


def test_a_coroutine_is_cancelled(plain):
    async def use():
        task = asyncio.ensure_future(plain.coroutine(1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(use())


def test_each_step_is_timed_without_what_others_do_in_between(detector):
    class Slow:
        def batches(self):
            for number in range(3):
                time.sleep(0.01)
                yield number

        async def fetch(self):
            time.sleep(0.01)
            await asyncio.sleep(0.2)
            time.sleep(0.01)

    slow = Slow()
    detector.wrap_callables([CallableId(slow, "batches"), CallableId(slow, "fetch")])
    for _ in slow.batches():
        time.sleep(0.1)
    assert "Slow.batches" in calls(detector)

    async def two():
        await asyncio.gather(slow.fetch(), slow.fetch())

    asyncio.run(two())
    for _ in slow.batches():
        time.sleep(0.2)
    summaries = detector.generate_report().local_section_summaries
    assert {name: int(of[Statistic.NUM]) for name, of in summaries.items()} == {"Slow.batches": 4, "Slow.fetch": 4}
    assert all(of[Statistic.MED] < 100.0 for of in summaries.values())
    assert all(of[Statistic.MAX] > 9.0 for of in summaries.values())


def test_steps_of_another_object_and_those_after_the_end_are_not_timed(detector):
    timed, other = Plain(), Plain()
    detector.wrap_callables([CallableId(timed, "generator")])
    assert list(other.generator()) == [0, 1]
    running = timed.generator(5)
    assert (next(running), next(running)) == (0, 1)
    assert calls(detector) == {"Plain.generator": 2}
    detector.restore_original_callables()
    assert list(running) == [2, 3, 4]
    assert not calls(detector)


def test_a_step_that_raises_is_not_a_sample_and_leaves_no_section_open(plain, detector):
    for _ in range(2):
        with pytest.raises(KeyError):
            asyncio.run(plain.coroutine(5, error=KeyError("x")))
    (count,) = calls(detector).values()
    assert count == 2, "the first step of each"


def test_what_was_yielded_is_not_held_while_the_next_is_made(detector):
    class Batch:
        def __init__(self):
            made.append(weakref.ref(self))

    made, alive = [], []

    class Loader:
        def batches(self):
            for _ in range(3):
                alive.append(sum(each() is not None for each in made))
                yield Batch()

    loader = Loader()
    detector.wrap_callables([CallableId(loader, "batches")])
    for batch in loader.batches():
        del batch
    assert alive == [0, 0, 0]


def test_an_exception_that_was_thrown_in_is_freed_at_once(plain):
    class Own(Exception):
        pass

    running = plain.generator()
    next(running)
    gc.disable()
    try:
        error = Own()
        gone = weakref.ref(error)
        try:
            running.throw(error)
        except Own:
            pass
        del error
        assert gone() is None
    finally:
        gc.enable()
