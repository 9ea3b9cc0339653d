"""The plugins that an adapter subscribes: which, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience_core import ConfigError, HeartbeatMonitor, RankMonitorClient, SectionMonitor
from resilience_core.run_listeners import check_api, listeners, make_monitor


@pytest.mark.parametrize(("api", "kind"), [("sections", SectionMonitor), ("heartbeats", HeartbeatMonitor)])
def test_the_api_chooses_the_monitor(api: str, kind: type[object]) -> None:
    monitor = make_monitor(
        api, RankMonitorClient(), state_path=None, calculate_timeouts=False, required=("setup", "step")
    )
    assert type(monitor) is kind


def test_an_unknown_api_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"api is 'section'; it must be sections or heartbeats.*'sections'"):
        check_api("section")


def test_the_order_is_monitor_then_flag_then_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "finished"))
    client = RankMonitorClient()
    monitor = make_monitor("sections", client, state_path=None, calculate_timeouts=False)

    everything = listeners(monitor, client, autoresume=True, exception_policy=lambda error: None)

    assert listeners(monitor, client, autoresume=False) == [monitor]
    assert everything[0] is monitor
    assert [type(plugin).__name__ for plugin in everything[1:]] == ["FinishedFlag", "ExceptionPolicy"]


def test_a_text_does_not_turn_autoresume_on() -> None:
    client = RankMonitorClient()
    monitor = make_monitor("sections", client, state_path=None, calculate_timeouts=False)
    with pytest.raises(ConfigError, match=r"autoresume is 'no' \(str\); it must be True or False"):
        listeners(monitor, client, autoresume="no")  # type: ignore[arg-type]
