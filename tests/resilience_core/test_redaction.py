"""Of a URL scheme and host are told, of a command its program; nothing else, whatever text they stand in."""

from __future__ import annotations

import time

import pytest

from resilience_core.redaction import redacted, redacted_url


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("http://host:80/services/SECRET?token=SECRET#SECRET, which", "http://host:80/***, which"),
        ("curl 'https://bot:SECRET@host/x'; exit", "curl 'https://host/***'; exit"),
        ("(see HTTPS://host/SECRET).", "(see HTTPS://host/***)."),
        ('{"url":"http://h/SECRET","x":"http://h/SECRET"}', '{"url":"http://h/***"}'),
        ("two http://a/SECRET http://b?SECRET", "two http://a/*** http://b/***"),
        ("http://host and http://host:80/ and http://[::1]:9", "http://host and http://host:80/ and http://[::1]:9"),
        ("http://[::1/SECRET", "http://[::1/***"),
        ("http://bot:SECRET", "http://***"),
        ("http://bot:SECRET@host", "http://host/***"),
        ("http://bot:SEC/RET@host/x", "http://***"),
        ("http://bot:12/SECRET@host/x", "http://***"),
        ("https://host\\SECRET", "https://host/***"),
        ("postgresql+psycopg2://bot:SECRET@db/x", "postgresql+psycopg2://db/***"),
        ("http://h/a'SECRET", "http://h/***"),
        ("no URL: a//b, c:/d, ://", "no URL: a//b, c:/d, ://"),
    ],
)
def test_a_text_keeps_scheme_and_host_of_each_url(text: str, told: str) -> None:
    assert redacted(text) == told
    assert redacted(told) == told
    assert "SECRET" not in told


def test_one_url_is_redacted_to_its_end() -> None:
    assert redacted_url("http://host/a SECRET\nSECRET") == "http://host/***"
    assert redacted_url("https://user:se@SECRET@h ost/") == "https://***"
    assert redacted_url("mail.py") == "mail.py"


def test_a_long_text_is_searched_in_linear_time() -> None:
    began = time.process_time()
    assert redacted("a" * 1_000_000 + " http://h/SECRET").endswith("http://h/***")
    assert redacted("http://h/" + "'" * 1_000_000 + "x") == "http://h/***"
    assert time.process_time() - began < 20
