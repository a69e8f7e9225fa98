"""Coverage of the rules of retention: of each table with a rule, rows were written by the day, and are still there in
month 4 if the rule keeps them for days. A table that stays empty needs a reason."""

from collections.abc import Iterable, Mapping
from typing import Final

from slipway_common.database.postgres import Connection, Database, schema_of
from slipway_common.database.retention import Bounded, Retention, Rule
from slipway_common.messaging.retention import RETENTION as MESSAGING
from slipway_lease_broker.store.retention import RETENTION as LEASE_BROKER
from slipway_provisioner.store.retention import RETENTION as PROVISIONER
from slipway_weight_calculator.store.retention import RETENTION as WEIGHT_CALCULATOR

RETENTION: Final[Mapping[str, Retention]] = {
    "provisioner": (*MESSAGING, *PROVISIONER),
    "weight-calculator": (*MESSAGING, *WEIGHT_CALCULATOR),
    "lease-broker": (*MESSAGING, *LEASE_BROKER),
}
"""Rules of all tables, by service."""
REASONS: Final[Mapping[str, str]] = {
    "provisioner.unreachable_machine": "the account of the day answers again, and the next pass over it deletes them",
}
"""Tables that are empty in month 4 although their rule keeps rows for days, and why."""
# A session reports what it has inserted with its next statement that is not within a second of the last report.
REPORT: Final = "SELECT pg_stat_force_next_flush()"
INSERTED: Final = """
SELECT schemaname || '.' || relname AS name, n_tup_ins AS rows FROM pg_stat_user_tables
WHERE schemaname = ANY($1::text[])"""


async def inserted(db: Connection, databases: Iterable[Database]) -> dict[str, int]:
    """Rows that were ever inserted, by table. `databases` have inserted them, each by one session."""
    for database in databases:
        await database.execute(REPORT)
    rows = await db.fetch(INSERTED, [schema_of(service) for service in RETENTION])
    return {row["name"]: row["rows"] for row in rows}


def rules() -> dict[str, Rule | Bounded]:
    """The rule of each table, or the reason why it needs none."""
    return {f"{schema_of(service)}.{row.table}": row for service, rows in RETENTION.items() for row in rows}


def empty(written: Mapping[str, int], early: Mapping[str, int]) -> dict[str, str]:
    """Reasons of the tables that have no rows in month 4; without one, a text is empty."""
    return {name: _reason(name, row, written.get(name, 0)) for name, row in rules().items() if not early.get(name)}


def uncovered(written: Mapping[str, int], early: Mapping[str, int]) -> list[str]:
    """Tables that are empty without a reason, and those with a reason that are not empty."""
    found = empty(written, early)
    return sorted([name for name, reason in found.items() if not reason] + [*(REASONS.keys() - found.keys())])


def _reason(name: str, row: Rule | Bounded, written: int) -> str:
    if isinstance(row, Bounded):
        return row.reason
    if not written:
        return ""
    return REASONS.get(name, "") if row.days else f"{row.rows}, deleted after {row.after}"
