"""Fewer checks and indexes behind each lease: what one costs to write is what a pool can grant. And whether its holder
was heard after the hold."""

from alembic import op

from slipway_common.migrate import execute

revision = "0005"
down_revision = "0004"

# Lease pools are retired, never deleted, and whoever writes a lease or a request holds the lock on its pool's row: what
# these constraints looked up for each row cannot fail. Leases are granted in the order of their tokens, so the index of
# tokens finds the last ones; those that ended are looked for by pruning and by reports, which need no exact index.
TABLES = """
ALTER TABLE leases DROP CONSTRAINT leases_lease_pool_id_fkey;
ALTER TABLE requests DROP CONSTRAINT requests_lease_pool_id_fkey;
DROP INDEX leases_granted;
DROP INDEX leases_ended;
CREATE INDEX leases_ended ON leases USING brin (ended_at);
ALTER TABLE leases ADD heard boolean NOT NULL DEFAULT false;
"""


def upgrade() -> None:
    execute(op, TABLES)
