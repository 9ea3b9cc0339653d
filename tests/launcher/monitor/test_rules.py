"""The rules of the monitor, as one reference model against client, cell and verdict together.

A real client stores into a real cell under a clock that moves only when told to; after each call the verdict on
that cell must be the one that the model, which knows nothing of words and slots, has for the same history.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from launcher.monitor.verdict import sight
from resilience_core import FaultToleranceConfig, RankMonitorClient
from resilience_core.errors import SectionError
from resilience_core.monitoring import client as client_module
from resilience_core.protocol.cell import Cell
from resilience_core.testing import FakeClock

S = 1_000_000_000
NAMES = ("setup", "step", "evaluate")
limits = st.none() | st.integers(1, 30).map(float)


class Model:
    """The rules as a person would say them. Instants in nanoseconds, limits in seconds."""

    def __init__(self, config: FaultToleranceConfig, now: int) -> None:
        self.sections = dict(config.rank_section_timeouts)
        self.are_configured = bool(self.sections)
        self.gap_limit = config.rank_out_of_section_timeout
        self.initial, self.beat_limit = config.initial_rank_heartbeat_timeout, config.rank_heartbeat_timeout
        self.opened: dict[str, int] = {}
        self.left_at = self.beat_at = now
        self.next_beat = self.initial
        self.beats, self.used_sections, self.is_watched = False, False, True
        self.heeds_beats = True
        # A limit applies to a section from its opening on; a later one from the next opening on.
        self.limit_of: dict[str, float | None] = {}

    def beat(self, now: int) -> None:
        self.beats = self.heeds_beats = True
        self.beat_at, self.next_beat = now, self.beat_limit

    def section_event(self, now: int) -> None:
        if not self.sections:
            self.beat_at, self.next_beat = now, self.beat_limit
        elif not self.used_sections:
            self.heeds_beats = False
        self.used_sections = True

    def learn(self, sections: dict[str, float | None]) -> None:
        if not self.sections:
            self.heeds_beats = False
        self.sections = sections

    def may_open(self, name: str) -> bool:
        return name not in self.opened and (not self.are_configured or name in self.sections)

    def open(self, name: str, now: int) -> None:
        self.section_event(now)
        self.opened[name] = now
        self.limit_of[name] = self.sections.get(name)

    def close(self, name: str, now: int) -> None:
        self.section_event(now)
        del self.opened[name]
        self.left_at = now
        self.limit_of["gap"] = self.gap_limit

    def deadlines(self) -> dict[str, int]:
        if not self.is_watched:
            return {}
        ends: dict[str, int | None] = {}
        for name, since in self.opened.items():
            limit = self.limit_of[name]
            ends[name] = _end(since, limit)
        if self.heeds_beats:
            ends["heartbeat"] = _end(self.beat_at, self.next_beat)
        if not self.opened and (self.used_sections or not self.beats):
            gap = self.limit_of.get("gap", self.gap_limit)
            ends["out of section"] = _end(self.left_at, gap)
        return {name: end for name, end in ends.items() if end is not None}


def _end(since: int, limit: float | None) -> int | None:
    return None if limit is None else since + int(limit * S)


class Rules(RuleBasedStateMachine):
    """Every order of calls that a rank could make, and some that it must not."""

    @initialize(
        sections=st.dictionaries(st.sampled_from(NAMES), limits, max_size=3),
        gap=limits,
        initial=limits,
        beat=limits,
    )
    def begin(self, sections: dict[str, float | None], gap: Any, initial: Any, beat: Any) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.clocks = [mock.patch.object(module, "monotonic_ns", self.clock) for module in (time, client_module)]
        for patch in self.clocks:
            patch.start()
        config = FaultToleranceConfig(
            rank_section_timeouts=sections,
            rank_out_of_section_timeout=gap,
            initial_rank_heartbeat_timeout=initial,
            rank_heartbeat_timeout=beat,
            capture_stacks=False,
            learned_timeout_floor=0,
            learned_limits="replace",
            log_level="ERROR",
        )
        config_file = Path(self.folder.name) / "config.json"
        config_file.write_text(config.to_json())
        self.cell = Cell.create(str(Path(self.folder.name) / "cell"))
        os.environ.update(FT_CELL=self.cell.path, FT_CONFIG_FILE=str(config_file))
        self.client = RankMonitorClient()
        self.client.init_workload_monitoring()
        self.model = Model(config, self.now)

    @property
    def now(self) -> int:
        return self.clock.now_ns

    @rule(seconds=st.integers(0, 40), ns=st.sampled_from([-1, 0, 1]))
    def time_passes(self, seconds: int, ns: int) -> None:
        self.clock.advance(max(0, seconds * S + ns) / S)

    @precondition(lambda self: self.model.is_watched)
    @rule()
    def heartbeat(self) -> None:
        self.client.send_heartbeat()
        self.model.beat(self.now)

    @precondition(lambda self: self.model.is_watched)
    @rule(name=st.sampled_from(NAMES))
    def start_section(self, name: str) -> None:
        if self.model.may_open(name):
            self.client.start_section(name)
            self.model.open(name, self.now)
        else:
            with pytest.raises(SectionError):
                self.client.start_section(name)

    @precondition(lambda self: self.model.is_watched)
    @rule(name=st.sampled_from(NAMES))
    def end_section(self, name: str) -> None:
        if name in self.model.opened:
            self.client.end_section(name)
            self.model.close(name, self.now)
        else:
            with pytest.raises(SectionError):
                self.client.end_section(name)

    @precondition(lambda self: self.model.is_watched)
    @rule()
    def end_all_sections(self) -> None:
        self.client.end_all_sections()
        for name in list(self.model.opened):
            self.model.close(name, self.now)

    @precondition(lambda self: self.model.is_watched)
    @rule()
    def learn_sections(self) -> None:
        """Timeouts come from what was seen; here only that they are in force from the next opening on."""
        if self.client.calculate_and_set_section_timeouts(calc_out_of_section=False, skip_if_not_ready=True):
            learned = self.client.section_timeouts
            assert learned is not None
            self.model.learn(dict(learned.section))

    @precondition(lambda self: self.model.is_watched)
    @rule()
    def shut_down(self) -> None:
        self.client.shutdown_workload_monitoring()
        self.model.is_watched = False

    @invariant()
    def the_verdict_is_the_models(self) -> None:
        late = {name: end for name, end in self.model.deadlines().items() if end <= self.now}

        verdict = sight(self.cell.view(), self.now).verdict

        if not late:
            assert verdict is None
            return
        assert verdict is not None
        assert (verdict.section or verdict.cause) in {name for name, end in late.items() if end == min(late.values())}

    def teardown(self) -> None:
        if hasattr(self, "client"):
            self.client.shutdown_workload_monitoring()
            self.cell.close()
            for patch in self.clocks:
                patch.stop()
            self.folder.cleanup()
            for name in ("FT_CELL", "FT_CONFIG_FILE"):
                os.environ.pop(name, None)


TestRules = Rules.TestCase
TestRules.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
