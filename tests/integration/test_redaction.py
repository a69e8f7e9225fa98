"""Secrets in what providers, machines, monitors and errors say: they are in no row, no event and no log.

Records of topics are rows of the outbox before they are sent.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from slipway_api.events.lease import LeaseRequested
from slipway_api.events.signal import SignalRaised
from slipway_common.base.errors import BadEvent
from slipway_common.database.postgres import Database
from slipway_common.observability import telemetry
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain import planning
from slipway_provisioner.domain.registration import RegistrationKeys
from slipway_provisioner.providers.port import OutcomeUnknown, Refused
from slipway_weight_calculator.handlers import names
from tests.support.provisioner import KEY, Provisioner, after, report, revision_id
from tests.support.provisioner import declared as declaration
from tests.support.weight_calculator import START, calculator_on, declared

# What is said, and the part of it that must not be told to anybody else.
SAID: Final = [
    ("request signed with AKIAIOSFODNN7EXAMPLE was denied", "AKIAIOSFODNN7EXAMPLE"),
    ("secret wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY is wrong", "bPxRfiCYEXAMPLEKEY"),
    ("401 for Authorization: Bearer s3cr3t.t0ken", "s3cr3t.t0ken"),
    ("cannot connect to postgresql://slipway:hunter2@db.example/slipway", "hunter2"),
    ('user data {"token": "correct-horse", "zone": "b"} is too long', "correct-horse"),
    ("rejected credential=battery-staple of account sim-a", "battery-staple"),
]
# Columns of dead letters that hold the bytes of the record, which a replay needs.
RAW: Final = {"dead_letter": {"key", "value", "headers", "subject"}}


@pytest.fixture(params=SAID, ids=[part for _, part in SAID])
def said(request: pytest.FixtureRequest) -> tuple[str, str]:
    text, part = request.param
    assert part in text
    return text, part


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """Lines that were logged in the block, as they are written."""
    lines: list[str] = []
    with capture_logs() as entries:
        yield lines
    lines += [telemetry.written({**entry, "logger": "slipway_test"}) for entry in entries]


async def stored(database: Database) -> dict[str, str]:
    """Text of every table: the rows with all their columns, the outbox with the records of all topics."""
    tables = await database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    found = {}
    for (table,) in tables:
        rows = await database.fetch(f'SELECT * FROM "{table}"')
        found[table] = "\n".join(text(row, RAW.get(table, set())) for row in rows)
    return found


def text(row: Mapping[str, Any], left_out: set[str]) -> str:
    values = [value for name, value in row.items() if name not in left_out]
    return " ".join(value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in values)


def signal(kind: str, target_kind: str, target_id: str, reason: str, **changes: Any) -> SignalRaised:
    usual: dict[str, Any] = {"source": "status-page", "observed_at": after(0), "ttl_seconds": 600.0}
    return SignalRaised(kind=kind, target_kind=target_kind, target_id=target_id, reason=reason, **(usual | changes))


async def round_of(provisioner: Provisioner, pending: int) -> None:
    """One more task, and the launch that it causes."""
    await provisioner.set_clock(pending)
    await provisioner.demand(report(pending, at=pending))
    await provisioner.plan()
    await provisioner.leases(*[provisioner.granted(request) for request in await provisioner.published(LeaseRequested)])
    await provisioner.launch()


async def test_what_providers_and_machines_say(
    provisioner: Provisioner, said: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused calls, calls without an outcome, failing listings, errors of machines, a bug, and signals."""
    said_text, part = said
    config = {"id": revision_id(), "instance_type": "m5.large", "zone": "zone-a", "image": "linux-1"}
    account: Any = None  # of no account: the failure is charged to the config
    unclassified = provisioner.cloud.failure(account, config, f"Unheard: {said_text}", None, said_text)
    failures: tuple[Exception, ...] = (
        Refused(unclassified, said_text),
        OutcomeUnknown(said_text),
        RuntimeError(said_text),
    )
    assert [part in str(failure) for failure in failures] == [False, False, True]
    await provisioner.declare(declaration("zone-a", "zone-b"))
    await provisioner.trust()
    with logged() as lines:
        for pending, failure in enumerate((*failures, None), 1):
            if failure is not None:
                provisioner.cloud.script.append(failure)
            await round_of(provisioner, pending)
        worker = next(worker for worker in await provisioner.workers() if worker.instance_id)
        answer = await provisioner.register(worker.instance_id or "", worker.batch_id)
        async with provisioner.client(token=answer.json()["token"]) as client:
            error = {"kind": said_text, "detail": f"Traceback:\n  {said_text}\n"}
            assert (await client.post(f"/workers/{worker.id}/error", json=error)).status_code == 200
        await provisioner.signals(
            signal("pause_request", "config", "zone-a", said_text),
            signal("spot_interruption", "worker", worker.id, said_text),
        )

        async def failing(*_: Any) -> str:
            raise OutcomeUnknown(said_text)

        def mistaken(*_: Any, **__: Any) -> planning.Plan:
            raise ValueError(said_text)

        monkeypatch.setattr(provisioner.cloud, "identity", failing)
        await provisioner.reap()
        monkeypatch.setattr(planning, "plan", mistaken)
        await round_of(provisioner, 9)
    rows = await stored(provisioner.database)
    found = {table: content for table, content in rows.items() if part in content} | {
        f"log {number}": line for number, line in enumerate(lines) if part in line
    }
    assert found == {}
    secret = RegistrationKeys(KEY).secret(worker.batch_id or "")
    assert [table for table, content in (rows | {"log": str(lines)}).items() if secret in content] == []
    # Each of them was written, without the secret.
    words = said_text.partition(" ")[0]
    for table, at_least in (("outbox", 5), ("launch_config_name", 1), ("worker", 1)):
        assert rows[table].count(words) >= at_least, (table, rows[table])
    assert sum(words in line for line in lines) >= 4, lines


async def test_what_monitors_say(
    postgres: EmbeddedPostgres, said: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signals that take effect, refused ones, and dead letters."""
    said_text, part = said
    async with calculator_on(postgres) as calculator:
        await calculator.consume(declared("zone-a"))
        with logged() as lines:
            await calculator.consume(signal("degraded", "config", "zone-a", said_text, value=0.5, observed_at=START))
            await calculator.consume(signal("degraded", "config", "elsewhere", said_text, value=0.5, observed_at=START))

            def refusing(*_: str) -> None:
                raise BadEvent(said_text)

            monkeypatch.setattr(names, "check", refusing)
            await calculator.consume(signal("degraded", "config", "zone-a", "other", observed_at=START))
        rows = await stored(calculator.database)
    found = {table: content for table, content in rows.items() if part in content}
    assert found | {str(number): line for number, line in enumerate(lines) if part in line} == {}
    for table in ("signal", "refused_signal", "dead_letter"):
        assert said_text.partition(" ")[0] in rows[table], table
