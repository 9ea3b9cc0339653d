"""What a job teaches about its limits from one generation to the next, and how a job that uses the client is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.agent.job_limits import JobLimits
from launcher.agent.script_inspection import names_the_client, script_of
from launcher.incidents.incident import Incident
from launcher.incidents.rank_report import RankReport
from resilience_core import FaultToleranceConfig
from resilience_core.protocol.verdict_counts import read_verdicts

S = 1_000_000_000


def verdict(kind: str | None, ranks: int = 1) -> Incident:
    condemned = [RankReport(rank, rank, 1, is_condemned=True, limit_learned=kind) for rank in range(ranks)]
    return Incident("hang", 0, "why", "action", (*condemned, RankReport(9, 9, 1, limit_learned="section other")))


def test_learned_limits_that_led_to_a_verdict_are_told_to_the_next_generation() -> None:
    limits = JobLimits(FaultToleranceConfig())
    assert limits.environment() == {}
    assert limits.note_verdict(verdict(None)) == []
    assert limits.environment() == {}

    limits.note_verdict(verdict("section step", ranks=3))
    said = limits.note_verdict(verdict("section step"))

    assert read_verdicts(limits.environment()["FT_RELAXED_LIMITS"]) == {"section step": 2}
    assert "what is learned for it is multiplied by 16" in said[0]


@given(starts=st.lists(st.floats(0.01, 1000), min_size=1, max_size=4))
def test_a_later_generation_must_start_within_five_times_the_longest_start(starts: list[float]) -> None:
    limits = JobLimits(FaultToleranceConfig())
    for start in starts:
        limits.note_starts(100 * S, {0: 100 * S + int(start * S), 1: None})

    limit = limits.startup(0, uses_client=False)

    assert limit is not None
    assert limit.seconds == pytest.approx(max(60.0, 5 * max(starts)), rel=1e-6)
    assert limits.startup(1, uses_client=True) is None  # its predecessor never initialised monitoring


def test_a_first_generation_has_no_learned_startup_limit() -> None:
    assert JobLimits(FaultToleranceConfig()).startup(0, uses_client=True) is None


def test_a_startup_limit_that_was_learned_grows_with_its_verdicts_and_can_be_switched_off() -> None:
    limits = JobLimits(FaultToleranceConfig())
    limits.note_starts(0, {0: 20 * S})
    limits.note_verdict(verdict("startup"))
    assert limits.startup(0, uses_client=False).seconds == 400.0  # type: ignore[union-attr]

    off = JobLimits(FaultToleranceConfig(learned_limits="off"))
    off.note_starts(0, {0: 20 * S})
    assert off.startup(0, uses_client=False) is None


def test_where_no_restart_is_left_few_starts_end_no_job() -> None:
    """The first start that loads a checkpoint may take long, and it may be that of the last generation."""
    limits = JobLimits(FaultToleranceConfig())
    limits.note_starts(0, {0: 20 * S})
    last = limits.startup(0, uses_client=False, is_last=True)
    assert last is not None
    assert (last.seconds, "3600 s since no restart is left" in last.origin) == (3600.0, True)
    limits.note_starts(0, {0: 1000 * S})
    assert limits.startup(0, uses_client=False, is_last=True).seconds == 5000.0  # type: ignore[union-attr]

    for settings, seconds in (({"learned_limits": "replace"}, 100.0), ({"rank_startup_timeout": 7}, 7.0)):
        limits = JobLimits(FaultToleranceConfig(**settings))  # type: ignore[arg-type]
        limits.note_starts(0, {0: 20 * S})
        assert limits.startup(0, uses_client=False, is_last=True).seconds == seconds  # type: ignore[union-attr]


def test_a_configured_startup_limit_counts_once_something_tells_that_the_client_is_used() -> None:
    limits = JobLimits(FaultToleranceConfig(rank_startup_timeout=7))
    assert limits.startup(0, uses_client=False) is None
    assert limits.startup(0, uses_client=True).seconds == 7.0  # type: ignore[union-attr]
    limits.note_starts(0, {1: S})
    assert limits.startup(0, uses_client=False).seconds == 7.0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({"train.py": "import torch\n"}, False),
        ({"train.py": "# adapters and resilience_core are not imported\n"}, False),
        ({"train.py": "from resilience_core import RankMonitorClient\n"}, True),
        ({"train.py": "def main():\n    import adapters.ddp\n"}, True),
        (
            {"train.py": "import model", "model.py": "from lib import loop", "lib/__init__.py": "", "lib/loop.py": ""},
            False,
        ),
        (
            {"train.py": "import model", "model.py": "from lib import loop", "lib/loop.py": "import resilience_core"},
            True,
        ),
        ({"train.py": "import a", "a.py": "import b", "b.py": "import a"}, False),
        ({"train.py": "python -m resilience_core x | (\n"}, True),
        ({"train.py": "import (\n"}, False),
    ],
)
def test_whether_a_script_names_the_client(tmp_path: Path, files: dict[str, str], names: bool) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    assert names_the_client(("python", "-u", str(tmp_path / "train.py"), "--lr", "1")) is names


def test_a_module_is_found_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("import resilience_core")

    assert names_the_client(("python", "-u", "-m", "package"))


@pytest.mark.parametrize("command", [("python", "-c", "import x"), ("/bin/sh",), ("python", "nowhere.py")])
def test_a_command_without_a_script_that_can_be_read_tells_nothing(command: Any) -> None:
    assert script_of(command)[0] is None
    assert not names_the_client(command)
