"""Tables of errors that workers report."""

from sqlalchemy import BigInteger, Column, Identity, Index, Integer, MetaData, PrimaryKeyConstraint, Table, Text

from slipway_common.database.tables import TIME, now, uuid
from slipway_provisioner.store.columns import empty_text, required


def error_tables(metadata: MetaData) -> tuple[Table, Table]:
    """Errors with their samples, and their number per launch config, code and hour (UTC), which also counts those that
    are not stored."""
    error = Table(
        "worker_error",
        metadata,
        Column("id", BigInteger, Identity(always=True), primary_key=True),
        now("at"),
        uuid("worker_id", nullable=False),
        required("pool_id", Text),
        required("launch_config_id", Text),
        required("image_revision", Text),
        required("code", Text),
        empty_text("sample"),
    )
    Index("worker_error_worker", error.c.worker_id, error.c.at)
    Index("worker_error_config", error.c.launch_config_id, error.c.at)
    hour = Table(
        "worker_error_hour",
        metadata,
        Column("launch_config_id", Text),
        Column("code", Text),
        Column("hour", TIME),
        required("pool_id", Text),
        required("number", Integer),
        PrimaryKeyConstraint("launch_config_id", "code", "hour"),
    )
    Index("worker_error_hour_hour", hour.c.hour)
    return error, hour
