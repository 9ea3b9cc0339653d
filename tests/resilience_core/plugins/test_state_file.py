"""The file of learned timeouts: whole or not there, ours or refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from resilience_core.errors import StateFileError
from resilience_core.plugins.state_file import load_state, save_state


def state(step: float = 2.0) -> dict[str, Any]:
    return {
        "current_timeouts": {
            "heartbeat": {"initial": 12.0, "subsequent": 3.5, "were_calculated": True},
            "section": {
                "section": {"step": step},
                "out_of_section": None,
                "calculated_sections": ["step"],
                "is_out_of_section_calculated": False,
            },
        }
    }


def test_what_was_saved_is_loaded(tmp_path: Path):
    path = tmp_path / "ft_state.json"
    save_state(path, state())
    assert load_state(path) == state()
    save_state(path, state(4.0))
    assert load_state(path) == state(4.0)
    assert os.listdir(tmp_path) == ["ft_state.json"]


def test_no_file_is_no_state(tmp_path: Path):
    assert load_state(tmp_path / "ft_state.json") is None


def test_missing_folders_are_made(tmp_path: Path):
    save_state(tmp_path / "a" / "b" / "ft_state.json", state())
    assert load_state(tmp_path / "a" / "b" / "ft_state.json") == state()


def test_a_plain_name_is_written_where_we_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    save_state("ft_state.json", state())
    assert load_state("ft_state.json") == state()


def test_the_users_mask_decides_who_may_read(tmp_path: Path):
    before = os.umask(0o027)
    try:
        save_state(tmp_path / "ft_state.json", state())
    finally:
        os.umask(before)
    assert (tmp_path / "ft_state.json").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"holds no JSON"),
        (b'{"current_timeouts": {', r"holds no JSON .*delete the file"),
        (b"\xff\xfe\x00", r"holds no JSON"),
        (b"[" * 100_000, r"holds no JSON"),
        (b"[]", r"holds a list, not learned timeouts"),
        (b"3", r"holds a number, not learned timeouts"),
        (b"null", r"holds null, not"),
        (b'{"epoch": 3}', r"'state' has no 'current_timeouts'"),
        (b'{"current_timeouts": 3}', r"must be a mapping"),
        (b"x" * (5 * 1024 * 1024), r"larger than any file of learned timeouts"),
    ],
)
def test_a_file_that_is_not_ours_is_refused_by_name(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "ft_state.json"
    path.write_bytes(content)
    with pytest.raises(StateFileError, match=message) as caught:
        load_state(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize("value", ["soon", -1, 0, True, None, float("inf")])
def test_a_timeout_that_is_none_is_refused(tmp_path: Path, value: Any):
    import json

    wrong = state()
    wrong["current_timeouts"]["section"]["section"]["step"] = value
    (tmp_path / "s").write_text(json.dumps(wrong))
    with pytest.raises(StateFileError, match=r"'section.section.step' must be seconds above 0"):
        load_state(tmp_path / "s")


def test_a_folder_in_its_place_is_refused(tmp_path: Path):
    with pytest.raises(StateFileError, match=r"cannot be read: Is a directory"):
        load_state(tmp_path)
    (tmp_path / "s").mkdir()
    with pytest.raises(StateFileError, match=r"cannot be written"):
        save_state(tmp_path / "s", state())
    assert os.listdir(tmp_path) == ["s"]


def test_a_state_that_is_no_json_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "ft_state.json"
    save_state(path, state())
    with pytest.raises(ValueError, match=r"not JSON compliant"):
        save_state(path, state(float("nan")))
    assert load_state(path) == state()
    assert os.listdir(tmp_path) == ["ft_state.json"]


WRITER = """
import itertools, sys
from resilience_core.plugins.state_file import save_state
for n in itertools.count(1):
    section = {f"s{i}": float(n) for i in range(200)}
    save_state(sys.argv[1], {"current_timeouts": {
        "heartbeat": {"initial": None, "subsequent": None, "were_calculated": False},
        "section": {"section": section, "out_of_section": None, "calculated_sections": sorted(section),
                    "is_out_of_section_calculated": False}}})
    print(n, flush=True)
"""


@pytest.mark.parametrize("writes", [1, 2, 3, 5, 9])
def test_sigkill_in_mid_write_leaves_a_whole_file(tmp_path: Path, writes: int):
    """A process that does nothing but write is killed at no chosen moment; the file is one of those it wrote."""
    path = tmp_path / "ft_state.json"
    root = str(Path(__file__).parents[3])
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}
    ) as writer:
        assert writer.stdout is not None
        for _ in range(writes):
            assert writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        written = writes + len(writer.stdout.read().split())
    loaded = load_state(path)
    assert loaded is not None
    (value,) = set(loaded["current_timeouts"]["section"]["section"].values())
    # The last line may not have been printed when the file had been replaced already.
    assert value in (written, written + 1)


KILLED = """
import os, signal, sys
from resilience_core.plugins import state_file
real = getattr(os, sys.argv[2])
def killed(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
setattr(state_file.os, sys.argv[2], killed)
state_file.save_state(sys.argv[1], {"current_timeouts": {}})
"""


@pytest.mark.parametrize("instant", ["fsync", "replace"])
def test_killed_between_write_and_rename_the_old_file_stands(tmp_path: Path, instant: str):
    path = tmp_path / "ft_state.json"
    save_state(path, state())
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), instant], env={**os.environ, "PYTHONPATH": root}, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert load_state(path) == state()
