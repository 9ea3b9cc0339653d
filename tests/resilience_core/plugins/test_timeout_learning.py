"""What may be learned when: the rule itself, then through the bus and the real client, then on two real ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_core import EventBus, FaultToleranceConfig, RankMonitorClient, RunContext, SectionMonitor
from resilience_core.monitoring.time_left import seconds_open
from resilience_core.plugins import timeout_learning
from resilience_core.plugins.state_file import load_state, save_state
from resilience_core.plugins.timeout_learning import MIN_STEPS_FOR_STEP_TIMEOUT, NUM_WARMUP_ITERATIONS, RunHistory
from resilience_core.protocol.cell import Cell


def test_the_constants_are_those_of_the_field():
    assert (NUM_WARMUP_ITERATIONS, MIN_STEPS_FOR_STEP_TIMEOUT) == (1, 16)
    assert FaultToleranceConfig().num_warmup_iterations == NUM_WARMUP_ITERATIONS


# ---- the rule ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["local", "persistent"])
def test_setup_is_learned_only_after_a_persistent_checkpoint_was_loaded(source: Any):
    history = RunHistory()
    history.closed_setup()
    assert history.sections_to_learn() == []
    history.loaded(source)
    assert history.sections_to_learn() == (["setup"] if source == "persistent" else [])


def test_setup_is_learned_once():
    history = RunHistory(was_loaded_persistent=True)
    assert history.sections_to_learn() == []
    history.closed_setup()
    history.have_learned(["setup"])
    assert history.sections_to_learn() == []


@pytest.mark.parametrize(("steps", "is_learned"), [(0, False), (15, False), (16, True), (17, True)])
def test_steps_are_learned_from_the_sixteenth(steps: int, is_learned: bool):
    assert RunHistory(steps=steps).sections_to_learn() == (["step"] if is_learned else [])


def test_steps_are_learned_again_only_after_new_ones():
    history = RunHistory(steps=20)
    history.have_learned(["step"])
    assert history.sections_to_learn() == []
    history.steps += 1
    assert history.sections_to_learn() == ["step"]


def test_steps_that_were_all_warmup_teach_nothing():
    """No section was opened: asking every rank for its longest would be in vain."""
    assert RunHistory(steps=20, warmup_iterations=20).sections_to_learn() == []
    assert RunHistory(steps=21, warmup_iterations=20).sections_to_learn() == ["step"]


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("kind", ["save", "finalize", "remove"])
@pytest.mark.parametrize("error", [None, RuntimeError("full")])
def test_saves_are_learned_unless_asynchronous_or_failed(asynchronous: bool, kind: Any, error: Any):
    history = RunHistory(asynchronous_saves=asynchronous)
    is_save = kind == "save" and error is None
    assert history.saved(kind, error) is is_save
    assert history.sections_to_learn() == (["checkpointing"] if is_save and not asynchronous else [])


@given(persistent=st.booleans(), steps=st.integers(0, 40), saves=st.integers(0, 3), asynchronous=st.booleans())
def test_out_of_section_needs_all_three(persistent: bool, steps: int, saves: int, asynchronous: bool):
    """Asynchronous saves count as seen: they are not learned, and yet the run was a complete one."""
    history = RunHistory(was_loaded_persistent=persistent, steps=steps, saves=saves, asynchronous_saves=asynchronous)
    assert history.may_learn_out_of_section is (persistent and steps >= 16 and saves >= 1)


# ---- through the bus ---------------------------------------------------------------------------------------


class Run:
    """A monitored run, driven by events."""

    def __init__(self, client: Any, **monitor: Any) -> None:
        self.client = client
        self.bus = EventBus()
        self.monitor = SectionMonitor(client, **{"calculate_timeouts": True, **monitor})
        self.bus.register(self.monitor)

    def begin(self, load: str | None = "persistent", **context: Any) -> Run:
        self.bus.setup(context=RunContext(**context))
        if load:
            self.bus.checkpoint_loaded(iteration=0, source=load)  # type: ignore[arg-type]
        self.client.calls.clear()
        return self

    def steps(self, count: int) -> None:
        for iteration in range(count):
            self.bus.step_start(iteration=iteration)
            self.bus.step_end(iteration=iteration)

    def save(self, kind: Any = "save", error: BaseException | None = None) -> None:
        self.bus.checkpoint_start(iteration=0, kind=kind)
        self.bus.checkpoint_end(iteration=0, kind=kind, error=error)

    @property
    def learned(self) -> list[str]:
        return [call.removeprefix("learn ") for call in self.client.calls if call.startswith("learn")]


@pytest.fixture
def run(rank_environment: Callable[..., Any], recording_client: Any) -> Run:
    rank_environment()
    return Run(recording_client)


def test_a_whole_run_learns_after_each_save_and_at_its_clean_end(run: Run):
    run.begin()
    run.steps(10)
    run.save()
    assert run.learned == ["setup+checkpointing"]
    run.steps(10)
    run.save()
    run.save("remove")
    assert run.learned[1:] == ["step+checkpointing"]
    run.steps(3)
    run.bus.teardown(reason="completed")
    assert run.learned[2:] == ["step+gap"]
    section = run.client.state_dict()["current_timeouts"]["section"]
    assert section["calculated_sections"] == ["checkpointing", "setup", "step"]
    assert section["is_out_of_section_calculated"]
    assert set(section["section"].values()) == {1.0}  # the floor: these took microseconds


def test_what_was_learned_is_in_force_and_each_collective_succeeds(run: Run):
    """A name that no rank has seen since would make the client learn nothing at all."""
    run.begin()
    run.steps(20)
    for _ in range(3):
        run.save()
        run.steps(1)
        timeouts = run.client.section_timeouts
        assert timeouts is not None
        assert timeouts.calculated_sections == {"setup", "step", "checkpointing"}
    assert run.learned == ["setup+step+checkpointing", "step+checkpointing", "step+checkpointing"]


def test_what_was_learned_is_said_once_until_a_limit_changes(run: Run, caplog: pytest.LogCaptureFixture):
    """It was said after every checkpoint: 18 lines in 180 steps."""
    caplog.set_level("INFO", "resilience_core")
    run.begin(load=None)
    run.save()
    for _ in range(3):
        run.steps(20)
        run.save()
    told = [record.message for record in caplog.records if "timeouts learned" in record.message]
    assert len(told) == 2, told
    assert "section step" not in told[0]
    assert "section step" in told[1]


def test_a_run_from_scratch_learns_no_setup_and_no_out_of_section(run: Run):
    run.begin(load=None)
    run.steps(20)
    run.save()
    run.bus.teardown(reason="completed")
    assert run.learned == ["step+checkpointing"]


def test_a_local_checkpoint_says_nothing_about_setup(run: Run):
    run.begin(load="local")
    run.steps(20)
    run.save()
    run.bus.teardown(reason="completed")
    assert run.learned == ["step+checkpointing"]


def test_asynchronous_saves_are_not_learned_but_count_as_seen(run: Run):
    run.begin(asynchronous_saves=True)
    run.steps(20)
    run.save()
    assert run.learned == ["setup+step"]
    run.save("finalize")
    run.bus.teardown(reason="completed")
    assert run.learned[1:] == ["gap"]


@pytest.mark.parametrize("reason", ["exception", "signal", "whatever"])
def test_nothing_is_learned_at_an_end_that_is_not_clean(run: Run, reason: str):
    run.begin()
    run.steps(20)
    run.bus.teardown(reason=reason)
    assert run.learned == []


def test_nothing_is_learned_after_an_exception_whatever_follows(run: Run):
    run.begin()
    run.steps(20)
    run.bus.training_error(error=RuntimeError("x"), iteration=20)
    run.save()
    run.bus.teardown(reason="completed")
    assert run.learned == []


def test_nothing_is_learned_after_a_save_that_failed(run: Run):
    run.begin()
    run.steps(20)
    run.save(error=OSError("disk full"))
    run.bus.teardown(reason="completed")
    assert run.learned == []


def test_nothing_is_learned_inside_a_save(run: Run):
    run.begin()
    run.steps(20)
    run.bus.checkpoint_start(iteration=0, kind="save")
    run.save()
    run.bus.teardown(reason="completed")
    assert run.learned == []


def test_nothing_is_learned_unless_asked(rank_environment: Callable[..., Any], recording_client: Any, tmp_path: Path):
    rank_environment()
    run = Run(recording_client, calculate_timeouts=False, state_path=tmp_path / "s").begin()
    run.steps(20)
    run.save()
    run.bus.teardown(reason="completed")
    assert run.learned == []
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("why", ["not asked", "failed"])
def test_what_is_learned_on_request_follows_the_rules(
    rank_environment: Callable[..., Any], recording_client: Any, why: str
) -> None:
    """It began the collective all the same, which other ranks did not."""
    rank_environment()
    run = Run(recording_client, calculate_timeouts=why != "not asked").begin()
    run.steps(20)
    run.monitor.learn_what_may_be()
    assert run.learned == ([] if why == "not asked" else ["setup+step"])
    run.client.calls.clear()
    run.save(error=OSError("disk full"))
    run.monitor.learn_what_may_be()
    assert run.learned == []


@pytest.mark.parametrize(
    ("limits", "took", "seconds"),
    [
        ({"step": 60, "checkpointing": 900}, 0, 30),
        ({"step": 60, "checkpointing": 900}, 45, 7.5),
        ({"step": 60, "checkpointing": 900}, 70, 1),
        ({"step": 900, "checkpointing": 900}, 45, 120),
        ({"step": 900, "checkpointing": 20}, 0, 10),
        ({"step": None, "checkpointing": None}, 45, 120),
    ],
)
def test_no_limit_of_this_rank_nor_of_one_that_has_gone_on_passes_while_it_waits(
    rank_environment: Callable[..., Any],
    recording_client: Any,
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, float | None],
    took: float,
    seconds: float,
) -> None:
    """Where rank 0 saves alone, the others wait for it in their next step, from the beginning of the save on."""
    monkeypatch.setattr(timeout_learning, "seconds_open", lambda state, name: took if name == "checkpointing" else 0.0)
    rank_environment(rank_section_timeouts={"setup": None, **limits}, rank_out_of_section_timeout=None)
    run = Run(recording_client).begin()
    waits: list[float] = []
    agreement = run.monitor._session.learner._agreement
    monkeypatch.setattr(agreement, "all_will", lambda occasion, plan, longest: waits.append(longest))
    run.steps(3)
    run.save()
    assert waits == [pytest.approx(seconds, rel=0.1)]
    run.bus.teardown(reason="completed")  # no other rank is in a step then
    assert waits[1:] == [120.0]


def test_how_long_a_section_is_open(rank_environment: Callable[..., Any], recording_client: Any) -> None:
    rank_environment()
    run = Run(recording_client).begin()
    run.steps(3)
    assert seconds_open(run.client._state, "checkpointing") == 0.0
    run.bus.checkpoint_start(iteration=3, kind="save")
    before = seconds_open(run.client._state, "checkpointing")
    assert 0.0 < before < seconds_open(run.client._state, "checkpointing") < 600.0


def test_ranks_without_a_group_learn_nothing_since_they_could_not_agree(run: Run, caplog: pytest.LogCaptureFixture):
    run.begin(world_size=2)
    run.steps(20)
    run.save()
    run.bus.teardown(reason="completed")
    assert run.learned == []
    assert "no process group of 2 ranks" in caplog.text


# ---- from job to job ---------------------------------------------------------------------------------------


def test_timeouts_are_kept_from_job_to_job(rank_environment: Callable[..., Any], tmp_path: Path):
    rank_environment(rank_section_timeouts="setup:600,step:180,checkpointing:420", learned_limits="replace")
    path = tmp_path / "state" / "ft_state.json"
    in_force = []
    for _ in range(2):
        client = RankMonitorClient()
        client.calls = []  # type: ignore[attr-defined]
        run = Run(client, state_path=path).begin()
        assert client.section_timeouts is not None
        in_force.append(dict(client.section_timeouts.section))
        run.steps(20)
        run.save()
        run.bus.teardown(reason="completed")
    assert in_force == [
        {"setup": 600.0, "step": 180.0, "checkpointing": 420.0},
        {"setup": 1.0, "step": 1.0, "checkpointing": 1.0},
    ]


def saved(path: Path, **sections: float) -> Path:
    """A file of learned timeouts, as an earlier run leaves it."""
    section = {"section": sections, "out_of_section": None, "calculated_sections": sorted(sections)}
    heartbeat = {"initial": None, "subsequent": None, "were_calculated": False}
    learned = {"heartbeat": heartbeat, "section": {**section, "is_out_of_section_calculated": False}}
    save_state(path, {"current_timeouts": learned})
    return path


def test_limits_of_an_earlier_run_that_undercut_configured_ones_are_told_at_the_start(
    rank_environment: Callable[..., Any], recording_client: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    rank_environment(rank_section_timeouts="setup:600,step:180,checkpointing:420", learned_limits="replace")
    path = saved(tmp_path / "ft_state.json", step=2.1, checkpointing=500.0)
    os.utime(path, (0, 0))

    run = Run(recording_client, state_path=path, calculate_timeouts=False).begin()
    run.monitor.load_timeouts()

    (said,) = [record.getMessage() for record in caplog.records if "replace longer ones" in record.getMessage()]
    assert ": section step 2.1 s (configured 180 s). They come from" in said
    assert f"{path}, written 19" in said
    assert "--ft-learned-limits relax (or off)" in said


@pytest.mark.parametrize(
    ("settings", "rank"),
    [
        ({"rank_section_timeouts": "setup:600,step:180,checkpointing:420"}, 0),  # relax: the configured one stays
        ({"rank_section_timeouts": "setup:600,step:180,checkpointing:420", "learned_limits": "off"}, 0),
        ({"rank_section_timeouts": "setup:600,step:2,checkpointing:420", "learned_limits": "replace"}, 0),  # lengthened
        ({"learned_limits": "replace"}, 0),  # nobody has configured any
        ({"rank_section_timeouts": "setup:600,step:180,checkpointing:420", "learned_limits": "replace"}, 1),
    ],
)
def test_nothing_is_told_of_limits_that_undercut_none_nor_by_each_rank(
    rank_environment: Callable[..., Any],
    recording_client: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    rank: int,
):
    rank_environment(**settings)
    path = saved(tmp_path / "ft_state.json", step=2.1)
    Run(recording_client, state_path=path, calculate_timeouts=False).begin(rank=rank, world_size=2)
    assert "replace longer ones" not in caplog.text


@pytest.mark.parametrize(("taken", "rank", "times"), [("2", 0, 1), ("2", 1, 0), ("1", 0, 0)])
def test_that_limits_are_longer_where_no_restart_is_left_is_said_once(
    rank_environment: Callable[..., Any],
    recording_client: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    taken: str,
    rank: int,
    times: int,
):
    caplog.set_level("INFO")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", taken)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "2")
    rank_environment()

    path = saved(tmp_path / "ft_state.json", step=2.1)
    run = Run(recording_client, state_path=path, calculate_timeouts=False).begin(rank=rank, world_size=2)
    run.monitor.load_timeouts()

    assert caplog.text.count("longer, since a wrong one would end the job: section step 3600 s (else 60 s).") == times


def test_a_limit_that_is_longer_later_is_said_to_be_then(
    rank_environment: Callable[..., Any],
    recording_client: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    """The step's is learned after the first save's, and was never spoken of."""
    caplog.set_level("INFO")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    rank_environment()
    run = Run(recording_client).begin()
    for _ in range(3):
        run.steps(10)
        run.save()

    said = [text for each in caplog.records if "no restart is left" in (text := each.getMessage())]
    assert [[kind for kind in ("section checkpointing", "section step") if kind in text] for text in said] == [
        ["section checkpointing"],
        ["section step"],
    ]


def test_only_rank_zero_writes(rank_environment: Callable[..., Any], recording_client: Any, tmp_path: Path):
    rank_environment()
    run = Run(recording_client, state_path=tmp_path / "s").begin(rank=1)
    run.steps(20)
    run.save()
    assert run.learned
    assert not (tmp_path / "s").exists()


def test_the_path_may_be_named_after_the_monitor_was_made(
    rank_environment: Callable[..., Any], recording_client: Any, tmp_path: Path
):
    rank_environment()
    run = Run(recording_client)
    (monitor,) = run.bus.plugins()
    assert isinstance(monitor, SectionMonitor)
    monitor.state_path = tmp_path / "s"
    run.begin()
    run.steps(20)
    run.save()
    assert load_state(tmp_path / "s") == recording_client.state_dict()


def test_a_file_that_is_not_ours_is_said_and_left_alone(
    rank_environment: Callable[..., Any], recording_client: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    rank_environment()
    (tmp_path / "s").write_text("my event log")
    run = Run(recording_client, state_path=tmp_path / "s").begin()
    assert "s holds no JSON" in caplog.text
    run.steps(20)
    run.save()
    assert run.learned == ["setup+step+checkpointing"]
    assert (tmp_path / "s").read_text() == "my event log"


def test_a_file_that_cannot_be_written_stops_nothing(
    rank_environment: Callable[..., Any], recording_client: Any, caplog: pytest.LogCaptureFixture
):
    rank_environment()
    run = Run(recording_client, state_path="/proc/self/nowhere/ft_state.json").begin()
    run.steps(20)
    run.save()
    run.bus.teardown(reason="completed")
    assert "cannot be written" in caplog.text
    assert recording_client.state_dict()["current_timeouts"]["section"]["calculated_sections"]


# ---- real ranks --------------------------------------------------------------------------------------------

RANK = """
import json, os, sys, time
import torch.distributed as dist
from resilience_core import EventBus, RankMonitorClient, RunContext, SectionMonitor
from resilience_core.plugins import state_file
state_path = sys.argv[1]
dist.init_process_group({backend}init_method="file://" + sys.argv[2], rank=int(os.environ["RANK"]), world_size=2)
rank = dist.get_rank()
client, bus = RankMonitorClient(), EventBus()
bus.register(SectionMonitor(client, state_path=state_path, calculate_timeouts=True))
bus.setup(context=RunContext.from_environment())
bus.checkpoint_loaded(iteration=0, source="persistent")
for i in range(17):
    bus.step_start(iteration=i)
    if i == 10 and rank == 1:
        time.sleep(0.3)
    bus.step_end(iteration=i)
bus.checkpoint_start(iteration=16, kind="save")
bus.checkpoint_end(iteration=16, kind="save", error=None)
after_save = client.state_dict()
bus.teardown(reason="completed")
print(json.dumps([after_save, client.state_dict()]))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("backend", ["", pytest.param('backend="cpu:gloo", ', marks=pytest.mark.long)])
def test_two_ranks_agree_on_the_slower_ones_time(run_ranks: Callable[..., list[str]], tmp_path: Path, backend: str):
    """Also with a group made without naming a backend, and with one named per device (mistake 7)."""
    config = tmp_path / "ft_config.json"
    config.write_text(FaultToleranceConfig().to_json())
    (tmp_path / "rank.py").write_text(RANK.replace("{backend}", backend))
    state_path = tmp_path / "ft_state.json"
    environments = []
    for rank in range(2):
        cell = tmp_path / f"cell{rank}"
        Cell.create(str(cell), rank=rank).close()
        names = {"FT_CELL": cell, "FT_CONFIG_FILE": config, "RANK": rank, "WORLD_SIZE": 2}
        environments.append({name: str(value) for name, value in names.items()})
    outputs = run_ranks(tmp_path / "rank.py", state_path, tmp_path / "store", environments=environments)
    of_rank_0, of_rank_1 = (json.loads(output) for output in outputs)
    assert of_rank_0 == of_rank_1
    assert of_rank_0[0]["current_timeouts"]["section"]["section"]["step"] >= 1.5  # 5 x 0.3 s
    assert of_rank_0[1]["current_timeouts"]["section"]["is_out_of_section_calculated"]
    assert load_state(state_path) == of_rank_0[1]


def test_a_state_of_another_run_is_read_on_every_rank(
    rank_environment: Callable[..., Any], recording_client: Any, tmp_path: Path
):
    rank_environment(learned_limits="replace")
    section = {"section": {"step": 9.0}, "out_of_section": 8.0, "calculated_sections": ["step"]}
    heartbeat = {"initial": None, "subsequent": None, "were_calculated": False}
    learned = {"heartbeat": heartbeat, "section": {**section, "is_out_of_section_calculated": True}}
    save_state(tmp_path / "s", {"current_timeouts": learned})
    Run(recording_client, state_path=tmp_path / "s", calculate_timeouts=False).begin(rank=5, world_size=8)
    timeouts = recording_client.section_timeouts
    assert (timeouts.section["step"], timeouts.out_of_section) == (9.0, 8.0)
