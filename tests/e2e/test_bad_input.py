"""What cannot be run as asked: one clear error, code 2, no traceback of ours, nothing started, nothing left."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

YAML = {
    "an unknown key": (
        "fault_tolerance:\n  rank_hearbeat_timeout: 3\n",
        "unknown key 'rank_hearbeat_timeout' in {path} line 2; did you mean 'rank_heartbeat_timeout'?",
    ),
    "a wrong type": (
        "fault_tolerance:\n  safety_factor: [1]\n",
        "safety_factor in {path} line 2 is [1]",
    ),
    "a unit in the number": (
        "fault_tolerance:\n  rank_heartbeat_timeout: '60s'\n",
        "rank_heartbeat_timeout in {path} line 2 is '60s'",
    ),
    "a negative timeout": (
        "fault_tolerance:\n  rank_section_timeouts: {step: -1}\n",
        "rank_section_timeouts in {path} line 2",
    ),
    "an unknown signal": (
        "fault_tolerance:\n  rank_termination_signal: SIGKIL\n",
        "rank_termination_signal in {path} line 2 is 'SIGKIL'",
    ),
    "an empty file": ("", "{path}"),
    "a list": ("- a\n- b\n", "{path}"),
    "no such section": ("training: {}\n", "{path}"),
    "no YAML": ("fault_tolerance: [\n", "{path}"),
}


def assert_refused(job: Any, *said: str) -> None:
    assert job.wait() == 2
    errors = [line for line in job.stderr.splitlines() if line.startswith("ft_launcher: error: ")]
    assert len(errors) == 1, job.stderr
    assert all(text in errors[0] for text in said), errors[0]
    assert "Traceback" not in job.stderr
    assert job.stdout == ""


@pytest.mark.parametrize(
    "what",
    ["an unknown key", *(pytest.param(what, marks=pytest.mark.long) for what in YAML if what != "an unknown key")],
)
def test_a_configuration_file_that_cannot_be_used(launch: Callable[..., Any], tmp_path: Path, what: str) -> None:
    text, said = YAML[what]
    path = tmp_path / "ft.yaml"
    path.write_text(text)

    job = launch("loop.py", cfg_path=path)

    assert_refused(job, said.format(path=path))
    assert not job.logs.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ft-cfg-path", "nowhere.yaml"], "nowhere.yaml"),
        (["--ft-rank-hearbeat-timeout", "3"], "did you mean '--ft-rank-heartbeat-timeout'?"),
        (["--ft-rank-heart", "3"], "abbreviated"),
        (["--ft-rank-heartbeat-timeout", "60s"], "--ft-rank-heartbeat-timeout is '60s'"),
        (["--ft-rank-section-timeouts", "step:-3"], "--ft-rank-section-timeouts is 'step:-3'"),
        (["--ft-rank-termination-signal", "99"], "--ft-rank-termination-signal is '99'"),
        (["--signals-to-handle", "SIGTREM"], "unknown signal 'SIGTREM'"),
        (["--nproc-per-node", "many"], "many"),
        (["--nnodes", "0"], "--nnodes 0"),
    ],
)
def test_an_option_that_cannot_be_used(launch: Callable[..., Any], options: list[str], said: str) -> None:
    assert_refused(launch("loop.py", options=options), said)


def test_a_script_that_does_not_exist(launch: Callable[..., Any]) -> None:
    job = launch("nowhere.py")
    assert_refused(job, "the training script 'nowhere.py' does not exist", str(job.work))


def test_an_unknown_option_of_torchruns_is_argparses_business(launch: Callable[..., Any]) -> None:
    job = launch("loop.py", options=["--nprocs", "2"])
    assert job.wait() == 2
    assert "usage: ft_launcher" in job.stderr
    assert "Traceback" not in job.stderr


def test_a_port_in_use(launch: Callable[..., Any]) -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", 0))
        taken.listen()
        port = taken.getsockname()[1]
        job = launch("loop.py", options=["--master-port", port])
        assert_refused(job, f"port {port}: it is in use", "--master-port")


def test_a_folder_in_memory_that_does_not_exist(launch: Callable[..., Any]) -> None:
    assert_refused(launch("loop.py", run_dir="/dev/shm/none/of/it"), "No such file", "--ft-run-dir")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_run_folder_of_another_user(launch: Callable[..., Any], tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    assert_refused(launch("loop.py", run_dir=theirs), "belongs to another user (uid 12345)", "--ft-run-dir")


@pytest.fixture
def tmpfs() -> Iterator[Callable[[str], Path]]:
    """Mount a small tmpfs with some options."""
    mounted: list[Path] = []
    folders: list[Path] = []

    def mount(options: str) -> Path:
        place = Path(tempfile.mkdtemp(prefix="ft_test"))  # short enough for a socket's path
        folders.append(place)
        command = ["mount", "-t", "tmpfs", "-o", f"mode=1777,{options}", "tmpfs", str(place)]
        if os.getuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
            pytest.skip("mounting a small tmpfs needs root")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        assert list(place.iterdir()) in ([], [place / "filler"])
        subprocess.run(["umount", str(place)], check=True)
    for place in folders:
        place.rmdir()


def test_a_folder_in_memory_that_is_not_writable(launch: Callable[..., Any], tmpfs: Callable[[str], Path]) -> None:
    assert_refused(launch("loop.py", run_dir=tmpfs("size=1m,ro")), "Read-only file system", "--ft-run-dir")


@pytest.mark.parametrize("pages", range(6))
def test_a_folder_in_memory_that_is_full(launch: Callable[..., Any], tmpfs: Callable[[str], Path], pages: int) -> None:
    """Wherever the last page is missed: for the configuration, the monitor's word or a rank's cell."""
    place = tmpfs(f"size={32 << 10}")
    filler = place / "filler"
    filler.write_bytes(b"x" * ((8 - pages) << 12))

    job = launch("loop.py", run_dir=place, nproc=6)

    assert_refused(job, "No space left on device", "--ft-run-dir")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_log_folder_that_is_not_writable(launch: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir(mode=0o500)
    assert_refused(launch("loop.py", options=["--log-dir", tmp_path / "logs"]), "--log-dir")


def test_a_log_folder_that_is_a_file(launch: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    assert_refused(
        launch("loop.py", options=["--log-dir", tmp_path / "logs"]), "cannot make the log folder", "--log-dir"
    )


def test_a_run_folder_too_deep_for_a_socket(launch: Callable[..., Any], tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    assert_refused(launch("loop.py", run_dir=deep), "cannot listen at", "--ft-run-dir")
    assert list(deep.iterdir()) == []


def test_a_section_that_is_used_but_not_configured_is_an_error_in_the_training(launch: Callable[..., Any]) -> None:
    job = launch("unconfigured.py", rank_section_timeouts="step:3,checkpointing:3", nproc=1)

    assert job.wait() == 93
    assert "section 'checkpoint' is used but not in rank_section_timeouts; did you mean 'checkpointing'?" in job.stderr


def test_a_foreign_key_is_accepted_with_one_warning_that_says_why(launch: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "ft.yaml"
    path.write_text("fault_tolerance:\n  workload_check_interval: 5\n  rank_heartbeat_timeout: 9\n")
    job = launch("loop.py", cfg_path=path, nproc=1)

    assert job.wait() == 0
    assert job.stderr.count("workload_check_interval") == 1
    assert "nothing polls" in job.stderr
