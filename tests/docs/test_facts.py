"""Tables and lists of the documentation that repeat what the code says name all of it."""

from __future__ import annotations

import ast
import configparser
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.incidents.incident import Incident
from launcher.incidents.incident_files import DamagedIncidentError, read_incident
from launcher.incidents.rank_report import RankReport
from launcher.records.run_events import STOPPED_ON_PURPOSE
from straggler import CallableId, Detector, Statistic
from straggler.measurement.summary import summarise
from straggler.probes.cpu_wall import CpuWallProbe

ROOT = Path(__file__).parents[2]
WRITERS = ("events.write", "self._tell", "self._tell_change", "write_event")
"""Calls whose first argument is the name of an event: of the log itself, and of what hands a name on to it."""
NAMED_OTHERWISE = {"hang", "failure", "lost", "monitor_replaced", "monitor_lost", STOPPED_ON_PURPOSE}
"""Events whose names are the kind of an incident, a constant, or returned by a function."""


def events_of(source: str) -> Iterator[str]:
    """Yield the name of every event that a source writes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith(WRITERS):
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value


def section(page: str, heading: str) -> str:
    """Return what stands below a heading, up to the next one of two marks."""
    return (ROOT / page).read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]


def test_the_table_of_events_has_every_event_that_is_written() -> None:
    written = {
        name for path in (ROOT / "launcher").rglob("*.py") for name in events_of(path.read_text(encoding="utf-8"))
    }
    assert {"began", "fenced", "launcher_stopped", "run_folder_moved", "monitor_back"} <= written
    rows = re.findall(r"^\| (`[^|]*)\|", section("docs/log-folder.md", "Events"), re.MULTILINE)
    shown = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert shown == written | NAMED_OTHERWISE


def test_the_table_of_straggler_summaries_says_their_units_statistics_and_names() -> None:
    class Model:
        def forward(self) -> None:
            time.sleep(0.02)

    detector = Detector()
    detector.initialize(probes=[CpuWallProbe()])
    first, second = Model(), Model()
    detector.wrap_callables([CallableId(first, "forward"), CallableId(second, "forward")])
    first.forward()
    second.forward()
    report = detector.generate_report()
    detector.shutdown()
    assert report is not None
    summaries = report.local_section_summaries
    text = section("docs/how-to/from-nvidia-resiliency-ext.md", "Straggler reports")
    rows = dict(re.findall(r"^\| (.*?) \| .* \| (.*) \|$", text, re.MULTILINE))
    (callables,) = (said for what, said in rows.items() if "CallableId" in what)
    assert [f"`{name}`" in text for name in summaries] == [True, True]
    assert "`Model.forward#2`" in callables
    assert "wall time in milliseconds | the same" in text
    assert 20.0 <= summaries["Model.forward"][Statistic.MIN] < 20_000.0
    assert rows["`Statistic.STD` of a section"] == "of the population; 0 of a single one"
    assert summaries["Model.forward"][Statistic.STD] == 0.0
    assert summarise([1.0, 3.0])[Statistic.STD] == 1.0
    assert rows["`Statistic.MED` of a section"] == "their mean"
    assert summarise([1.0, 2.0, 4.0, 9.0])[Statistic.MED] == 3.0


def test_the_architecture_has_the_floors_of_the_launcher_in_their_order() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    layers = config["importlinter:contract:launcher-floors"]["layers"].split("\n")
    floors = [re.split(r" \| ", layer) for layer in layers if layer]
    assert floors.pop(0) == ["__main__"]
    text = section("ARCHITECTURE.md", "Folders").partition("In the launcher, from the top: ")[2].partition(".")[0]
    assert [re.findall(r"`(\w+)`", floor) for floor in text.split(";")] == floors


def test_the_architecture_names_what_needs_the_standard_library_alone() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    modules = config["importlinter:contract:standard-library-only"]["source_modules"].split()
    text = section("ARCHITECTURE.md", "Folders")
    sentence = next(line for line in text.split("\n- ") if "import the standard library only" in line)
    assert set(re.findall(r"`([\w.]+)`", sentence)) == {module.removeprefix("launcher.") for module in modules}


def test_an_incident_without_a_new_field_is_read_and_one_with_an_unknown_field_is_damaged(tmp_path: Path) -> None:
    """As CONTRIBUTING.md says of fields and versions."""
    rank = RankReport(rank=0, local_rank=0, pid=7, is_condemned=True)
    incident = Incident(kind="hang", generation=0, why="unknown", action="none", ranks=(rank,)).write(str(tmp_path))
    assert incident.folder is not None
    path = Path(incident.folder, "incident.json")
    document = json.loads(path.read_text())

    del document["ranks"][0]["was_withheld"]
    path.write_text(json.dumps(document))
    assert read_incident(incident.folder).ranks == (rank,)

    document["ranks"][0]["what_is_new"] = 1
    path.write_text(json.dumps(document))
    with pytest.raises(DamagedIncidentError):
        read_incident(incident.folder)
