"""What ``on_event`` takes, and what it refuses with which words."""

from __future__ import annotations

import pytest

from resilience_core.config.notice_values import quoted, scheme_of, shown
from resilience_core.config.schema import FaultToleranceConfig
from resilience_core.errors import ConfigError


@pytest.mark.parametrize(
    "value",
    [
        "notify.sh",
        "python3 notify.py --to 'a b'",
        "sh -c 'cat | logger'",
        "http://127.0.0.1:8080/hook",
        "HTTPS://hooks.example.org/services/T0/B0?x=1",
        "http://[::1]:9/",
        "./http/notify",
        "https.sh",
    ],
)
def test_a_command_or_a_url_is_kept_as_it_is(value: str) -> None:
    config = FaultToleranceConfig(on_event=f" {value} ")
    assert config.on_event == value
    assert FaultToleranceConfig.from_json(config.to_json()).on_event == value


@pytest.mark.parametrize("value", [None, "null", "None", "~"])
def test_null_tells_nobody(value: str | None) -> None:
    assert FaultToleranceConfig(on_event=value).on_event is None


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        ("", "give a command"),
        ("   ", "give a command"),
        (7, "give a command"),
        ("'' x", "give a command"),
        ("echo 'a", "close each quotation mark"),
        ("a\0b", "control character"),
        ("ftp://host/x", "'ftp' is not supported: use http:// or https://"),
        ("file:///etc/passwd", "'file' is not supported"),
        ("http://", "no host"),
        ("http:///path", "no host"),
        ("http://host:port/", "no URL"),
        ("http://host:99999/", "no URL"),
        ("https://user:secret@host/", "is 'https://host/***': the URL has a user or a password"),
        ("https://user:se@cret@h ost/", "is 'https://***': the URL has a user or a password"),
        ("http://host/a b", "%20"),
        ("https://host:99999/x?token=secret", "is 'https://host:99999/***': no URL"),
        ("http://[::1/services/secret", "is 'http://[::1/***': no URL"),
        ("http://bot:secret/path", "is 'http://***': no URL"),
        ("http://host/a secret", "is 'http://host/***': a URL holds no blanks"),
        ("https:/hooks.x/secret", "is 'https:***': no URL, and no command: write https://HOST/PATH"),
        ("HTTP:secret", "is 'HTTP:***': no URL, and no command: write http://HOST/PATH"),
        ("https//hooks.x/secret", "is 'https/***': no URL, and no command: write https://HOST/PATH"),
        ("https:///hooks.x/secret", "is 'https:///***': the URL has no host"),
        ("http/hooks.x/secret a b", "is 'http/*** ...': no URL"),
        ("'https:/hooks.x/secret' a", "is 'https:*** ...': no URL"),
        ("https:/hooks.x/secret 'a", "is 'https:*** ...': cannot be split"),
        ("curl -H 'Authorization: secret", "is 'curl ...': cannot be split"),
        (["https://user:secret@host/"], "is [https://host/***]: give a command"),
        (["curl", "-H", "Authorization: secret"], "is [curl, ...]: give a command"),
        ({"secret": "secret"}, "is dict: give a command"),
        ("http://host/\N{LATIN SMALL LETTER E WITH ACUTE}", "%20"),
    ],
)
def test_what_cannot_be_called_is_refused(value: object, fix: str) -> None:
    with pytest.raises(ConfigError, match=r"^on_event is ") as caught:
        FaultToleranceConfig(on_event=value)
    assert fix in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("seconds", [-1, 0, 0.05, 3601, "1e12"])
def test_the_time_limit_is_bounded_and_the_bounds_are_the_same_for_whatever_is_wrong(seconds: object) -> None:
    with pytest.raises(ConfigError, match=r"^on_event_timeout is .*: must be 0\.1 to 3600 seconds$"):
        FaultToleranceConfig(on_event_timeout=seconds)


@pytest.mark.parametrize(("seconds", "fix"), [("10s", "no unit is written"), (None, "give seconds"), ("nan", "give s")])
def test_a_time_limit_that_is_no_number_is_refused(seconds: object, fix: str) -> None:
    with pytest.raises(ConfigError, match=rf"^on_event_timeout is .*{fix}"):
        FaultToleranceConfig(on_event_timeout=seconds)


def test_a_command_with_a_colon_is_no_url() -> None:
    assert scheme_of("mail:er x") is None
    assert scheme_of("Http://h") == "http"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("./tell.sh", "./tell.sh"),
        ("curl -H 'Authorization: SECRET' http://host/SECRET", "curl ..."),
        ("TOKEN=SECRET curl http://host", "TOKEN=*** ..."),
        ("'/opt/a b/tell' x", "/opt/a b/tell ..."),
        ("https://host/services/SECRET", "https://host/***"),
        ("x" * 200, "x" * 77 + "..."),
        (None, "None"),
        (7, "7"),
    ],
)
def test_of_whom_to_call_the_program_or_the_host_is_shown(value: object, told: str) -> None:
    assert shown(value) == told
    assert quoted(value) == (f"'{told}'" if isinstance(value, str) else told)
