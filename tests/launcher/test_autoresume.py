"""ft_autoresume: how often it runs a job again, and when it does not. The launcher is a script that plays one."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest

from launcher.agent.progress import NOTHING_REACHED, Reached
from launcher.agent.run_tally import RunOutcome, Tally

# Plays a launcher: appends to a list of runs, leaves an event log as a launcher does, and does what its argument says.
FAKE_LAUNCHER = """
import json, os, signal, sys, time
runs = open("runs", "a+"); runs.write("x"); runs.flush(); runs.seek(0); run = len(runs.read())
os.makedirs(f"ft_logs/{run}")
log = open(f"ft_logs/{run}/events.jsonl", "w", buffering=1)
def tell(event, **facts):
    log.write(json.dumps({"event": event, "t_ns": time.monotonic_ns(), **facts}) + chr(10))
tell("began", launcher=os.getpid())
def finish():
    open(os.environ["FAULT_TOL_FINISHED_FLAG_FILE"], "w").close()
exec(sys.argv[1])
"""


@attrs.define
class Runner:
    folder: Path

    def start(
        self, script: str, *options: str, launcher_options: Sequence[str] = (), stderr: int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        command = [
            *(sys.executable, "-c", "import torch_resilience; torch_resilience.autoresume()"),
            *("--backoff", "0", "--flag-file", "flag", *options, "--"),
            *(sys.executable, "-c", FAKE_LAUNCHER, script, *launcher_options),
        ]
        return subprocess.Popen(command, cwd=self.folder, stderr=stderr, stdout=subprocess.PIPE, text=True)

    def run(self, script: str, *options: str, launcher_options: Sequence[str] = ()) -> tuple[int, str]:
        process = self.start(script, *options, launcher_options=launcher_options)
        return_text = process.communicate(timeout=180)[1]
        return process.returncode, return_text

    @property
    def runs(self) -> int:
        path = self.folder / "runs"
        return len(path.read_text()) if path.exists() else 0


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_again_until_the_flag_is_there(runner: Runner) -> None:
    code, said = runner.run("tell('stopped', iteration=run * 10)\nif run == 4: finish()\nsys.exit(run % 2)")

    assert code == 0
    assert runner.runs == 4
    assert "training is complete (after 4 run(s), 2 failed" in said
    assert "last iteration 40" in said


def test_a_job_that_fails_after_the_flag_is_complete_all_the_same(runner: Runner) -> None:
    assert runner.run("finish()\nsys.exit(1)")[0] == 0
    assert runner.runs == 1


def test_a_training_that_is_complete_already_is_not_begun(runner: Runner) -> None:
    (runner.folder / "flag").touch()
    code, said = runner.run("finish()")
    assert (code, runner.runs) == (0, 0)
    assert "complete already" in said


def test_failures_in_a_row_have_a_limit(runner: Runner) -> None:
    code, said = runner.run("tell('stopped', iteration=run)\nsys.exit(1)", "--max-failures", "4")
    assert (code, runner.runs) == (1, 4)
    assert "4 runs in a row have failed" in said
    assert "nobody has made" not in said


def test_failures_without_progress_have_a_limit(runner: Runner) -> None:
    code, said = runner.run(
        "tell('ended', iteration=min(run, 3), resumed_from=1)\nsys.exit(1)", "--max-without-progress", "2"
    )
    assert (code, runner.runs) == (1, 5)
    assert "2 runs in a row made no progress, the last iteration is still 3" in said


def test_a_script_that_never_makes_the_flag_does_not_run_for_ever(runner: Runner) -> None:
    code, said = runner.run("sys.exit(0)")
    assert (code, runner.runs) == (1, 3)
    assert said.count("training is not complete: nobody has made ") == 3
    assert "why was FAULT_TOL_FINISHED_FLAG_FILE not made?" in said


@pytest.mark.parametrize(
    "gets_on", ["went_back=True", "resumed_from=run", "saved=run"], ids=["epochs", "loads", "saves"]
)
def test_a_job_that_counts_within_each_epoch_is_run_on(runner: Runner, gets_on: str) -> None:
    script = f"tell('ended', iteration=9, **{{'went_back': False, **dict({gets_on})}})\nif run == 6: finish()"
    assert runner.run(script, "--max-without-progress", "2")[0] == 0
    assert runner.runs == 6


def test_what_a_rank_has_asked_for_is_heeded(runner: Runner) -> None:
    code, said = runner.run("tell('request', action='ShutdownWorkload')\nsys.exit(1)")
    assert (code, runner.runs) == (1, 1)
    assert "a rank has asked for the end of the workload" in said


def test_a_training_that_has_stopped_itself_on_purpose_is_not_run_again(runner: Runner) -> None:
    code, said = runner.run("tell('stopped_on_purpose', why='rank 3 has stopped the training: NaN')\nsys.exit(1)")
    assert (code, runner.runs) == (1, 1)
    assert "given up: rank 3 has stopped the training: NaN (after 1 run(s), 1 failed" in said


def test_a_training_that_is_complete_may_have_stopped_itself(runner: Runner) -> None:
    code, _ = runner.run("tell('stopped_on_purpose', why='low enough')\nfinish()\nsys.exit(1)")
    assert (code, runner.runs) == (0, 1)


def test_what_is_damaged_in_a_log_folder_is_said_and_ends_nothing(runner: Runner) -> None:
    damaged = runner.folder / "ft_logs" / "damaged" / "events.jsonl"
    damaged.parent.mkdir(parents=True)
    damaged.write_text('{"event": "began", "t_ns": null}\n')
    incident = (
        "os.makedirs(f'ft_logs/{run}/incidents/0001'); open(f'ft_logs/{run}/incidents/0001/incident.json', 'w').close()"
    )
    code, said = runner.run(f"{incident}\ntell('ended', iteration=run)\nsys.exit(1)", "--max-failures", "3")
    assert (code, runner.runs) == (1, 3)
    assert "Traceback" not in said
    assert "last iteration 3" in said
    assert said.count("ft_logs/damaged/events.jsonl: a damaged line is left out, its t_ns is None") == 1
    assert said.count("ft_logs/2/incidents/0001 is left out: it is damaged (it is empty)") == 1


def test_a_run_of_an_unknown_version_is_said_once(runner: Runner) -> None:
    newer = runner.folder / "ft_logs" / "newer"
    newer.mkdir(parents=True)
    (newer / "events.jsonl").write_text('{"event": "began", "t_ns": 1, "version": 99}\n')
    code, said = runner.run("tell('ended', iteration=run)\nsys.exit(1)", "--max-failures", "3")
    assert (code, runner.runs) == (1, 3)
    assert "last iteration 3" in said
    assert said.count(f"what a run has reached is not known: {newer.relative_to(runner.folder)}/events.jsonl has") == 1


@pytest.mark.parametrize(
    ("level", "heard"),
    [
        ("ERROR", ["given up"]),
        ("WARNING", ["run 1 ended", "run 2 ended", "given up"]),
        ("30", ["run 1 ended", "run 2 ended", "given up"]),
        ("nonsense", ["run 1 ended", "the next run", "run 2 ended", "given up"]),
    ],
)
@pytest.mark.parametrize("spelling", ["--ft-log-level={}", "--ft_param_log_level {}"])
def test_the_log_level_of_the_launcher_is_that_of_its_runner(
    runner: Runner, level: str, heard: list[str], spelling: str
) -> None:
    options = spelling.format(level).split()
    code, said = runner.run("sys.exit(1)", "--max-failures", "2", launcher_options=options)
    assert code == 1
    assert [
        line.partition(": ")[2][: len(words)] for line, words in zip(said.splitlines(), heard, strict=True)
    ] == heard
    assert all(line.startswith("ft_autoresume: ") for line in said.splitlines())


def test_a_standard_error_that_nobody_reads_holds_up_nobody(runner: Runner) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"x" * 4096):
            pass
    os.set_blocking(writer, True)
    with runner.start("sys.exit(1)", "--max-failures", "2", stderr=writer) as process:
        assert process.wait(timeout=180) == 1
    assert runner.runs == 2
    for descriptor in (reader, writer):
        os.close(descriptor)


@pytest.mark.parametrize("final", [2, 93])
def test_a_launcher_that_refuses_is_not_asked_again(runner: Runner, final: int) -> None:
    assert runner.run(f"sys.exit({final})")[0] == final
    assert runner.runs == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_the_job_is_not_run_again(runner: Runner, number: signal.Signals) -> None:
    process = runner.start(
        f"signal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}])\nprint('ready', flush=True)\n"
        f"signal.sigwait([{int(number)}])\nprint('heard', flush=True)"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate(timeout=180)[0] == "heard\n"
    assert process.returncode == 128 + number
    assert runner.runs == 1


def test_a_signal_ends_the_wait_before_the_next_run(runner: Runner) -> None:
    process = runner.start("sys.exit(1)", "--backoff", "10000", "--max-backoff", "10000")
    assert process.stderr is not None
    while "the next run begins in 10000 s" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=180)
    assert process.returncode == 128 + signal.SIGTERM
    assert runner.runs == 1


SIGNALLED_WHILE_IT_BEGINS_TO_WAIT = """
import argparse, signal
import launcher.autoresume as autoresume
from launcher.agent.progress import NOTHING_REACHED
from launcher.agent.run_tally import RunOutcome
autoresume._SIGNALS = (signal.SIGALRM,)
options = argparse.Namespace(max_failures=9, max_without_progress=9, backoff=600.0, max_backoff=600.0)
for number in range(400):
    us = autoresume.AutoResume(options)
    us._tally.add(RunOutcome(1, 1.0, NOTHING_REACHED, False))
    signal.signal(signal.SIGALRM, us._on_signal)
    signal.setitimer(signal.ITIMER_REAL, (1 + number % 80) / 1e6)
    us._back_off()
    assert us._heard == [signal.SIGALRM]
print("heard them all")
"""


def test_a_signal_in_the_moment_in_which_the_wait_begins_is_heard() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED_WHILE_IT_BEGINS_TO_WAIT], capture_output=True, text=True, timeout=100
    )
    assert done.stdout == "heard them all\n", done.stderr


def test_a_job_does_not_outlive_us(runner: Runner) -> None:
    """Killed outright, ft_autoresume leaves no launcher behind: it gets SIGTERM."""
    process = runner.start("print(os.getpid(), flush=True)\nsignal.pause()")
    assert process.stdout is not None
    launcher = os.pidfd_open(int(process.stdout.readline()))
    process.kill()
    assert select.select([launcher], [], [], 30)[0]
    os.close(launcher)
    process.communicate(timeout=180)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ft_launcher", "train.py"], "after '--'"),
        (["--"], "no command after '--'"),
        (["--flag-file", "no/such/flag", "--", "x"], "there is no folder"),
        (["--", "no-such-launcher-anywhere"], "cannot be run"),
        (["--max-failure", "3", "--", "x"], "unrecognized arguments"),
        (["--max-failures", "-1", "--", "x"], "-1: must be a whole number of 0 or more"),
        (["--max-failures", "x", "--", "x"], "x: give a whole number of 0 or more"),
        (["--backoff", "nan", "--", "x"], "nan: give seconds as a number"),
        (["--final-exit-codes", "2,x", "--", "x"], "'x' is no exit code; give numbers from 0 to 255"),
        (["--final-exit-codes", "256", "--", "x"], "'256' is no exit code"),
        (["--flag-file", ".", "--", "x"], "is a folder"),
    ],
)
def test_bad_command_lines(tmp_path: Path, arguments: list[str], words: str) -> None:
    command = [sys.executable, "-c", "import torch_resilience; torch_resilience.autoresume()", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert done.returncode == 2
    assert words in done.stderr


def test_progress_is_the_best_iteration_so_far() -> None:
    tally = Tally(max_failures=0, max_without_progress=2)

    def failed(iteration: int) -> str | None:
        return tally.add(RunOutcome(1, 1.0, Reached(iteration, resumed_from=4), is_final=False))

    assert failed(10) is None
    assert failed(9) is None
    assert failed(11) is None
    assert failed(5) is None
    assert [failed(10), failed(9)] == [None] * 2
    assert "still 11" in (failed(11) or "")


def test_a_success_without_the_flag_ends_a_row_of_failures() -> None:
    tally = Tally(max_failures=2, max_without_progress=0)
    codes = [1, 0, 1, 0, 1]
    assert [tally.add(RunOutcome(code, 1.0, NOTHING_REACHED, False)) for code in codes] == [None] * 5
    assert tally.add(RunOutcome(1, 1.0, NOTHING_REACHED, False)) is not None


def test_a_failed_run_without_any_iteration_is_not_judged_by_progress() -> None:
    """What it needs may be away for a while; how often that may be is what --max-failures says."""
    tally = Tally(max_failures=9, max_without_progress=2)
    runs = [Reached(5, resumed_from=4), *([NOTHING_REACHED] * 7)]
    assert [tally.add(RunOutcome(1, 1.0, reached, is_final=False)) for reached in runs] == [None] * 8
    assert "9 runs in a row have failed" in (tally.add(RunOutcome(1, 1.0, NOTHING_REACHED, False)) or "")
    assert tally.add(RunOutcome(0, 1.0, NOTHING_REACHED, False)) is None
    assert "made no progress" in (tally.add(RunOutcome(0, 1.0, NOTHING_REACHED, False)) or "")


def test_a_run_that_saves_and_ends_with_0_again_is_without_progress() -> None:
    """Training has been complete each time, perhaps, and nobody has said so: it would go on for ever."""
    tally = Tally(max_failures=0, max_without_progress=2)
    for _ in range(5):
        assert tally.add(RunOutcome(1, 1.0, Reached(9, saved=8), False, failed_in_a_step=True)) is None
    assert tally.add(RunOutcome(0, 1.0, Reached(9, saved=10), False)) is None, "its checkpoint is newer"
    assert tally.add(RunOutcome(0, 1.0, Reached(9, saved=10), False)) is None
    assert tally.add(RunOutcome(0, 1.0, Reached(9, saved=10), False)) is not None


def test_a_run_that_fails_between_steps_is_not_the_one_before_it_again() -> None:
    """An epoch in each run, each counted from 0, and a failure at its end. One that ends with 0 has no failure."""
    tally = Tally(max_failures=0, max_without_progress=2)
    for _ in range(5):
        assert tally.add(RunOutcome(1, 1.0, Reached(9), False, failed_in_a_step=False)) is None
    assert tally.add(RunOutcome(1, 1.0, Reached(9), False, failed_in_a_step=True)) is None
    assert tally.add(RunOutcome(0, 1.0, Reached(9), False)) is not None


@pytest.mark.parametrize("way", ["option", "file"])
def test_the_log_format_of_the_launcher_is_that_of_its_runner(runner: Runner, way: str) -> None:
    options = ["--ft-log-format", "json", "--ft-log-level=WARNING"]
    if way == "file":
        (runner.folder / "ft.yaml").write_text("fault_tolerance: {log_format: json, log_level: WARNING}\n")
        options = ["--ft-cfg-path", "ft.yaml"]
    code, said = runner.run("sys.exit(1)", "--max-failures", "2", launcher_options=options)
    assert code == 1
    told = [json.loads(line) for line in said.splitlines()]
    assert [(each["source"], each["level"], each["event"]) for each in told] == [
        ("autoresume", "WARNING", "run_ended"),
        ("autoresume", "WARNING", "run_ended"),
        ("autoresume", "CRITICAL", "given_up"),
    ]
    assert [(each["run"], each["exit_code"]) for each in told[:2]] == [(1, 1), (2, 1)]


def test_an_option_on_the_launcher_s_command_line_counts_more_than_its_file(runner: Runner) -> None:
    (runner.folder / "ft.yaml").write_text("fault_tolerance: {log_format: json, log_level: WARNING}\n")
    options = ["--ft-cfg-path", "ft.yaml", "--ft-log-format", "text", "--ft-log-level", "ERROR"]
    _, said = runner.run("sys.exit(1)", "--max-failures", "2", launcher_options=options)
    assert said.startswith("ft_autoresume: given up: ")
    assert said.count("\n") == 1


def test_what_is_refused_is_refused_in_the_form_that_is_asked_for(runner: Runner) -> None:
    code, said = runner.run("", "--max-failures", "many", launcher_options=["--ft-log-format=json"])
    assert code == 2
    (line,) = said.splitlines()
    assert json.loads(line)["event"] == "refused"
    assert "--max-failures" in json.loads(line)["text"]
