"""The file of learned timeouts: whole or not there, ours or refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from resilience_core.errors import StateFileError
from resilience_core.plugins import state_file
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


def test_what_a_newer_release_has_added_is_kept_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ft_state.json"
    newer = {"version": 2, "clusters": {"a": [1, 2]}, "evidence": {}, **state()}
    path.write_text(json.dumps(newer))
    assert load_state(path) is not None
    for step in (3.0, 4.0):
        save_state(path, {**state(step)})
    assert json.loads(path.read_text()) == {"version": 2, "clusters": {"a": [1, 2]}, **state(4.0)}
    assert load_state(path) is not None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        f"{path} has keys that this release of torch-resilience does not know (clusters, version), perhaps those of a "
        "newer one; they are kept as they are, beside the timeouts that are learned now (said once)"
    )


def test_a_state_wins_over_a_key_that_the_file_has_as_well(tmp_path: Path) -> None:
    path = tmp_path / "ft_state.json"
    path.write_text(json.dumps({"version": 2, **state()}))
    save_state(path, {"version": 3, **state(3.0)})
    assert json.loads(path.read_text()) == {"version": 3, **state(3.0)}


def test_evidence_of_the_state_before_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It says what the timeouts of that state rest on, not those that are written now."""
    path = tmp_path / "ft_state.json"
    path.write_text(json.dumps({"evidence": {"step": {}}, **state()}))
    save_state(path, state(3.0))
    assert json.loads(path.read_text()) == state(3.0)
    assert caplog.records == []


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"a": 1}', b'{"a": ', b"\xff", b"[" * 100_000])
def test_nothing_is_kept_of_what_is_no_state(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ft_state.json"
    path.write_bytes(content)
    save_state(path, state())
    assert json.loads(path.read_text()) == state()
    assert caplog.records == []


def test_a_pipe_in_its_place_is_replaced_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ft_state.json")
    save_state(tmp_path / "ft_state.json", state())
    assert load_state(tmp_path / "ft_state.json") == state()


def test_what_is_kept_may_hold_what_strict_json_does_not(tmp_path: Path) -> None:
    path = tmp_path / "ft_state.json"
    path.write_text(json.dumps({"x": float("inf"), **state()}))
    save_state(path, state(3.0))
    assert json.loads(path.read_text()) == {"x": float("inf"), **state(3.0)}


def test_what_cannot_be_kept_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some interpreters read deeper nesting than they write."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    path = tmp_path / "ft_state.json"
    save_state(path, state())
    monkeypatch.setattr(state_file, "load_state", lambda path: {"deep": deep, **state()})
    with pytest.raises(StateFileError, match=r"ft_state.json: .* \(deep\), nested too deeply to be kept"):
        save_state(path, state(3.0))
    monkeypatch.undo()
    assert load_state(path) == state()
