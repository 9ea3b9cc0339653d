"""What ft_autoresume and --ft-keep-runs read of events is what the launcher writes."""

from __future__ import annotations

from pathlib import Path

from launcher.agent.progress import Reached
from launcher.records.event_log import EventLog
from launcher.records.run_events import (
    STOPPED_ON_PURPOSE,
    Began,
    Ended,
    OtherEvent,
    Requested,
    StoppedOnPurpose,
    typed_events,
)
from resilience_core.protocol.control import WorkloadAction


def test_what_is_written_is_read_as_a_typed_value(tmp_path: Path) -> None:
    furthest = Reached(iteration=9, resumed_from=4, saved=8, went_back=True)
    log = EventLog(str(tmp_path))
    log.write("began", at_ns=1, launcher=7, monitor=8, run="r", pid_namespace=5, log_folder="/logs/r", inode=6)
    log.write("request", at_ns=2, rank=0, action=WorkloadAction.ShutdownWorkload.value, why="enough")
    log.write("started", at_ns=3, generation=0)
    log.write("ended", at_ns=4, generation=0, **furthest._asdict(), exit_code=0)
    log.write(STOPPED_ON_PURPOSE, at_ns=5, generation=0, why="rank 0 has stopped the training: NaN")
    log.close()

    assert typed_events(str(tmp_path)) == [
        Began(1, launcher=7, run="r", pid_namespace=5, log_folder="/logs/r", inode=6),
        Requested(2, "ShutdownWorkload"),
        OtherEvent(3, iteration=None),
        Ended(4, **furthest._asdict()),
        StoppedOnPurpose(5, "rank 0 has stopped the training: NaN"),
    ]


def test_a_field_that_is_missing_or_of_another_type_is_unknown(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path))
    log.write("began", at_ns=1, launcher="7", run=1, log_folder=2, inode="6")
    log.write("ended", at_ns=2, iteration="many")
    log.write("request", at_ns=3)
    log.write("stopped", at_ns=4, iteration=5)
    log.close()

    assert typed_events(str(tmp_path)) == [
        Began(1, launcher=None, run=None),
        Ended(2, None, None, None, went_back=False),
        Requested(3, "None"),
        OtherEvent(4, iteration=5),
    ]
