"""OMP_NUM_THREADS is known before torch is imported, for the launcher's own options only."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from torch.distributed import run as torchrun

from launcher.command_line import default_threads
from resilience_core.config import cli_options as config_options
from resilience_core.config.nvrx_keys import FOREIGN_OPTIONS


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("PET_NPROC_PER_NODE", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "")  # so that it is put back at the end
    del os.environ["OMP_NUM_THREADS"]
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(default_threads, "_was_set_here", False)
    yield
    os.environ.pop("OMP_NUM_THREADS", None)


@pytest.mark.parametrize(
    ("line", "is_set"),
    [
        ("--nproc-per-node 2 train.py", True),
        ("--nproc_per_node=2 train.py", True),
        ("--nproc 2 train.py", True),
        ("--standalone --nproc-per-node 2 train.py", True),
        ("--stand --nproc-per-node 2 train.py", True),
        ("-t3 --nproc-per-node 2 train.py", True),
        ("--ft_ignore_missing_cfg --nproc-per-node 2 train.py", True),
        ("--nnodes 2 --nproc-per-node 2 -m train", True),
        ("--ft-rank-section-timeouts step:3 --nproc-per-node 2 train.py", True),
        ("--nproc-per-node cpu train.py", True),
        ("--nproc-per-node 1 train.py", False),
        ("train.py", False),
        # R23: the script's own options
        ("train.py --nproc-workers 8", False),
        ("train.py --nproc-per-node 8", False),
        ("--nproc-per-node 1 train.py --nproc-per-node 8", False),
        ("-m train --nproc-workers 8", False),
        ("--standalone train.py --nproc 8", False),
        ("--nnodes 1 -- train.py --nproc 8", False),
        # a value that looks like the option is none
        ("--rdzv-id --nproc-per-node=8 train.py", False),
    ],
)
def test_only_the_launchers_own_options_count(line: str, is_set: bool) -> None:
    default_threads.set_default(line.split())
    assert (os.environ.get("OMP_NUM_THREADS") == "1") == is_set


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    default_threads.set_default(["--nproc-per-node", "2", "train.py"])
    default_threads.settle(1)
    assert os.environ["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize(
    ("wanted", "visible", "nodes", "is_set"),
    [
        ("gpu", None, 2, True),
        ("gpu", None, 1, False),
        ("gpu", "0,1", 0, True),
        ("gpu", "3", 8, False),
        ("gpu", "", 8, False),
        ("auto", None, 8, True),
        ("auto", None, 1, False),
        ("auto", None, 0, True),
        ("auto", "-1", 8, True),
    ],
)
def test_devices_are_counted_without_torch(
    wanted: str, visible: str | None, nodes: int, is_set: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    recorded = [f"/dev/nvidia{number}" for number in range(nodes)]
    monkeypatch.setattr(default_threads.glob, "glob", lambda pattern: recorded if "nvidia" in pattern else [])
    default_threads.set_default(["--nproc-per-node", wanted, "train.py"])
    assert ("OMP_NUM_THREADS" in os.environ) == is_set


def test_a_guess_that_was_too_high_is_taken_back(capfd: pytest.CaptureFixture[str]) -> None:
    default_threads.set_default(["--nproc-per-node", "cpu", "train.py"])
    assert capfd.readouterr().err == ""  # the level is not known yet
    default_threads.settle(2)
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert "each worker gets 1 thread" in capfd.readouterr().err
    del os.environ["OMP_NUM_THREADS"]

    default_threads.set_default(["--nproc-per-node", "cpu", "train.py"])
    default_threads.settle(1)
    assert "OMP_NUM_THREADS" not in os.environ
    assert capfd.readouterr().err == ""


def test_the_flags_are_those_of_the_real_parser() -> None:
    parser = torchrun.get_args_parser()
    config_options.add_options(parser)
    takes_none = {
        option.replace("_", "-")
        for action in parser._actions
        for option in action.option_strings
        if action.nargs == 0 or type(action).__name__ == "check_env"
    }
    takes_none |= {
        name.replace("_", "-") for option in FOREIGN_OPTIONS if not option.takes_value for name in option.spellings
    }
    assert takes_none <= default_threads.FLAGS
