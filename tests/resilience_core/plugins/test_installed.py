"""Plugins of other distributions: found, loaded once, named; a broken one is warned of and left out."""

from __future__ import annotations

import importlib.metadata
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience_core import ConfigError, EventBus, RunContext, hookimpl
from resilience_core.plugins.installed import installed_plugins, is_switched_on, register_installed
from resilience_core.system import distributions

ROOT = Path(__file__).parents[3]
LISTENS = """
from resilience_core import hookimpl
class Listener:
    made = 0
    def __init__(self):
        type(self).made += 1
    @hookimpl
    def step_start(self, iteration):
        print("heard", iteration)
"""


def offer(folder: Path, name: str, entry_points: str, module: str = LISTENS, version: str = "1.0") -> Path:
    """A distribution with one module, as an installer leaves it."""
    folder.mkdir(exist_ok=True)
    importable = name.replace("-", "_").lower()
    (folder / f"{importable}.py").write_text(module)
    info = folder / f"{importable}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[console_scripts]\nx = y:z\n[resilience]\n{entry_points}\n")
    return folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed distributions, first on the path."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture(autouse=True)
def no_module_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test imports its own modules of these names."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    for name in ("their_plugin", "other", "broken"):
        sys.modules.pop(name, None)


def load(bus: EventBus) -> list[object]:
    register_installed(bus.register, bus.unregister)
    return bus.plugins()


def test_an_installed_class_is_instantiated_and_hears_events(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offer(site, "Their-Plugin", "theirs = their_plugin:Listener")
    bus = EventBus()
    load(bus)
    bus.setup(context=RunContext())
    bus.step_start(iteration=5)
    assert capsys.readouterr().out == "heard 5\n"
    (plugin,) = bus.plugins()
    assert type(plugin).__name__ == "Listener"


def test_an_object_and_a_module_are_plugins_as_they_are(site: Path) -> None:
    module = LISTENS + "instance = Listener()\n@hookimpl\ndef step_end(iteration): ...\n"
    offer(site, "their-plugin", "one = their_plugin:instance\ntwo = their_plugin", module)
    bus = EventBus()
    load(bus)
    bus.setup(context=RunContext())
    module_loaded = sys.modules["their_plugin"]
    assert set(map(id, bus.plugins())) == {id(module_loaded), id(module_loaded.instance)}


def test_the_first_setup_says_what_was_loaded_from_where(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    offer(site, "their-plugin", "theirs = their_plugin:Listener", version="2.3")
    offer(site, "Other", "o = other:Listener")
    bus = EventBus()
    load(bus)
    assert not caplog.records
    with caplog.at_level(logging.INFO):
        bus.setup(context=RunContext(local_rank=0))
        bus.setup(context=RunContext(local_rank=0))
    assert [record.getMessage() for record in caplog.records] == [
        "loaded plugins: o (Other 1.0), theirs (their-plugin 2.3); FT_LOAD_PLUGINS=0 or load_plugins: false loads none"
    ]
    assert len(bus.plugins()) == 2


def test_one_rank_of_a_node_says_so(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    offer(site, "their-plugin", "theirs = their_plugin:Listener")
    bus = EventBus()
    load(bus)
    with caplog.at_level(logging.INFO):
        bus.setup(context=RunContext(rank=9, local_rank=1))
    assert not caplog.records


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("import no_such_module_anywhere", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit('leaving')", "SystemExit: leaving"),
        ("this is no python", "SyntaxError: invalid syntax"),
        ("", "AttributeError: module 'broken' has no attribute 'Listener'"),
        ("class Listener:\n    def __init__(self, x): ...", "TypeError: Listener.__init__() missing 1 required"),
        ("class Listener:\n    def step_start(self): ...", "PluginError: plugin broken.Listener would hear nothing"),
        (
            LISTENS.replace("def step_start", "def step_strat"),
            "PluginError: plugin broken.Listener has an unknown hook 'step_strat'; did you mean 'step_start'?",
        ),
        (LISTENS.replace("iteration)", "iterations)"), "PluginError: plugin broken.Listener: "),
        (
            "from resilience_core import SectionMonitor\nclass Listener(SectionMonitor): ...",
            "PluginError: Listener is a monitor (SectionMonitor). A rank has one, which the adapter makes",
        ),
        (
            "from resilience_core import HeartbeatMonitor\nListener = HeartbeatMonitor()",
            "PluginError: HeartbeatMonitor is a monitor (HeartbeatMonitor). A rank has one",
        ),
    ],
)
def test_a_broken_one_is_named_and_left_out(
    site: Path, caplog: pytest.LogCaptureFixture, module: str, said: str
) -> None:
    offer(site, "broken", "b = broken:Listener", module, version="0.1")
    offer(site, "other", "o = other:Listener")
    bus = EventBus()
    load(bus)
    assert not caplog.records, "the rank's log level is not known yet"
    bus.setup(context=RunContext())
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(
        f"plugin b of broken 0.1 (broken:Listener) was not loaded, and training goes on without it: {said}"
    )
    assert (record.exc_info is None) == said.startswith("PluginError")
    bus.setup(context=RunContext())
    assert len(caplog.records) == 1
    assert [type(plugin).__module__ for plugin in bus.plugins()] == ["other"]


def test_of_two_with_one_name_the_second_is_left_out(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    offer(site, "other", "same = other:Listener")
    offer(site, "their-plugin", "same = their_plugin:Listener")
    bus = EventBus()
    load(bus)
    bus.setup(context=RunContext())
    assert "plugin same of their-plugin 1.0" in caplog.text
    assert "the name 'same' is taken by plugin other.Listener of other 1.0" in caplog.text


def test_the_distribution_that_an_import_finds_counts(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path / "later", "their_plugin", "old = their_plugin:Listener", version="0.9")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "later")])
    offer(site, "Their-Plugin", "new = their_plugin:Listener")
    assert [(plugin.name, plugin.version) for plugin in installed_plugins()] == [("new", "1.0")]


def test_an_installation_during_the_run_is_found(site: Path) -> None:
    assert installed_plugins() == []
    offer(site, "their-plugin", "theirs = their_plugin:Listener")
    assert [plugin.name for plugin in installed_plugins()] == ["theirs"]


def test_a_second_search_reads_nothing(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(site, "their-plugin", "theirs = their_plugin:Listener")
    first = distributions.distributions_with("resilience")

    def read(**_: object) -> None:
        raise AssertionError("was searched again")

    monkeypatch.setattr(importlib.metadata, "distributions", read)
    assert distributions.distributions_with("resilience") == first == ["their-plugin"]


def test_a_distribution_that_cannot_be_read_is_passed_over(site: Path) -> None:
    offer(site, "other", "o = other:Listener")
    (site / "other-1.0.dist-info" / "entry_points.txt").write_bytes(b"[resilience]\n\xff\xfe = x\n")
    offer(site, "their-plugin", "theirs = their_plugin:Listener")
    assert [plugin.name for plugin in installed_plugins()] == ["theirs"]


def test_a_damaged_one_does_not_end_the_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("resilience_core.plugins.installed.distributions_with", lambda group: ["not-there"])
    bus = EventBus()
    load(bus)
    bus.setup(context=RunContext())
    assert bus.plugins() == []
    assert "no plugin of not-there was loaded: its entry points cannot be read: PackageNotFoundError" in caplog.text


@pytest.mark.parametrize(
    "raised", ["sys.exit(143)", "raise ValueError('preempted')", "raise Preempted"], ids=["exit", "error", "base"]
)
def test_what_a_signal_handler_raises_while_plugins_load_is_passed_on(tmp_path: Path, raised: str) -> None:
    """The import of a plugin may take seconds, and a scheduler asks the rank to end meanwhile."""
    module = f"import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n{LISTENS}"
    offer(tmp_path / "site", "their-plugin", "theirs = their_plugin:Listener", module)
    code = (
        "import signal, sys\nclass Preempted(BaseException): pass\n"
        f"def end(*_):\n    {raised}\n"
        "signal.signal(signal.SIGTERM, end)\nfrom resilience_core import bus\n"
        "try:\n    bus()\nexcept BaseException as error:\n    print(type(error).__name__)\n"
    )
    environment = {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.split() in (["SystemExit"], ["ValueError"], ["Preempted"])
    assert "was not loaded" not in done.stderr


@pytest.mark.parametrize(("ends", "is_told"), [("", True), ("bus().setup(context=RunContext())", False)])
def test_a_failure_is_told_at_the_log_level_or_at_the_exit_where_there_is_no_setup(
    tmp_path: Path, ends: str, is_told: bool
) -> None:
    offer(tmp_path / "site", "broken", "b = broken:Listener", "1 / 0")
    code = (
        "import logging; from resilience_core import bus, RunContext, hookimpl\n"
        "class Monitor:\n    @hookimpl\n    def setup(self): logging.getLogger('resilience_core').setLevel('ERROR')\n"
        f"bus().register(Monitor())\n{ends}"
    )
    environment = {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    assert ("plugin b of broken 1.0 (broken:Listener) was not loaded" in done.stderr) is is_told


@pytest.mark.parametrize(
    ("text", "expected"), [("", True), ("1", True), ("on", True), ("0", False), ("false", False), (" off ", False)]
)
def test_the_variable_is_a_switch(text: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FT_LOAD_PLUGINS", text)
    assert is_switched_on() is expected


def test_a_misspelt_switch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FT_LOAD_PLUGINS", "flase")
    with pytest.raises(ConfigError, match="FT_LOAD_PLUGINS is 'flase': give true or false"):
        is_switched_on()


@pytest.mark.parametrize(("switch", "heard"), [({}, "heard 3\n"), ({"FT_LOAD_PLUGINS": "0"}, "")])
def test_the_default_bus_of_a_process_loads_them_once(tmp_path: Path, switch: dict[str, str], heard: str) -> None:
    """Also where a plugin asks for the bus while it is imported."""
    asks = LISTENS + "from resilience_core import bus\nasked = bus()\n"
    offer(tmp_path / "site", "their-plugin", "theirs = their_plugin:Listener", asks)
    code = (
        "from resilience_core import bus, RunContext; assert bus() is bus(); bus().setup(context=RunContext());"
        "bus().step_start(iteration=3);"
        "import sys; m = sys.modules.get('their_plugin');"
        "assert m is None or (m.asked is bus() and m.Listener.made == 1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": str(tmp_path / "site"), **switch},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, heard)
    # Nobody has configured logging, and yet it is said what was loaded.
    said = "loaded plugins: theirs (their-plugin 1.0); FT_LOAD_PLUGINS=0 or load_plugins: false loads none\n"
    assert done.stderr == (said if heard else "")


def test_a_bus_of_ones_own_loads_none(site: Path) -> None:
    offer(site, "their-plugin", "theirs = their_plugin:Listener")
    bus = EventBus()
    bus.setup(context=RunContext())
    assert bus.plugins() == []


def test_the_monitor_hears_setup_before_an_installed_plugin(site: Path) -> None:
    """What a plugin does at the start is inside the section ``setup``, and so has a limit."""
    heard = LISTENS + "    @hookimpl\n    def setup(self, context): order.append('plugin')\norder = []\n"
    offer(site, "their-plugin", "theirs = their_plugin:Listener", heard)
    bus = EventBus()
    load(bus)
    order = sys.modules["their_plugin"].order

    class Monitor:
        @hookimpl
        def setup(self) -> None:
            order.append("monitor")

    bus.register(Monitor())
    bus.setup(context=RunContext())
    assert order == ["monitor", "plugin"]


def test_a_damaged_distribution_is_named_and_the_others_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    texts = {"damaged": "resilience\nno = = ini\n[resilience]\njunk\n", "whole": "[resilience]\np = m:P\n"}
    for name, text in texts.items():
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (folder / "entry_points.txt").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert "whole" in [plugin.distribution for plugin in installed_plugins()]
    assert "no plugin of damaged was loaded" in caplog.text
