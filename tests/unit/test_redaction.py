"""Redaction of secrets in texts from outside."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_common.base.ids import WORKER_TOKEN, new_id, new_secret
from slipway_common.base.redaction import CHARACTERS_MAX, redacted
from slipway_common.observability import telemetry
from slipway_provisioner.domain.registration import RegistrationKeys
from tests.support.provisioner import KEY

OURS = "019b8d5f-0002-7000-8000-00000000001f"
RANDOM_TEXT = "q3VZr8mX0bYtLs2WcKd7HgJ5nP9aEuF1iTo4RvCxM6w"
# As Azure names subscriptions, and Heroku its API keys.
RANDOM = "8f14e45f-ceea-467f-9d1b-3a4b5c6d7e8f"


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
        (f"worker {OURS} is lost, as batch '{OURS}'.", f"worker {OURS} is lost, as batch '{OURS}'."),
        (f"GET /workers/{OURS}/claim failed", f"GET /workers/{OURS}/claim failed"),
        (f"subscription {RANDOM} is disabled", "subscription … is disabled"),
        (f"request id {OURS.upper()}", "request id …"),
        (f"signed with {OURS}-8c1f", "signed with …"),
        (f"client_secret={OURS} expired", "client_secret=… expired"),
        (f"Bearer {OURS}", "Bearer …"),
        (f"https://host/a?sv={OURS}", "https://host/a?…"),
        (f"slipway-worker-{OURS}", "…"),
        (f"of {OURS}: {'f00d' * 16}", f"of {OURS}: …"),
        ("io.slipway.pool.demand_reported.v1: no pool", "io.slipway.pool.demand_reported.v1: no pool"),
        ("in x7.slipway.launch-config.lifecycle.v1", "in x7.slipway.launch-config.lifecycle.v1"),
        (f"slipway.alert.v1{RANDOM_TEXT}", "…"),
        ("cannot read /etc/passwd: permission denied", "cannot read /etc/passwd: permission denied"),
        ("'/run/secrets/db_password': no such file", "'/run/secrets/db_password': no such file"),
        ("GET /login/password=hunter2 failed", "GET /login/password=… failed"),
        ("PUT /v1/token:s3cr3t-word failed", "PUT /v1/token:… failed"),
        ("'password': s3cr3t-word", "'password': …"),
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


@pytest.mark.parametrize(
    "secret", [RANDOM_TEXT, WORKER_TOKEN + RANDOM_TEXT, WORKER_TOKEN + "k" * 43, RegistrationKeys(KEY).secret(OURS)]
)
def test_no_secret_of_ours_is_kept(secret: str) -> None:
    """Secrets of tokens, of workers and of batches are random texts, none of which is a UUID."""
    for text in (secret, f"worker {OURS} sent {secret}", f"/{secret}/", f"'{secret}'."):
        assert secret not in redacted(text)


def test_forms_of_ids_and_secrets() -> None:
    """The examples here have the form of what is created."""
    assert redacted(f"worker {new_id()}").count("-") == redacted(f"worker {OURS}").count("-") == 4
    assert len(new_secret()) == len(RANDOM_TEXT)


def test_errors_in_logs_name_workers() -> None:
    line = telemetry.written({"event": "x", "logger": "slipway_x", "error": f"KeyError: '{OURS}'", "reason": OURS})
    assert line.count(OURS) == 2


@pytest.mark.parametrize("piece", ["a", "1", "a.", "a@", "secret", "secret='", "/token"])
def test_a_long_text_takes_no_time(piece: str) -> None:
    """Texts of any writer are redacted by every consumer, which waits meanwhile."""
    began = time.process_time()
    redacted(piece * (20_000 // len(piece)), 1_000)
    assert time.process_time() - began < 2.0


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
