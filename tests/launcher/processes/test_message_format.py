"""Messages between processes: what was sent arrives, and what is no message is refused by name."""

from __future__ import annotations

import json
import signal
from typing import Any, NamedTuple

import pytest

from launcher.incidents.incident import Incident
from launcher.incidents.rank_report import RankReport
from launcher.monitor import messages as monitor_messages
from launcher.monitor.messages import (
    ORDERS,
    REPORTS,
    Fenced,
    Forget,
    HangReport,
    LauncherStopped,
    Look,
    Looked,
    MissingParts,
    MonitorConfig,
    MonitorSettings,
    Note,
    Proceed,
    RunFolders,
    Signalled,
    Spared,
    Stop,
    Suspected,
    Watch,
    WatchOrder,
)
from launcher.monitor.near_miss import NearMiss
from launcher.processes.evidence import Evidence
from launcher.processes.message_format import MessageError, MessageFormat
from launcher.zygote import protocol
from launcher.zygote.protocol import (
    MESSAGES,
    SETTINGS,
    Forked,
    ImportsDiffer,
    Order,
    Park,
    Parked,
    Refused,
    Started,
    WorkerOrder,
    ZygoteReport,
    ZygoteSettings,
)
from resilience_core.config.schema import FaultToleranceConfig

FORMATS: dict[str, tuple[MessageFormat[Any], tuple[Any, ...]]] = {
    "orders": (
        ORDERS,
        (
            Watch(WatchOrder(1, 2, 3, "cell", 4, startup_origin="why"), True),
            Forget(1, False),
            RunFolders(("a",), ()),
            Look(1, True),
            Proceed(1),
            Stop(),
        ),
    ),
    "reports": (
        REPORTS,
        (
            Note(1, "text"),
            Suspected(1),
            Looked(1, Incident("elsewhere", 1, "why", "none", (RankReport(0, 0, 9, evidence=Evidence(0)),))),
            Looked(1, None),
            HangReport(1, Incident("hang", 1, "why", "kill", (RankReport(0, 0, 9, cause="section"),)), (0, 1), None),
            Spared(1, (NearMiss(0, 0, 9, "section", "step", 1.0, None),)),
            Signalled(1, 2, 3),
            MissingParts(("a", "b")),
            LauncherStopped(5),
            Fenced(1, 2),
        ),
    ),
    "zygote": (
        MESSAGES,
        (
            Park(2),
            Order(),
            ZygoteReport(None, {"module": "why"}, ("A",), {"B": "1"}),
            Parked(),
            Refused("no room"),
            Forked(7),
            Started(),
            ImportsDiffer({"A": None}, ("B",)),
        ),
    ),
    "worker orders": (protocol.ORDERS, (WorkerOrder(("train.py", "\udcff"), True, {"A": "\udcff"}, "", "err"),)),
    "zygote settings": (SETTINGS, (ZygoteSettings(3, 4, ("torch", "numpy"), (20, "json", True)),)),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_kind_arrives_as_it_was_sent(name: str) -> None:
    form, examples = FORMATS[name]
    assert {type(each).__name__ for each in examples} == set(form._kinds)  # none is forgotten here
    for message in examples:
        received = form.decode(form.encode(message))
        assert received == message
        assert type(received) is type(message)  # named tuples of two kinds may be equal


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 1}, "version 1 where 5 is spoken.*start the job again"),
        ({"kind": "Sing"}, "unknown kind 'Sing'; known are Watch, Forget"),
        ({"kind": {}}, "unknown kind {}; known are Watch, Forget"),
        ({"kind": []}, r"unknown kind \[\]; known are Watch, Forget"),
        ({"kind": None}, "unknown kind None; known are Watch, Forget"),
        ({"generation": ...}, "kind Forget that does not fit: .*generation"),
        ({"more": 1}, "kind Forget that does not fit: .*more"),
        ({"version": ...}, "not a message"),
    ],
)
def test_what_is_no_message_is_refused_and_named(change: dict[str, Any], error: str) -> None:
    """A monitor that was replaced after the package was may speak another version; what it means is not guessed at."""
    document = {**json.loads(ORDERS.encode(Forget(1, True))), **change}
    with pytest.raises(MessageError, match=error):
        ORDERS.decode(json.dumps({name: value for name, value in document.items() if value is not ...}).encode())


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"null", b"\xff", b"[" * 200_000])
def test_bytes_that_are_no_message_are_refused(raw: bytes) -> None:
    with pytest.raises(MessageError, match="not a message"):
        ORDERS.decode(raw)


def test_a_broken_incident_is_a_message_that_does_not_fit() -> None:
    (report,) = (each for each in FORMATS["reports"][1] if isinstance(each, HangReport))
    document = json.loads(REPORTS.encode(report))
    del document["incident"]["ranks"]
    with pytest.raises(MessageError, match="kind HangReport that does not fit"):
        REPORTS.decode(json.dumps(document).encode())


@pytest.mark.parametrize("module", [monitor_messages, protocol])
def test_every_kind_that_is_defined_travels(module: Any) -> None:
    """A kind that no format knows would be refused where it arrives."""
    unsent = {"MonitorConfig", "MonitorSettings", "WatchOrder", "Packet"}
    known = set().union(*(form._kinds for form, _ in FORMATS.values()))
    defined = {
        name
        for name, each in vars(module).items()
        if isinstance(each, type) and hasattr(each, "_fields") and each.__module__ == module.__name__
    }
    assert defined - unsent <= known


def test_settings_arrive_as_they_were_given() -> None:
    config = FaultToleranceConfig(rank_section_timeouts={"step": 5}, rank_termination_signal=signal.SIGTERM)
    settings = MonitorSettings(
        3,
        4,
        5,
        "/logs",
        MonitorConfig.from_document(json.loads(config.to_json())),
        ("/run",),
        ("/run/part",),
        False,
        None,
    )
    assert MonitorSettings.from_text(settings.to_text()) == settings
    assert settings.config.rank_section_timeouts == {"step": 5}
    assert settings.config.rank_termination_signal == signal.SIGTERM


class Other(NamedTuple):
    """A kind of no format."""


def test_a_kind_that_is_not_of_the_format_cannot_be_sent() -> None:
    with pytest.raises(AssertionError):
        ORDERS.encode(Other())  # type: ignore[arg-type]
