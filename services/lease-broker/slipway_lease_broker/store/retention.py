"""Retention of the lease-broker's tables.

No rule needs the lock of a lease pool: what has ended is not written any more, with two exceptions. A request that is
repeated is locked before it is read; a tenant, a group or a gang that is used again is written as a whole.
"""

from typing import Final

from sqlalchemy import exists, func, or_

from slipway_common.database.retention import (
    AGE,
    Bounded,
    Retention,
    Rule,
    delete_ended,
    delete_oldest,
    older,
    unused_by,
)
from slipway_common.database.sql import Statement
from slipway_lease_broker.store.tables import (
    ENDED_REQUEST,
    WAITING,
    entry,
    gang,
    group,
    lease,
    request,
    slot_request,
    tenant,
)

ENDED: Final = "ended_kept_days"
ENDED_DAYS: Final = 8.0
DELETE_LEASES: Final = Statement(delete_ended(lease, older(lease.c.ended_at), order=[lease.c.ended_at]))
# With a lease left, a repeated request could be granted twice.
DELETE_REQUESTS: Final = Statement(
    delete_ended(
        request,
        ENDED_REQUEST,
        older(request.c.last_requested_at),
        unused_by(lease.c.lease_pool_id == request.c.lease_pool_id, lease.c.request_id == request.c.id),
        order=[request.c.last_requested_at],
    )
)
DELETE_ENTRIES: Final = Statement(delete_oldest(entry, entry.c.at, order=entry.c.id))
# A tenant's service beyond virtual time is lost with its row: at most that of its last grant, since that started at
# virtual time, which never decreases.
DELETE_TENANTS: Final = Statement(
    delete_ended(
        tenant,
        or_(tenant.c.failures == 0, older(tenant.c.backoff_until)),
        or_(tenant.c.held_back_until.is_(None), older(tenant.c.held_back_until)),
        ~exists().where(
            request.c.lease_pool_id == tenant.c.lease_pool_id, request.c.tenant == tenant.c.tenant, WAITING
        ),
        order=[tenant.c.lease_pool_id, tenant.c.tenant],
    )
)
# A group is needed while its spread lasts, and after its last start: both decide when its next member may start.
DELETE_GROUPS: Final = Statement(
    delete_ended(
        group,
        older(func.greatest(group.c.first_at, group.c.last_start_at), func.greatest(group.c.spread_seconds, AGE)),
        ~exists().where(
            request.c.lease_pool_id == group.c.lease_pool_id, request.c.group_name == group.c.name, WAITING
        ),
        order=[group.c.lease_pool_id, group.c.name],
    )
)
DELETE_GANGS: Final = Statement(
    delete_ended(gang, older(gang.c.last_requested_at), unused_by(request.c.gang_id == gang.c.id), order=[gang.c.id])
)
_SLOT_REQUEST: Final = slot_request.c
DELETE_SLOT_REQUESTS: Final = Statement(
    delete_ended(
        slot_request,
        older(_SLOT_REQUEST.last_requested_at),
        order=[_SLOT_REQUEST.lease_pool_id, _SLOT_REQUEST.state, _SLOT_REQUEST.owner, _SLOT_REQUEST.id],
    )
)

RETENTION: Final[Retention] = (
    Bounded("lease_pools", "one row per name ever declared: its fencing tokens must never start again"),
    Bounded("reception", "one row per partition of the lease requests, and one for HTTP"),
    Bounded("slots", "one row per declared slot"),
    Rule(
        table="leases",
        rows="ended leases",
        after="the lease's end",
        days=ENDED_DAYS,
        setting=ENDED,
        delete=DELETE_LEASES,
    ),
    Rule(
        table="requests",
        rows="granted, cancelled and lapsed requests without a lease",
        after="the request's last repetition",
        days=ENDED_DAYS,
        setting=ENDED,
        delete=DELETE_REQUESTS,
        used_by=("leases",),
    ),
    Rule(
        table="history",
        rows="history of leases and lease pools",
        after="the entry",
        days=ENDED_DAYS,
        setting=ENDED,
        delete=DELETE_ENTRIES,
    ),
    Rule(
        table="tenants",
        rows="tenants without waiting requests",
        after="the last backoff after a failure; at once without one",
        days=ENDED_DAYS,
        setting=ENDED,
        delete=DELETE_TENANTS,
    ),
    Rule(
        table="groups",
        rows="groups without waiting requests",
        after="the group's last start, and not before its spread has passed",
        days=ENDED_DAYS,
        setting=ENDED,
        delete=DELETE_GROUPS,
    ),
    Rule(
        table="gangs",
        rows="gangs without requests",
        after="the gang's last repetition",
        days=ENDED_DAYS,
        setting=ENDED,
        delete=DELETE_GANGS,
        used_by=("requests",),
    ),
    Rule(
        table="slot_requests",
        rows="requests for slots",
        after="the request's last repetition",
        days=ENDED_DAYS,
        setting=ENDED,
        delete=DELETE_SLOT_REQUESTS,
    ),
)
