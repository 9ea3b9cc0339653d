"""A variable that cannot be used is refused once, by the launcher, before each rank fails at it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.command_line.environment_checks import check_environment
from resilience_core.errors import ConfigError

BAD = [
    ("LOGLEVEL", "loud", "LOGLEVEL is 'loud' in the environment, and torch.* takes only names of Python's levels"),
    ("LOGLEVEL", "", "LOGLEVEL is '' in the environment"),
    ("LOGLEVEL", "10", "LOGLEVEL is '10' in the environment"),
    ("FT_LOAD_PLUGINS", "2", "FT_LOAD_PLUGINS is '2' in the environment: "),
    ("FT_SIMULATED_FAULTS", "sigkil:rank=1", "FT_SIMULATED_FAULTS in the environment: .*sigkil"),
]


@pytest.mark.parametrize(("name", "value", "said"), BAD)
def test_what_cannot_be_used_is_refused_by_its_name(name: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_environment({name: value})


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LOGLEVEL": "INFO", "FT_LOAD_PLUGINS": " ", "FT_SIMULATED_FAULTS": ""},
        {
            "LOGLEVEL": "DEBUG",
            "FT_LOAD_PLUGINS": "off",
            "FT_SIMULATED_FAULTS": "sigkill:rank=1,step=3;exit:delay=2",
        },
    ],
)
def test_what_can_be_used_is_not_refused(environ: dict[str, str]) -> None:
    check_environment(environ)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, value, _ in BAD])
def test_the_launcher_ends_with_2_and_one_line(tmp_path: Path, name: str, value: str) -> None:
    (tmp_path / "train.py").write_text("print('started')\n")
    ended = subprocess.run(
        [sys.executable, "-m", "launcher", "train.py"],
        cwd=tmp_path,
        env={**os.environ, name: value, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"ft_launcher: error: {name} ")
