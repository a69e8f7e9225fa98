"""Tables of instances without a worker, and of workers without an instance, as the instance reaper finds them."""

from sqlalchemy import CheckConstraint, Column, Index, MetaData, PrimaryKeyConstraint, Table, Text, text

from slipway_common.database.tables import TIME, now, uuid
from slipway_provisioner.store.columns import required


def instance_tables(metadata: MetaData) -> tuple[Table, Table, Table]:
    """Add the tables, in the order in which they are returned: unreachable machines, orphan and missing instances."""
    # Machines that may still run in a retired account: those of stopping workers, and one for each intent of an unknown
    # call, without an instance id. A reaper pass over the account deletes what it does not list.
    unreachable_machine = Table(
        "unreachable_machine",
        metadata,
        uuid("worker_id", primary_key=True),
        required("account_id", Text),
        required("pool_id", Text),
        required("launch_config_id", Text),
        uuid("batch_id"),
        Column("instance_id", Text),
        now("since"),
    )
    Index("unreachable_machine_account", unreachable_machine.c.account_id)
    Index("unreachable_machine_batch", unreachable_machine.c.batch_id)
    # Orphan instances that wait for a person, as of the newest pass of the instance reaper, and what was decided.
    orphan_instance = Table(
        "orphan_instance",
        metadata,
        Column("account_id", Text),
        Column("instance_id", Text),
        required("batch_id", Text),
        required("launch_config_id", Text),
        required("created_at", TIME),
        now("found_at"),
        required("reason", Text),
        required(
            "decision", Text, CheckConstraint("decision IN ('', 'leave', 'terminate')"), server_default=text("''")
        ),
        PrimaryKeyConstraint("account_id", "instance_id"),
    )
    Index("orphan_instance_batch", orphan_instance.c.batch_id)
    # Workers whose instance was not listed in the newest pass of the instance reaper over the account.
    missing_instance = Table(
        "missing_instance",
        metadata,
        uuid("worker_id", primary_key=True),
        required("account_id", Text),
        now("found_at"),
    )
    Index("missing_instance_account", missing_instance.c.account_id)
    return unreachable_machine, orphan_instance, missing_instance
