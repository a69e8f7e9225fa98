"""Tables of the admission of launches: leases and their requests, token buckets, and safety limits."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

from slipway_common.database.tables import TIME, now
from slipway_provisioner.domain.launching import LeaseState
from slipway_provisioner.store.columns import ZERO, empty_text, literals, required


def admission_tables(metadata: MetaData) -> tuple[Table, Table, Table, Table, Table]:
    """Add the tables, in the order in which they are returned: requests, leases, the pace of unleased launches, token
    buckets of providers, and safety limits."""
    lease_request = Table(
        "lease_request",
        metadata,
        Column("id", Text, primary_key=True),
        required("lease_pool_id", Text),
        required("pool_id", Text),
        required("launch_config_id", Text),
        required("units", Integer),
        now("sent_at"),
        required("traceparent", Text),
    )
    Index("lease_request_sent", lease_request.c.sent_at)
    lease = Table(
        "lease",
        metadata,
        Column("id", Text, primary_key=True),
        required("request_id", Text),
        required("lease_pool_id", Text),
        required("launch_config_id", Text),
        required("fencing_token", BigInteger),
        required("units", Integer),
        required("state", Text, CheckConstraint(f"state IN ({literals(LeaseState)})")),
        required("expires_at", TIME),
        required("hold_until", TIME),
        Column("ttl_seconds", Double),
        now("renewed_at"),
        required("traceparent", Text),
        required("granted_units", Integer, server_default=ZERO),  # 0: an unleased launch
        now("granted_at"),
    )
    Index("lease_live", lease.c.renewed_at, postgresql_where=lease.c.state != LeaseState.ENDED)
    Index("lease_ttl", lease.c.ttl_seconds, postgresql_where=lease.c.state != LeaseState.ENDED)
    Index("lease_ended", lease.c.renewed_at, postgresql_where=lease.c.state == LeaseState.ENDED)
    Index("lease_granted", lease.c.lease_pool_id, lease.c.granted_at, postgresql_where=text("granted_units > 0"))
    unleased_pace = Table(
        "unleased_pace",
        metadata,
        Column("lease_pool_id", Text, primary_key=True),
        Column("next_at", TIME),  # earliest time of the next unleased launch
    )

    # Token bucket of a provider's API, per identity, region and group of calls. One that is full is as good as none.
    provider_bucket = Table(
        "provider_bucket", metadata, Column("bucket", Text, primary_key=True), required("full_at", TIME)
    )

    # Safety limits of an account or a pool that declares some. Every start and repeat of a call under them locks the
    # row. `alerted`: the limit that was reached, and `limited_at`: when it last stopped a launch. `forgotten`: launches
    # and spend that a restored database is assumed to have lost, since then.
    launch_limit = Table(
        "launch_limit",
        metadata,
        Column("scope", Text, CheckConstraint("scope IN ('account', 'pool')")),
        Column("scope_id", Text),
        Column("launches_per_hour", Integer),
        Column("spend_per_day", Numeric),
        required("lifetime_seconds", Double),
        Column("default_price", Numeric),
        empty_text("alerted"),
        Column("limited_at", TIME),
        Column("forgotten_at", TIME),
        required("forgotten_launches", Integer, server_default=ZERO),
        required("forgotten_spend", Numeric, server_default=ZERO),
        PrimaryKeyConstraint("scope", "scope_id"),
    )
    return lease_request, lease, unleased_pace, provider_bucket, launch_limit
