"""The worked example of a plugin, really installed, in a real job: its effect, and its switch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
LINE = "loaded plugins: step_log (step-log 1.0); FT_LOAD_PLUGINS=0 or load_plugins: false loads none"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example in a folder of its own, by pip."""
    pytest.importorskip("setuptools", minversion="61")
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, folder / "source")  # building leaves files beside the source
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += ["--no-deps", "--no-build-isolation", "--target", str(folder / "site"), str(folder / "source")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture
def train(launch: Callable[..., Any], site: Path, tmp_path: Path) -> Callable[..., tuple[Any, list[str]]]:
    """Start two ranks of a raw loop; returns the job, and the names of the files that the plugin has written."""

    def run(*, env: dict[str, str] | None = None, **options: object) -> tuple[Any, list[str]]:
        logs = tmp_path / "steps"
        logs.mkdir()
        search = os.pathsep.join((str(site), *filter(None, (os.environ.get("PYTHONPATH"),))))
        environment = {"PYTHONPATH": search, "STEP_LOG_DIR": str(logs), **(env or {})}
        job = launch("loop.py", "--steps", 3, env=environment, **options)
        assert job.wait(60) == 0, job.stderr
        return job, sorted(os.listdir(logs))

    return run


@pytest.mark.e2e
def test_an_installed_plugin_hears_every_rank_of_a_job(train: Callable[..., Any], tmp_path: Path) -> None:
    job, files = train()
    assert files == ["steps-0.jsonl", "steps-1.jsonl"]
    entries = [json.loads(line) for line in (tmp_path / "steps" / "steps-1.jsonl").read_text().splitlines()]
    assert [entry["iteration"] for entry in entries] == [0, 1, 2]
    assert all(entry["seconds"] >= 0.01 for entry in entries)
    assert job.stderr.count(LINE) == 1


@pytest.mark.e2e
@pytest.mark.parametrize(
    "switch", [{"load_plugins": "false"}, {"env": {"FT_LOAD_PLUGINS": "0"}}], ids=["option", "variable"]
)
def test_the_switch_turns_it_off(train: Callable[..., Any], switch: dict[str, Any]) -> None:
    job, files = train(**switch)
    assert files == []
    assert "loaded plugins" not in job.stderr


@pytest.mark.e2e
def test_a_plugin_that_cannot_be_imported_does_not_end_the_job(
    train: Callable[..., Any], site: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    (broken / "broken-0.1.dist-info").mkdir(parents=True)
    (broken / "broken-0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 0.1\n")
    (broken / "broken-0.1.dist-info" / "entry_points.txt").write_text("[resilience]\nb = no_such_module:Plugin\n")
    job, files = train(env={"PYTHONPATH": f"{broken}{os.pathsep}{site}"})
    assert files == ["steps-0.jsonl", "steps-1.jsonl"]
    assert (
        "plugin b of broken 0.1 (no_such_module:Plugin) was not loaded, and training goes on without it: "
        "ModuleNotFoundError: No module named 'no_such_module'"
    ) in job.stderr
