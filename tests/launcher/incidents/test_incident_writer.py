"""Incidents are written, corrected and withdrawn in a thread; what fails there is said, and costs no more."""

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from launcher.incidents.incident import Incident
from launcher.incidents.incident_files import DamagedIncidentError, read_incident, read_incidents
from launcher.incidents.incident_writer import IncidentWriter
from launcher.incidents.rank_report import RankReport

INCIDENT = Incident("hang", 0, "why", "SIGKILL to rank 0, 1", ())


def fails(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


FULL = OSError(errno.ENOSPC, "No space left on device")
MISTAKE = RuntimeError("a mistake")


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IncidentWriter:
    monkeypatch.setattr("launcher.incidents.incident_writer.SLOWEST_WRITE_SECONDS", 180)
    writer = IncidentWriter(str(tmp_path))
    written, problem = writer.write(INCIDENT)
    assert (written.folder, problem) == (str(tmp_path / "incidents" / "0001"), None)
    return writer


@pytest.mark.parametrize("error", [FULL, MISTAKE], ids=["disk", "mistake"])
def test_a_correction_that_fails_is_said(
    writer: IncidentWriter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Incident, "save", fails(error))
        writer.correct(INCIDENT._replace(action="SIGKILL to rank 0"))
        writer.finish(180)
    said = capsys.readouterr().err
    assert f"{tmp_path}/incidents/0001 names ranks that were spared, and cannot be corrected: " in said
    assert str(error.args[-1]) in said

    writer.correct(INCIDENT._replace(action="SIGKILL to rank 0"))
    writer.finish(180)
    assert read_incident(str(tmp_path / "incidents" / "0001")).action == "SIGKILL to rank 0"


@pytest.mark.parametrize("error", [FULL, MISTAKE], ids=["disk", "mistake"])
def test_a_near_miss_that_cannot_be_written_leaves_no_incident(
    writer: IncidentWriter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
) -> None:
    monkeypatch.setattr(Incident, "write", fails(error))
    writer.withdraw(INCIDENT)
    writer.finish(180)
    assert list(read_incidents(str(tmp_path))) == []
    assert f"cannot write the near miss under {tmp_path}/near_misses: " in capsys.readouterr().err


def test_a_withdrawn_incident_that_cannot_be_removed_is_said(
    writer: IncidentWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "rmtree", fails(OSError(errno.EROFS, "Read-only file system")))
    writer.discard()
    writer.finish(180)
    said = f"nobody was terminated, but {tmp_path}/incidents/0001 cannot be removed: Read-only file system"
    assert said in capsys.readouterr().err


def test_without_a_thread_all_is_written_after_the_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", fails(RuntimeError("can't start new thread")))
    writer = IncidentWriter(str(tmp_path))
    _, problem = writer.write(INCIDENT)
    writer.correct(INCIDENT._replace(action="SIGKILL to rank 0"))

    assert problem == f"no thread could be started; the incident is written under {tmp_path}/incidents after the signal"
    assert list(tmp_path.iterdir()) == []
    writer.catch_up()
    assert [incident.action for incident in read_incidents(str(tmp_path))] == ["SIGKILL to rank 0"]


def test_a_file_system_that_hangs_for_long_loses_no_incident(
    writer: IncidentWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has hung for longer than a write may take when the second incident comes, and answers afterwards."""
    gate, write = threading.Event(), Incident.write
    monkeypatch.setattr("launcher.incidents.incident_writer.SLOWEST_WRITE_SECONDS", 0.01)
    monkeypatch.setattr(Incident, "write", lambda incident, parent: gate.wait(180) and write(incident, parent))
    for _ in range(2):
        assert "takes longer than 0.01 s" in str(writer.write(INCIDENT)[1])
    gate.set()
    writer.finish(180)
    assert len(list(read_incidents(str(tmp_path)))) == 3


def test_what_finds_no_room_behind_a_file_system_that_hangs_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr("launcher.incidents.incident_writer._MOST_WAITING", 1)
    monkeypatch.setattr("launcher.incidents.incident_writer.SLOWEST_WRITE_SECONDS", 0.01)
    monkeypatch.setattr(Incident, "write", lambda incident, parent: gate.wait(180) and incident)
    writer = IncidentWriter(str(tmp_path))
    assert "takes longer" in str(writer.write(INCIDENT)[1])
    assert "is not written" in str(writer.write(INCIDENT)[1])
    gate.set()
    writer.finish(180)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda plain: "", "it is empty"),
        (lambda plain: "[]", "AttributeError"),
        (lambda plain: "[" * 100_000, "RecursionError"),
        (lambda plain: json.dumps({**plain, "seen_ns": "x"}), "TypeError: seen_ns is 'x'"),
        (
            lambda plain: json.dumps({**plain, "ranks": [{**plain["ranks"][0], "iteration": "7"}]}),
            "TypeError: iteration is '7'",
        ),
        (lambda plain: json.dumps({**plain, "why": 5}), "TypeError: why is 5"),
        (lambda plain: json.dumps({**plain, "ranks": [{**plain["ranks"][0], "rank": "x"}]}), "TypeError: rank is 'x'"),
        (
            lambda plain: json.dumps({**plain, "ranks": [{**plain["ranks"][0], "is_culprit": 1}]}),
            "TypeError: is_culprit is 1",
        ),
        (lambda plain: json.dumps({**plain, "ranks": None}), "TypeError"),
        (lambda plain: json.dumps({**plain, "ranks": [{}]}), "TypeError"),
        (lambda plain: json.dumps({**plain, "more": 1}), "TypeError"),
        (lambda plain: "\0" * 900, "it holds zero bytes alone"),
        (lambda plain: "\udcff{}", "it is no text in UTF-8"),
    ],
)
def test_a_damaged_incident_is_named_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[dict[str, Any]], str], told: str
) -> None:
    ranks = (RankReport(0, 0, 9),)
    damaged = INCIDENT._replace(ranks=ranks).write(f"{tmp_path}/incidents").folder
    INCIDENT._replace(ranks=ranks).write(f"{tmp_path}/incidents")
    assert damaged is not None
    path = Path(damaged) / "incident.json"
    path.write_bytes(damage(json.loads(path.read_text())).encode(errors="surrogateescape"))
    with pytest.raises(DamagedIncidentError, match=f"it is damaged .{told}"):
        read_incident(damaged)
    assert len(list(read_incidents(str(tmp_path)))) == 1
    assert f"{damaged} is left out: it is damaged ({told}" in caplog.text


def test_a_folder_in_place_of_an_incident_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "incidents" / "0001" / "incident.json").mkdir(parents=True)

    assert list(read_incidents(str(tmp_path))) == []
    assert "0001 is left out" in caplog.text
