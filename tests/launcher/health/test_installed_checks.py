"""Checks of other distributions: found, loaded late, with a bound of their own, and refused when they are no checks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.health.check import Context
from launcher.health.installed import InstalledCheck, installed_checks
from launcher.health.runner import HealthRunner
from launcher.health.settings import HealthSettings
from launcher.health.watch import Watch
from resilience_core.errors import ConfigError
from tests.launcher.health.conftest import asked


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a module as a distribution that offers checks; a name of its own for each test's module."""

    def install(module: str, source: str, **entry_points: str) -> None:
        folder = tmp_path / f"site-{module}"
        info = folder / f"{module}-1.5.dist-info"
        info.mkdir(parents=True)
        (folder / f"{module}.py").write_text(source)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.5\n")
        lines = [f"{name} = {module}:{target}" for name, target in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[resilience_health]", *lines, ""]))
        monkeypatch.syspath_prepend(str(folder))

    return install


FAN = """
class Fan:
    name = "fan"
    bound_seconds = 33
    def check(self, context):
        return f"fan of {context.arguments} stands" if context.arguments else None
fan = Fan()
"""


def only(name: str) -> InstalledCheck:
    (offer,) = (offer for offer in installed_checks() if offer.name == name)
    return InstalledCheck(offer, 7.0, is_named=True)


@pytest.mark.parametrize("target", ["Fan", "fan"])
def test_a_class_or_an_object_is_loaded_at_the_first_look(target: str, install: Callable[..., None]):
    install(f"ft_fan_{target}", FAN, fan=target)
    check = only("fan")
    assert (check.name, check.bound_seconds) == ("fan", 7.0)
    assert asked(check) is None
    assert check.bound_seconds == 33
    assert asked(check, Context(arguments=("rack 3",))) == "fan of ('rack 3',) stands"


def test_it_runs_by_default_and_with_what_the_user_has_written(install: Callable[..., None]):
    install("ft_fan_default", FAN, fan="Fan")
    assert "fan" in HealthRunner(HealthSettings(), Context()).names
    assert HealthRunner(HealthSettings(checks=("memory",)), Context()).names == ("memory",)
    finding = HealthRunner(HealthSettings(checks=("fan:left", "fan:right")), Context()).before_joining()
    assert str(finding) == "health check 'fan': fan of ('left', 'right') stands"


def test_its_import_does_not_use_up_its_own_time(install: Callable[..., None], monkeypatch: pytest.MonkeyPatch):
    """Its look begins when the time that an import has would be over."""
    begun, go = threading.Event(), threading.Event()
    monkeypatch.setattr(threading, "_ft_health_test_begun", begun, raising=False)
    monkeypatch.setattr(threading, "_ft_health_test_go", go, raising=False)
    source = """
import threading
class Long:
    name = "long"
    bound_seconds = 60
    def check(self, context):
        threading._ft_health_test_begun.set()
        assert threading._ft_health_test_go.wait(60)
"""
    install("ft_long", source, long="Long")
    (offer,) = (offer for offer in installed_checks() if offer.name == "long")
    check = InstalledCheck(offer, 5.0, is_named=True)
    changed = threading.Condition()
    watch = Watch(check, Context(), changed)
    with changed:
        watch.begin()
    assert begun.wait(60)
    with changed:
        assert check.bound_seconds > 60
        assert watch.seconds_left() > 5.0
        assert watch.answer() is None
        go.set()
        assert changed.wait_for(lambda: not watch.is_busy, 60)
    assert check.bound_seconds == 60


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("raise ImportError('no such driver')", "ImportError('no such driver')"),
        ("import sys; sys.exit(4)", "SystemExit(4)"),
        ("class Bad: pass", "it has no method check(context)"),
        ("class Bad:\n bound_seconds = -1\n def check(self, context): ...", "its bound_seconds is -1: give seconds"),
        ("class Bad:\n bound_seconds = 'x'\n def check(self, context): ...", "its bound_seconds is 'x': give seconds"),
        ("class Bad:\n def __init__(self, x): ...\n def check(self, context): ...", "missing 1 required positional"),
    ],
)
def test_one_that_cannot_be_loaded_has_failed_if_it_was_named_and_is_left_out_otherwise(
    source: str, expected: str, install: Callable[..., None], capfd, request: pytest.FixtureRequest
):
    module = f"ft_bad_{request.node.name.encode().hex()[-40:]}"
    install(module, source, bad="Bad")
    answer = asked(only("bad"))
    assert answer is not None
    assert answer.startswith(f"{module}:Bad of {module} 1.5 cannot be loaded: ")
    assert expected in answer
    assert "take 'bad' out of health_checks" in answer

    (offer,) = (offer for offer in installed_checks() if offer.name == "bad")
    check = InstalledCheck(offer, 7.0, is_named=False)
    assert asked(check) is None
    assert asked(check) is None
    said = capfd.readouterr().err
    assert said.count("health check 'bad' is left out") == 1
    assert expected in said


def test_a_name_that_is_taken_is_left_out_with_a_note(install: Callable[..., None]):
    install("ft_takes_memory", FAN, memory="Fan", fan="Fan")
    install("ft_zz_takes_fan", FAN, fan="Fan")
    runner = HealthRunner(HealthSettings(), Context())
    assert runner.names.count("fan") == runner.names.count("memory") == 1
    assert "health check 'memory' of ft_takes_memory 1.5 is left out: that name is taken" in runner.notes
    assert "health check 'fan' of ft_zz_takes_fan 1.5 is left out: that name is taken" in runner.notes


def test_without_installed_plugins_there_are_none(install: Callable[..., None]):
    install("ft_fan_off", FAN, fan="Fan")
    assert "fan" not in HealthRunner(HealthSettings(load_installed=False), Context()).names
    with pytest.raises(ConfigError, match=r"'fan': there is no such check; installed ones .* are switched off"):
        HealthRunner(HealthSettings(checks=("fan",), load_installed=False), Context())


def test_a_distribution_that_cannot_be_read_is_named_and_left_out(install: Callable[..., None], monkeypatch, capfd):
    from launcher.health import installed

    install("ft_fan_read", FAN, fan="Fan")
    monkeypatch.setattr(installed, "distributions_with", lambda group: ["ft-nowhere", "ft-fan-read"])
    assert [offer.name for offer in installed_checks()] == ["fan"]
    assert "no health check of ft-nowhere is used" in capfd.readouterr().err
