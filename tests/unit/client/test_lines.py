"""Events as lines, with the important fields of each."""

from datetime import UTC, datetime
from typing import Any

import pytest

from slipway_api.events.topics import EVENT_OF
from slipway_client.view import lines

NOW = datetime(2026, 8, 1, 14, 30, tzinfo=UTC)
AT = datetime(2026, 8, 1, 14, 3, 7, tzinfo=UTC)
ID = "01981c6e-8f7a-7d53-9c55-2b7f3f9a12cd"
WORKER = {"worker_id": ID, "pool_id": "linux", "launch_config_id": "zone-b", "account_id": "a", "image_revision": "i"}
REFUSED = {"stage": "launch", "result": "failed", "scope": "capacity", "code": "InsufficientCapacity"}
LEASE = {"lease_pool_id": "sim-a", "lease_id": ID}

CASES: list[tuple[str, str, dict[str, Any] | None, str]] = [
    (
        "worker.launch_failed",
        ID,
        WORKER | {"outcome": REFUSED},
        "launch_failed    3f9a12cd  capacity InsufficientCapacity  zone-b",
    ),
    (
        "worker.launch_failed",
        ID,
        WORKER | {"outcome": REFUSED | {"code": "Odd", "classified": False}},
        "launch_failed    3f9a12cd  capacity Odd (unclassified)  zone-b",
    ),
    (
        "worker.requested",
        ID,
        WORKER | {"decision_id": "d", "probe_permit": 3},
        "requested        3f9a12cd  probe 3  zone-b",
    ),
    (
        "worker.launched",
        ID,
        WORKER | {"instance_id": "i-7", "batch_id": "b", "looked_up": True},
        "launched         3f9a12cd  i-7  found by its tag  zone-b",
    ),
    (
        "worker.registered",
        ID,
        WORKER | {"instance_id": "i-7", "boot_seconds": 31.4, "outcome": {"result": "ok"}},
        "registered       3f9a12cd  booted in 31 s  zone-b",
    ),
    (
        "worker.error_reported",
        ID,
        WORKER | {"kind": "disk", "detail": "full"},
        "error_reported   3f9a12cd  disk: full  zone-b",
    ),
    (
        "worker.noticed",
        ID,
        WORKER | {"kind": "interruption", "capacity_key": "us/az1/m5/spot", "reason": "its machine is taken back"},
        "noticed          3f9a12cd  interruption: its machine is taken back  capacity us/az1/m5/spot  zone-b",
    ),
    (
        "worker.stopped",
        ID,
        WORKER | {"reason": "no longer needed", "cancelled": True},
        "stopped          3f9a12cd  cancelled:  no longer needed  zone-b",
    ),
    (
        "launch_config.paused",
        "zone-b",
        {
            "pool_id": "linux",
            "zone": "b",
            "state": "paused",
            "reason": "maintenance",
            "by": "me",
            "until": "2026-08-01T15:00:00Z",
        },
        "lc paused        zone-b    pool linux, b, paused  maintenance by me until 15:00:00",
    ),
    (
        "launch_config.draining",
        "gecko-t%2Flinux@3f2c9a",
        {
            "pool_id": "gecko-t/linux",
            "zone": "b",
            "state": "draining",
            "current": False,
            "drain_until": "2026-08-01T15:00:00Z",
            "terminate": True,
            "reason": "replaced by gecko-t/linux@8b1d00",
            "by": "me",
        },
        "lc draining      gecko-t/linux@3f2c9a  pool gecko-t/linux, b, draining until 15:00:00, then terminated  "
        "replaced by gecko-t/linux@8b1d00 by me",
    ),
    (
        "launch_config.updated",
        "zone-b@3f2c9a",
        {"pool_id": "linux", "zone": "b", "state": "active", "current": False},
        "lc updated       zone-b@3f2c9a  pool linux, b, fallback",
    ),
    ("launch_config.archived", "zone-b@3f2c9a", None, "lc archived      zone-b@3f2c9a  deleted"),
    (
        "pool.rolled_back",
        "gecko-t%2Flinux",
        {"min_capacity": 0, "max_capacity": 60, "mode": "enforce", "to_revision": 7, "reason": "no boot", "by": "me"},
        "pool rolled_back  gecko-t/linux  to entry 7 of its history  0–60 workers, enforce  no boot by me",
    ),
    (
        "pool.updated",
        "linux",
        {"min_capacity": 0, "max_capacity": 60, "mode": "enforce"},
        "pool updated     linux     0–60 workers, enforce",
    ),
    (
        "lease.granted",
        f"lease/{ID}",
        LEASE | {"units": 1, "waited_seconds": 2.25},
        "lease granted    3f9a12cd  sim-a  1 unit  waited 2.2 s",
    ),
    (
        "lease.queued",
        ID,
        LEASE | {"units": 3, "position": 2},
        "lease queued     3f9a12cd  sim-a  3 units  position 2 in the queue",
    ),
    (
        "lease.limit_changed",
        "lease-pool/gecko%2Fsim-a",
        {"lease_pool_id": "sim-a", "limit": 40, "previous_limit": 60, "reason": "r"},
        "lease limit_changed  gecko/sim-a  limit 60 → 40  r",
    ),
    (
        "alert.raised",
        "key",
        {"subject_id": "sim-a", "kind": "odd", "summary": "it is odd", "command": "slipway doctor"},
        "alert raised     sim-a     odd  it is odd  → slipway doctor",
    ),
    (
        "alert.resolved",
        "key",
        {"subject_id": "sim-a", "kind": "odd", "summary": "", "command": "slipway doctor"},
        "alert resolved   sim-a     odd",
    ),
    (
        "weight.changed",
        "zone-b",
        {"weight": 0.51234, "state": "tripped", "reason": "2 errors"},
        "weight changed   zone-b    0.5123  tripped  2 errors",
    ),
    ("newer.thing_happened", "x", {"worker_id": ID, "size": 3, "parts": [1]}, "newer thing_happened  x         size=3"),
]


@pytest.mark.parametrize(("type_", "subject", "data", "line"), CASES, ids=[case[0] for case in CASES])
def test_line(type_: str, subject: str, data: dict[str, Any] | None, line: str) -> None:
    text = lines.line(f"io.slipway.{type_}.v1", AT, subject, data, now=NOW, short=lambda id_: id_[-8:])
    assert text == f"14:03:07  {line}"


@pytest.mark.parametrize("type_", EVENT_OF)
def test_every_registered_type_has_a_line(type_: str) -> None:
    assert lines.line(type_, AT, "subject", {}, now=NOW, short=str).startswith("14:03:07  ")


def test_an_unregistered_type() -> None:
    text = lines.line("com.example.thing", AT, "s", {"size": 3}, now=NOW, short=str)
    assert text == "14:03:07  com.example.thing  s         size=3"


def test_untrusted_text_in_tables_is_sanitized() -> None:
    data = WORKER | {"kind": "disk\x1b[2J", "detail": "full\r\n\u202eof\x9b it"}
    text = lines.line("io.slipway.worker.error_reported.v1", AT, "w\x1b", data, now=NOW, short=str)
    assert text == "14:03:07  error_reported   w�        disk�[2J: full���of� it  zone-b"


@pytest.mark.parametrize("data", [[1, 2], "text", 5, {"boot_seconds": "soon", "until": "nonsense", "kind": 5}])
@pytest.mark.parametrize("type_", ["io.slipway.worker.reborn.v1", "io.slipway.alert.raised.v2", "com.example.thing"])
def test_data_of_an_unknown_type_may_be_anything(type_: str, data: Any) -> None:
    assert lines.line(type_, AT, "s", data, now=NOW, short=str).startswith("14:03:07  ")
