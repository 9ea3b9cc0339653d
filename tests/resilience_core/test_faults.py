"""Simulated faults: the grammar in this process, the effects in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_core import ConfigError, EventBus, RunContext
from resilience_core.faults import (
    KINDS,
    Fault,
    FaultInjector,
    SimulatedFault,
    fault_from_params,
    install_faults,
    parse_faults,
)

ROOT = str(Path(__file__).parents[2])

# ---- the grammar -------------------------------------------------------------------------------------------


def test_faults_are_read_as_a_person_writes_them():
    assert parse_faults("sigkill:rank=1,step=20") == (Fault(kind="sigkill", rank=1, step=20),)
    assert parse_faults(" gil : rank = 0 , step=3, seconds=2.5 ; hang:step=40,generation=1,rank=1; ") == (
        Fault(kind="gil", rank=0, step=3, seconds=2.5),
        Fault(kind="deadlock", rank=1, step=40, generation=1),
    )
    assert parse_faults("exit:at=setup,code=7,rank=0,generation=any") == (
        Fault(kind="exit", at="setup", code=7, rank=0, generation=None),
    )
    assert parse_faults("") == parse_faults(" ; ") == ()


@pytest.mark.parametrize(
    ("alias", "kind"), [("rank_hung", "sigstop"), ("rank_killed", "sigkill"), ("hang", "deadlock")]
)
def test_other_names_that_people_know(alias: str, kind: str):
    assert parse_faults(f"{alias}:step=1")[0].kind == kind


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"at": "stpe"}, r"Fault\(\.\.\.\): at is 'stpe': must be one of: step, eval, checkpoint, setup"),
        ({"at": "STEP"}, r"at is 'STEP'; write 'step'"),
        ({"rank": -1}, r"rank is -1: must be a whole number of 0 or more"),
        ({"rank": "1"}, r"rank is '1'; write 1"),
        ({"rank": True}, r"rank is True: give a whole number"),
        ({"step": 2.5}, r"step is 2\.5: must be a whole number"),
        ({"generation": -1}, r"generation is -1: must be a whole number of 0 or more"),
        ({"generation": "any"}, r"generation is 'any': give a whole number"),
        ({"delay": -1.0}, r"delay is -1\.0: must be 0 to 1000000000 seconds"),
        ({"delay": float("nan")}, r"delay is nan: give seconds"),
        ({"kind": "gil", "seconds": 0}, r"seconds is 0: a timeout must be above 0"),
        ({"code": 256}, r"code is 256: must be at most 255"),
        ({"kind": 7}, r"simulated fault '7' is not known"),
    ],
)
def test_a_fault_that_would_never_strike_is_refused_with_its_field_and_value(given_: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        Fault(**{"kind": "exit", "step": 1, **given_})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sigkil:step=1", r"'sigkil' in 'sigkil:step=1' is not known; did you mean 'sigkill'"),
        (":step=1", r"'' in ':step=1' is not known"),
        ("sigkill:setp=1", r"'sigkill:setp=1' has no key 'setp'; did you mean 'step'"),
        ("sigkill:step=1,step=2", r"has the key 'step' twice"),
        ("sigkill:step=x", r"'sigkill:step=x': step is 'x': give a whole number"),
        ("sigkill:step=-1", r"step is '-1'"),
        ("sigkill:step", r"step is ''"),
        ("sigkill:rank=1", r"does not say when: give step=N, delay=SECONDS or at=setup"),
        ("sigkill", r"does not say when"),
        ("sigkill:at=sttep,step=1", r"at is 'sttep': must be one of: step, eval"),
        ("sigkill:at=setup,step=1", r"at=setup comes before any step"),
        ("sigkill:at=eval,delay=1", r"at=eval needs 'step'"),
        ("sigkill:step=1,seconds=3", r"sigkill lasts no 'seconds'"),
        ("slow_step:step=1", r"slow_step needs its 'seconds'"),
        ("busy_loop:step=1,seconds=3s", r"seconds is '3s': .*seconds are meant: 3"),
        ("exit:step=1,code=0", r"code is '0'"),
        ("exit:step=1,code=256", r"code is '256'"),
        ("missing_collective:delay=3", r"strikes at a step, not after a delay"),
        ("sigkill:step=1;sigkill:generation=x,step=1", r"generation is 'x'"),
    ],
)
def test_text_that_cannot_be_used_is_refused(text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        parse_faults(text)


@given(seed=st.integers(0, 10**6), world_size=st.integers(1, 64))
def test_chance_is_the_seeds_alone(seed: int, world_size: int):
    """Every rank, in every run, draws the same fault and the same rank."""
    (first,) = parse_faults(f"random:step=3,seed={seed}")
    (second,) = parse_faults(f"random:step=3,seed={seed}")
    assert first == second
    assert first.kind in KINDS
    assert first.struck_rank(world_size) == second.struck_rank(world_size) < world_size


def test_random_draws_everything_but_what_needs_more_than_itself():
    drawn = {parse_faults(f"random:step=3,seed={seed}")[0].kind for seed in range(200)}
    assert drawn == set(KINDS) - {"slow_step", "missing_collective"}


def test_the_seed_reaches_every_rank():
    assert {Fault(kind="exit", step=1, seed=seed).struck_rank(4) for seed in range(50)} == {0, 1, 2, 3}


class Params:
    """As the callbacks' users write them."""

    fault_type = "rank_hung"
    base_delay = 3.0


@pytest.mark.parametrize(
    ("params", "fault"),
    [
        ({"fault_type": "rank_killed", "base_delay": 5, "rank_to_fail": 2}, Fault(kind="sigkill", rank=2, delay=5.0)),
        (Params(), Fault(kind="sigstop", delay=3.0)),
        ({"fault_type": "exit", "base_delay": "1.5"}, Fault(kind="exit", delay=1.5)),
    ],
)
def test_params_of_the_callbacks(params: Any, fault: Fault):
    assert fault_from_params(params) == fault


def test_the_same_params_make_the_same_fault_in_every_process():
    """Ranks agree on it, and a run can be repeated."""
    text = "{'fault_type': 'random', 'base_delay': 2, 'rand_delay': 3, 'seed': 7}"
    code = f"from resilience_core.faults import fault_from_params as f; x = f({text}); print(x, x.struck_rank(64))"
    said = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(2)}
    fault = fault_from_params({"fault_type": "random", "base_delay": 2, "rand_delay": 3}, seed=7)
    assert said == {f"{fault} {fault.struck_rank(64)}\n".encode()}


def test_params_leave_kind_rank_and_delay_to_the_seed():
    params = {"fault_type": "random", "base_delay": 2, "rand_delay": 3}
    faults = [fault_from_params(params, seed=seed) for seed in range(40)]
    assert faults == [fault_from_params(params, seed=seed) for seed in range(40)]
    assert {fault.kind for fault in faults} == {"sigstop", "sigkill"}
    assert {fault.rank for fault in faults} == {None}
    assert min(f.delay for f in faults) < 2.5 < 4.5 < max(f.delay for f in faults) <= 5
    assert len({fault.delay for fault in faults}) == 40


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"fault_type": "rank_hung"}, r"lacks 'base_delay'"),
        ({"fault_type": "random", "base_delay": 3, "seed": -1}, r"simulated_fault_params: seed is -1: .*whole number"),
        ({"base_delay": 3}, r"lacks 'fault_type'"),
        (object(), r"lacks 'fault_type'"),
        ({"fault_type": "rank_hung", "base_delay": 3, "rank": 1}, r"has no key 'rank'; .*rank_to_fail"),
        ({"fault_type": "rank_hugn", "base_delay": 3}, r"'rank_hugn' is not known"),
        ({"fault_type": "rank_hung", "base_delay": -3}, r"simulated_fault_params .*must be 0 to"),
        ({"fault_type": "rank_hung", "base_delay": 3, "rank_to_fail": "x"}, r"simulated_fault_params .*whole"),
    ],
)
def test_params_that_cannot_be_used_are_refused(params: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        fault_from_params(params)


# ---- when it strikes ---------------------------------------------------------------------------------------


def strikes(bus: EventBus, event: str, **arguments: Any) -> bool:
    try:
        getattr(bus, event)(**arguments)
    except SimulatedFault:
        return True
    return False


def bus_with(text: str, **context: Any) -> EventBus:
    bus = EventBus()
    assert install_faults(text, on=bus) is not None
    bus.setup(context=RunContext(**{"world_size": 4, **context}))
    return bus


def test_it_strikes_at_its_step_and_only_once():
    bus = bus_with("exception:rank=0,step=2")
    assert [strikes(bus, "step_start", iteration=i) for i in (0, 1, 2, 2, 3)] == [False, False, True, False, False]


@pytest.mark.parametrize(("rank", "is_struck"), [(0, False), (1, True), (3, False)])
def test_it_strikes_its_rank_only(rank: int, is_struck: bool):
    assert strikes(bus_with("exception:rank=1,step=2", rank=rank), "step_start", iteration=2) is is_struck


@pytest.mark.parametrize(
    ("generation", "restart_count", "is_struck"),
    [("", 0, True), ("", 1, False), ("1", 0, False), ("1", 1, True), ("any", 0, True), ("any", 5, True)],
)
def test_it_strikes_in_its_generation_so_that_the_restarted_run_goes_on(
    generation: str, restart_count: int, is_struck: bool
):
    text = "exception:rank=0,step=2" + (f",generation={generation}" if generation else "")
    assert strikes(bus_with(text, restart_count=restart_count), "step_start", iteration=2) is is_struck


@pytest.mark.parametrize(
    ("at", "event", "more"),
    [("eval", "eval_step_start", {"eval_index": 0}), ("checkpoint", "checkpoint_start", {"kind": "save"})],
)
def test_it_strikes_at_the_first_save_or_evaluation_from_its_step_on(at: str, event: str, more: dict[str, Any]):
    bus = bus_with(f"exception:rank=0,step=5,at={at}")
    assert not strikes(bus, "step_start", iteration=5)
    assert [strikes(bus, event, iteration=i, **more) for i in (4, 8, 12)] == [False, True, False]


def test_it_strikes_at_setup():
    bus = EventBus()
    bus.register(FaultInjector(Fault(kind="exception", rank=0, at="setup")))
    assert strikes(bus, "setup", context=RunContext())


def test_the_monitors_hear_the_event_before_the_fault_strikes():
    """Else the hang would not be in the section that it is meant to be in."""
    from resilience_core.testing import EventRecorder

    bus, recorder = EventBus(), EventRecorder()
    bus.register(recorder)
    install_faults("exception:rank=0,step=0", on=bus)  # by itself, who comes later hears first
    bus.setup(context=RunContext())
    assert strikes(bus, "step_start", iteration=0)
    assert recorder.names() == ["setup", "step_start"]


def test_a_delay_counts_from_the_step_or_from_setup():
    """Faults that must come from the training's own thread strike at the first step after the delay."""
    bus = bus_with("exception:rank=0,step=1,delay=1000;exception:rank=0,delay=0.000001")
    assert [strikes(bus, "step_start", iteration=i) for i in (0, 1, 2)] == [True, False, False]


def test_a_rank_that_is_not_there_is_said(caplog: pytest.LogCaptureFixture):
    bus_with("exception:rank=7,step=0")
    assert "names rank 7; there are 4" in caplog.text


def test_a_fault_that_never_came_due_is_said(caplog: pytest.LogCaptureFixture):
    bus = bus_with("exception:rank=0,step=99;exception:rank=1,step=0;exception:rank=0,delay=1000")
    bus.teardown(reason="completed")
    assert caplog.text.count("never came due") == 2
    assert not strikes(bus, "step_start", iteration=99)


def test_teardown_calls_off_a_fault_that_waits():
    """The thread that would kill this very process has ended before its delay."""
    bus = bus_with("sigkill:rank=0,delay=3000")
    (thread,) = [t for t in threading.enumerate() if t.name == "simulated-fault"]
    bus.teardown(reason="completed")
    thread.join(timeout=180)
    assert not thread.is_alive()


def test_the_environment_is_asked_when_there_is_no_text(monkeypatch: pytest.MonkeyPatch):
    bus = EventBus()
    monkeypatch.delenv("FT_SIMULATED_FAULTS", raising=False)
    assert install_faults(on=bus) is None
    assert bus.plugins() == []
    monkeypatch.setenv("FT_SIMULATED_FAULTS", "exception:rank=0,step=0")
    injector = install_faults(on=bus)
    assert bus.plugins() == [injector]
    assert install_faults("", on=bus) is None


def test_a_missing_collective_needs_a_group(caplog: pytest.LogCaptureFixture):
    bus = bus_with("missing_collective:rank=0,step=0")
    bus.step_start(iteration=0)
    assert "needs an initialised process group" in caplog.text


# ---- what it does ------------------------------------------------------------------------------------------

VICTIM = """
import sys, threading, time
from resilience_core import EventBus, RunContext
from resilience_core.faults import install_faults
bus = EventBus()
install_faults(on=bus)
gaps, stop = [0.0], threading.Event()
def watch():
    last = time.monotonic()
    while not stop.wait(0.001):
        now = time.monotonic()
        gaps.append(now - last)
        last = now
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
bus.setup(context=RunContext())
began = time.monotonic()
bus.step_start(iteration=0)
if len(sys.argv) > 1:
    threading.Event().wait()
print("after", time.monotonic() - began, max(gaps), len(gaps), flush=True)
"""


class Victim(subprocess.Popen[str]):
    """A process of its own that the fault strikes; ``reached`` returns once the fault is about to."""

    def __init__(self, faults: str, *arguments: str) -> None:
        super().__init__(
            [sys.executable, "-c", VICTIM, *arguments],
            env={**os.environ, "PYTHONPATH": ROOT, "FT_SIMULATED_FAULTS": faults},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def reached(self) -> None:
        assert self.stderr is not None
        line = self.stderr.readline()
        assert "simulated fault on rank 0" in line, line


@pytest.fixture
def victims() -> Iterator[list[Victim]]:
    started: list[Victim] = []
    yield started
    for victim in started:
        victim.kill()
        victim.communicate()


ENDINGS = {"exit": 1, "exit:code=7": 7, "sigkill": -signal.SIGKILL, "segfault": -signal.SIGSEGV}
WHENS = ["step=0", "at=setup", "delay=0.05"]


@pytest.mark.parametrize(
    ("kind", "code", "when"),
    [
        *((kind, code, when) for kind, code in ENDINGS.items() for when in WHENS),
        ("exception", 1, "step=0"),
        ("exception", 1, "at=setup"),
    ],
)
def test_what_ends_a_process(victims: list[Victim], kind: str, code: int, when: str):
    name, _, more = kind.partition(":")
    victims.append(Victim(f"{name}:rank=0,{when}{',' if more else ''}{more}", "wait"))
    _, errors = victims[0].communicate(timeout=180)
    assert victims[0].returncode == code
    assert "simulated fault on rank 0" in errors
    assert ("Traceback" in errors) is (kind == "exception")


@pytest.mark.parametrize("when", ["step=0", "delay=0.05"])
def test_sigstop_stops_and_sigcont_resumes(victims: list[Victim], when: str):
    victims.append(Victim(f"sigstop:rank=0,{when}", *(["wait"] if when != "step=0" else [])))
    _, status = os.waitpid(victims[0].pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert os.WSTOPSIG(status) == signal.SIGSTOP
    if when == "step=0":
        victims[0].send_signal(signal.SIGCONT)
        output, _ = victims[0].communicate(timeout=180)
        assert output.startswith("after")


@pytest.mark.parametrize("kind", ["deadlock", "busy_loop", "gil", "slow_step"])
def test_what_lasts_lasts_as_long_as_it_is_told(victims: list[Victim], kind: str):
    victims.append(Victim(f"{kind}:rank=0,step=0,seconds=1.3"))
    output, _ = victims[0].communicate(timeout=180)
    word, took, longest_gap, wakeups = output.split()
    assert word == "after"
    assert float(took) >= 1.3
    if kind == "gil":
        assert float(longest_gap) >= 1.0  # no other thread ran
    else:
        assert int(wakeups) > 10  # other threads did


@pytest.mark.parametrize("kind", ["deadlock", "busy_loop", "gil"])
def test_what_hangs_hangs_for_ever_and_can_be_killed(victims: list[Victim], kind: str):
    victims.append(Victim(f"{kind}:rank=0,step=0"))
    victims[0].reached()
    with pytest.raises(subprocess.TimeoutExpired):
        victims[0].wait(timeout=0.5)
    victims[0].kill()
    output, _ = victims[0].communicate(timeout=180)
    assert output == ""


SKIPPING = """
import os, sys
import torch.distributed as dist
from resilience_core import EventBus, RunContext
from resilience_core.faults import install_faults
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(os.environ["RANK"]), world_size=2)
bus = EventBus()
install_faults("missing_collective:rank=1,step=0", on=bus)
bus.setup(context=RunContext.from_environment())
bus.step_start(iteration=0)
print("went on", flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.mark.long  # tests/e2e/test_hangs.py has it in whole jobs
def test_a_missing_collective_hangs_every_rank_but_the_one_that_skips_it(tmp_path: Path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SKIPPING, str(tmp_path / "store")],
            env={**os.environ, "PYTHONPATH": ROOT, "RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        assert ranks[1].stdout is not None
        assert ranks[1].stdout.readline() == "went on\n"
        with pytest.raises(subprocess.TimeoutExpired):
            ranks[0].communicate(timeout=0.5)
    finally:
        for rank in ranks:
            rank.kill()
        outputs = [rank.communicate()[0] for rank in ranks]
    assert outputs[0] == ""
