"""``log_level`` in a rank: heeded, and never against what the training itself has configured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime

import pytest

from resilience_core import FaultToleranceConfig, RankMonitorClient
from resilience_core.protocol.cell import Cell

PROGRAM = """
import logging
from resilience_core import RankMonitorClient
{before}
client = RankMonitorClient()
client.init_workload_monitoring()
{after}
for level in ("debug", "info", "warning"):
    getattr(logging.getLogger("resilience_core.plugins.timeout_learning"), level)("a %s", level)
client.shutdown_workload_monitoring()
"""
ROOT_AT_WARNING = "logging.basicConfig(format='root: %(message)s')"


@pytest.mark.parametrize(
    ("settings", "before", "after", "lines"),
    [
        (
            {},
            "",
            "",
            [
                "INFO resilience_core.plugins.timeout_learning: a info",
                "WARNING resilience_core.plugins.timeout_learning: a warning",
            ],
        ),
        ({"log_level": "ERROR"}, "", "", []),
        ({"log_level": "DEBUG"}, ROOT_AT_WARNING, "", ["root: a debug", "root: a info", "root: a warning"]),
        ({}, ROOT_AT_WARNING, "", ["root: a warning"]),
        ({"log_level": "DEBUG"}, "", ROOT_AT_WARNING, ["root: a debug", "root: a info", "root: a warning"]),
        (
            {"log_level": "DEBUG"},
            "logging.getLogger('resilience_core').setLevel('WARNING')",
            "",
            ["WARNING resilience_core.plugins.timeout_learning: a warning"],
        ),
    ],
)
def test_who_configures_logging_is_obeyed(tmp_path, settings, before, after, lines) -> None:
    config, cell = tmp_path / "config.json", tmp_path / "cell"
    config.write_text(FaultToleranceConfig(capture_stacks=False, **settings).to_json())
    Cell.create(str(cell)).close()

    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before, after=after)],
        env={"FT_CELL": str(cell), "FT_CONFIG_FILE": str(config), "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )

    assert [line for line in ended.stderr.splitlines() if " a " in line] == lines


SPEAKS = """
import logging, sys
from resilience_core.monitoring.rank_logging import follow_log_settings
follow_log_settings("INFO", sys.argv[1], is_given=True)
logging.getLogger("straggler").warning("a %s", "table" + chr(10) + "of two lines")
logging.getLogger("adapters.ddp").debug("not heard")
logging.getLogger("resilience_core").error("x" * 9000)
"""


def speaks(log_format: str, **env: str) -> list[str]:
    names = ("RANK", "GROUP_WORLD_SIZE")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", SPEAKS, log_format],
        env={**environment, **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("env", "prefix"),
    [
        ({}, ""),
        ({"RANK": "3", "GROUP_WORLD_SIZE": "1"}, "rank 3: "),
        ({"RANK": "3", "GROUP_WORLD_SIZE": "4"}, f"rank 3[{os.uname().nodename}]: "),
        ({"RANK": "three", "GROUP_WORLD_SIZE": "many"}, ""),
    ],
)
def test_every_line_begins_with_the_rank_and_with_its_node_where_there_are_several(
    env: dict[str, str], prefix: str
) -> None:
    lines = speaks("text", **env)
    assert lines[:2] == [f"{prefix}WARNING straggler: a table", f"{prefix}    of two lines"]
    assert len(lines) == 3


@pytest.mark.parametrize(("env", "rank"), [({}, None), ({"RANK": "3"}, 3)])
def test_as_json_a_record_is_one_object_that_carries_the_rank(env: dict[str, str], rank: int | None) -> None:
    lines = speaks("json", **env)
    first, second = map(json.loads, lines)
    assert datetime.fromisoformat(first.pop("time")).utcoffset() is not None
    assert first == {
        "level": "WARNING",
        "source": "client",
        "node": os.uname().nodename,
        "rank": rank,
        "event": "log",
        "logger": "straggler",
        "text": "a table\nof two lines",
    }
    assert second["is_cut"]
    assert second["text"].startswith("xxxx")
    assert max(map(len, lines)) < 4096


def messages(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelname == "DEBUG")


def test_at_debug_a_client_says_what_it_does_and_under_which_limits(
    rank_environment: Callable[..., Cell], caplog: pytest.LogCaptureFixture
) -> None:
    cell = rank_environment(log_level="DEBUG", rank_section_timeouts={"setup": 600, "step": None})
    caplog.set_level("DEBUG", "resilience_core")
    client = RankMonitorClient()
    client.init_workload_monitoring()
    assert f"pid {os.getpid()} is monitored through {cell.path}" in messages(caplog)
    assert (
        "limits in force (learned_limits relax): first heartbeat 3600 s (default); heartbeat 2700 s (default); "
        "section setup 600 s (configured)" in messages(caplog)
    )

    caplog.clear()
    client.start_section("setup")
    client.end_section("setup")
    client.start_section("step")
    client.end_section("step")
    client.send_heartbeat()
    assert messages(caplog).splitlines() == [
        "first use of section 'setup': limit 600 s",
        "first use of section 'step': no limit",
        "first heartbeat: the next is due within 2700 s",
    ]

    caplog.clear()
    for _ in range(20):  # the hot path says nothing
        client.start_section("step")
        client.end_section("step")
        client.send_heartbeat()
    assert messages(caplog) == ""
    client.calculate_and_set_section_timeouts()
    assert "section step 60 s (learned)" in messages(caplog)
    caplog.clear()
    client.load_state_dict(client.state_dict())
    assert "section step 60 s (learned)" in messages(caplog)

    client.shutdown_workload_monitoring()
    assert f"pid {os.getpid()} is not monitored any more; it used 2 sections" in messages(caplog)
    caplog.clear()
    client.shutdown_workload_monitoring()
    assert messages(caplog) == ""


@pytest.mark.parametrize(("local_rank", "level"), [(None, "WARNING"), ("0", "WARNING"), ("1", "DEBUG")])
def test_what_every_rank_finds_is_a_warning_of_one_rank_of_a_node(
    rank_environment: Callable[..., Cell],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    local_rank: str | None,
    level: str,
) -> None:
    rank_environment(log_level="DEBUG")
    if local_rank is None:
        monkeypatch.delenv("LOCAL_RANK", raising=False)
    else:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    caplog.set_level("DEBUG", "resilience_core")
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.start_section("setup")
    client.end_section("setup")
    client.shutdown_workload_monitoring()
    said = [each.levelname for each in caplog.records if "the configuration names no sections" in each.getMessage()]
    assert said == [level]


def test_where_no_limit_is_in_force_that_is_said(
    rank_environment: Callable[..., Cell], caplog: pytest.LogCaptureFixture
) -> None:
    rank_environment(log_level="DEBUG", rank_heartbeat_timeout=None, initial_rank_heartbeat_timeout=None)
    caplog.set_level("DEBUG", "resilience_core")
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.send_heartbeat()
    client.shutdown_workload_monitoring()
    assert "limits in force (learned_limits relax): none" in messages(caplog)
    assert "first heartbeat: no limit for the next" in messages(caplog)


def test_at_the_default_level_a_client_says_nothing_of_this(
    rank_environment: Callable[..., Cell], caplog: pytest.LogCaptureFixture
) -> None:
    rank_environment()
    caplog.set_level("INFO", "resilience_core")
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.send_heartbeat()
    client.shutdown_workload_monitoring()
    assert caplog.records == []


@pytest.mark.parametrize("stream", ["None", "object()", "open('/dev/full', 'w')"])
def test_a_message_that_cannot_be_written_or_made_disturbs_nobody(stream: str) -> None:
    program = f"""
import logging, sys
from resilience_core.monitoring.rank_logging import follow_log_settings
follow_log_settings("INFO", "text", is_given=True)
class NoText:
    def __str__(self):
        raise ZeroDivisionError
logger = logging.getLogger("resilience_core")
logger.warning("a %s", NoText())
logger.warning(NoText())
sys.stderr = {stream}
logger.warning("lost")
sys.stderr = None
print("went on")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (0, "went on\n")
    assert done.stderr.startswith("WARNING resilience_core: a %s (its arguments have no text: ZeroDivisionError)\n")
