"""Table of console output."""

from sqlalchemy import Column, Index, Integer, MetaData, Table, Text, text
from sqlalchemy.dialects.postgresql import JSONB

from slipway_common.database.tables import TIME, now, uuid
from slipway_provisioner.store.columns import ZERO, empty_text, required


def console_table(metadata: MetaData) -> Table:
    """Console output of one machine of an image that failed to register, fetched when it is due, once per image."""
    table = Table(
        "console_output",
        metadata,
        Column("image_revision", Text, primary_key=True),
        required("account_id", Text),
        required("pool_id", Text),
        required("launch_config_id", Text),
        uuid("batch_id", nullable=False),
        uuid("worker_id", nullable=False),
        required("instance_id", Text),
        required("reason", Text),
        now("requested_at"),
        Column("due_at", TIME, server_default=text("slipway_clock()")),
        required("attempts", Integer, server_default=ZERO),
        Column("settled_at", TIME),
        Column("resolved_at", TIME),
        required("lines", JSONB, server_default=text("'[]'")),
        empty_text("problem"),
    )
    Index("console_output_due", table.c.due_at, postgresql_where=table.c.due_at.is_not(None))
    Index("console_output_requested", table.c.requested_at)
    return table
