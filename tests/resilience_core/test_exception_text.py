"""What messages say of an exception, whatever its own text is."""

from __future__ import annotations

from resilience_core.exception_text import LONGEST_TEXT, text_of


class Mute(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


def test_a_text_that_fits_is_kept_whole() -> None:
    assert text_of(ValueError("x" * LONGEST_TEXT)) == "x" * LONGEST_TEXT


def test_a_text_that_is_too_long_is_cut_and_says_so() -> None:
    assert text_of(ValueError("x" * 3_000_000)) == "x" * LONGEST_TEXT + " ... (cut; 2998000 characters more)"


def test_where_no_text_can_be_made_the_reason_is_named() -> None:
    assert text_of(Mute()) == "<its text cannot be made: LookupError>"
