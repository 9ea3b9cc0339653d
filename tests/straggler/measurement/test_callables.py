"""wrap_callables: what is wrapped, kept and restored."""

import asyncio
import copy
import functools
import inspect
import itertools
import pickle
import sys
import types

import pytest

from resilience_core import ConfigError
from straggler import CallableId, Detector, Statistic
from straggler.probes.cpu_wall import CpuWallProbe


class Model:
    def forward(self, x):
        return x + 1

    @staticmethod
    def helper(x):
        return x * 2

    @classmethod
    def build(cls):
        return cls()


def test_calls_are_timed_and_answered(detector):
    model = Model()
    detector.wrap_callables([CallableId(model, "forward")])
    assert model.forward(1) == 2
    summaries = detector.generate_report().local_section_summaries
    assert [name.rpartition(".")[2] for name in summaries] == ["forward"]


def test_the_arguments_that_have_no_effect_are_taken_and_every_call_is_timed(detector):
    """In nvidia-resiliency-ext, whose examples give ``ignored_args``, nothing reads them either."""
    model = Model()
    by_place = CallableId(model, "forward", lambda bound: False, lambda bound: {}, ("self",))
    assert by_place == CallableId(model, "forward", ignored_args=("x",))
    detector.wrap_callables([by_place, CallableId(Model, "build", ignored_args=("self",))])
    for x in range(3):
        assert model.forward(x) == x + 1
    Model.build()
    summaries = detector.generate_report().local_section_summaries
    assert [summary[Statistic.NUM] for summary in summaries.values()] == [3, 1]


def test_the_names_of_sections_are_those_of_nvidia_resiliency_ext(detector):
    assert str(CallableId(Model(), "forward")) == "Model.forward"
    assert str(CallableId(Model, "helper")) == f"{__name__}.Model.helper"
    assert str(CallableId(types, "new_class")) == "types.new_class"


def test_a_second_wrap_keeps_the_first_and_both_are_restored(detector):
    model, module = Model(), types.ModuleType("m")
    module.f = lambda: 7
    original = module.f
    detector.wrap_callables([CallableId(model, "forward")])
    detector.wrap_callables([CallableId(module, "f")])
    assert (model.forward(1), module.f()) == (2, 7)
    assert len(detector.generate_report().local_section_summaries) == 2
    detector.restore_original_callables()
    assert module.f is original
    assert "forward" not in vars(model)


def test_wrapping_twice_times_once(detector):
    model = Model()
    for _ in range(2):
        detector.wrap_callables([CallableId(model, "forward")])
    model.forward(1)
    (summary,) = detector.generate_report().local_section_summaries.values()
    assert [v for k, v in summary.items() if str(k) == "NUM"] == [1.0]


def test_two_objects_of_one_type_get_sections_of_their_own(detector):
    first, second = Model(), Model()
    detector.wrap_callables([CallableId(first, "forward"), CallableId(second, "forward")])
    first.forward(1)
    second.forward(1)
    assert len(detector.generate_report().local_section_summaries) == 2


def test_static_and_class_methods_stay_what_they_are(detector):
    detector.wrap_callables([CallableId(Model, "helper"), CallableId(Model, "build"), CallableId(Model, "forward")])
    assert Model.helper(2) == Model().helper(2) == 4
    assert isinstance(Model.build(), Model)
    assert Model().forward(1) == 2
    detector.restore_original_callables()
    assert isinstance(vars(Model)["helper"], staticmethod)
    assert isinstance(vars(Model)["build"], classmethod)


def test_shutdown_restores(detector):
    model = Model()
    detector.wrap_callables([CallableId(model, "forward")])
    detector.shutdown()
    assert "forward" not in vars(model)


def test_what_cannot_be_wrapped_is_an_error():
    with pytest.raises(ValueError, match=r"did you mean 'forward'"):
        CallableId(Model(), "forwrd")
    with pytest.raises(ValueError, match="cannot be called"):
        CallableId(types.SimpleNamespace(x=3), "x")


def test_nothing_is_wrapped_when_one_is_no_callable_id(detector):
    model = Model()
    with pytest.raises(ValueError, match="CallableId"):
        detector.wrap_callables([CallableId(model, "forward"), "forward"])
    assert "forward" not in vars(model)


class Awkward:
    kept = len

    @property
    def made(self):
        return lambda: 3


class Slotted:
    __slots__ = ()

    def forward(self):
        return 7

    @staticmethod
    def helper():
        return 8


class Callee:
    state = 5

    def __call__(self, x):
        return x + self.state


@pytest.mark.parametrize(
    ("obj", "name", "why"),
    [(Awkward(), "made", "property"), (int, "bit_length", "immutable type 'int'"), (Slotted(), "helper", "__dict__")],
)
def test_where_one_cannot_be_replaced_none_is_and_the_error_says_which(detector, obj, name, why):
    model, other = Model(), Model()
    detector.wrap_callables([CallableId(other, "forward")])
    with pytest.raises(ConfigError, match=rf"wrap_callables cannot replace .*{name}: .*{why}") as caught:
        detector.wrap_callables([CallableId(model, "forward"), CallableId(Model, "helper"), CallableId(obj, name)])
    assert caught.value.__suppress_context__
    model.forward(1)
    other.forward(1)
    summaries = detector.generate_report().local_section_summaries
    assert {each: int(of[Statistic.NUM]) for each, of in summaries.items()} == {"Model.forward": 1}
    assert not hasattr(Model.helper, "__wrapped__")
    detector.wrap_callables([CallableId(model, "forward")])
    model.forward(1)
    assert "Model.forward#2" in detector.generate_report().local_section_summaries


@pytest.mark.parametrize("given", [5, None, "forward", CallableId(Model(), "forward"), [5], [Model()]])
def test_what_is_no_list_of_callables_is_refused(detector, given):
    with pytest.raises(ConfigError, match=r"wrap_callables takes"):
        detector.wrap_callables(given)


def test_the_name_of_a_callable_is_text():
    with pytest.raises(ConfigError, match=r"CallableId.name is 5; expected the name of an attribute"):
        CallableId(Model(), 5)


def test_a_generator_of_callables_is_taken(detector):
    model = Model()
    detector.wrap_callables(CallableId(model, name) for name in ("forward", "helper", "build"))
    assert (model.forward(1), model.helper(2), type(model.build())) == (2, 4, Model)
    assert len(detector.generate_report().local_section_summaries) == 3
    detector.restore_original_callables()
    assert not vars(model)


def test_objects_without_a_dictionary_and_what_is_no_method_are_timed(detector):
    slotted, space = Slotted(), types.SimpleNamespace(model=Callee())
    detector.wrap_callables([CallableId(slotted, "forward"), CallableId(Awkward, "kept"), CallableId(space, "model")])
    assert (slotted.forward(), Awkward.kept([1, 2]), Awkward().kept([1])) == (7, 2, 1)
    assert (space.model(1), space.model.state, isinstance(space.model, Callee)) == (6, 5, True)
    space.model.state = 10
    summaries = detector.generate_report().local_section_summaries
    assert [int(of[Statistic.NUM]) for of in summaries.values()] == [1, 2, 1]
    detector.restore_original_callables()
    assert space.model(1) == 11
    assert Awkward.kept is len
    assert not hasattr(Slotted.forward, "__wrapped__")


def test_an_inherited_method_is_uncovered_again(detector):
    class Child(Model):
        pass

    before = set(vars(Child))
    child = Child()
    detector.wrap_callables([CallableId(child, "forward"), CallableId(Model, "forward"), CallableId(Child, "forward")])
    assert child.forward(1) == 2
    assert len(detector.generate_report().local_section_summaries) == 2
    detector.restore_original_callables()
    assert set(vars(Child)) == before
    assert not hasattr(Model.forward, "__wrapped__")


def test_what_others_put_over_it_stays_and_is_no_longer_timed(detector):
    model = Model()
    original = vars(Model)["forward"]
    detector.wrap_callables([CallableId(model, "forward")])
    beneath = Model.forward
    try:
        Model.forward = lambda self, x: beneath(self, x) * 10
        detector.restore_original_callables()
        assert model.forward(1) == 20
        assert not detector.generate_report().local_section_summaries
    finally:
        Model.forward = original


def test_two_detectors_that_end_in_the_order_of_their_begin_leave_nothing(detector):
    model, original, second = Model(), vars(Model)["forward"], Detector()
    second.initialize(probes=[CpuWallProbe()])
    for each in (detector, second):
        each.wrap_callables([CallableId(model, "forward")])
    detector.shutdown()
    assert model.forward(1) == 2
    second.shutdown()
    assert vars(Model)["forward"] is original


class Made:
    def __init__(self, x=1):
        self.x = x


class Inherits(Made):
    pass


def test_a_class_that_is_named_stays_itself_and_its_objects_are_timed(detector):
    module, kept = sys.modules[__name__], Made
    before = Made(5)
    detector.wrap_callables([CallableId(module, "Made")])
    made = module.Made(2)
    assert (module.Made is kept, type(made), made.x) == (True, kept, 2)
    assert isinstance(before, module.Made)
    for copied in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert (type(copied), copied.x) == (kept, 2)

    class Child(module.Made):
        pass

    assert (Child(3).x, Inherits(4).x) == (3, 4)
    assert inspect.signature(module.Made) == inspect.Signature([inspect.Parameter("x", 1, default=1)])
    summaries = detector.generate_report().local_section_summaries
    assert {name: int(of[Statistic.NUM]) for name, of in summaries.items()} == {f"{__name__}.Made": 1}
    detector.restore_original_callables()
    assert not hasattr(Made.__init__, "__wrapped__")


def test_an_inherited_init_and_a_class_that_an_object_has_are_timed(detector):
    space, before = types.SimpleNamespace(made=Inherits), set(vars(Inherits))
    detector.wrap_callables([CallableId(space, "made")])
    assert (space.made(2).x, Made(3).x, space.made is Inherits) == (2, 3, True)
    summaries = detector.generate_report().local_section_summaries
    assert {name: int(of[Statistic.NUM]) for name, of in summaries.items()} == {"SimpleNamespace.made": 1}
    detector.restore_original_callables()
    assert set(vars(Inherits)) == before


@pytest.mark.parametrize("name", ["Awkward", "Chained"])
def test_a_class_without_an_init_in_python_is_refused(detector, name):
    module = types.ModuleType("m")
    module.Awkward, module.Chained = Awkward, itertools.chain
    with pytest.raises(
        ConfigError,
        match=rf"cannot replace m\.{name}: it is a class without an __init__ in Python, .* or wrap a method instead",
    ):
        detector.wrap_callables([CallableId(Model, "helper"), CallableId(module, name)])
    assert not hasattr(Model.helper, "__wrapped__")


class Recursive:
    """Calls itself; what it returns is how many frames there are then."""

    def plain(self, left):
        return self.plain(left - 1) if left else frames()

    @functools.lru_cache(maxsize=0)  # noqa: B019  # keeps nothing
    def cached(self, left):
        return self.cached(left - 1) if left else frames()

    def generator(self, left):
        yield from self.generator(left - 1) if left else [frames()]

    async def coroutine(self, left):
        return await self.coroutine(left - 1) if left else frames()


def frames():
    frame, count = sys._getframe(), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


def frames_a_call(owner, name):
    def run(depth):
        made = getattr(owner, name)(depth)
        return asyncio.run(made) if name == "coroutine" else next(made) if name == "generator" else made

    return (run(10) - run(0)) / 10


@pytest.mark.parametrize(("name", "more"), [("plain", 1), ("cached", 1), ("generator", 1), ("coroutine", 2)])
@pytest.mark.parametrize("is_of_class", [False, True])
def test_a_wrapped_recursion_takes_one_more_frame_for_each_call_and_a_coroutine_two(detector, name, more, is_of_class):
    one = Recursive()
    assert frames_a_call(one, name) == 1
    detector.wrap_callables([CallableId(Recursive if is_of_class else one, name)])
    assert frames_a_call(one, name) == 1 + more


def test_a_wrapped_recursion_reaches_about_half_the_depth(detector):
    one, limit = Recursive(), sys.getrecursionlimit()
    detector.wrap_callables([CallableId(one, "plain")])
    one.plain((limit - frames()) // 2 - 20)
    with pytest.raises(RecursionError):
        one.plain(limit // 2 + 20)


class Cached:
    @functools.lru_cache(maxsize=4)  # noqa: B019  # a class of the test
    def double(self, number):
        return 2 * number


@pytest.mark.parametrize("is_of_class", [False, True])
def test_a_cached_method_keeps_what_asks_and_clears_its_cache(detector, is_of_class):
    one = Cached()
    detector.wrap_callables([CallableId(Cached if is_of_class else one, "double")])
    Cached.double.cache_clear()
    assert [one.double(3), one.double(3)] == [6, 6]
    assert Cached.double.cache_info()[:2] == one.double.cache_info()[:2] == (1, 1)
    one.double.cache_clear()
    assert Cached.double.cache_info().currsize == 0


class Counts:
    @staticmethod
    def static():
        Counts.static.calls += 1

    def method(self):
        Counts.method.calls += 1


def counted():
    counting.counted.calls += 1
    counting.counted.last = counting.counted.calls
    if hasattr(counting.counted, "first"):
        del counting.counted.first


counting = types.ModuleType("counting")


@pytest.mark.parametrize("which", ["function", "static method", "method"])
def test_what_a_function_keeps_in_its_own_attributes_is_kept_when_it_is_timed_no_more(detector, which):
    counting.counted = counted
    obj, name = {"function": (counting, "counted"), "static method": (Counts, "static"), "method": (Counts, "method")}[
        which
    ]
    original = getattr(obj, name)
    original.calls, original.first, original.other = 2, True, "as before"
    call = (lambda: Counts.method(Counts())) if which == "method" else (lambda: getattr(obj, name)())
    detector.wrap_callables([CallableId(obj, name)])
    call()
    call()
    detector.shutdown()
    assert getattr(obj, name) is original
    assert hasattr(original, "first") == (which != "function")
    call()
    expected = {"calls": 5, "other": "as before"} | ({"last": 5} if which == "function" else {"first": True})
    assert vars(original) == expected
