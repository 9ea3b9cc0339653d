"""``log_level`` in a rank: heeded, and never against what the training itself has configured."""

from __future__ import annotations

import subprocess
import sys

import pytest

from resilience_core import FaultToleranceConfig
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

    assert ended.stderr.splitlines() == lines
