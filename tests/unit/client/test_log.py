"""Records of any producer as entries and as lines: invalid ones do not stop the reader."""

from datetime import datetime, timedelta
from types import SimpleNamespace

import msgspec
import pytest

from slipway_api.events.service import ServiceHeartbeat
from slipway_api.events.topics import EVENT_OF
from slipway_api.percent import encoded
from slipway_client.cli.commands.doctor import _record
from slipway_client.cli.commands.events import _json_line, _line, _matches
from slipway_client.transport.log import Entry, Log
from slipway_common.base.clock import utc_now
from slipway_common.messaging.envelope import Envelope, encode

WORKER = b'"worker_id":"w","pool_id":"p","launch_config_id":"c","account_id":"a","image_revision":"i","instance_id":"n"'
OUTCOME = b'"outcome":{"stage":"boot","result":"ok"}'
REGISTERED = "worker.registered"
ODD = [b"[1,2]", b'"text"', b"{}", b'{"x":1}', b"null", b"{", b"[" * 100_000, b"\xff"]
ODD_OF = [
    (REGISTERED, b"{%s,%s,%s}" % (WORKER, OUTCOME, b'"boot_seconds":"soon"')),
    ("worker.error_reported", b"{%s,%s}" % (WORKER, b'"kind":5,"detail":""')),
    ("weight.changed", b'{"launch_config_id":"c","weight":"x","state":"open","reason":""}'),
    ("launch_config.paused", b'{"launch_config_id":"c","until":"nonsense"}'),
]


def entry(type_: str, value: bytes | None) -> Entry:
    envelope = Envelope(id="1", type=type_, source="/elsewhere", subject="sub\x1bject", time=utc_now())
    record = SimpleNamespace(
        topic="p.topic", partition=0, offset=7, timestamp=0, headers=encode(envelope), key=b"k", value=value
    )
    return Log("nowhere:1", "p.")._entry(record)


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value[:9]))
@pytest.mark.parametrize("type_", [*EVENT_OF, "io.slipway.worker.reborn.v1", "io.slipway.alert.x.v1", "com.example"])
def test_every_record_has_a_line(type_: str, value: bytes) -> None:
    found = entry(type_, value)
    assert _line(found).isprintable()
    assert _json_line(found).startswith("{")
    assert not found.unreadable or ("unreadable" in _line(found) and f"{type_} of sub�ject" in _line(found))


@pytest.mark.parametrize(("name", "value"), ODD_OF, ids=[name for name, _ in ODD_OF])
def test_a_record_that_does_not_match_its_schema_is_unreadable(name: str, value: bytes) -> None:
    found = entry(f"io.slipway.{name}.v1", value)
    assert found.unreadable
    assert f"unreadable       io.slipway.{name}.v1 of sub�ject, topic/0, offset 7: " in _line(found)
    assert found.data is not None  # programs still get the data


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, 0), (-100, -100), (-3600, -120), (30, 0.001), (31_536_000, 0.001)]
)
def test_a_wrong_clock_moves_an_event_by_two_minutes_at_most(seconds: float, expected: float) -> None:
    found = entry(f"io.slipway.{REGISTERED}.v1", None)
    moved = msgspec.structs.replace(found, time=found.stored_at + timedelta(seconds=seconds))
    assert moved.at - found.stored_at.timestamp() == pytest.approx(expected, abs=1e-5)


def test_a_record_that_matches_its_schema_is_printed() -> None:
    found = entry(f"io.slipway.{REGISTERED}.v1", b"{%s,%s,%s}" % (WORKER, OUTCOME, b'"boot_seconds":3,"newer":[1]'))
    assert (found.unreadable, found.data["newer"]) == ("", [1])
    assert "booted in 3 s" in _line(found)


POOL, CONFIG = "gecko-t/linux", "gecko-t/linux-a@3f2c9a"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"launch_config_id": CONFIG}, ["worker", "alert", "tombstone"]),
        ({"launch_config_id": "gecko-t/linux-a"}, ["worker", "alert", "tombstone"]),
        ({"launch_config_id": "gecko-t/linux-a@8b1d00"}, []),
        ({"launch_config_id": "gecko-t/linux"}, []),
        ({"pool_id": POOL}, ["worker", "pool alert"]),
        ({"pool_id": "linux"}, []),
        ({"pool_id": POOL, "launch_config_id": CONFIG}, ["worker"]),
    ],
)
def test_a_name_selects_the_events_of_its_revisions(given: dict[str, str], found: list[str]) -> None:
    entries = {
        "worker": entry("com.example", msgspec.json.encode({"pool_id": POOL, "launch_config_id": CONFIG})),
        "alert": entry("com.example", msgspec.json.encode({"subject_kind": "config", "subject_id": CONFIG})),
        "pool alert": entry("com.example", msgspec.json.encode({"subject_kind": "pool", "subject_id": POOL})),
        "tombstone": msgspec.structs.replace(entry("com.example", None), key=encoded(CONFIG)),
    }
    assert [name for name, one in entries.items() if _matches(one, given)] == found


def test_a_tombstone_is_printed() -> None:
    assert _line(entry("io.slipway.launch_config.archived.v1", None)).endswith("deleted")


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value[:9]))
@pytest.mark.parametrize("type_", [*EVENT_OF, "io.slipway.alert.raised.v2", "com.example"])
def test_doctor_passes_over_odd_records(type_: str, value: bytes) -> None:
    """The valid records around them are applied."""
    beat = b'{"service":"%s","instance":"0","at":"2026-01-01T12:00:00Z","version":"1"}'
    heartbeats: dict[str, datetime] = {}
    for found in (
        entry(ServiceHeartbeat.type, beat % b"provisioner"),
        entry(type_, value),
        entry(ServiceHeartbeat.type, beat % b"lease-broker"),
    ):
        _record(found, heartbeats)
    assert list(heartbeats) == ["provisioner", "lease-broker"]
