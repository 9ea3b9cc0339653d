"""wrap_callables: what is wrapped, kept and restored."""

import types

import pytest

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


@pytest.fixture
def detector():
    made = Detector()
    made.initialize(probes=[CpuWallProbe()])
    yield made
    made.shutdown()


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
