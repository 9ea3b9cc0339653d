"""Nothing of the launcher's raises because its working folder was deleted, and what is said names the folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.agent.script_inspection import script_of
from launcher.command_line.option_values import problem_with_script
from launcher.processes.working_folder import completed, said_where_deleted, working_folder
from launcher.records.log_folders import FolderError, make_log_folder
from launcher.workers.programs import problem_with
from launcher.workers.script_text import read_script, script_file
from resilience_core.environment import FINISHED_FLAG_VARIABLE
from resilience_core.errors import ConfigError
from resilience_core.plugins.finished_flag import FinishedFlag


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of the working folder, which was deleted."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert (working_folder(), said_where_deleted(), completed("x")) == (str(folder), [], f"{folder}/x")
    folder.rmdir()
    return str(folder)


def test_before_a_restart_it_is_said_which_folder_is_missing(gone: str) -> None:
    (line,) = said_where_deleted()
    assert f"the working folder {gone} was deleted" in line


def test_a_path_is_completed_as_far_as_that_goes(gone: str, tmp_path: Path) -> None:
    assert completed("x/y") == "x/y"
    assert completed(f"{tmp_path}/a/../b") == f"{tmp_path}/b"


def test_what_is_looked_for_there_is_not_found_and_the_folder_is_named(gone: str) -> None:
    assert problem_with_script("x.py") == f"does not exist (working folder {gone}, which was deleted)"
    assert "write it to a file" in str(problem_with_script("-"))
    assert problem_with("./x.sh") == f"the program './x.sh' does not exist (working folder {gone}, which was deleted)"
    with pytest.raises(FolderError, match=f"ft_logs/run in the working folder {gone}, which was deleted"):
        make_log_folder(None, "run")


def test_what_a_launcher_reads_of_a_script_is_read_without_it(gone: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\nos.environ['OMP_NUM_THREADS'] = '3'\nimport torch\n")
    assert make_log_folder(str(tmp_path), "run") == str(tmp_path / "run")
    assert script_of(["python", "-m", "script"]) == (None, "")
    assert script_of(["python", str(script)]) == (str(script), str(tmp_path))
    assert script_file("no_such_module", True) is None
    assert read_script(str(script), {}).values == {"OMP_NUM_THREADS": "3"}
    assert read_script("script.py", {}).values == {}


def test_a_flag_file_with_a_relative_path_is_refused(gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FINISHED_FLAG_VARIABLE, "finished")
    with pytest.raises(ConfigError, match=f"{FINISHED_FLAG_VARIABLE} is 'finished', in a working folder that was"):
        FinishedFlag()
