"""Models with wrapped methods are copied, saved and compiled as if nothing was wrapped."""

import copy
import functools
import io
import pickle
import subprocess
import sys
import types

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from straggler import CallableId, Statistic

INPUT = torch.ones(2, 4)


def doubled(x):
    return x * 2.0


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x):
        return doubled(self.layer(x))


def closed_over(function):
    class Closed(Net):
        def forward(self, x):
            return function(torch.relu(self.layer(x)))

    return Closed()


def with_own_forward():
    """As libraries do that wrap ``forward`` themselves."""
    model = Net()
    model.forward = types.MethodType(Net.forward, model)
    return model


def calls(detector):
    return {name: int(of[Statistic.NUM]) for name, of in detector.generate_report().local_section_summaries.items()}


@pytest.fixture(params=["object", "class", "own", "layer"])
def wrapped(request, detector):
    model = with_own_forward() if request.param == "own" else Net()
    owner = {"class": Net, "layer": model.layer}.get(request.param, model)
    before = vars(model).get("forward")
    detector.wrap_callables([CallableId(owner, "forward")])
    yield model
    detector.shutdown()
    assert vars(model).get("forward") is before
    assert "__wrapped__" not in vars(Net.forward)
    assert "__wrapped__" not in vars(torch.nn.Linear.forward)


@pytest.mark.parametrize("copied", [copy.deepcopy, AveragedModel, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_computes_with_its_own_weights(wrapped, detector, copied):
    other = copied(wrapped)
    expected = other(INPUT)
    with torch.no_grad():
        wrapped.layer.weight += 1.0
    assert torch.equal(other(INPUT), expected)
    assert not torch.equal(wrapped(INPUT), expected)
    detector.shutdown()
    assert torch.equal(other(INPUT), expected)
    with torch.no_grad():
        other.load_state_dict(other.state_dict())
    copy.deepcopy(other)


def test_a_shallow_copy_computes_with_its_own_state(detector):
    class Plain:
        factor = 1

        def forward(self):
            return self.factor

    first = Plain()
    detector.wrap_callables([CallableId(first, "forward")])
    second = copy.copy(first)
    second.factor = 2
    assert (first.forward(), second.forward()) == (1, 2)
    assert list(calls(detector).values()) == [1], "of the copy nobody has asked"


def test_what_is_saved_holds_nothing_of_this_package(wrapped, tmp_path):
    path = tmp_path / "model.pt"
    torch.save(wrapped, path)
    assert b"straggler." not in pickle.dumps(wrapped).replace(b"tests.straggler.", b"")
    assert list(wrapped.state_dict()) == ["layer.weight", "layer.bias"]
    stream = io.BytesIO()
    torch.save(wrapped.layer, stream)
    stream.seek(0)
    assert torch.equal(torch.load(stream, weights_only=False)(INPUT), wrapped.layer(INPUT))


def test_a_saved_model_is_read_where_this_package_is_missing(detector, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.ReLU())
    model.forward = types.MethodType(torch.nn.Sequential.forward, model)
    model[1].forward = functools.partial(torch.relu)
    detector.wrap_callables([CallableId(each, "forward") for each in (model, model[0], model[1])])
    torch.save(model, tmp_path / "model.pt")
    code = """
import sys, torch
sys.modules["straggler"] = sys.modules["resilience_core"] = None
print(torch.load(sys.argv[1], weights_only=False)(torch.ones(2, 4)).shape)
"""
    made = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "model.pt"], capture_output=True, text=True, check=False
    )
    assert made.stdout == "torch.Size([2, 1])\n", made.stderr


def test_torch_compiles_it_in_one_graph(wrapped, detector):
    expected = wrapped(INPUT)
    before = calls(detector)
    torch.compiler.reset()
    compiled = torch.compile(wrapped, backend="eager", fullgraph=True)
    assert torch.equal(compiled(INPUT), expected)
    assert torch.equal(compiled(INPUT), expected)
    assert sum(before.values()) == 1
    assert not calls(detector), "compiled code is not timed"


def test_torch_compiles_one_of_its_own_layers_whose_forward_was_replaced(detector):
    model = torch.nn.Linear(4, 1)
    model.forward = types.MethodType(torch.nn.Linear.forward, model)
    detector.wrap_callables([CallableId(model, "forward")])
    torch.compiler.reset()
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(INPUT), model(INPUT))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_scripts_it(wrapped):
    assert torch.equal(torch.jit.script(wrapped)(INPUT), wrapped(INPUT))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_scripts_a_method_that_uses_names_around_it(detector):
    model = closed_over(doubled)
    expected = torch.jit.script(model)(INPUT)
    detector.wrap_callables([CallableId(model, "forward")])
    assert torch.equal(torch.jit.script(model)(INPUT), expected)


def test_a_function_of_torch_is_timed_and_compiled(detector):
    detector.wrap_callables([CallableId(torch, "mm")])
    torch.compiler.reset()
    compiled = torch.compile(lambda x: torch.mm(x, x) + 1.0, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.eye(2)), torch.eye(2) + 1.0)
    calls(detector)
    torch.mm(torch.eye(2), torch.eye(2))
    assert calls(detector) == {"torch.mm": 1}


def test_the_calls_of_one_object_are_timed_and_not_those_of_its_type(detector):
    timed, other = Net(), Net()
    detector.wrap_callables([CallableId(timed, "forward")])
    other(INPUT)
    timed(INPUT)
    timed(INPUT)
    assert calls(detector) == {"Net.forward": 2}
