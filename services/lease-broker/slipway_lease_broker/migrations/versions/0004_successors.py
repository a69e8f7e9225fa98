"""Whether a lease was replaced: its age is given on once."""

from alembic import op

from slipway_common.migrate import execute

revision = "0004"
down_revision = "0003"

TABLES = """
ALTER TABLE leases ADD replaced boolean NOT NULL DEFAULT false;
UPDATE leases SET replaced = true WHERE reason = 'replaced';
"""


def upgrade() -> None:
    execute(op, TABLES)
