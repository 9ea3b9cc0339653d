"""The metrics of a node, from real cells, events and lines, through OpenMetrics' own parser."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from launcher.agent.exporter_settings import ExporterSettings
from launcher.agent.shared_history import SharedHistory
from launcher.agent.worker_cells import Cells
from launcher.metrics import node as nodes
from launcher.metrics.collector import Collector
from launcher.metrics.families import COMMON_LABELS, FAMILIES, HISTOGRAM, sample_names
from launcher.metrics.node import Node
from launcher.records.figures_log import FIGURES, line_of_rank
from launcher.records.run_folders import RunFolder
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import (
    ITERATION,
    LAST_HEARTBEAT,
    LEFT_SECTION,
    LIMITS_TEXT,
    MAGIC,
    PID,
    START_TIME,
    STATE,
    WATCHED,
)
from resilience_core.protocol.figures import (
    BUCKETS,
    CLOSE_CALLS,
    DONE,
    FIRST_ITERATION,
    TOOK,
    figures_path,
    open_figures,
    row_of,
)
from resilience_core.protocol.limit_entry import LimitEntry, LimitsDocument
from resilience_core.protocol.limits_text import write_limits
from resilience_core.system.proc import process_start_time

S = 1_000_000_000
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Made:
    """A run folder, a log folder, and what would be served of them."""

    def __init__(self, folder: Path) -> None:
        (folder / "log").mkdir()
        self.run_folder = RunFolder(str(folder))
        self.log = folder / "log"
        self.cells: Cells | None = None
        self.history = SharedHistory()
        self.registry = self.serve()

    def serve(self) -> CollectorRegistry:
        """What another exporter would serve, that was started now."""
        settings = ExporterSettings(
            listener=-1,
            launcher=os.getpid(),
            run="run",
            node="node-a",
            run_folder=self.run_folder.path,
            history=self.history.reader,
            figures=str(self.log / "figures.jsonl"),
            straggler_log=str(self.log / "reports.jsonl"),
        )
        self.node = Node(settings)
        self.node.start()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Collector(self.node, settings.run, settings.node))
        return registry

    def text(self, registry: CollectorRegistry | None = None) -> str:
        text: str = generate_latest(registry or self.registry).decode()
        return text

    def samples(self, registry: CollectorRegistry | None = None) -> Samples:
        """Every sample by name and labels, the common ones left out; the parser refuses what is no OpenMetrics."""
        found = {}
        for family in text_string_to_metric_families(self.text(registry)):
            for sample in family.samples:
                labels = dict(sample.labels)
                assert [labels.pop(name) for name in COMMON_LABELS] == ["run", "node-a"]
                found[sample.name, tuple(sorted(labels.items()))] = sample.value
        return found

    def begin(self, generation: int, ranks: dict[int, int]) -> None:
        if self.cells is not None:
            self.cells.drop()
        self.cells = Cells(self.run_folder, generation, ranks)
        self.event("started", generation=generation, pids={})

    def event(self, name: str, **facts: Any) -> None:
        line = {"event": name, "t_ns": time.monotonic_ns(), "time": "", **facts}
        self.history.heard(name, json.dumps(line).encode())

    def line(self, name: str, value: object) -> None:
        with (self.log / name).open("a") as file:
            file.write((value if isinstance(value, str) else json.dumps(value)) + "\n")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    made = Made(tmp_path)
    yield made
    if made.cells is not None:
        made.cells.drop()
    made.run_folder.remove()
    made.history.close()


class Rank:
    """A rank that stores what a client would."""

    def __init__(self, made: Made, generation: int, local_rank: int) -> None:
        path = made.run_folder.cell(generation, local_rank)
        self.path, self.cell, self.figures = path, Cell(path), open_figures(figures_path(path))
        words, now_ns = self.cell.words, time.monotonic_ns()
        words[PID], words[START_TIME] = os.getpid(), process_start_time(os.getpid()) or 0
        words[LAST_HEARTBEAT], words[LEFT_SECTION] = now_ns - 9 * S, now_ns - 7 * S
        words[STATE] = WATCHED

    def open(self, name: str, since_seconds: float, limit_seconds: float) -> None:
        word = self.cell.add_section(name)
        opened_ns = time.monotonic_ns() - int(since_seconds * S)
        self.cell.words[word + 1] = opened_ns
        self.cell.words[word] = opened_ns + int(limit_seconds * S)

    def step(self, iteration: int, *durations_ns: int, close_calls: int = 0) -> None:
        words, row = self.figures, row_of(self.figures, "step")
        if words[FIRST_ITERATION] < 0:
            words[FIRST_ITERATION] = iteration
        self.cell.words[ITERATION] = words[DONE] = iteration
        words[CLOSE_CALLS + row] += close_calls
        for duration_ns in durations_ns:
            words[TOOK + row] += duration_ns
            words[BUCKETS + 64 * row + duration_ns.bit_length()] += 1

    def limit(self, **seconds: float) -> None:
        limits = {kind.replace("_", " "): LimitEntry(each, "configured") for kind, each in seconds.items()}
        document = LimitsDocument("relax", None, False, limits, {})
        self.cell.write_text(LIMITS_TEXT, write_limits(document, LIMITS_TEXT.size))


WHO = (("local_rank", "0"), ("rank", "4"))
STEP = (*WHO, ("section", "step"))


def test_names_that_are_no_text_cost_their_characters_alone(made: Made) -> None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(made.node, "run\udce4", "node\udcff"))
    assert 'ft_monitor_up{node="node?",run="run?"} 1.0' in made.text(registry)


def test_what_a_rank_does_now(made: Made) -> None:
    made.begin(0, {0: 4})
    rank = Rank(made, 0, 0)
    rank.open("step", since_seconds=2.0, limit_seconds=30.0)
    rank.cell.words[ITERATION] = 17
    rank.limit(section_step=30.0, out_of_section=60.0)

    found = made.samples()

    assert found["ft_heartbeat_age_seconds", WHO] == pytest.approx(2.0, abs=1.0)
    assert found["ft_slack_seconds", WHO] == pytest.approx(28.0, abs=1.0)
    assert found["ft_section_open_seconds", STEP] == pytest.approx(2.0, abs=1.0)
    assert found["ft_iteration", WHO] == 17
    assert found["ft_resident_memory_bytes", WHO] > 1 << 20
    configured = ("source", "configured")
    assert found["ft_limit_seconds", (("limit", "section"), *WHO, ("section", "step"), configured)] == 30.0
    assert found["ft_limit_seconds", (("limit", "out_of_section"), *WHO, ("section", ""), configured)] == 60.0
    assert found["ft_local_ranks", ()] == 1
    assert found["ft_generation", ()] == 0


def test_sections_are_a_histogram(made: Made) -> None:
    made.begin(0, {0: 4})
    rank = Rank(made, 0, 0)
    rank.step(10, 1_000, 30_000_000, 30_000_000, 2 * S, close_calls=1)

    found = made.samples()

    buckets = {
        float(dict(labels)["le"]): value
        for (name, labels), value in found.items()
        if name == "ft_section_duration_seconds_bucket"
    }
    assert len(buckets) == 27
    assert list(buckets.values()) == sorted(buckets.values())
    assert buckets[2**17 / S] == 1  # the shortest one, too
    assert buckets[2**24 / S] == 1
    assert buckets[2**25 / S] == 3
    assert buckets[2**31 / S] == 4
    assert buckets[float("inf")] == found["ft_section_duration_seconds_count", STEP] == 4
    assert found["ft_section_duration_seconds_sum", STEP] == pytest.approx(2.060001)
    assert found["ft_close_calls_total", STEP] == 1
    assert found["ft_steps_total", WHO] == 4


def full_line(rank: Rank, generation: int) -> dict[str, Any]:
    number, facts = line_of_rank(0, Path(rank.path).read_bytes(), Path(figures_path(rank.path)).read_bytes()) or (0, {})
    return {
        "event": "figures", "t_ns": time.monotonic_ns(), "generation": generation, "is_full": True, "is_last": True,
        "ranks": {str(number): facts},
    }  # fmt: skip


def test_counters_go_on_over_generations_and_for_an_exporter_that_starts_later(made: Made) -> None:
    made.begin(0, {0: 4})
    first = Rank(made, 0, 0)
    first.step(0, 30_000_000)
    first.step(1, 30_000_000)
    assert made.samples()["ft_steps_total", WHO] == 2
    first.step(2, 30_000_000)  # after the last scrape of its generation
    line = full_line(first, 0)
    made.event("seen", generation=0)
    made.event("stopped", generation=0)
    assert made.cells is not None
    made.cells.drop()
    between = made.samples()
    assert between["ft_steps_total", WHO] == 2
    assert between["ft_local_ranks", ()] == 0
    assert ("ft_slack_seconds", WHO) not in between

    made.begin(1, {0: 4})
    Rank(made, 1, 0).step(3, 60_000_000)
    assert made.samples()["ft_steps_total", WHO] == 3
    made.line("figures.jsonl", line)  # the launcher writes it once the next generation runs
    found = made.samples()
    assert found["ft_steps_total", WHO] == 4
    assert found["ft_section_duration_seconds_count", STEP] == 4
    assert found["ft_section_duration_seconds_sum", STEP] == pytest.approx(0.15)
    assert _counters(made.samples(made.serve())) == pytest.approx(_counters(found))


def _counters(samples: Samples) -> Samples:
    return {key: value for key, value in samples.items() if key[0].endswith(("_total", "_bucket", "_count", "_sum"))}


def test_straggler_scores_are_served_where_rank_0_runs(made: Made) -> None:
    report = {"format": "straggler-report", "version": 1, "ranks": [1001, None, 1210]}
    made.line("reports.jsonl", report)
    made.begin(0, {0: 4})
    assert not [name for name, _ in made.samples() if name.startswith("ft_straggler_slowdown")]
    made.begin(1, {0: 0})
    found = made.samples()
    assert found["ft_straggler_slowdown_ratio", (("rank", "0"),)] == 1.001
    assert found["ft_straggler_slowdown_ratio", (("rank", "2"),)] == 1.21
    assert ("ft_straggler_slowdown_ratio", (("rank", "1"),)) not in found
    assert found["ft_straggler_reports_total", ()] == 1


@pytest.mark.parametrize("size", [0, 100, 8])
def test_a_damaged_cell_costs_its_own_metrics_alone(size: int, made: Made) -> None:
    made.begin(0, {0: 4, 1: 5})
    for local_rank in range(2):
        Rank(made, 0, local_rank).step(3, 30_000_000)
    assert made.samples()["ft_local_ranks", ()] == 2
    os.truncate(made.run_folder.cell(0, 1), size)

    found = made.samples()

    assert found["ft_iteration", WHO] == 3
    other = (("local_rank", "1"), ("rank", "5"))
    assert ("ft_iteration", other) not in found
    assert found["ft_steps_total", other] == 1  # what was counted is still true
    assert found["ft_exporter_damaged_total", (("what", "cell"),)] == 1
    assert found["ft_local_ranks", ()] == 1


def test_damaged_figures_cost_nothing_that_was_counted(made: Made) -> None:
    made.begin(0, {0: 4})
    rank = Rank(made, 0, 0)
    rank.step(3, 30_000_000)
    made.samples()
    os.pwrite(rank_file := os.open(figures_path(rank.path), os.O_RDWR), (MAGIC + 1).to_bytes(8, "little"), 0)
    os.close(rank_file)
    found = made.samples()
    assert found["ft_steps_total", WHO] == 1
    assert found["ft_iteration", WHO] == 3
    assert found["ft_exporter_damaged_total", (("what", "figures"),)] == 1


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir])
def test_what_is_no_file_in_the_place_of_figures_keeps_nobody_waiting(made: Made, put: Any) -> None:
    made.begin(0, {0: 0})
    rank = Rank(made, 0, 0)
    os.unlink(figures_path(rank.path))
    put(figures_path(rank.path))
    found = made.samples()
    assert found["ft_local_ranks", ()] == 1
    assert found["ft_exporter_damaged_total", (("what", "figures"),)] == 1


def test_a_rank_without_figures_has_the_rest(made: Made) -> None:
    made.begin(0, {0: 4})
    rank = Rank(made, 0, 0)
    os.unlink(figures_path(rank.path))
    found = made.samples()
    assert found["ft_heartbeat_age_seconds", WHO] > 0
    assert ("ft_steps_total", WHO) not in found
    assert found["ft_exporter_damaged_total", (("what", "figures"),)] == 0


def test_straggler_reports_are_missing_while_there_is_no_log_of_them(made: Made) -> None:
    """No report and a wrong path look alike; 0 would say that all is well."""
    made.begin(0, {0: 4})
    assert ("ft_straggler_reports_total", ()) not in made.samples()
    (made.log / "reports.jsonl").touch()
    assert made.samples()["ft_straggler_reports_total", ()] == 0


def test_damaged_lines_cost_themselves(made: Made) -> None:
    made.begin(0, {0: 4})
    made.history.heard("started", b"{")
    made.history.heard("started", b'{"event": 3, "t_ns": 4}')
    made.line("figures.jsonl", '{"event": "figures", "t_ns": 4, "ranks": 7}')
    made.line("reports.jsonl", '{"format": "straggler-report", "version": 99}')
    made.event("near_miss", generation=0)
    found = made.samples()
    damaged = {dict(labels)["what"]: value for (name, labels), value in found.items() if "damaged" in name}
    assert damaged == {"cell": 0, "figures": 0, "event": 2, "figures_line": 1, "straggler_report": 1}
    assert found["ft_near_misses_total", ()] == 1


def test_before_the_first_generation_there_is_what_a_node_has(made: Made) -> None:
    found = made.samples()
    assert found["ft_local_ranks", ()] == 0
    assert found["ft_monitor_up", ()] == 1
    assert found["ft_restarts_total", (("cause", "hang"),)] == 0
    assert found["ft_restart_seconds_count", ()] == 0
    assert found["ft_hang_detection_seconds_bucket", (("le", "+Inf"),)] == 0
    assert ("ft_generation", ()) not in found


def test_lines_that_a_log_lacks_are_counted_and_no_restart_is_missing(made: Made) -> None:
    """As with a disk that is full: nothing has come to the log folder."""
    made.history.note_lost("events", 7)
    made.history.note_lost("figures", 2)
    made.begin(0, {0: 4})
    made.event("seen", generation=0)
    made.event("failure", generation=0)
    made.begin(1, {0: 4})

    found = made.samples(made.serve())

    assert found["ft_log_lines_lost_total", (("log", "events"),)] == 7
    assert found["ft_log_lines_lost_total", (("log", "figures"),)] == 2
    assert found["ft_restarts_total", (("cause", "failure"),)] == 1
    assert found["ft_restart_seconds_count", ()] == 1
    assert found["ft_generation", ()] == 1


@pytest.mark.parametrize("lost", [0, 1])
def test_steps_are_missing_instead_of_0_where_there_may_have_been_some(made: Made, lost: int) -> None:
    made.history.note_lost(FIGURES, lost)
    made.begin(1, {0: 4})
    rank = Rank(made, 1, 0)
    assert made.samples().get(("ft_steps_total", WHO)) == (None if lost else 0)
    rank.step(7, 30_000_000)
    assert made.samples()["ft_steps_total", WHO] == 1


def test_what_cannot_be_read_of_the_launcher_is_missing_and_no_zero(made: Made) -> None:
    made.begin(0, {0: 4})
    rank = Rank(made, 0, 0)
    rank.step(3, 30_000_000)
    os.close(made.history.reader)
    made.history.reader = os.open("/dev/null", os.O_RDONLY)

    found = made.samples(made.serve())

    of_events = ("restart", "hang", "recover", "near", "fenced", "monitor", "generation", "log_lines")
    assert not [name for name, _ in found if name.removeprefix("ft_").startswith(of_events)]
    assert found["ft_exporter_damaged_total", (("what", "event"),)] == 1
    assert found["ft_iteration", WHO] == 3


def test_what_could_be_read_of_the_launcher_before_stays(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.begin(3, {0: 4})
    assert made.samples()["ft_generation", ()] == 3
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    found = made.samples()
    assert found["ft_generation", ()] == 3
    assert found["ft_exporter_damaged_total", (("what", "event"),)] == 1


def test_names_and_labels_are_those_of_the_table(made: Made) -> None:
    made.begin(0, {0: 0})
    rank = Rank(made, 0, 0)
    rank.open("step", 1, 10)
    rank.step(1, 1000)
    rank.limit(heartbeat=3.0)
    made.line("reports.jsonl", {"format": "straggler-report", "version": 1, "ranks": [1001]})
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(made.text()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    wanted = {}
    for family in FAMILIES:
        for name in sample_names(family):
            wanted[name] = {*COMMON_LABELS, *family.labels}
        if family.kind == HISTOGRAM:
            wanted[f"{family.name}_bucket"].add("le")
    assert found == wanted


def test_a_name_with_anything_in_it_is_a_label(made: Made) -> None:
    made.begin(0, {0: 4})
    rank = Rank(made, 0, 0)
    name = 'a "b"\\\n{c="d"} ü'
    rank.open(name, 1, 10)
    assert ("ft_section_open_seconds", (*WHO, ("section", name))) in made.samples()


def test_what_a_long_run_has_written_is_read_before_anything_is_served(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(500):
        made.line("reports.jsonl", {"format": "straggler-report", "version": 1, "ranks": [1001]})
    monkeypatch.setattr(nodes, "_PATIENCE_SECONDS", 0.0)
    assert made.samples(made.serve())["ft_straggler_reports_total", ()] == 500
