"""When the figures of ranks are written down."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.agent import figures_recorder
from launcher.agent.figures_recorder import FiguresRecorder
from launcher.processes.background import Background
from launcher.records.event_log import EventLog
from launcher.records.figures_log import FIGURES, FiguresLine, read_figure_lines
from resilience_core.testing import FakeClock


class World:
    """A recorder whose ranks are what a test says, in place of cells in shared memory."""

    def __init__(self, folder: Path, clock: FakeClock) -> None:
        self.folder, self.clock = folder, clock
        self.closed = {0: 0, 1: 0}  # sections, by rank
        self.first_step: dict[int, int] = {}
        self.saves: list[dict[str, int]] = []
        self.log = EventLog(str(folder), stem=FIGURES)
        self.recorder = FiguresRecorder(self.log, Background("test", 1 << 20))
        self.recorder.generation_started()

    def line_of_rank(self, local_rank: int, cell: bytes, _: bytes) -> tuple[int, dict[str, Any]] | None:
        if not cell:
            return None
        closed = int(cell)
        section = {"closed": closed, "took_ns": closed, "longest_ns": 1, "close_calls": 0, "durations": {"1": closed}}
        return local_rank + 10, {
            **dict.fromkeys(("iteration", "done", "first_iteration", "first_step_ns", "first_sign_ns", "last_sign_ns")),
            **dict.fromkeys(("resumed_from", "saved"), None),
            **dict.fromkeys(("longest_gap_ns", "longest_heartbeat_gap_ns"), 0),
            "first_step_ns": self.first_step.get(local_rank),
            "open": {},
            "beside_ns": 0,
            "passed": closed,
            "sections": {"step": section},
            "local_rank": local_rank,
            "saves": [*self.saves],
            "limits": {},
        }

    def raw(self) -> dict[int, tuple[bytes, bytes]]:
        return {rank: (str(closed).encode(), b"") for rank, closed in self.closed.items()}

    def note(self, seconds: float = 1.0, generation: int = 0) -> None:
        self.clock.advance(seconds)
        self.recorder.note(generation, self.raw)

    @property
    def lines(self) -> list[FiguresLine]:
        return read_figure_lines(self.folder)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    clock = FakeClock()
    monkeypatch.setattr(time, "monotonic_ns", clock)
    world = World(tmp_path, clock)
    monkeypatch.setattr(figures_recorder, "line_of_rank", world.line_of_rank)
    return world


def test_a_line_follows_each_second_and_no_sooner(world: World) -> None:
    for _ in range(8):
        world.note(0.25)
    assert len(world.lines) == 2


def test_lines_of_a_long_run_are_a_thousandth_of_its_age_apart(world: World) -> None:
    world.note(10_000.0)
    for _ in range(25):
        world.note(1.0)
    assert len(world.lines) == 1 + 2


def test_what_has_changed_is_in_each_line_and_all_of_it_in_the_first_and_each_thirtieth(world: World) -> None:
    for number in range(32):
        world.closed[1] = number // 2
        world.note()
    lines = world.lines
    assert [number for number, line in enumerate(lines) if line.is_full] == [0, 30]
    assert [set(lines[number].ranks[11].sections) for number in (0, 1, 2, 3, 4, 30)] == [
        {"step"}, set(), {"step"}, set(), {"step"}, {"step"},
    ]  # fmt: skip
    assert all(lines[number].ranks[10].sections == {} for number in range(1, 30))
    assert lines[4].ranks[11].sections["step"] == (2, 2, 1, 0, {}, 0, 0, 0, 0)
    assert (lines[4].ranks[11].passed, lines[5].ranks[11].passed) == (2, 2)
    assert lines[30].ranks[11].sections["step"].durations == {1: 15}


def test_a_line_is_full_once_a_rank_has_begun_its_first_step(world: World) -> None:
    """A report on a run that goes on has to know from where it went on."""
    for number in range(6):
        if number in (2, 4):
            world.first_step[number // 4] = 77
        world.note()
    assert [line.is_full for line in world.lines] == [True, False, True, False, True, False]


def test_a_line_is_full_after_lines_were_lost(world: World) -> None:
    """What is not full tells what has changed since the line before."""
    world.note()
    world.note()
    world.log.lost = 2  # as where the disk was full
    world.note()
    world.note()
    assert [line.is_full for line in world.lines] == [True, False, True, False]
    Path(world.log.path).unlink()
    for _ in range(3):
        world.note()
    assert [line.is_full for line in world.lines] == [True, False, False]


def test_a_save_is_told_in_the_next_line_and_once(world: World) -> None:
    """When the launcher is killed, nothing is told later, and what was saved would count as lost."""
    for number in range(6):
        if number in (2, 4):
            world.saves.append({"iteration": number, "t_ns": number, "checkpointing_ns": 1})
        world.note()
    told = [[save.iteration for save in line.ranks[10].saves] for line in world.lines]
    assert told == [[], [], [2], [], [4], []]
    for _ in range(25):
        world.note()
    assert [save.iteration for save in world.lines[30].ranks[10].saves] == [2, 4]


def test_the_last_figures_of_a_generation_are_written_and_the_first_of_the_next_one_at_once(world: World) -> None:
    world.note(1000.0)
    world.closed[0] = 9
    world.recorder.generation_over(0, world.raw)
    ended_ns = world.clock()
    assert len(world.lines) == 2
    world.recorder.generation_started()
    world.closed = {0: 1, 1: 1}
    world.note(0.1, generation=1)
    lines = world.lines
    assert [(line.generation, line.is_full, line.is_last) for line in lines] == [
        (0, True, False), (0, True, True), (1, True, False),
    ]  # fmt: skip
    assert (lines[1].t_ns, lines[1].ranks[10].sections["step"].closed) == (ended_ns, 9)
    assert lines[2].ranks[10].sections["step"].closed == 1


def test_while_the_disk_hangs_few_copies_wait_for_it(tmp_path: Path) -> None:
    """Each holds what is in all cells; a launcher must not grow until it is killed, because its disk hangs."""
    background, release = Background("test", 1 << 20), threading.Event()
    background.start()
    background.submit(release.wait)
    recorder = FiguresRecorder(EventLog(str(tmp_path), stem=FIGURES), background)
    copies = []

    def raw() -> dict[int, tuple[bytes, bytes]]:
        copies.append(None)
        return {0: (b"", b"")}

    for generation in range(5):
        for _ in range(5):
            recorder.generation_started()
            recorder.note(generation, raw)
        recorder.generation_over(generation, raw)
    assert len(copies) == 4
    release.set()
    assert background.flush(60.0)
    assert [(line.generation, line.is_last) for line in read_figure_lines(tmp_path)] == [
        (0, False), (0, False), (0, True), (1, True),
    ]  # fmt: skip
    recorder.generation_started()
    recorder.note(9, raw)
    assert background.flush(60.0)
    assert read_figure_lines(tmp_path)[-1].generation == 9
    events = [json.loads(line) for line in (tmp_path / f"{FIGURES}.jsonl").read_text().splitlines()]
    assert sum(event["lines"] for event in events if event["event"] == "lost") == 26  # of 30
    recorder.close()


def test_a_line_for_which_there_is_no_room_is_counted_and_the_next_one_is_the_first(tmp_path: Path) -> None:
    background, release = Background("test", 1), threading.Event()
    log = EventLog(str(tmp_path), stem=FIGURES)
    background.start()
    background.submit(release.wait)
    recorder = FiguresRecorder(log, background)
    recorder.generation_started()
    recorder.note(0, dict)
    assert log.lost == 1
    release.set()
    assert background.flush(60.0)
    recorder.generation_started()
    recorder.generation_over(0, dict)
    assert background.flush(60.0)
    assert (log.lost, [line.is_full for line in read_figure_lines(tmp_path)]) == (0, [True])
    recorder.close()


def test_a_line_that_was_not_taken_is_not_counted_among_those_of_its_generation(tmp_path: Path) -> None:
    """The first one that is written has to be full, and to begin anew."""
    background, release = Background("test", 1), threading.Event()
    background.start()
    background.submit(release.wait)
    recorder = FiguresRecorder(EventLog(str(tmp_path), stem=FIGURES), background)
    recorder.generation_over(0, dict)
    assert recorder._lines == 0
    release.set()
    assert background.flush(60.0)
    recorder.generation_over(0, dict)
    assert recorder._lines == 1
    assert background.flush(60.0)
    recorder.close()


def test_a_rank_whose_cell_cannot_be_read_is_left_out(world: World) -> None:
    raw: Callable[[], dict[int, tuple[bytes, bytes]]] = lambda: {0: (b"", b""), 1: (b"3", b"")}  # noqa: E731
    world.clock.advance(1.0)
    world.recorder.note(0, raw)
    assert list(world.lines[0].ranks) == [11]


def test_without_a_file_no_rank_is_asked(world: World) -> None:
    def raw() -> dict[int, tuple[bytes, bytes]]:
        raise AssertionError("cells were read for nothing")

    recorder = FiguresRecorder()
    world.clock.advance(5.0)
    recorder.note(0, raw)
    recorder.generation_over(0, raw)
    recorder.close()
    assert world.lines == []
