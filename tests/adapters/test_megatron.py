"""The Megatron-style function module: its names, its no-ops, its mirrors, and that nothing is decided from them."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_loops import megatron_state

from adapters import megatron
from resilience_core import ConfigError, RankMonitorClient, SectionError, bus
from resilience_core.errors import RankMonitorClientError
from resilience_core.plugins import timeout_learning as learning
from resilience_core.plugins.state_file import load_state
from resilience_core.protocol.cell import Cell
from resilience_core.testing import EventRecorder, assert_conforms

LIMITS = {"rank_section_timeouts": {"setup": 60.0, "step": 60.0, "checkpointing": 60.0}}

SEED = {
    "setup": ["config", "global_state"],
    "on_training_step_start": ["global_state"],
    "on_training_step_end": ["global_state"],
    "on_eval_step_start": ["global_state"],
    "on_eval_step_end": ["global_state"],
    "on_checkpointing_start": ["global_state"],
    "on_checkpointing_end": ["is_async_finalization", "global_state"],
    "on_checkpoint_loaded": ["is_local_chkpt", "global_state"],
    "shutdown": ["global_state"],
    "abort": ["global_state"],
    "maybe_setup_simulated_fault": ["config"],
    "_load_state_if_exists": ["global_state"],
    "_update_timeouts": ["selected_sections", "calc_out_of_section", "global_state"],
    "_maybe_update_timeouts": ["global_state", "is_closing_ft"],
}


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Any]:
    state = megatron_state(tmp_path / "checkpoints")
    yield state
    megatron.abort(state)


def step(state: Any, count: int = 1) -> None:
    for _ in range(count):
        megatron.on_training_step_start(state)
        state.train_state.step += 1
        megatron.on_training_step_end(state)


def save(state: Any, is_async_finalization: bool = False) -> None:
    megatron.on_checkpointing_start(state)
    megatron.on_checkpointing_end(is_async_finalization, state)


def open_sections(cell: Cell) -> set[str]:
    return {section.name for section in cell.view().sections}


def test_every_name_and_signature_of_the_seed() -> None:
    for name, parameters in SEED.items():
        assert [*inspect.signature(getattr(megatron, name)).parameters] == parameters, name
    assert inspect.signature(megatron._maybe_update_timeouts).parameters["is_closing_ft"].default is False
    assert (megatron._NUM_WARMUP_ITERS, megatron._MIN_ITERS_FOR_STEP_TIMEOUT_UPDATE) == (1, 16)
    assert megatron._NUM_WARMUP_ITERS is learning.NUM_WARMUP_ITERATIONS
    assert megatron._MIN_ITERS_FOR_STEP_TIMEOUT_UPDATE is learning.MIN_STEPS_FOR_STEP_TIMEOUT


def test_before_setup_every_call_is_a_no_op(tmp_path: Path, recorder: EventRecorder) -> None:
    state = megatron_state(tmp_path)
    for name, parameters in SEED.items():
        if name not in ("setup", "maybe_setup_simulated_fault"):
            first: list[Any] = {"_update_timeouts": [["step"], True]}.get(
                name, [True] * parameters.index("global_state")
            )
            getattr(megatron, name)(*first, global_state=state)

    assert recorder.events == []
    assert vars(state.fault_tolerance_state) == {}


def test_without_a_configuration_steps_and_saves_are_no_ops(
    state: Any, recorder: EventRecorder, rank_environment: Callable[..., Cell]
) -> None:
    cell = rank_environment(**LIMITS)
    megatron.setup(state.cfg, state)
    state.cfg = SimpleNamespace(ft=None)
    recorder.clear()

    step(state, 3)
    save(state)

    assert recorder.events == []
    assert open_sections(cell) == {"setup"}
    assert state.fault_tolerance_state.seen_tr_iters_cnt == 0


def test_sections_open_and_close_as_the_seed_says(state: Any, rank_environment: Callable[..., Cell]) -> None:
    cell = rank_environment(**LIMITS)
    megatron.setup(state.cfg, state)
    assert open_sections(cell) == {"setup"}

    megatron.on_training_step_start(state)
    assert open_sections(cell) == set()  # the warm-up
    megatron.on_training_step_end(state)
    megatron.on_training_step_start(state)
    assert open_sections(cell) == {"step"}
    megatron.on_training_step_end(state)
    for expected in (set(), {"step"}):  # the warm-up of this evaluation, and what follows
        megatron.on_eval_step_start(state)
        assert open_sections(cell) == expected
        megatron.on_eval_step_end(state)
    megatron.on_checkpointing_start(state)
    assert open_sections(cell) == {"checkpointing"}
    megatron.on_checkpointing_end(False, state)
    assert open_sections(cell) == set()

    client = state.rank_monitor_client
    megatron.shutdown(state)
    assert state.rank_monitor_client is None
    assert not client.is_initialized
    megatron.shutdown(state)


def test_the_counters_are_mirrors(state: Any, rank_environment: Callable[..., Cell]) -> None:
    cell = rank_environment(**LIMITS)
    megatron.setup(state.cfg, state)
    mirror = state.fault_tolerance_state
    assert mirror.ft_state_path == str(Path(state.cfg.checkpoint.save) / "ft_state.json")
    assert mirror.is_setup_section_open
    assert not mirror.is_async_chkpt_enabled
    assert not mirror.is_calculating_timeouts
    megatron.on_checkpoint_loaded(True, state)
    assert not mirror.is_persistent_chkpt_loaded
    megatron.on_checkpoint_loaded(False, state)
    assert mirror.is_persistent_chkpt_loaded
    step(state)
    megatron.on_eval_step_start(state)
    megatron.on_eval_step_end(state)
    save(state)
    save(state, is_async_finalization=True)
    assert (mirror.seen_tr_iters_cnt, mirror.curr_eval_iter_idx, mirror.seen_checkpoints_cnt) == (1, 1, 1)
    assert not mirror.is_setup_section_open

    vars(mirror).update(seen_tr_iters_cnt=0, is_setup_section_open=True)  # nothing is decided from them
    megatron.on_training_step_start(state)
    assert open_sections(cell) == {"step"}
    assert mirror.curr_eval_iter_idx == 0


def test_a_second_setup_first_shuts_the_old_client_down(
    state: Any, recorder: EventRecorder, rank_environment: Callable[..., Cell]
) -> None:
    rank_environment(**LIMITS)
    megatron.setup(state.cfg, state)
    old = state.rank_monitor_client

    megatron.setup(state.cfg, state)

    assert not old.is_initialized
    assert state.rank_monitor_client is not old
    assert state.rank_monitor_client.is_initialized
    assert recorder.names() == ["setup", "teardown", "setup"]


def test_the_count_of_iterations_is_the_trainers_where_it_has_one(state: Any, recorder: EventRecorder) -> None:
    state.train_state.step = 100
    megatron.setup(state.cfg, state)
    step(state)
    del state.train_state
    megatron.on_training_step_start(state)
    megatron.on_training_step_end(state)
    megatron.shutdown(state)

    assert [a["iteration"] for a in recorder.of("step_start")] == [100, 101]
    assert_conforms(recorder)


def test_abort_in_an_exception_handler_tells_which(state: Any, recorder: EventRecorder) -> None:
    megatron.setup(state.cfg, state)
    error = ValueError("boom")
    try:
        raise error
    except ValueError:
        megatron.abort(state)

    assert recorder.of("training_error") == [{"error": error, "iteration": 0}]
    assert recorder.of("teardown") == [{"reason": "exception"}]
    assert state.rank_monitor_client is None


def test_abort_learns_nothing(state: Any, rank_environment: Callable[..., Cell]) -> None:
    rank_environment(**LIMITS)
    state.cfg.ft.calc_ft_timeouts = True
    megatron.setup(state.cfg, state)
    step(state, 20)
    megatron.abort(state)

    assert not (Path(state.cfg.checkpoint.save) / "ft_state.json").exists()


def learned(state: Any) -> list[str]:
    found = load_state(Path(state.cfg.checkpoint.save) / "ft_state.json")
    return [] if found is None else found["current_timeouts"]["section"]["calculated_sections"]


@pytest.mark.parametrize("async_save", [False, True])
def test_what_is_learned_when(tmp_path: Path, rank_environment: Callable[..., Cell], async_save: bool) -> None:
    rank_environment(**LIMITS)
    state = megatron_state(tmp_path, async_save=async_save)
    state.cfg.ft.calc_ft_timeouts = True
    megatron.setup(state.cfg, state)
    saves = [] if async_save else ["checkpointing"]
    megatron.on_checkpoint_loaded(True, state)  # local: says nothing about setup
    step(state, 15)
    save(state)
    assert learned(state) == saves
    step(state)
    save(state)
    assert learned(state) == [*saves, "step"]
    save(state, is_async_finalization=True)
    assert learned(state) == [*saves, "step"]
    megatron.on_checkpoint_loaded(False, state)
    save(state)
    assert learned(state) == [*saves, "setup", "step"]
    megatron.shutdown(state)
    document = load_state(tmp_path / "ft_state.json")
    assert document is not None
    assert document["current_timeouts"]["section"]["is_out_of_section_calculated"]


def test_the_three_underscored_functions(state: Any, rank_environment: Callable[..., Cell]) -> None:
    rank_environment(**LIMITS)
    state.cfg.ft.calc_ft_timeouts = True
    megatron.setup(state.cfg, state)
    step(state, 3)
    megatron._maybe_update_timeouts(state, is_closing_ft=True)
    assert learned(state) == []
    megatron._update_timeouts(["step"], False, state)
    assert learned(state) == ["step"]

    path = Path(state.fault_tolerance_state.ft_state_path)
    path.write_text(re.sub(r'"step": [0-9.]+', '"step": 70.0', path.read_text()))
    megatron._load_state_if_exists(state)
    assert state.rank_monitor_client.section_timeouts.section["step"] == 70.0


def test_bad_input_is_refused_before_training_starts(
    state: Any, tmp_path: Path, rank_environment: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    for unset in (None, "", " "):
        state.cfg.checkpoint.save = unset
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            with pytest.raises(ValueError, match=rf"checkpoint\.save is {unset!r}: .*; set it"):
                megatron.setup(state.cfg, state)
    monkeypatch.delenv("RANK")
    with pytest.raises(ValueError, match=r"config\.ft is None"):
        megatron.setup(SimpleNamespace(ft=None), state)
    state.cfg.checkpoint.save = str(tmp_path)
    rank_environment(rank_section_timeouts={"step": 60.0})
    with pytest.raises(SectionError, match="section 'setup' is used but not in rank_section_timeouts"):
        megatron.setup(state.cfg, state)
    assert state.rank_monitor_client is None


def test_a_foreign_client_is_refused(state: Any) -> None:
    state.rank_monitor_client = RankMonitorClient()
    with pytest.raises(RankMonitorClientError, match=r"adapters.megatron.setup\(\) did not make"):
        megatron.on_training_step_start(state)
    state.rank_monitor_client = None


def fault(**settings: Any) -> Any:
    return SimpleNamespace(
        **{
            "simulate_fault": True,
            "simulated_fault_type": "rank_killed",
            "simulated_fault_rank": 0,
            "simulated_fault_base_delay": 0.01,
            **settings,
        }
    )


def test_a_simulated_fault_that_cannot_be() -> None:
    for settings in ({"simulated_fault_type": "rank_hang"}, {"simulated_fault_base_delay": "soon"}):
        with pytest.raises(ConfigError, match="simulated"):
            megatron.maybe_setup_simulated_fault(fault(**settings))
    megatron.maybe_setup_simulated_fault(fault(simulate_fault=False, simulated_fault_type="nonsense"))


def test_a_simulated_fault_kills_the_rank() -> None:
    code = (
        "import threading\nfrom types import SimpleNamespace\nfrom adapters import megatron\n"
        f"megatron.maybe_setup_simulated_fault(SimpleNamespace(**{vars(fault())!r}))\nthreading.Event().wait()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=180).returncode == -9


def test_a_simulated_fault_belongs_to_the_run(state: Any, caplog: pytest.LogCaptureFixture) -> None:
    megatron.setup(state.cfg, state)
    megatron.maybe_setup_simulated_fault(fault(simulated_fault_type="exception", simulated_fault_base_delay=600.0))
    assert [type(plugin).__name__ for plugin in bus().plugins()].count("FaultInjector") == 1

    megatron.shutdown(state)

    assert "its simulated fault never came due" in caplog.text


# ---- who needs what -------------------------------------------------------------------------------------

BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("lightning", "pytorch_lightning", "transformers", "torch"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
"""


@pytest.mark.parametrize(
    ("module", "install"),
    [("adapters.lightning", "lightning"), ("adapters.huggingface", "transformers accelerate")],
)
def test_a_missing_framework_is_one_line_that_says_what_to_install(module: str, install: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + f"import {module}"], capture_output=True, text=True, timeout=180
    )

    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: {module} needs ")
    assert last.endswith(f": pip install {install}")
    assert "During handling" not in done.stderr


def test_the_loops_of_nobody_need_no_framework() -> None:
    code = BLOCKED + "import adapters.megatron, adapters.ddp; print('fine')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180).stdout == "fine\n"


@pytest.mark.parametrize(
    ("end", "is_made"), [("complete", True), ("interrupted", False), ("iterations left", False), ("exception", False)]
)
def test_the_finished_flag(
    state: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, is_made: bool
) -> None:
    flag = tmp_path / "finished"
    state.cfg.ft.autoresume = True
    state.cfg.train = SimpleNamespace(train_iters=4 if end == "iterations left" else 3)
    with pytest.raises(ConfigError, match="FAULT_TOL_FINISHED_FLAG_FILE is not set"):
        megatron.setup(state.cfg, state)
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(flag))
    megatron.setup(state.cfg, state)
    step(state, 3)
    if end == "interrupted":
        megatron.on_training_interrupted(state)
    if end == "exception":
        megatron.abort(state)
    megatron.shutdown(state)
    assert flag.exists() is is_made


class Slots:
    """A state for the counters that takes no attributes."""

    __slots__ = ()


@pytest.mark.parametrize("what", ["cfg", "rank_monitor_client", "fault_tolerance_state"])
def test_what_the_global_state_lacks_is_said_before_anything_happens(
    state: Any, recorder: EventRecorder, what: str
) -> None:
    incomplete = SimpleNamespace(**{name: value for name, value in vars(state).items() if name != what})
    with pytest.raises(ConfigError) as caught:
        megatron.setup(state.cfg, incomplete)
    assert str(caught.value).startswith(
        f"adapters.megatron.setup(): global_state (types.SimpleNamespace) has no attribute '{what}'; it needs cfg "
    )
    assert recorder.events == []
    assert not Path(state.cfg.checkpoint.save).exists()


@pytest.mark.parametrize("counters", [None, Slots()])
def test_a_state_that_takes_no_counters_is_refused(state: Any, recorder: EventRecorder, counters: object) -> None:
    state.fault_tolerance_state = counters
    with pytest.raises(ConfigError, match=r"global_state\.fault_tolerance_state is .*, which takes no attributes"):
        megatron.setup(state.cfg, state)
    assert recorder.events == []


@pytest.mark.parametrize("path", ["checkpoint", "checkpoint.save", "checkpoint.async_save", "ft.calc_ft_timeouts"])
def test_what_the_configuration_lacks_is_said(state: Any, recorder: EventRecorder, path: str) -> None:
    *parent, name = path.split(".")
    delattr(getattr(state.cfg, parent[0]) if parent else state.cfg, name)
    with pytest.raises(ConfigError, match=rf"^adapters\.megatron\.setup\(\): config has no '{path}'"):
        megatron.setup(state.cfg, state)
    assert recorder.events == []


def test_another_configuration_without_fault_tolerance_is_said(
    state: Any, recorder: EventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps are looked up there, so none of them would be watched."""
    config, state.cfg = state.cfg, None
    megatron.setup(config, state)
    assert "global_state.cfg has no 'ft', so that steps and saves are not watched" in caplog.text


def test_without_a_count_of_steps_the_calls_are_counted(state: Any, recorder: EventRecorder) -> None:
    del state.train_state
    megatron.setup(state.cfg, state)
    for _ in range(2):
        megatron.on_training_step_start(state)
        megatron.on_training_step_end(state)
    assert [arguments["iteration"] for name, arguments in recorder.events if name == "step_start"] == [0, 1]


def test_a_global_state_that_was_never_set_up_needs_nothing() -> None:
    for function in (megatron.on_training_step_start, megatron.on_eval_step_end, megatron.shutdown, megatron.abort):
        function(SimpleNamespace())


def test_a_save_that_an_exception_has_left_is_over_when_the_next_step_begins(
    state: Any, rank_environment: Callable[..., Cell]
) -> None:
    """As in a loop that catches it and tries again, without the call for the end of the save that failed."""
    cell = rank_environment(num_warmup_iterations=0)
    megatron.setup(state.cfg, state)
    step(state)
    megatron.on_checkpointing_start(state)
    save(state)
    megatron.on_training_step_start(state)
    assert open_sections(cell) == {"step"}
    megatron.on_training_step_end(state)
    assert open_sections(cell) == set()
    save(state)
    assert open_sections(cell) == set()


def test_what_was_open_when_fault_tolerance_was_switched_off_ends(
    state: Any, rank_environment: Callable[..., Cell]
) -> None:
    cell = rank_environment(num_warmup_iterations=0)
    megatron.setup(state.cfg, state)
    step(state)
    before = state.cfg.ft
    for start, end in (
        (megatron.on_training_step_start, megatron.on_training_step_end),
        (megatron.on_checkpointing_start, lambda state: megatron.on_checkpointing_end(False, state)),
        (megatron.on_training_step_start, megatron.on_training_step_start),
    ):
        start(state)
        assert len(open_sections(cell)) == 1
        state.cfg.ft = None
        end(state)
        assert open_sections(cell) == set()
        state.cfg.ft = before
