"""Redaction of secrets in texts from outside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_common.base.redaction import CHARACTERS_MAX, redacted
from slipway_common.observability import telemetry


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("InsufficientInstanceCapacity", "InsufficientInstanceCapacity"),
        ("no m5.large in us-east-1b\nfor i-0123456789abcdef0", "no m5.large in us-east-1b for i-0123456789abcdef0"),
        ("Authorization: Bearer abc.def", "Authorization: … …"),
        ('{"token": "s3cr3t-word", "zone": "b"}', '{"token": …, "zone": "b"}'),
        ("password='open sesame' rejected", "password=… rejected"),
        ("AWS_SECRET_ACCESS_KEY=abc/def", "AWS_SECRET_ACCESS_KEY=…"),
        ("key AKIAIOSFODNN7EXAMPLE is disabled", "key … is disabled"),
        ("GET https://user:pass@host/a?X-Amz-Signature=ab12 failed", "GET https://…@host/a?… failed"),
        ("ask ann.lee@example.org", "ask …"),
        ("message 4fXq9ZlPz0aBcDeFgHiJkLmNoPqRsTuVwXyZ12 denied", "message … denied"),
        ("\x1b[31mred\x07", "[31mred"),
        ("", ""),
    ],
)
def test_redacted(text: str, expected: str) -> None:
    assert redacted(text) == expected


@given(st.text(max_size=6000))
def test_one_short_line_of_anything(text: str) -> None:
    found = redacted(text)
    assert len(found) <= CHARACTERS_MAX
    assert found.isprintable()


def test_a_long_text_is_cut() -> None:
    assert redacted("no room " * 100).endswith("…")


def test_errors_in_logs() -> None:
    """Text of an error is redacted, in a traceback too; code, ids and our own messages stay."""
    text = "secret=s3cr3t-word"
    try:
        raise ValueError(text)
    except ValueError as error:
        lines = [
            telemetry.written({"event": "call failed", "logger": "slipway_x", "batch": "01981c6e-8f7a-7d53", **more})
            for more in ({"error": repr(error)}, {"reason": str(error)}, {"exc_info": error})
        ]
    assert [line for line in lines if "s3cr3t-word" in line or "call failed" not in line or "8f7a" not in line] == []
    assert "test_redaction.py" in lines[-1]
    assert "secret=…" in lines[-1] or "secret=\\u2026" in lines[-1]
    library = telemetry.written({"event": "login with password=s3cr3t-word", "logger": "aiokafka"})
    assert "s3cr3t-word" not in library
