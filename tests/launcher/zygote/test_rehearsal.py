"""A rehearsal leaves nothing that a script could see, and uses what becoming a worker uses."""

import gc
import os
import random
import sys
import warnings

import numpy
import torch

from launcher.zygote import rehearsal
from launcher.zygote.rehearsal import rehearse


def is_open(fd):
    return os.path.lexists(f"/proc/self/fd/{fd}")  # the one that lists the folder is not, any more


def visible():
    """What a script could see of what went before it."""
    return {
        "environment": dict(os.environ),
        "modules": list(sys.modules),
        "descriptors": {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_open(fd)},
        "random": random.getstate(),
        "torch": torch.get_rng_state().tolist(),
        "numpy": str(numpy.random.get_state()),
        "filters": list(warnings.filters),
        "streams": [id(stream) for stream in (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)],
        "path": list(sys.path),
        "argv": list(sys.argv),
        "main": id(sys.modules["__main__"]),
        "cwd": os.getcwd(),
    }


def test_nothing_is_left_that_a_script_could_see():
    visible()  # to look imports something itself
    gc.collect()  # what earlier tests have left open is not closed by the rehearsal
    before = visible()
    rehearse()
    gc.collect()
    after = visible()
    assert {what for what in after if after[what] != before[what]} == set(), set(before["descriptors"].items()) ^ set(
        after["descriptors"].items()
    )


def test_standard_output_still_works(capfd):
    """The streams that were tried are closed when they are collected; the descriptors are not."""
    rehearse()
    gc.collect()
    os.write(1, b"still open\n")
    os.write(2, b"this, too\n")
    assert capfd.readouterr() == ("still open\n", "this, too\n")


def test_whatever_fails_is_left_out(monkeypatch):
    """A worker that cannot rehearse is a worker all the same."""

    def refuse(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(rehearsal, "order_to_file", refuse)
    monkeypatch.setattr(rehearsal, "unbuffered", refuse)
    before = dict(os.environ)
    rehearse()
    assert dict(os.environ) == before


def test_only_functions_and_plain_classes_are_touched():
    """Modules hold objects that do things when they are looked at."""

    class Explodes(type):
        def __getattribute__(cls, name):
            raise AssertionError(f"looked at: {name}")

    class Bomb(metaclass=Explodes):
        pass

    class Proxy:
        def __getattribute__(self, name):
            raise AssertionError(f"looked at: {name}")

    touched = {"bomb": Bomb, "proxy": Proxy(), "function": visible, "class": Proxy}
    rehearsal._touch(touched)
    assert list(touched) == ["bomb", "proxy", "function", "class"]


def test_the_modules_that_form_a_group_are_there():
    """A name that torch has given up would be left out without a word."""
    import torch.distributed

    assert torch.distributed.is_available()
    missing = [name for name in rehearsal._FORM_A_GROUP if name not in sys.modules]
    assert missing == []
