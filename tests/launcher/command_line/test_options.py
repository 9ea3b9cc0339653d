"""From the command line to a checked job: torchrun's options mean what they mean there, ours are never guessed."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import run as torchrun

from launcher import cli
from launcher.command_line.option_values import exit_timeout, local_world_size, problem_with_script
from launcher.command_line.options import LaunchJob, parse
from resilience_core.config.schema import settings
from resilience_core.errors import ConfigError

NO_EVENT_LOG_HANDLER = "--event-log-handler" not in torchrun.get_args_parser().format_help()


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_torchruns_options_and_ours_live_together(script: str) -> None:
    job = parse(
        [
            *("--nproc-per-node", "4", "--max-restarts=7", "--tee", "3", "--ft-rank-heartbeat-timeout", "9"),
            *("--ft-param-rank_section_timeouts", "step:3,setup:null", script, "--lr", "0.1", "--ft-x"),
        ]
    )

    assert (job.arguments.nproc_per_node, job.arguments.max_restarts, job.arguments.tee) == ("4", 7, "3")
    assert job.config.rank_heartbeat_timeout == 9.0
    assert dict(job.config.rank_section_timeouts) == {"step": 3.0, "setup": None}
    assert job.arguments.training_script_args == ["--lr", "0.1", "--ft-x"]
    assert len(job.warnings) == 1
    assert "--ft-x stands after" in job.warnings[0]


@pytest.mark.parametrize(
    ("options", "is_local"),
    [
        ([], True),
        (["--standalone"], True),
        (["--nnodes", "1:1"], True),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"], True),
        (["--nnodes", "2"], False),
        (["--nnodes", "1:2"], False),
        (["--rdzv-backend", "etcd-v2"], False),
    ],
)
def test_one_node_of_fixed_size_has_nobody_to_agree_with(script: str, options: list[str], is_local: bool) -> None:
    assert parse([*options, script]).is_local == is_local


@pytest.mark.parametrize(
    ("options", "port"),
    [
        ([], 0),
        (["--master-port", "29511"], 29511),
        (["--master_port", "29511", "--standalone"], 0),
        (["--rdzv-endpoint", "localhost:29512"], 29512),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:29512"], 0),
        (["--nnodes", "2", "--master-port", "29511"], 0),
    ],
)
def test_a_port_is_fixed_only_where_torchrun_would_fix_it(script: str, options: list[str], port: int) -> None:
    assert parse([*options, script]).port == port


def test_a_default_port_of_torchs_is_no_wish_of_the_user(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch 2.12 its parser says 29500 where nobody said anything, and one job per host is all there can be."""
    parser_of_this_version = torchrun.get_args_parser

    def recorded_parser_before_2_12() -> argparse.ArgumentParser:
        parser = parser_of_this_version()
        parser.set_defaults(master_port=int(os.environ.get("PET_MASTER_PORT", "29500")))
        return parser

    monkeypatch.setattr(torchrun, "get_args_parser", recorded_parser_before_2_12)
    monkeypatch.delenv("PET_MASTER_PORT", raising=False)
    assert parse([script]).port == 0
    assert parse(["--master-port", "29500", script]).port == 29500
    monkeypatch.setenv("PET_MASTER_PORT", "29511")
    assert parse([script]).port == 29511


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--master-port", "65536"], "port 65536 (--master-port, --rdzv-endpoint): must be 1 to 65535"),
        (["--rdzv-endpoint", "localhost:99999"], "port 99999"),
        (["--ft-rank-hearbeat-timeout", "3"], "did you mean '--ft-rank-heartbeat-timeout'"),
        (["--ft-rank-heart", "3"], "is abbreviated; write it out"),
        (["--ft-cfg-path", "nowhere.yaml"], "nowhere.yaml"),
        (["--ft-rank-heartbeat-timeout", "60s"], "--ft-rank-heartbeat-timeout is '60s'"),
        (["--ft-rank-heartbeat-timeout=-3"], "--ft-rank-heartbeat-timeout is '-3'"),
        (["--ft-rank-termination-signal", "SIGKIL"], "SIGKILL"),
        (["--nnodes", "two"], "--nnodes two: use a number, or MIN:MAX"),
        (["--nnodes", "3:2"], "MIN no more than MAX"),
        (["--max-restarts", "-1"], "--max-restarts -1: must be 0 or more"),
        (["--rdzv-endpoint", "localhost"], "needs HOST:PORT"),
        (["-m", "--no-python"], "cannot be used together"),
        (["-m"], "that is a file; leave -m out, or write"),
        (["--redirects", "7"], "--redirects 7: use 0 (none), 1 (standard output), 2 (standard error) or 3 (both)"),
        (["--redirects=1:1,"], "--redirects 1:1,: use 0"),
        (["--tee", "0x1"], "--tee 0x1: use 0"),
        (["--redirects", "5:1"], "--redirects 5:1: there is no local rank 5; --nproc-per-node 1 makes rank 0 alone"),
        (["--tee", "2:1", "--nproc-per-node", "2"], "no local rank 2; --nproc-per-node 2 makes 0 to 1"),
        (["--tee", "0:1,0:2"], "--tee 0:1,0:2: local rank 0 is named twice"),
        (["--local-ranks-filter", "7"], "--local-ranks-filter 7: there is no local rank 7"),
        (["--local-ranks-filter", "x"], "--local-ranks-filter x: use numbers with commas between them"),
        (["--nproc-per-node", "0"], "--nproc-per-node 0: must be 1 or more"),
        (["--nproc-per-node", "99999999"], "--nproc-per-node 99999999: there can be"),
        (["--monitor-interval", "nan"], "--monitor-interval nan: must be a number of seconds above 0"),
        (["--monitor-interval", "inf"], "--monitor-interval inf"),
        (["--monitor-interval", "-1"], "--monitor-interval -1"),
        (["--node-rank", "5"], "--node-rank 5: must be 0 to 0, since --nnodes is 1"),
        (["--rdzv-conf", "read_timeout=nan"], "--rdzv-conf read_timeout is nan: must be a number of seconds"),
        (["--rdzv-conf", "join_timeout=0"], "--rdzv-conf join_timeout=0: must be a number of seconds above 0"),
        (["--rdzv-conf", "a=1,x"], "--rdzv-conf a=1,x: 'x' is not KEY=VALUE"),
        pytest.param(
            ["--event-log-handler", "file"],
            "--event-log-handler file: torch has no such handler; it has console, dynamic_rendezvous, null",
            marks=pytest.mark.skipif(NO_EVENT_LOG_HANDLER, reason="this torch has no --event-log-handler"),
        ),
    ],
)
def test_what_cannot_be_run_is_one_clear_error(script: str, options: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse([*options, script])
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "program", "said"),
    [
        ([], "nowhere.py", "the training script 'nowhere.py' does not exist"),
        ([], ".", "the training script '.' is a folder without a __main__.py; name the script in it"),
        (["--run-path"], ".", "the training script '.' is a folder"),
        ([], "/dev/null/train.py", "the training script '/dev/null/train.py' cannot be found: Not a directory"),
        (["-m"], ".", "-m .: no name of a module"),
        (["-m"], "..train", "-m ..train: no name of a module"),
        (["--no-python"], "no-such-program", "the program 'no-such-program' does not exist in PATH"),
        (["-m"], "no_such_module.train", "no module named 'no_such_module' (-m no_such_module.train)"),
    ],
)
def test_a_script_that_does_not_exist_is_told_before_anything_starts(
    options: list[str], program: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse([*options, program])
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "program"), [(["--no-python"], "/bin/true"), (["-m"], "json.tool"), (["-m"], "mine.train")]
)
def test_programs_and_modules_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], program: str
) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert isinstance(parse([*options, program]), LaunchJob)


def test_a_script_that_cannot_be_read_or_only_once_is_refused(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is a pipe, which can be read once" in str(problem_with_script(str(tmp_path / "pipe")))
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # to root every file is readable
    assert "cannot be read: Permission denied" in str(problem_with_script(script))
    monkeypatch.undo()
    (tmp_path / "__main__.py").write_text("")
    assert [problem_with_script(path) for path in (str(tmp_path), script, os.devnull)] == [None] * 3


@pytest.mark.parametrize("text", ["foo", "1.5", "", "gpu"])
def test_a_number_of_workers_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=f"^--nproc-per-node {re.escape(text)}: "):
        local_world_size(text)


@pytest.mark.skipif("--signals-to-handle" not in torchrun.get_args_parser().format_help(), reason="not in this torch")
def test_names_of_signals_are_tidied_since_torch_looks_every_one_up(script: str) -> None:
    assert parse(["--signals-to-handle", "SIGTERM, SIGINT,", script]).arguments.signals_to_handle == "SIGTERM,SIGINT"
    with pytest.raises(ConfigError, match="--signals-to-handle is empty: name the signals"):
        parse(["--signals-to-handle", "", script])


@pytest.mark.parametrize("wrong", [["--nprocs", "2", "x.py"], []])
def test_what_argparse_refuses_ends_with_code_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(wrong)
    assert caught.value.code == 2
    assert "usage: ft_launcher" in capsys.readouterr().err


def test_a_key_that_means_nothing_here_is_accepted_with_a_reason(script: str) -> None:
    job = parse(["--ft-workload-check-interval", "5", script])
    assert len(job.warnings) == 1
    assert "nothing polls" in job.warnings[0]


def test_the_term_timeout_of_nvidia_resiliency_ext_reaches_the_agent(script: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", raising=False)
    assert exit_timeout(parse(["--term-timeout", "5", script]).arguments, {}) == 5
    assert exit_timeout(parse([script]).arguments, {}) == 30
    assert exit_timeout(parse([script]).arguments, {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}) == 7
    with pytest.raises(ConfigError, match="variable TORCH_ELASTIC_SHUTDOWN_TIMEOUT is soon: must be a number"):
        exit_timeout(parse([script]).arguments, {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "soon"})


@pytest.mark.parametrize("position", ["alone", "with others"])
def test_version(script: str, capsys: pytest.CaptureFixture[str], position: str) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--version"] if position == "alone" else ["--nproc-per-node", "2", "--version", script])
    assert ended.value.code == 0
    assert re.fullmatch(r"ft_launcher \S+, torch \S+, Python 3\S+\n", capsys.readouterr().out)


def test_help_begins_with_an_example_the_exit_codes_and_our_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    order = ["\nexample:\n", "\nexit codes:\n", "\nfault tolerance:\n", "--ft-cfg-path", "\npositional", "--rdzv-back"]
    assert [text.count(title) >= 1 for title in order] == [True] * len(order)
    assert sorted(order, key=text.index) == order
    assert text.index("example:") < 250
    for code in ("0", "1", "2", "93"):
        assert re.search(rf"^  {code} ", text, re.MULTILINE), code


def test_the_completion_of_the_documentation_completes_every_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    (tmp_path / "help").write_text(capsys.readouterr().out)
    page = Path(__file__).parents[3] / "docs" / "configuration.md"
    (line,) = (line for line in page.read_text().splitlines() if line.startswith("complete "))
    program = f"ft_launcher() {{ cat help; }}\n{line}\ncomplete -p ft_launcher"
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    words = done.stdout.partition("'")[2].partition("'")[0].split()
    assert {"--nproc-per-node", "--max-restarts", "--version", "--ft-cfg-path"} <= set(words)
    assert {f"--ft-{setting.name.replace('_', '-')}" for setting in settings()} <= set(words)
    assert [word for word in words if word.endswith("-")] == []


@pytest.mark.parametrize(
    ("written", "meant"),
    [("--max-restrats=3", "--max-restarts"), ("--versoin", "--version"), ("--nproc-pre-node=2", "--nproc-per-node")],
)
def test_a_misspelt_option_of_torchruns_is_answered_with_the_nearest(
    script: str, capsys: pytest.CaptureFixture[str], written: str, meant: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([written, script])
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"ft_launcher: error: unrecognized arguments: {written}; did you mean '{meant}'?"


def test_workers_are_spawned_where_their_interpreter_is_to_stay_after_the_script(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warm worker would end with a traceback of the launcher's own exit, and with 1."""
    flags = {name: getattr(sys.flags, name) for name in dir(sys.flags) if not name.startswith(("_", "n_"))}
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "ft_launcher"])  # how pytest was started is its own business
    assert cli._why_not_warm(parse([script])) is None

    monkeypatch.setattr(sys, "flags", SimpleNamespace(**{**flags, "inspect": 1}))

    assert "PYTHONINSPECT" in str(cli._why_not_warm(parse([script])))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], False),
        (["--ft-membership", "fixed"], False),
        (["--nnodes", "2"], True),
        (["--nnodes", "2", "--rdzv-backend", "c10d"], True),
        (["--nnodes", "2", "--rdzv-backend", "etcd-v2"], False),
        (["--nnodes", "2", "--rdzv-backend", "etcd-v2", "--ft-membership", "fixed"], True),  # and refused later
        (["--nnodes", "1:2", "--ft-membership", "torch"], False),
        (["--nnodes", "1:2", "--ft-membership", "elastic"], True),
    ],
)
def test_launchers_of_several_nodes_agree_by_themselves_unless_torchs_rendezvous_is_asked_for(
    script: Path, options: list[str], expected: bool
) -> None:
    assert parse([*options, str(script)]).agrees_by_itself is expected


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ("paths:/data=10Q", "has 'paths:/data=10Q': "),
        ("paths:/data=foo", "has 'paths:/data=foo': "),
        ("paths:data", "give an absolute path"),
        ("foo", "there is no such check"),
        ("nvml,shm:1G:2G", "has 'shm:1G:2G': "),
        ("nvml:0", "takes nothing after a colon"),
    ],
)
def test_a_health_check_that_is_none_is_refused_on_one_node_too(script: Path, check: str, said: str) -> None:
    with pytest.raises(ConfigError, match="health_checks") as caught:
        parse(["--ft-health-checks", check, str(script)])
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ft-node-lease", "3", "--ft-membership", "fixed"], None),
        (["--ft-health-checks", "nvml"], "--ft-health-checks has no effect in a job on one node"),
        (["--ft-health-checks", "none"], "--ft-health-checks has no effect in a job on one node"),
        (["--ft-health-check", "true"], "--ft-health-check has no effect in a job on one node"),
        (
            ["--ft-health-check", "true", "--ft-health-checks", "paths"],
            "--ft-health-checks, --ft-health-check have no effect in a job on one node",
        ),
        (["--nnodes", "2", "--ft-health-check", "true", "--ft-node-lease", "3"], None),
        (["--nnodes", "2", "--ft-membership", "torch"], None),
        (
            ["--nnodes", "2", "--ft-membership", "torch", "--ft-node-lease", "3", "--ft-rank-key", "7"],
            "--ft-node-lease, --ft-rank-key have no effect with torch's rendezvous (--ft-membership torch)",
        ),
        (
            ["--nnodes", "2", "--rdzv-backend", "etcd-v2", "--ft-health-check", "true"],
            "--ft-health-check has no effect with torch's rendezvous (--rdzv-backend etcd-v2)",
        ),
    ],
)
def test_what_only_matters_among_nodes_that_agree_is_told_where_it_has_no_effect(
    script: Path, options: list[str], said: str | None
) -> None:
    assert [line for line in parse([*options, str(script)]).warnings if "no effect" in line] == ([said] if said else [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rdzv-conf", "join_timeout=3,is_host=1,store_type=file"], []),
        (
            ["--rdzv-conf", "jon_timeout=3"],
            ["--rdzv-conf jon_timeout: unknown, and has no effect; did you mean 'join_timeout'?"],
        ),
        (["--rdzv-conf", "a=1", "--rdzv-backend", "etcd-v2", "--nnodes", "2"], []),
    ],
)
def test_keys_of_the_rendezvous_that_nothing_reads_are_named(script: Path, options: list[str], said: list[str]) -> None:
    assert [line for line in parse([*options, str(script)]).warnings if "--rdzv-conf" in line] == said
