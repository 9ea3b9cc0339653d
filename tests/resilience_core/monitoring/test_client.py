"""RankMonitorClient: every call's effect on the cell, every error, and the life of a client."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import faulthandler
import json
import logging
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience_core import (
    RankMonitorClient,
    RankMonitorClientError,
    WorkloadAction,
    WorkloadControlRequest,
)
from resilience_core.environment import RELAXED_VARIABLE
from resilience_core.errors import SectionError, TimeoutsNotReadyError
from resilience_core.monitoring import client as client_module
from resilience_core.monitoring import (
    client_limits,
    connection,
    first_use,
    limits_in_force,
    process_hooks,
    section_state,
)
from resilience_core.monitoring.learned_limits import LearnedLimits
from resilience_core.monitoring.process_hooks import read_config
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import (
    CLOSED,
    HEARTBEAT,
    LEFT_SECTION,
    LIMITS_TEXT,
    MAX_SECTIONS,
    NO_LIMIT,
    NOT_SHOWN,
    OUT_OF_SECTION,
    SHUT_DOWN,
    STACK_SIGNAL,
    UNUSED,
    WATCHED,
)
from resilience_core.protocol.cell_view import implausible
from resilience_core.protocol.control import receive
from resilience_core.protocol.limit_messages import origin_of
from resilience_core.protocol.verdict_counts import write_verdicts
from resilience_core.testing import FakeClock

S = 1_000_000_000

CLIENT_FILES = [
    module.__file__ for module in (client_module, client_limits, connection, first_use, limits_in_force, section_state)
]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The client's clock, which moves only when it is told to."""
    clock = FakeClock()
    monkeypatch.setattr(time, "monotonic_ns", clock)
    monkeypatch.setattr(client_module, "monotonic_ns", clock)
    return clock


@pytest.fixture
def client() -> Iterator[RankMonitorClient]:
    client = RankMonitorClient()
    yield client
    client.shutdown_workload_monitoring()


@pytest.fixture
def start(rank_environment: Callable[..., Cell], clock: FakeClock, client: RankMonitorClient) -> Callable[..., Cell]:
    """Initialise the client under a configuration; returns the monitor's end of its cell."""

    def start(**settings: Any) -> Cell:
        cell = rank_environment(capture_stacks=False, **settings)
        client.init_workload_monitoring()
        return cell

    return start


def deadline(cell: Cell, section: str) -> int | None:
    return next((s.deadline_ns for s in cell.view().sections if s.name == section), None)


# ---- life -----------------------------------------------------------------------------------------------


def test_before_init_nothing_is_known_and_every_call_says_what_to_do(no_rank_environment: None) -> None:
    client = RankMonitorClient()

    assert (client.is_initialized, client.hb_timeouts, client.section_timeouts) == (False, None, None)
    for call in (
        client.send_heartbeat,
        lambda: client.start_section("step"),
        lambda: client.end_section("step"),
        client.calculate_and_set_hb_timeouts,
        client.calculate_and_set_section_timeouts,
        client.state_dict,
        lambda: client.cfg,
        lambda: client.send_workload_control_request(WorkloadControlRequest(WorkloadAction.Continue)),
    ):
        with pytest.raises(RankMonitorClientError, match="init_workload_monitoring"):
            call()
    client.end_all_sections()
    client.note_iteration(3)
    client.shutdown_workload_monitoring()


def test_an_iteration_that_is_no_higher_than_the_one_before_it_is_counted(
    start: Callable[..., Cell], client: RankMonitorClient
) -> None:
    cell = start()

    def after(*iterations: int) -> int:
        for iteration in iterations:
            client.note_iteration(iteration)
        return cell.view().went_back

    assert after(5, 6, 900) == 0, "it need not begin at 0, and may leave some out"
    assert after(899) == 1
    assert after(900, 901, 0, 1) == 2
    assert after(1, 1) == 4
    with pytest.raises(TypeError):
        client.note_iteration("0")  # type: ignore[arg-type]
    assert cell.view()[-3:] == (4, -1, -1)
    assert cell.view().iteration == 1


def test_an_evaluation_may_be_at_the_iteration_of_the_step_before_it_or_after_it(
    start: Callable[..., Cell], client: RankMonitorClient
) -> None:
    cell = start()

    def after(*steps: int, evaluations: int) -> tuple[int, int]:
        for iteration in steps:
            client.note_iteration(iteration)
        for _ in range(3):
            client.note_evaluation(evaluations)
        return cell.view().iteration, cell.view().went_back

    assert after(evaluations=0) == (0, 0)
    assert after(0, 1, 2, evaluations=2) == (2, 0), "of the step that is over"
    assert after(3, 4, evaluations=5) == (5, 0), "as many as there were steps"
    assert after(5, 6, evaluations=7) == (7, 0)
    assert after(7, 7, evaluations=7) == (7, 1)
    assert after(evaluations=6) == (6, 2)


def test_a_step_that_was_not_done_may_be_tried_again(start: Callable[..., Cell], client: RankMonitorClient) -> None:
    """As after an exception of a data loader; a step that is done twice has not made the job get on."""
    cell = start()
    for iteration in (0, 1):
        client.note_iteration(iteration)
        client.note_step_done()
    for _ in range(3):
        client.note_iteration(2)
    assert cell.view().went_back == 0
    client.note_step_done()
    client.note_iteration(2)
    assert cell.view().went_back == 1


@pytest.mark.parametrize(("first", "went_back"), [(20, 0), (19, 1), (0, 1)])
def test_a_run_after_another_one_may_count_on(
    start: Callable[..., Cell], client: RankMonitorClient, first: int, went_back: int
) -> None:
    """Two phases of one training in one process; the second is another one where it counts from 0 again."""
    cell = start()
    for iteration in range(20):
        client.note_iteration(iteration)
    client.shutdown_workload_monitoring()
    client.init_workload_monitoring()
    client.note_iteration(first)
    assert (cell.view().iteration, cell.view().went_back) == (first, went_back)


@pytest.mark.parametrize(("first", "went_back"), [(0, 1), (39, 1), (40, 0), (41, 0)])
def test_a_first_iteration_below_the_checkpoint_that_was_loaded_is_counted(
    start: Callable[..., Cell], client: RankMonitorClient, first: int, went_back: int
) -> None:
    cell = start()
    client.note_checkpoint_loaded(40)
    for iteration in range(first, 60):
        client.note_iteration(iteration)
    assert cell.view().went_back == went_back


def test_the_highest_iteration_of_checkpoints_is_kept_and_what_is_none_is_passed_over(
    start: Callable[..., Cell], client: RankMonitorClient
) -> None:
    """They come from frameworks and loops that may name a checkpoint otherwise; a save must not fail for that."""
    client.note_checkpoint_loaded(1)
    client.note_checkpoint_saved(1)
    view = start().view()
    assert (view.resumed_from, view.saved) == (-1, -1)
    none: list[Any] = ["last", None, 2.5, 2**70, -(2**70), [3]]
    for iteration in [0, 40, 20, *none]:
        client.note_checkpoint_loaded(iteration)
        client.note_checkpoint_saved(iteration * 2 if isinstance(iteration, int) else iteration)
    cell = client._state.cell
    assert cell is not None
    assert cell.view()[-3:] == (0, 40, 80)


def test_without_a_launcher_init_says_so_and_names_the_cure(no_rank_environment: None) -> None:
    with pytest.raises(RankMonitorClientError, match=r"FT_CELL is not set.*Start it with ft_launcher"):
        RankMonitorClient().init_workload_monitoring()


def test_from_init_both_limits_run(start: Callable[..., Cell], clock: FakeClock) -> None:
    view = start(initial_rank_heartbeat_timeout=7, rank_out_of_section_timeout=3).view()

    assert (view.state, view.pid) == (WATCHED, os.getpid())
    assert view.heartbeat_ns == clock() + 7 * S
    assert view.out_of_section_ns == clock() + 3 * S
    assert view.last_heartbeat_ns == view.left_section_ns == clock()
    assert view.smallest_limit_ns == 3 * S


def test_limits_that_are_null_are_open_ends(start: Callable[..., Cell]) -> None:
    view = start(initial_rank_heartbeat_timeout=None, rank_heartbeat_timeout=None).view()

    assert (view.heartbeat_ns, view.out_of_section_ns, view.smallest_limit_ns) == (NO_LIMIT, NO_LIMIT, 0)


def test_init_twice_is_refused(start: Callable[..., Cell], client: RankMonitorClient) -> None:
    start()

    with pytest.raises(RankMonitorClientError, match="called already"):
        client.init_workload_monitoring()


def test_a_second_client_of_one_process_is_refused_until_the_first_is_shut_down(
    start: Callable[..., Cell], client: RankMonitorClient
) -> None:
    """The first to shut down would switch the other's protection off."""
    cell = start()
    second = RankMonitorClient()

    with pytest.raises(RankMonitorClientError, match="another RankMonitorClient"):
        second.init_workload_monitoring()
    client.shutdown_workload_monitoring()
    second.init_workload_monitoring()

    assert cell.view().state == WATCHED
    second.shutdown_workload_monitoring()


def test_a_cell_that_is_gone_is_one_clear_error(
    rank_environment: Callable[..., Cell], client: RankMonitorClient
) -> None:
    os.unlink(rank_environment().path)

    with pytest.raises(RankMonitorClientError, match="cannot open the monitor cell"):
        client.init_workload_monitoring()
    assert not client.is_initialized


def test_what_somebody_has_removed_is_waited_for_while_the_launcher_makes_it_anew(
    rank_environment: Callable[..., Cell], client: RankMonitorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rank_environment().path
    os.rename(path, path + ".away")
    monkeypatch.setenv("FT_LAUNCHER_PID", str(os.getpid()))
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            os.rename(path + ".away", path)

    monkeypatch.setattr("resilience_core.monitoring.process_hooks.time.sleep", sleep)
    client.init_workload_monitoring()
    assert client.is_initialized
    assert len(naps) == 3


def test_without_a_file_for_stacks_a_rank_is_monitored_all_the_same(
    rank_environment: Callable[..., Cell], client: RankMonitorClient, caplog: pytest.LogCaptureFixture
) -> None:
    cell = rank_environment()
    os.mkdir(cell.path + ".stack")
    client.init_workload_monitoring()
    assert cell.view().state == WATCHED
    assert "no stacks of this rank" in caplog.text


def test_a_configuration_that_is_gone_is_one_clear_error(
    rank_environment: Callable[..., Cell], client: RankMonitorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_environment()
    monkeypatch.setenv("FT_CONFIG_FILE", "nowhere.json")

    with pytest.raises(RankMonitorClientError, match=r"FT_CONFIG_FILE leads to nowhere.json"):
        client.init_workload_monitoring()


@pytest.mark.parametrize("damage", ["cut off", "random", "appended", "empty object", "folder", "pipe"])
def test_a_configuration_that_somebody_has_damaged_is_one_clear_error_that_a_restart_mends(
    rank_environment: Callable[..., Cell], client: RankMonitorClient, damage: str
) -> None:
    rank_environment()
    path = Path(os.environ["FT_CONFIG_FILE"])
    if damage in ("folder", "pipe"):
        path.unlink()
        os.mkdir(path) if damage == "folder" else os.mkfifo(path)
    else:
        raw = path.read_bytes()
        path.write_bytes(
            {"cut off": raw[:100], "random": b"\xff\x00" + raw, "appended": raw + b"x", "empty object": b"{}"}[damage]
        )

    with pytest.raises(RankMonitorClientError, match=f"FT_CONFIG_FILE leads to {path}.*damaged it") as caught:
        client.init_workload_monitoring()
    assert not caught.value.is_permanent


def test_shutdown_switches_protection_off_and_calls_fail_again(
    start: Callable[..., Cell], client: RankMonitorClient
) -> None:
    cell = start(rank_section_timeouts={"step": 1})
    client.send_heartbeat()
    client.start_section("step")

    client.shutdown_workload_monitoring()
    client.shutdown_workload_monitoring()

    assert cell.view().state == SHUT_DOWN
    assert not client.is_initialized
    for call in (client.send_heartbeat, lambda: client.start_section("step"), lambda: client.end_section("step")):
        with pytest.raises(RankMonitorClientError, match="comes after shutdown_workload_monitoring"):
            call()


def test_a_second_life_owes_nothing_for_the_first(start: Callable[..., Cell], client: RankMonitorClient) -> None:
    """A section left open at shutdown, as after an exception, must not be a verdict in the next run of the loop."""
    cell = start(rank_section_timeouts={"setup": 1, "step": 1})
    client.start_section("setup")
    client.shutdown_workload_monitoring()

    for _ in range(70):  # more lives than a cell has slots
        client.init_workload_monitoring()
        assert cell.view().sections == ()
        client.start_section("step")
        assert [section.name for section in cell.view().sections] == ["step"]
        client.shutdown_workload_monitoring()


def test_learned_timeouts_outlive_a_shutdown(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    start(rank_section_timeouts={"step": 100}, learned_limits="replace")
    with client.section("step"):
        clock.advance(2)
    client.calculate_and_set_section_timeouts(calc_out_of_section=False)
    client.shutdown_workload_monitoring()
    assert client.state_dict()["current_timeouts"]["section"]["section"] == {"step": 10.0}

    client.init_workload_monitoring()

    assert client.section_timeouts is not None
    assert client.section_timeouts.section["step"] == 10.0


# ---- heartbeats -----------------------------------------------------------------------------------------


def test_each_heartbeat_moves_the_deadline(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    cell = start(initial_rank_heartbeat_timeout=10, rank_heartbeat_timeout=2)
    for _ in range(3):
        clock.advance(1.5)
        client.send_heartbeat()
        view = cell.view()
        assert (view.heartbeat_ns, view.last_heartbeat_ns) == (clock() + 2 * S, clock())


def test_the_first_heartbeat_switches_the_out_of_section_limit_off_until_a_section_is_used(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    cell = start(rank_section_timeouts={"step": 5}, rank_out_of_section_timeout=3)
    client.send_heartbeat()
    assert cell.view().out_of_section_ns == CLOSED

    client.start_section("step")
    client.end_section("step")
    assert cell.view().out_of_section_ns == clock() + 3 * S


def test_a_heartbeat_after_a_section_leaves_the_out_of_section_limit_on(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    cell = start(rank_section_timeouts={"step": 5}, rank_out_of_section_timeout=3, rank_heartbeat_timeout=9)
    with client.section("step"):
        pass
    client.send_heartbeat()

    view = cell.view()
    assert (view.out_of_section_ns, view.heartbeat_ns) == (clock() + 3 * S, clock() + 9 * S)


@pytest.mark.parametrize("sent_before", [0, 2])
def test_the_first_section_switches_heartbeat_limits_off_until_a_heartbeat(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock, sent_before: int
) -> None:
    cell = start(rank_section_timeouts={"step": 5}, rank_heartbeat_timeout=9)
    for _ in range(sent_before):
        client.send_heartbeat()
    client.start_section("step")
    assert cell.view().heartbeat_ns == CLOSED

    client.send_heartbeat()
    assert cell.view().heartbeat_ns == clock() + 9 * S
    client.end_section("step")
    client.start_section("step")  # no longer the first
    assert cell.view().heartbeat_ns == clock() + 9 * S


def test_where_no_section_is_configured_section_events_are_heartbeats(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    """A run without any configuration is protected by the defaults, and its incident tells the truth."""
    cell = start(rank_heartbeat_timeout=9)
    for call in (client.start_section, client.end_section):
        clock.advance(1)
        call("anything")
        view = cell.view()
        assert (view.heartbeat_ns, view.last_heartbeat_ns) == (clock() + 9 * S, clock())


@pytest.mark.parametrize("how", ["calculated", "loaded"])
def test_sections_learned_where_none_was_configured_end_their_service_as_heartbeats(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock, how: str
) -> None:
    """Nobody sends a heartbeat from there on, so that limit must not go on running."""
    cell = start(rank_heartbeat_timeout=9)
    with client.section("step"):
        clock.advance(1)
    if how == "calculated":
        client.calculate_and_set_section_timeouts(calc_out_of_section=False)
    else:
        client.load_state_dict(STATE)
    with client.section("step"):
        pass

    assert cell.view().heartbeat_ns == CLOSED


def test_a_heartbeat_switches_its_limit_on_again(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    cell = start(rank_heartbeat_timeout=9)
    client.send_heartbeat()
    with client.section("step"):
        clock.advance(1)
    client.calculate_and_set_section_timeouts(calc_out_of_section=False)
    assert cell.view().heartbeat_ns == CLOSED

    client.send_heartbeat()
    assert cell.view().heartbeat_ns == clock() + 9 * S


# ---- sections -------------------------------------------------------------------------------------------


def test_sections_overlap_freely_each_with_its_own_deadline(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    cell = start(rank_section_timeouts={"setup": 10, "step": 2, "free": None}, rank_out_of_section_timeout=1)
    opened = clock()
    client.start_section("setup")
    clock.advance(1)
    client.start_section("step")
    client.start_section("free")

    assert deadline(cell, "setup") == opened + 10 * S
    assert deadline(cell, "step") == clock() + 2 * S
    assert deadline(cell, "free") == NO_LIMIT
    assert client.open_sections == {"setup", "step", "free"}
    client.end_section("setup")
    assert deadline(cell, "setup") is None
    assert client.open_sections == {"step", "free"}


def test_the_cell_counts_how_often_each_section_was_closed(
    start: Callable[..., Cell], client: RankMonitorClient
) -> None:
    cell = start()
    for name, count in (("step", 3), ("checkpointing", 1), ("step", 2)):
        for _ in range(count):
            with client.section(name):
                pass
    client.start_section("checkpointing")
    assert {name: count for name, count in cell.sections_closed().items() if count} == {"step": 5, "checkpointing": 1}
    client.end_all_sections()
    assert cell.sections_closed()["checkpointing"] == 2


def test_sections_that_share_a_slot_are_not_counted(start: Callable[..., Cell], client: RankMonitorClient) -> None:
    cell = start()
    for number in range(MAX_SECTIONS + 3):
        with client.section(f"section {number}"):
            pass
    counts = cell.sections_closed()
    assert counts == {f"section {number}": 1 for number in range(MAX_SECTIONS - 1)}, "nor told as closed 0 times"
    assert cell.view().closings == -1, "not all are counted"


def test_end_all_sections_closes_them_all(start: Callable[..., Cell], client: RankMonitorClient) -> None:
    cell = start(rank_section_timeouts={"a": 1, "b": 1, "c": 1})
    for name in ("a", "b", "c"):
        client.start_section(name)

    client.end_all_sections()

    assert cell.view().sections == ()
    assert client.open_sections == frozenset()
    client.end_all_sections()


def test_mistakes_of_the_caller_are_errors_with_names(start: Callable[..., Cell], client: RankMonitorClient) -> None:
    start(rank_section_timeouts={"step": 1, "checkpointing": 1})
    client.start_section("step")

    with pytest.raises(SectionError, match="'step' is open already"):
        client.start_section("step")
    with pytest.raises(SectionError, match="'checkpointing' is not open; open now: 'step'"):
        client.end_section("checkpointing")
    with pytest.raises(SectionError, match="did you mean 'checkpointing'"):
        client.start_section("checkpoint")
    for name in ("", None, 3):
        with pytest.raises(SectionError, match="must be a string"):
            client.start_section(name)  # type: ignore[arg-type]
    for name in ([], {}, None):
        for call in (client.start_section, client.end_section):
            with pytest.raises(
                SectionError, match=rf"^{call.__name__}\(\): .* must be a string .*, not {re.escape(repr(name))}"
            ):
                call(name)  # type: ignore[arg-type]
    client.end_section("step")
    with pytest.raises(SectionError, match="must be a string"):
        client.end_section([])  # type: ignore[arg-type]
    with pytest.raises(SectionError, match="'step' is not open; open now: none"):
        client.end_section("step")


def test_a_refused_section_leaves_no_trace(start: Callable[..., Cell], client: RankMonitorClient) -> None:
    cell = start(rank_section_timeouts={"step": 1}, rank_out_of_section_timeout=2)
    before = cell.view()
    with pytest.raises(SectionError):
        client.start_section("stepp")

    assert cell.view() == before


def test_where_nothing_is_configured_any_section_is_measured_and_that_is_said_once(
    start: Callable[..., Cell], client: RankMonitorClient, caplog: pytest.LogCaptureFixture
) -> None:
    cell = start()
    client.start_section("one")
    client.start_section("two")

    assert (deadline(cell, "one"), deadline(cell, "two")) == (NO_LIMIT, NO_LIMIT)
    assert caplog.text.count("no timeout") == 1


def test_what_is_said_once_is_not_said_again_by_the_next_init_or_client(
    start: Callable[..., Cell], client: RankMonitorClient, caplog: pytest.LogCaptureFixture
) -> None:
    start()
    client.start_section("one")
    client.shutdown_workload_monitoring()
    for another in (client, RankMonitorClient()):
        another.init_workload_monitoring()
        for number in range(MAX_SECTIONS):
            another.start_section(f"s{number}")
        another.shutdown_workload_monitoring()

    assert (caplog.text.count("no timeout"), caplog.text.count("share one place")) == (1, 1)


def test_a_section_may_be_named_by_any_string(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    """Python makes lone surrogates of what is no valid text in a file name, an argument or the environment."""
    cell = start()
    clock.advance(1)
    client.start_section("\udcff")
    client.start_section("\ud83d step")

    assert [section.name for section in cell.view().sections] == ["\\udcff", "\\ud83d step"]
    clock.advance(1)
    client.end_all_sections()
    assert client.calculate_and_set_section_timeouts(["\udcff"])
    json.dumps(client.state_dict()).encode()


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda c: c.note_iteration(1.5), TypeError, r"iteration is 1\.5 \(float\); pass a whole number"),
        (lambda c: c.note_iteration(None), TypeError, r"iteration is None \(NoneType\); pass a whole number"),
        (lambda c: c.note_iteration("3"), TypeError, r"iteration is '3' \(str\); pass a whole number"),
        (lambda c: c.note_iteration(2**70), ValueError, rf"iteration is {2**70}, which 64 bits cannot hold"),
        (lambda c: c.note_iteration(10**6000), ValueError, r"iteration is a number of 19932 bits, which 64 bits"),
        (lambda c: c.start_section([]), SectionError, r"name must be a string that is not empty, not \[\]"),
        (lambda c: c.calculate_and_set_section_timeouts(5), TypeError, r"selected_sections has 5 \(int\)"),
        (lambda c: c.calculate_and_set_section_timeouts([None]), TypeError, r"selected_sections has None"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value_and_the_fix(
    start: Callable[..., Cell],
    client: RankMonitorClient,
    call: Callable[[RankMonitorClient], object],
    error: type[Exception],
    said: str,
) -> None:
    start()
    client.start_section("step")
    client.note_iteration(7)

    with pytest.raises(error, match=said):
        call(client)
    assert client.open_sections == {"step"}


SHARED = "one of the sections beyond the 63rd"


def test_names_beyond_the_slots_share_a_place_that_shows_the_first_that_is_due(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A name with the iteration in it must not end training, nor hide a hang in a configured section."""
    limits = {f"s{number}": 100 + number for number in range(70)}
    cell = start(rank_section_timeouts=limits, rank_out_of_section_timeout=1)
    opened = {}
    for name in limits:
        clock.advance(1)
        client.start_section(name)
        opened[name] = clock()

    def shown() -> tuple[int, int | None]:
        (section,) = [section for section in cell.view().sections if section.name == SHARED]
        return section.opened_ns, deadline(cell, SHARED)

    def due(name: str) -> tuple[int, int]:
        return opened[name], opened[name] + limits[name] * S

    assert len(cell.view().sections) == 64
    assert deadline(cell, "s62") == opened["s62"] + 162 * S
    assert shown() == due("s63")
    assert caplog.text.count("share one place") == 1

    client.end_section("s69")
    assert shown() == due("s63")
    for number in range(63, 68):
        client.end_section(f"s{number}")
    assert shown() == due("s68")
    clock.advance(10)
    client.start_section("s69")
    assert shown() == due("s68"), "opened later, due later"
    client.end_section("s68")
    opened["s69"] = clock()
    assert shown() == due("s69")
    client.end_section("s69")
    assert deadline(cell, SHARED) is None
    assert len(cell.view().sections) == 63


def test_an_inner_section_beyond_the_slots_is_due_before_the_outer_one(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    limits = {**{f"s{number}": 9 for number in range(63)}, "outer": None, "inner": 3}
    cell = start(rank_section_timeouts=limits)
    for number in range(63):
        with client.section(f"s{number}"):
            pass
    client.start_section("outer")
    assert deadline(cell, SHARED) == NO_LIMIT
    clock.advance(50)
    client.start_section("inner")
    assert deadline(cell, SHARED) == clock() + 3 * S
    clock.advance(1)
    client.end_section("inner")
    assert deadline(cell, SHARED) == NO_LIMIT


def test_whatever_is_stored_beyond_the_slots_makes_sense_after_each_store(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    """A thread may be interrupted between two stores, and the monitor takes what makes no sense for damage."""
    limits = {**{f"s{number}": 9 for number in range(63)}, "outer": 3, "inner": 3}
    cell = start(rank_section_timeouts=limits)
    for number in range(63):
        with client.section(f"s{number}"):
            pass
    said = []

    class Observed:
        def __init__(self, words: memoryview) -> None:
            self.words = words

        def __getitem__(self, word: int) -> int:
            return int(self.words[word])

        def __setitem__(self, word: int, value: int) -> None:
            self.words[word] = value
            said.append(implausible(cell.view(), clock()))

    client.start_section("outer")
    clock.advance(5)  # it is overdue
    words, client._state.words = client._state.words, Observed(client._state.words)  # type: ignore[assignment]
    client.start_section("inner")
    client.end_section("inner")
    client.end_section("outer")
    client._state.words = words

    assert len(said) > 10
    assert set(said) == {None}


def test_a_limit_that_is_learned_does_not_shorten_what_is_open_beyond_the_slots(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    limits = {**{f"s{number}": 9 for number in range(63)}, "outer": 100, "inner": 90}
    cell = start(rank_section_timeouts=limits, learned_limits="replace")
    for number in range(63):
        with client.section(f"s{number}"):
            pass
    with client.section("outer"):
        clock.advance(1)
    client.start_section("outer")
    opened = clock()
    clock.advance(50)
    client.calculate_and_set_section_timeouts(selected_sections=["outer"], calc_out_of_section=False)
    assert client.section_timeouts is not None
    assert client.section_timeouts.section["outer"] is not None
    assert client.section_timeouts.section["outer"] < 50

    with client.section("inner"):
        assert deadline(cell, SHARED) == clock() + 90 * S - 40 * S  # the outer one's
    assert deadline(cell, SHARED) == opened + 100 * S

    client.load_state_dict(client.state_dict())
    assert deadline(cell, SHARED) == clock() + int(client.section_timeouts.section["outer"] * S), "from now on"


class Told:
    """A lock that tells when a thread asks for it."""

    def __init__(self, lock: Any) -> None:
        self.lock, self.asked = lock, threading.Event()

    def __enter__(self) -> None:
        self.asked.set()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def come_between(client: RankMonitorClient, call: Callable[[], object]) -> threading.Thread:
    """Let another thread make a call; returns when it has made it, or waits for what this thread is doing."""
    client._state.lock = told = Told(client._state.lock)  # type: ignore[assignment]
    thread = threading.Thread(target=call)
    thread.start()
    while thread.is_alive() and not told.asked.wait(0.01):
        pass
    client._state.lock = told.lock
    return thread


def test_two_threads_that_use_a_new_name_at_once_get_one_section(
    start: Callable[..., Cell], client: RankMonitorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = start(rank_section_timeouts={"io": 100})
    add_section = Cell.add_section
    threads: list[threading.Thread] = []
    found: list[Any] = []

    def use() -> None:
        found.append(client._first_use.section("io"))

    def meet(cell: Cell, name: str) -> int:
        if not threads:  # the first has found the name to be new
            threads.append(threading.current_thread())
            threads.append(come_between(client, use))
        return add_section(cell, name)

    monkeypatch.setattr(Cell, "add_section", meet)
    use()
    threads[1].join()

    assert len(found) == 2
    assert found[0] is found[1]
    assert list(cell.sections_closed()) == ["io"], "and one slot"


@pytest.mark.parametrize("first", ["section", "heartbeat"])
def test_a_first_call_while_a_state_is_loaded_switches_off_what_it_does_not_use(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock, first: str
) -> None:
    """What was left on is never renewed, and would condemn a rank that is well."""
    cell = start(rank_section_timeouts={"step": 10}, rank_out_of_section_timeout=10, learned_limits="replace")
    threads: list[threading.Thread] = []
    word = HEARTBEAT if first == "section" else OUT_OF_SECTION
    call = client.send_heartbeat if first == "heartbeat" else lambda: client.start_section("step")
    words = client._state.words
    client._state.words = Interrupted(  # type: ignore[assignment]
        words, word, lambda: threads.append(come_between(client, call)), is_before=True
    )
    client.load_state_dict(loaded())
    client._state.words = words
    threads[0].join()

    view = cell.view()
    assert (view.heartbeat_ns if first == "section" else view.out_of_section_ns) == CLOSED


@pytest.mark.parametrize("call", ["start_section", "send_heartbeat", "load_state_dict"])
def test_a_call_on_another_thread_during_the_initialisation_counts(
    rank_environment: Callable[..., Cell],
    client: RankMonitorClient,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    """It raised ``AttributeError``, or was lost."""
    cell = rank_environment(capture_stacks=False, rank_section_timeouts={"step": 10}, rank_heartbeat_timeout=10)
    argument: tuple[Any, ...] = {"start_section": ("step",), "load_state_dict": (loaded(),)}.get(call, ())
    add_section = Cell.add_section
    threads: list[threading.Thread] = []
    raised: list[BaseException] = []

    def make_call() -> None:
        try:
            getattr(client, call)(*argument)
        except BaseException as error:
            raised.append(error)

    def meet(cell: Cell, name: str) -> int:
        if not threads:
            threads.append(threading.current_thread())
            threads.append(come_between(client, make_call))
        return add_section(cell, name)

    monkeypatch.setattr(Cell, "add_section", meet)
    client.init_workload_monitoring()
    threads[1].join()

    assert raised == []
    if call == "start_section":
        assert deadline(cell, "step") == clock() + 10 * S
    elif call == "send_heartbeat":
        assert cell.view().heartbeat_ns == clock() + 10 * S
        clock.advance(S)
        client.send_heartbeat()
        assert client.calculate_and_set_hb_timeouts()
        assert client.state_dict()["current_timeouts"]["heartbeat"]["initial"] < 10, "not since the machine was started"
    else:
        assert client.section_timeouts is not None
        assert client.section_timeouts.section["step"] == 20


def test_until_it_is_initialised_every_call_says_so(
    rank_environment: Callable[..., Cell], client: RankMonitorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler's, since another thread would wait."""
    rank_environment(capture_stacks=False)
    seen: list[tuple[Any, ...]] = []
    add_section = Cell.add_section

    def meet(cell: Cell, name: str) -> int:
        for call in (
            client.send_heartbeat,
            lambda: client.start_section("step"),
            lambda: client.end_section("step"),
            client.calculate_and_set_hb_timeouts,
            client.calculate_and_set_section_timeouts,
            client.undercut_limits,
        ):
            with pytest.raises(RankMonitorClientError, match="call init_workload_monitoring"):
                call()
        seen.append((client.hb_timeouts, client.section_timeouts))
        return add_section(cell, name)

    monkeypatch.setattr(Cell, "add_section", meet)
    client.init_workload_monitoring()
    assert seen == [(None, None)]


def test_a_child_that_is_forked_during_the_initialisation_waits_for_nothing(
    rank_environment: Callable[..., Cell], client: RankMonitorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that initialises does not exist in the child, so nobody would release its lock."""
    rank_environment(capture_stacks=False)
    holds, ends = threading.Event(), threading.Event()
    add_section = Cell.add_section

    def hold(cell: Cell, name: str) -> int:
        holds.set()
        ends.wait()
        return add_section(cell, name)

    monkeypatch.setattr(Cell, "add_section", hold)
    thread = threading.Thread(target=client.init_workload_monitoring)
    thread.start()
    holds.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            client.send_heartbeat()
        except RankMonitorClientError:
            os._exit(0)
        os._exit(1)
    ends.set()
    thread.join()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def interrupted(
    call: Callable[[], object],
    within: set[str],
    handler: Callable[[], object],
    prepare: Callable[[], object] = lambda: None,
) -> Iterator[None]:
    """Make a call again and again, with a handler before one line after the other of these functions of the client.

    As a signal handler comes. What the handler raises is what the call raises, and is caught.
    """
    reached = wanted = 0

    def trace(frame: types.FrameType, event: str, argument: object) -> Any:
        nonlocal reached
        if frame.f_code.co_filename not in CLIENT_FILES or frame.f_code.co_name not in within:
            return None
        if event == "line":
            reached += 1
            if reached == wanted:
                sys.settrace(None)
                handler()
        return trace

    while reached == wanted:
        prepare()
        reached, wanted = 0, wanted + 1
        former = sys.gettrace()
        sys.settrace(trace)
        try:
            with contextlib.suppress(TimeoutError):
                call()
        finally:
            sys.settrace(former)
        yield
    assert wanted > 10


@pytest.mark.parametrize("what", ["heartbeat", "section", "shutdown", "raise"])
def test_a_signal_handler_may_come_at_any_moment_of_the_initialisation(
    rank_environment: Callable[..., Cell], client: RankMonitorClient, what: str
) -> None:
    cell = rank_environment(capture_stacks=False, rank_section_timeouts={"step": 5}, rank_out_of_section_timeout=5)
    has_worked = False

    def handler() -> None:
        nonlocal has_worked
        if what == "raise":
            raise TimeoutError
        with contextlib.suppress(RankMonitorClientError):
            if what == "heartbeat":
                client.send_heartbeat()
            elif what == "section":
                with client.section("step"):
                    pass
            else:
                client.shutdown_workload_monitoring()
            has_worked = True

    within = {"init_workload_monitoring", "open", "_begin", "begin", "apply", "_tell"}
    for _ in interrupted(client.init_workload_monitoring, within, handler):
        assert (cell.view().state == WATCHED) == client.is_initialized
        if what == "heartbeat" and has_worked:
            assert cell.view().out_of_section_ns == CLOSED
        if what == "section" and has_worked:
            assert cell.view().heartbeat_ns == CLOSED
        if not client.is_initialized:
            client.init_workload_monitoring()
            assert cell.view().state == WATCHED
        client.shutdown_workload_monitoring()
        has_worked = False


@pytest.mark.parametrize("first", [0, MAX_SECTIONS - 2, MAX_SECTIONS - 1], ids=["named", "at the limit", "shared"])
@pytest.mark.parametrize("what", ["another section", "the same section", "heartbeat", "load", "raise"])
def test_a_signal_handler_may_come_at_any_moment_of_a_first_use(
    rank_environment: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock, what: str, first: int
) -> None:
    """Neither is a section open without its limit, nor anything due that it switches off, nor its origin not told."""
    cell = rank_environment(capture_stacks=False, learned_limits="replace", rank_heartbeat_timeout=10)
    names = [f"s{number}" for number in range(first)]
    state = loaded()
    limits = dict.fromkeys([*names, "other", "step"], 2.0)
    state["current_timeouts"]["section"].update(section=limits, calculated_sections=list(limits))
    later = copy.deepcopy(state)
    later["current_timeouts"]["section"]["section"]["step"] = 3.0

    closings = 0

    def handler() -> None:
        nonlocal closings
        if what == "raise":
            raise TimeoutError
        if what == "heartbeat":
            client.send_heartbeat()
        elif what == "load":
            client.load_state_dict(later)
        elif what == "the same section":
            with client.section("step"):
                closings += 1
        else:
            client.start_section("other")

    client.load_state_dict(state)
    client.init_workload_monitoring()
    within = {"section", "_prepare_section", "_slot_for", "_new_slot", "tell_limit_of", "_tell"}

    def prepare() -> None:
        client.shutdown_workload_monitoring()
        client.load_state_dict(state)
        client.init_workload_monitoring()
        for name in names:
            with client.section(name):
                pass

    for _ in interrupted(lambda: client.start_section("step"), within, handler, prepare):
        if "step" not in client.open_sections:
            client.start_section("step")
        opened = {name: section.deadline_word for name, section in client._state.open.items()}
        assert "other" in opened or (opened["step"] == NOT_SHOWN) == (first == MAX_SECTIONS - 1)
        for name, word in opened.items():
            assert client.section_timeouts is not None
            limit = client.section_timeouts.section[name] or 0
            assert client._state.sections[name].limit_ns == limit * S
            shown = SHARED if word == NOT_SHOWN else name
            assert deadline(cell, shown) == clock() + (2 * S if shown == SHARED and len(opened) > 1 else limit * S)
            origin = origin_of(cell.read_text(LIMITS_TEXT), "section", shown, 2.0)
            assert origin is not None
            assert origin.source == "learned"
        if what != "heartbeat":
            assert cell.view().heartbeat_ns == CLOSED
        client.end_section("step")
        assert client._state.sections["step"].count == 1 + closings
        closings = 0


def test_a_load_keeps_the_limit_of_section_events_that_are_heartbeats(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    """The initial one is over with the first section event."""
    cell = start(learned_limits="replace")
    state = loaded(section=None, heartbeat=30)
    state["current_timeouts"]["section"].update(section={}, calculated_sections=[])
    client.start_section("free")
    client.load_state_dict(state)
    assert cell.view().heartbeat_ns == clock() + 30 * S, "12 s is for the initial one"


def test_a_shutdown_while_another_thread_begins_a_section_is_told(
    start: Callable[..., Cell], client: RankMonitorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a signal handler's, which the lock lets through."""
    start(rank_section_timeouts={"io": 100})
    slot_for = client._first_use._slot_for

    def shut_down_first(name: str) -> int:
        client.shutdown_workload_monitoring()
        return slot_for(name)

    monkeypatch.setattr(client._first_use, "_slot_for", shut_down_first)
    with pytest.raises(RankMonitorClientError, match=r"start_section\(\) comes after shutdown_workload_monitoring\(\)"):
        client.start_section("io")


def test_a_shutdown_at_the_very_end_of_a_with_block_does_not_raise_there(
    start: Callable[..., Cell], client: RankMonitorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(rank_section_timeouts={"io": 100})
    end_section = client.end_section

    def shut_down_first(name: str) -> None:
        client.shutdown_workload_monitoring()
        end_section(name)

    monkeypatch.setattr(client, "end_section", shut_down_first)
    with client.section("io"):
        pass
    monkeypatch.undo()
    assert not client.is_initialized


def test_limits_of_centuries_are_no_error(start: Callable[..., Cell], client: RankMonitorClient) -> None:
    """A factor times the longest interval that a state tells of may be one."""
    cell = start(rank_section_timeouts={"step": 5}, learned_limits="replace")
    client.start_section("step")
    client.load_state_dict(loaded(section=1e12, out_of_section=1e12, heartbeat=1e12))
    assert 100 * 365 * 86400 * S < (deadline(cell, "step") or 0) < NO_LIMIT
    client.end_section("step")
    assert 100 * 365 * 86400 * S < cell.view().out_of_section_ns < NO_LIMIT
    client.send_heartbeat()


@pytest.mark.parametrize(
    "value",
    [[10**5000], {"a": [10**5000]}, (10**5000,), "x" * 10_000, list(range(10_000))],
    ids=["list", "mapping", "tuple", "long text", "long list"],
)
def test_whatever_a_state_has_in_the_place_of_a_number_is_refused_in_a_line(
    client: RankMonitorClient, value: object
) -> None:
    """Python refuses to print an integer of so many digits, also within a container."""
    for place, key in (("heartbeat", "subsequent"), ("heartbeat", "were_calculated"), ("section", "section")):
        state = loaded()
        state["current_timeouts"][place][key] = value if key != "section" else {"step": value, "beyond": 1.0}
        with pytest.raises(RankMonitorClientError, match=f"'{place}.{key}") as raised:
            client.load_state_dict(state)
        assert len(str(raised.value)) < 500
    for state in (value, {"current_timeouts": value}, {**loaded(), "evidence": {10**5000: {}}}):  # type: ignore[assignment]
        with pytest.raises(RankMonitorClientError) as raised:
            client.load_state_dict(state)
        assert len(str(raised.value)) < 500


@pytest.mark.parametrize("number", [10**400, 10**5000, 1e13], ids=["400 digits", "5000 digits", "1e13"])
@pytest.mark.parametrize("place", ["heartbeat.initial", "section.section.step", "section.out_of_section", "evidence"])
def test_a_number_in_a_state_that_is_too_large_is_refused(
    start: Callable[..., Cell], client: RankMonitorClient, number: float, place: str
) -> None:
    """It was an ``OverflowError``, for which the adapters' monitor was passed over: a job without protection."""
    start(rank_section_timeouts={"step": 5}, learned_limits="replace")
    state = loaded()
    timeouts = state["current_timeouts"]
    if place == "evidence":
        state["evidence"] = {"section step": {"longest": number}}
        place = "evidence.section step.longest"
    elif place == "heartbeat.initial":
        timeouts["heartbeat"]["initial"] = number
    elif place == "section.out_of_section":
        timeouts["section"]["out_of_section"] = number
    else:
        timeouts["section"]["section"]["step"] = number
    shown = f"an integer of {number.bit_length()} bits" if isinstance(number, int) else "10000000000000.0"
    with pytest.raises(RankMonitorClientError, match=f"'{place}' must be .* 1000000000000, not {shown}"):
        client.load_state_dict(state)
    assert client.section_timeouts is not None
    assert client.section_timeouts.section["step"] == 5


def test_where_the_limit_of_whatever_is_open_comes_from_is_always_told(
    start: Callable[..., Cell], client: RankMonitorClient
) -> None:
    """However many others are configured, and however long their names are; else a learned one yields to nobody."""
    names = [f"{n:03}{'n' * 300}" for n in range(100)]
    cell = start(rank_section_timeouts={**dict.fromkeys(names, 9), "a": None, "b": 20})
    state = loaded()
    state["current_timeouts"]["section"].update(section={"a": 2.0}, calculated_sections=["a"])
    client.load_state_dict(state)

    def told(section: str, seconds: float) -> tuple[str, str | None] | None:
        origin = origin_of(cell.read_text(LIMITS_TEXT), "section", section, seconds)
        return (origin.source, origin.basis) if origin is not None else None

    assert told("a", 60) is None, "only what was used"
    for name in ("a", "b", *names[:61]):
        with client.section(name):
            assert told(name[:47], 9) == (("learned",) * 2 if name == "a" else ("configured",) * 2)
    with client.section(names[61]):
        assert told(SHARED, 9) == ("configured", "configured")
    assert told("a", 60) == ("learned", "learned")


def test_a_first_use_costs_what_is_new(
    start: Callable[..., Cell], client: RankMonitorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that makes up names had to wait for all limits, and their text, with each of 500."""
    start(learned_limits="replace")
    state = loaded()
    names = [f"s{number}" for number in range(200)]
    limits = {name: 2.0 + number % 2 for number, name in enumerate(names)}
    state["current_timeouts"]["section"].update(section=limits, calculated_sections=names)
    client.load_state_dict(state)
    found: list[str] = []
    written: list[str] = []
    find_entries, write = LearnedLimits._find_entries, limits_in_force.write_limits
    monkeypatch.setattr(LearnedLimits, "_find_entries", lambda self: found.append("") or find_entries(self))
    monkeypatch.setattr(limits_in_force, "write_limits", lambda *a: written.append("") or write(*a))

    for name in names:
        with client.section(name):
            pass
    assert found == []
    assert len(written) == MAX_SECTIONS - 1 + 2, "one for each that has a slot, and for each limit of the others"


def test_a_verdict_on_sections_that_share_a_slot_relaxes_their_limits(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same limit condemned each generation."""
    monkeypatch.setenv(RELAXED_VARIABLE, write_verdicts({f"section {SHARED}": 1}))
    cell = start(learned_limits="replace")
    state = loaded()
    names = [f"s{number}" for number in range(65)]
    state["current_timeouts"]["section"].update(section=dict.fromkeys(names, 2.0), calculated_sections=names)
    client.load_state_dict(state)
    for name in names[:63]:
        with client.section(name):
            assert deadline(cell, name) == clock() + 2 * S
    with client.section(names[63]):
        assert deadline(cell, SHARED) == clock() + 8 * S


@pytest.mark.parametrize("text", ['{"heartbeat": true}', "rubbish", '{"version": 99, "verdicts": {"heartbeat": 1}}'])
def test_counts_of_verdicts_that_cannot_be_read_are_warned_of_and_training_goes_on(
    start: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    monkeypatch.setenv(RELAXED_VARIABLE, text)
    start()
    assert caplog.text.count("FT_RELAXED_LIMITS cannot be used") == 1


def test_a_child_is_not_held_up_by_what_another_thread_was_doing_when_it_was_forked(
    start: Callable[..., Cell], client: RankMonitorClient
) -> None:
    start(rank_section_timeouts={"io": 100})
    holds, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with client._state.lock:
            holds.set()
            ends.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        client.send_heartbeat()
        client.start_section("io")
        client.shutdown_workload_monitoring()
        os._exit(0)
    ends.set()
    thread.join()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_num_warmup_iters_stands_in_for_the_configured_number(
    rank_environment: Callable[..., Cell], client: RankMonitorClient
) -> None:
    rank_environment(capture_stacks=False)
    client.init_workload_monitoring(num_warmup_iters=3)

    assert client.cfg.num_warmup_iterations == 3


def test_the_context_manager_closes_on_an_exception_and_minds_who_closed_it_before(
    start: Callable[..., Cell], client: RankMonitorClient
) -> None:
    cell = start(rank_section_timeouts={"step": 1})

    with pytest.raises(KeyError), client.section("step"):
        raise KeyError
    assert cell.view().sections == ()
    with client.section("step"):
        client.end_all_sections()
    with client.section("step"):
        client.shutdown_workload_monitoring()


def test_a_section_may_be_closed_on_another_thread(start: Callable[..., Cell], client: RankMonitorClient) -> None:
    cell = start(rank_section_timeouts={"step": 1})
    client.start_section("step")

    thread = threading.Thread(target=client.end_section, args=("step",))
    thread.start()
    thread.join()

    assert cell.view().sections == ()


def test_the_story_has_the_iteration(start: Callable[..., Cell], client: RankMonitorClient) -> None:
    cell = start()
    client.note_iteration(41)

    assert cell.view().iteration == 41


# ---- learned timeouts -----------------------------------------------------------------------------------

STATE: dict[str, Any] = {
    "current_timeouts": {
        "heartbeat": {"initial": 12.0, "subsequent": 3.5, "were_calculated": True},
        "section": {
            "section": {"step": 2.0},
            "out_of_section": 15.0,
            "calculated_sections": ["step"],
            "is_out_of_section_calculated": True,
        },
    }
}


def test_heartbeat_timeouts_come_from_the_longest_intervals_since_the_last_time(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    cell = start(safety_factor=5, learned_limits="replace")
    for gap in (4, 1, 3, 2):
        clock.advance(gap)
        client.send_heartbeat()
    assert client.calculate_and_set_hb_timeouts()
    learned = client.hb_timeouts
    assert learned is not None
    assert (learned.initial, learned.subsequent, learned.were_calculated, learned.are_valid) == (20.0, 15.0, True, True)

    for gap in (1, 1):
        clock.advance(gap)
        client.send_heartbeat()
    assert cell.view().heartbeat_ns == clock() + 15 * S
    assert client.calculate_and_set_hb_timeouts()
    learned = client.hb_timeouts
    assert learned is not None
    assert (learned.initial, learned.subsequent) == (20.0, (15.0 + 5.0) / 2)


def test_too_few_heartbeats_raise_or_are_skipped(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    start()
    clock.advance(1)
    client.send_heartbeat()
    before = client.hb_timeouts

    with pytest.raises(TimeoutsNotReadyError, match="at least two heartbeats"):
        client.calculate_and_set_hb_timeouts()
    assert not client.calculate_and_set_hb_timeouts(skip_if_not_ready=True)
    assert client.hb_timeouts == before


def test_a_first_heartbeat_is_one_after_limits_were_learned_from_the_others_too(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collective gives what a peer has seen; this rank is late with its own first heartbeat."""
    cell = start(rank_section_timeouts={"step": 5}, rank_out_of_section_timeout=30, learned_limits="replace")
    monkeypatch.setattr("resilience_core.monitoring.limits_in_force.maxima", lambda values: [4 * S, 2 * S, 3, 9 * S])
    clock.advance(10)
    assert client.calculate_and_set_hb_timeouts()
    assert cell.view().out_of_section_ns != CLOSED

    client.send_heartbeat()

    assert cell.view().out_of_section_ns == CLOSED, "who sends heartbeats need not open sections"
    assert cell.view().heartbeat_ns == clock() + 10 * S


def test_only_selected_sections_are_learned(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    start(rank_section_timeouts={"setup": 100, "step": 50}, rank_out_of_section_timeout=30, learned_limits="replace")
    for name, took in (("setup", 4), ("step", 3), ("step", 2)):
        clock.advance(6)
        with client.section(name):
            clock.advance(took)

    assert client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False)
    learned = client.section_timeouts
    assert learned is not None
    assert dict(learned.section) == {"setup": 100.0, "step": 15.0}
    assert (learned.out_of_section, learned.is_out_of_section_calculated) == (30.0, False)
    assert learned.calculated_sections == {"step"}

    assert client.calculate_and_set_section_timeouts("setup")
    learned = client.section_timeouts
    assert learned is not None
    assert dict(learned.section) == {"setup": 20.0, "step": 15.0}
    assert (learned.out_of_section, learned.is_out_of_section_calculated) == (30.0, True)
    assert learned.are_valid


def test_an_unseen_section_raises_or_is_skipped_and_changes_nothing(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    start(rank_section_timeouts={"setup": 100, "step": 50})
    clock.advance(1)
    with client.section("step"):
        clock.advance(1)
    before = client.section_timeouts

    with pytest.raises(TimeoutsNotReadyError, match="section\\(s\\) setup not seen"):
        client.calculate_and_set_section_timeouts(["setup", "step"])
    assert not client.calculate_and_set_section_timeouts(["setup", "step"], skip_if_not_ready=True)
    assert client.section_timeouts == before
    assert client.calculate_and_set_section_timeouts()
    assert not client.calculate_and_set_section_timeouts(skip_if_not_ready=True)


def test_the_floor_holds(start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock) -> None:
    start(rank_section_timeouts={"step": 50}, learned_timeout_floor=2, learned_limits="replace")
    with client.section("step"):
        clock.advance(0.001)
    client.calculate_and_set_section_timeouts(calc_out_of_section=False)

    assert client.section_timeouts is not None
    assert client.section_timeouts.section["step"] == 2.0


@pytest.mark.parametrize("when", ["before init", "after init"])
def test_loaded_timeouts_replace_the_configured_ones_where_asked_to(
    rank_environment: Callable[..., Cell], clock: FakeClock, client: RankMonitorClient, when: str
) -> None:
    cell = rank_environment(
        rank_section_timeouts={"setup": 7, "step": 100},
        rank_out_of_section_timeout=99,
        learned_limits="replace",
        capture_stacks=False,
    )
    if when == "before init":
        client.load_state_dict(STATE)
        assert client.state_dict() == STATE
    client.init_workload_monitoring()
    if when == "after init":
        clock.advance(1)
        client.load_state_dict(STATE)

    assert client.hb_timeouts is not None
    assert (client.hb_timeouts.initial, client.hb_timeouts.subsequent) == (12.0, 3.5)
    assert client.section_timeouts is not None
    assert dict(client.section_timeouts.section) == {"setup": 7.0, "step": 2.0}
    assert client.state_dict() == json.loads(json.dumps(STATE))
    view = cell.view()
    assert (view.heartbeat_ns, view.out_of_section_ns) == (clock() + 12 * S, clock() + 15 * S)
    client.start_section("step")
    assert deadline(cell, "step") == clock() + 2 * S


def test_loading_shorter_limits_condemns_nobody_on_the_spot(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    cell = start(rank_section_timeouts={"step": 100}, learned_limits="replace")
    client.start_section("step")
    clock.advance(50)

    client.load_state_dict(STATE)

    assert deadline(cell, "step") == clock() + 2 * S


def loaded(section: float | None = 20.0, out_of_section: float = 15.0, heartbeat: float = 3.5) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(STATE))
    state["current_timeouts"]["heartbeat"]["subsequent"] = heartbeat
    sections = state["current_timeouts"]["section"]
    sections["out_of_section"] = out_of_section
    if section is not None:
        sections["section"] = {"step": section, "beyond": section}
        sections["calculated_sections"] = ["step", "beyond"]
    return state


def running(start: Callable[..., Cell], client: RankMonitorClient) -> Callable[[], tuple[int | None, ...]]:
    """Begin an interval of each kind; returns what tells by when each is due."""
    limits = {**{f"s{number}": 10 for number in range(62)}, "step": 10, "beyond": 10}
    cell = start(
        rank_section_timeouts=limits,
        rank_out_of_section_timeout=10,
        rank_heartbeat_timeout=10,
        learned_limits="replace",
    )
    for name in limits:
        with client.section(name):
            pass
    client.send_heartbeat()
    client.start_section("step")
    client.start_section("beyond")

    def due() -> tuple[int | None, ...]:
        view = cell.view()
        return deadline(cell, "step"), deadline(cell, SHARED), view.out_of_section_ns, view.heartbeat_ns

    return due


def test_loading_again_and_again_puts_off_nothing(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    """A loop that loads a state hid a hang in a section that was open."""
    due = running(start, client)
    began = clock()
    clock.advance(1)
    for _ in range(3):
        client.load_state_dict(loaded(section=20, out_of_section=15, heartbeat=12))
        assert due() == tuple(began + limit * S for limit in (20, 20, 15, 12)), "longer ones, from the beginning"
        clock.advance(1)
    now = clock()
    for _ in range(3):
        client.load_state_dict(loaded(section=2, out_of_section=3, heartbeat=4))
        assert due() == tuple(now + limit * S for limit in (2, 2, 3, 4)), "shorter ones, from when they were loaded"
        clock.advance(1)


def test_a_shorter_limit_that_is_loaded_late_is_due_no_later_than_the_former_one(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    due = running(start, client)
    was_due = due()
    clock.advance(9)
    client.load_state_dict(loaded(section=8, out_of_section=8, heartbeat=8))
    assert due() == was_due
    assert set(was_due) == {clock() + S}


class Interrupted:
    """Words of a cell that another thread comes between: ``meanwhile`` runs right before or after a store in one."""

    def __init__(self, words: memoryview, word: int, meanwhile: Callable[[], None], is_before: bool) -> None:
        self.words, self.word, self.is_before = words, word, is_before
        self.meanwhile: Callable[[], None] | None = meanwhile

    def __getitem__(self, word: int) -> int:
        return int(self.words[word])

    def __setitem__(self, word: int, value: int) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None if word == self.word else self.meanwhile
        if word != self.word or meanwhile is None:
            self.words[word] = value
            return
        if self.is_before:
            meanwhile()
        self.words[word] = value
        if not self.is_before:
            meanwhile()


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("what", ["close", "open anew", "beyond", "heartbeat", "leave"])
def test_what_another_thread_does_while_a_state_is_loaded_counts(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock, what: str, is_before: bool
) -> None:
    """A deadline of an interval that is over would condemn the next one, or a rank that is in none."""
    due = running(start, client)
    clock.advance(9)

    def meanwhile() -> None:
        clock.advance(1)
        if what == "heartbeat":
            client.send_heartbeat()
        elif what == "leave":
            client.start_section("s1")
            client.end_section("s1")
        else:
            name = "beyond" if what == "beyond" else "step"
            client.end_section(name)
            if what != "close":
                client.start_section(name)

    words = client._state.words
    slot = {"heartbeat": HEARTBEAT, "leave": OUT_OF_SECTION, "beyond": client._state.shared_word}
    word = slot.get(what, client._state.sections["step"].deadline_word)
    client._state.words = Interrupted(words, word, meanwhile, is_before)  # type: ignore[assignment]
    client.load_state_dict(loaded(section=12, out_of_section=12, heartbeat=12))
    client._state.words = words

    step, beyond, out_of_section, heartbeat = due()
    expected = {
        "close": (step, None),
        "open anew": (step, clock() + 12 * S),
        "beyond": (beyond, clock() + 12 * S),
        "heartbeat": (heartbeat, clock() + 12 * S),
        "leave": (out_of_section, clock() + 12 * S),
    }
    assert expected[what][0] == expected[what][1]


@pytest.mark.parametrize(("configured", "limit_seconds"), [(None, 5 + 10), (180, 180)])
def test_a_limit_learned_between_sections_counts_for_the_interval_that_is_open_where_none_was_running(
    start: Callable[..., Cell],
    client: RankMonitorClient,
    clock: FakeClock,
    configured: int | None,
    limit_seconds: int,
) -> None:
    """A rank that hung there was never found; nor may it be late at once."""
    cell = start(rank_section_timeouts={"step": 100}, rank_out_of_section_timeout=configured, learned_limits="replace")
    clock.advance(2)
    with client.section("step"):
        clock.advance(1)
    left_ns = clock()
    clock.advance(5)

    client.calculate_and_set_section_timeouts()

    view = cell.view()
    assert (view.left_section_ns, view.out_of_section_ns) == (left_ns, left_ns + limit_seconds * S)
    origin = origin_of(cell.read_text(LIMITS_TEXT), "out of section", None, limit_seconds)
    assert origin is not None
    later = ", or began to count later" if limit_seconds > 10 else ""
    assert origin.phrase.startswith(f"it changed meanwhile{later}, and is 10 s now; learned: 5 x 2 s over 1 interval;")
    with client.section("step"):
        pass
    assert cell.view().out_of_section_ns == clock() + 10 * S


def test_times_between_sections_are_counted_each_once(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    """Sections inside of others are none, nor is what was counted before: they would make thin evidence look plenty."""
    start()

    def work() -> None:
        for name in ("step", "save"):
            clock.advance(1)
            with client.section(name), client.section("inner"), client.section("innermost"):
                clock.advance(1)
                with pytest.raises(SectionError):
                    client.start_section(name)

    counts = []
    for _ in range(2):
        work()
        client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False)
        work()
        clock.advance(1)
        with client.section("step"):
            client.calculate_and_set_section_timeouts()
        counts.append(client.state_dict()["evidence"]["out of section"]["intervals"])

    assert counts == [5, 10]


def test_a_limit_between_sections_is_never_taken_back(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    """A close stores nothing where there is no limit; were one taken back, the stored one would pass."""
    cell = start(rank_section_timeouts={"step": 5}, learned_limits="replace")
    client.load_state_dict(STATE)
    without = json.loads(json.dumps(STATE))
    without["current_timeouts"]["section"].update(out_of_section=None, is_out_of_section_calculated=False)
    client.load_state_dict(without)
    with client.section("step"):
        clock.advance(1)
    client.calculate_and_set_section_timeouts(calc_out_of_section=False)
    client.start_section("step")
    client.end_section("step")

    assert cell.view().out_of_section_ns == clock() + 15 * S
    without["current_timeouts"]["section"].update(is_out_of_section_calculated=True)
    with pytest.raises(RankMonitorClientError, match="out_of_section"):
        client.load_state_dict(without)


def test_a_limit_learned_between_sections_counts_after_heartbeats_were_sent_first(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    cell = start(learned_limits="replace")
    client.send_heartbeat()
    assert cell.view().out_of_section_ns == CLOSED
    clock.advance(2)
    with client.section("step"):
        clock.advance(1)
    assert cell.view().out_of_section_ns == NO_LIMIT

    client.calculate_and_set_section_timeouts()

    assert cell.view().out_of_section_ns == clock() + 10 * S


def test_a_limit_learned_between_heartbeats_counts_for_the_interval_that_is_open_where_none_was_running(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock
) -> None:
    cell = start(rank_heartbeat_timeout=None, learned_limits="replace")
    for gap in (3, 2):
        clock.advance(gap)
        client.send_heartbeat()
    assert cell.view().heartbeat_ns == NO_LIMIT
    clock.advance(1)

    client.calculate_and_set_hb_timeouts()
    assert cell.view().heartbeat_ns == clock() + 10 * S


@pytest.mark.parametrize("api", ["heartbeats", "sections"])
def test_learning_limits_of_one_api_switches_on_none_of_the_other(
    start: Callable[..., Cell], client: RankMonitorClient, clock: FakeClock, api: str
) -> None:
    cell = start(rank_section_timeouts={"step": 5}, initial_rank_heartbeat_timeout=None, rank_heartbeat_timeout=None)
    for _ in range(2):
        clock.advance(1)
        if api == "heartbeats":
            client.send_heartbeat()
        else:
            with client.section("step"):
                clock.advance(1)

    if api == "heartbeats":
        client.calculate_and_set_hb_timeouts()
        assert cell.view().out_of_section_ns == CLOSED
    else:
        client.calculate_and_set_section_timeouts()
        assert cell.view().heartbeat_ns == CLOSED


def test_a_broken_state_is_refused_and_changes_nothing(start: Callable[..., Cell], client: RankMonitorClient) -> None:
    start(rank_section_timeouts={"step": 100})
    before = client.section_timeouts

    with pytest.raises(RankMonitorClientError, match="current_timeouts"):
        client.load_state_dict({"timeouts": {}})
    assert client.section_timeouts == before


# ---- forks, threads, signals, sockets -------------------------------------------------------------------


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("is_initialised", [True, False])
def test_a_client_is_not_copied(
    start: Callable[..., Cell], client: RankMonitorClient, again: Callable[[object], object], is_initialised: bool
) -> None:
    """A copy wrote the same words, and raised ``ValueError`` in the midst of training once the other was shut down."""
    if is_initialised:
        start()
    with pytest.raises(TypeError, match=r"a RankMonitorClient cannot be copied or pickled, .*leave it out"):
        again(client)


@pytest.mark.parametrize("call", ["send_heartbeat", "start_section", "end_section"])
def test_a_shutdown_while_another_thread_is_in_a_call_does_not_raise_there(
    start: Callable[..., Cell], client: RankMonitorClient, call: str
) -> None:
    cell = start(rank_section_timeouts={"step": 5}, rank_out_of_section_timeout=5)
    client.send_heartbeat()
    with client.section("step"):
        pass
    if call == "end_section":
        client.start_section("step")
    words, word = client._state.words, {"send_heartbeat": HEARTBEAT, "end_section": LEFT_SECTION}
    first_stored = word.get(call, client._state.sections["step"].opened_word)
    client._state.words = Interrupted(  # type: ignore[assignment]
        words, first_stored, client.shutdown_workload_monitoring, is_before=True
    )
    del words

    getattr(client, call)(*([] if call == "send_heartbeat" else ["step"]))

    assert cell.view().state == SHUT_DOWN
    assert not client.is_initialized


@pytest.mark.parametrize("kind", [SystemExit, RuntimeError])
def test_a_child_that_was_forked_in_c_and_ends_by_an_exception_leaves_its_parent_alone(
    start: Callable[..., Cell], client: RankMonitorClient, kind: type[BaseException]
) -> None:
    """Python does not know of it. It closed what its parent has open, which was killed as out of section for it."""
    cell = start(rank_section_timeouts={"step": 60}, rank_out_of_section_timeout=1)
    child = -1
    try:
        with client.section("step"):
            before = cell.view()
            child = ctypes.PyDLL(None).fork()
            if child == 0:
                signal.alarm(60)
                raise kind
            _, status = os.waitpid(child, 0)
            after = cell.view()
    except kind:
        client.shutdown_workload_monitoring()
        os._exit(7)
    finally:
        if child == 0:
            os._exit(1)
    assert os.waitstatus_to_exitcode(status) == 7
    assert ([section.name for section in before.sections], before.state) == (["step"], WATCHED)
    assert after == before
    client.shutdown_workload_monitoring()
    assert cell.view().state == SHUT_DOWN


def test_a_child_that_was_forked_in_c_between_sections_and_ends_by_an_exception_leaves_its_parent_watched(
    start: Callable[..., Cell], client: RankMonitorClient, capfd: pytest.CaptureFixture[str]
) -> None:
    """The program's own shutdown, in a ``finally``, switched its parent's protection off."""
    cell = start(rank_section_timeouts={"step": 60}, rank_out_of_section_timeout=1)
    child = -1
    try:
        with client.section("step"):
            pass
        child = ctypes.PyDLL(None).fork()
        if child == 0:
            signal.alarm(60)
            logging.basicConfig(force=True)
            raise SystemExit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert cell.view().state == WATCHED
        assert "C library" not in capfd.readouterr().err
    finally:
        client.shutdown_workload_monitoring()
        if child == 0:
            os._exit(7 if cell.view().state == WATCHED else 8)
    assert cell.view().state == SHUT_DOWN


def test_a_forked_child_that_has_a_cell_of_its_own_is_a_rank_like_any_other(
    start: Callable[..., Cell], client: RankMonitorClient, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cell, own = start(rank_section_timeouts={"step": 60}), Cell.create(str(tmp_path / "own"))
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            logging.basicConfig(force=True)
            client.shutdown_workload_monitoring()
            os.environ["FT_CELL"] = str(tmp_path / "own")
            client.init_workload_monitoring()
            with pytest.raises(RankMonitorClientError, match="another RankMonitorClient of this process"):
                RankMonitorClient().init_workload_monitoring()
            client.shutdown_workload_monitoring()
            os._exit(7)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    with contextlib.closing(own):
        assert (os.waitstatus_to_exitcode(status), own.view().state, cell.view().state) == (7, SHUT_DOWN, WATCHED)
    assert "C library" not in capfd.readouterr().err


def test_every_client_of_a_forked_process_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind one that was shut down; the order in which they stand is nobody's."""

    class Recorded:
        is_cut_off = False

        def detach(self) -> None:
            self.is_cut_off = True

    clients = [Recorded() for _ in range(3)]
    monkeypatch.setattr(process_hooks, "_clients", weakref.WeakSet(clients))
    process_hooks.detach_clients()
    assert [client.is_cut_off for client in clients] == [True] * 3


def test_a_child_that_was_forked_in_c_and_leaves_the_loop_as_if_it_were_its_parent_says_so(
    start: Callable[..., Cell], client: RankMonitorClient, capfd: pytest.CaptureFixture[str]
) -> None:
    """What it has closed before is the parent's, which must not be killed for it."""
    cell = start(rank_section_timeouts={"step": 60}, rank_out_of_section_timeout=1)
    client.start_section("step")
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        signal.alarm(60)
        logging.basicConfig(force=True)
        client.end_section("step")
        client.shutdown_workload_monitoring()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert cell.view().state == SHUT_DOWN
    told = f"process {child}, which a C library has forked from rank process {os.getpid()}, has left the training loop"
    assert told in capfd.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_who_changes_the_user_before_the_initialisation_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    path.chmod(0o600)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os.setuid(65534)
        try:
            read_config(str(path), "FT_CONFIG_FILE")
        except RankMonitorClientError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    with open(read) as told:
        assert re.search(r"this user \(uid 65534\) may not read.*change the user after init_workload", told.read())
    os.waitpid(child, 0)


def test_a_forked_child_is_cut_off(start: Callable[..., Cell], client: RankMonitorClient) -> None:
    """A DataLoader worker can neither keep a dead rank alive, nor end its monitoring, nor spoil its cell."""
    cell = start(rank_section_timeouts={"step": 5, "other": 5}, rank_out_of_section_timeout=5)
    client.start_section("step")
    client.end_section("step")
    before, words = cell.view(), cell.words.tobytes()

    child = os.fork()
    if child == 0:
        try:
            client.send_heartbeat()
            client.start_section("step")
            client.start_section("other")
            client.note_iteration(5)
            client.end_all_sections()
            client.load_state_dict(STATE)
            client.shutdown_workload_monitoring()
            try:
                client.init_workload_monitoring()
            except RankMonitorClientError as error:
                os._exit(0 if "is monitored through" in str(error) else 2)
            os._exit(3)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert cell.view() == before
    assert cell.words.tobytes() == words
    client.send_heartbeat()
    assert cell.view() != before


def test_a_process_that_takes_over_a_dead_ones_cell_is_watched(rank_environment: Callable[..., Cell]) -> None:
    cell = rank_environment(capture_stacks=False)
    program = (
        "import os; from resilience_core import RankMonitorClient as C; c = C(); c.init_workload_monitoring(); "
        "c.start_section('step'); print(os.getpid(), flush=True); os._exit(0)"
    )
    pids = [int(subprocess.check_output([sys.executable, "-c", program])) for _ in range(2)]

    assert cell.view().pid == pids[1]
    assert [section.name for section in cell.view().sections] == ["step"]


def test_stacks_are_written_when_the_monitor_asks(
    rank_environment: Callable[..., Cell], client: RankMonitorClient
) -> None:
    cell = rank_environment()
    client.init_workload_monitoring()
    # To this very thread: another one, that an earlier test has left, would not have written before we read.
    signal.pthread_kill(threading.get_ident(), STACK_SIGNAL)

    # Not which thread: of more than 100, and earlier tests leave some, Python writes the newest 100 alone.
    assert "(most recent call first):" in Path(cell.path + ".stack").read_text()
    client.shutdown_workload_monitoring()
    assert not faulthandler.unregister(STACK_SIGNAL)


def test_a_control_request_reaches_the_socket(
    start: Callable[..., Cell], client: RankMonitorClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start()
    request = WorkloadControlRequest(WorkloadAction.ShutdownWorkload, "enough")
    monkeypatch.delenv("FT_CONTROL_SOCKET", raising=False)
    with pytest.raises(RankMonitorClientError, match="FT_CONTROL_SOCKET is not set"):
        client.send_workload_control_request(request)

    monkeypatch.setenv("FT_CONTROL_SOCKET", str(tmp_path / "control"))
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(RankMonitorClientError, match="no launcher listens"):
        client.send_workload_control_request(request)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "control"))
        client.send_workload_control_request(request)
        assert receive(listener.recv(8192)) == (3, request)


def test_the_exception_hook_logs_the_traceback_and_leaves_at_once(rank_environment: Callable[..., Cell]) -> None:
    rank_environment(install_exception_hook=True)
    program = (
        "import atexit; from resilience_core import RankMonitorClient as C; c = C(); c.init_workload_monitoring()\n"
        "atexit.register(print, 'torn down')\nraise KeyError('lost')"
    )

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert ended.returncode == 1
    assert ended.stderr.count("KeyError: 'lost'") == 1
    assert "Traceback" in ended.stderr
    assert "torn down" not in ended.stdout


def test_a_cell_nobody_claimed_is_unused(rank_environment: Callable[..., Cell]) -> None:
    assert rank_environment().view().state == UNUSED
