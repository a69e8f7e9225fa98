"""Retention of the provisioner's tables."""

from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import array

from slipway_api.events.lifecycle import ENDED
from slipway_api.events.scopes import REVISION_KEPT_SECONDS
from slipway_common.database.retention import (
    HISTORY_DAYS,
    Bounded,
    Retention,
    Rule,
    delete_ended,
    delete_oldest,
    older,
    unused_by,
)
from slipway_common.database.sql import Statement
from slipway_provisioner.domain.launching import BatchState, LeaseState
from slipway_provisioner.domain.workspaces import Phase
from slipway_provisioner.store.functions import KEYS
from slipway_provisioner.store.tables import (
    account,
    claim,
    console_output,
    decision,
    demand,
    dirty_pool,
    in_states,
    launch_batch,
    launch_config,
    launch_stop,
    lease,
    orphan_instance,
    pool_revision,
    shared_usage,
    shared_window,
    spend_usage,
    unreachable_machine,
    worker,
    worker_error,
    worker_error_hour,
    worker_pool,
    workspace,
    workspace_document,
    workspace_listing,
)

REVISIONS_MAX: Final = 100
"""Revisions of the history of a pool that are stored at most."""
REVISIONS_MIN: Final = 10
"""Revisions of the history of a pool that are kept however old they are."""

DELETE_CLAIMS: Final = Statement(delete_ended(claim, older(claim.c.ended_at), order=[claim.c.ended_at]))
DELETE_ENDED_DEMAND: Final = Statement(delete_ended(demand, older(demand.c.ended_at), order=[demand.c.ended_at]))
# The newest decision of a pool is repeated by equal ones, so that its last time may be recent.
DELETE_DECISIONS: Final = Statement(
    delete_ended(decision, older(decision.c.at), older(decision.c.last_at), order=[decision.c.at])
)
DELETE_ERRORS: Final = Statement(delete_oldest(worker_error, worker_error.c.at, order=worker_error.c.id))
DELETE_ERROR_HOURS: Final = Statement(
    delete_ended(worker_error_hour, older(worker_error_hour.c.hour), order=[worker_error_hour.c.hour])
)
DELETE_CONSOLES: Final = Statement(
    delete_ended(console_output, older(console_output.c.requested_at), order=[console_output.c.requested_at])
)
DELETE_WORKERS: Final = Statement(
    delete_ended(worker, in_states(ENDED), older(worker.c.ended_at), order=[worker.c.ended_at])
)
# A batch outlives its instances: the instance reaper terminates none of an unknown batch.
DELETE_BATCHES: Final = Statement(
    delete_ended(
        launch_batch,
        launch_batch.c.state == BatchState.KNOWN,
        older(launch_batch.c.known_at),
        unused_by(worker.c.batch_id == launch_batch.c.id),
        unused_by(unreachable_machine.c.batch_id == launch_batch.c.id),
        unused_by(orphan_instance.c.batch_id == sa.cast(launch_batch.c.id, sa.Text)),
        order=[launch_batch.c.known_at],
    )
)
DELETE_LEASES: Final = Statement(
    delete_ended(lease, lease.c.state == LeaseState.ENDED, older(lease.c.renewed_at), order=[lease.c.renewed_at])
)
DELETE_UNREACHABLE: Final = Statement(
    delete_ended(unreachable_machine, older(unreachable_machine.c.since), order=[unreachable_machine.c.worker_id])
)
DELETE_STOPS: Final = Statement(
    delete_ended(launch_stop, older(launch_stop.c.until), order=[launch_stop.c.scope, launch_stop.c.scope_id])
)
DELETE_MARKS: Final = Statement(
    delete_ended(dirty_pool, unused_by(worker_pool.c.id == dirty_pool.c.pool_id), order=[dirty_pool.c.id])
)
_KEYS: Final = [launch_config.c[key] for key in KEYS]
_SHARE: Final = shared_window.c.key
_ARCHIVED: Final = launch_config.c.state == "archived"
_KINDS: Final = {"subnet_key": "quota/"}


def _no_other(name: str) -> sa.ColumnElement[bool]:
    """Condition that no revision that is not archived has the key of a share in this column.

    The first key from that one on is always read by an index: of an equal one the server may expect that any row has
    it, and read all to find none."""
    key = launch_config.c[name]
    first = sa.select(sa.func.min(key)).where(key >= _SHARE, ~_ARCHIVED).scalar_subquery()
    kind = _KINDS.get(name, f"{name.removesuffix('_key')}/")
    return sa.or_(~sa.func.starts_with(_SHARE, sa.literal_column(f"'{kind}'")), first.is_distinct_from(_SHARE))


# Also those that a record brings back which was published before the launch config was deleted. Archived revisions,
# whose keys are in no index, are read only for a key that no other one has.
DELETE_SHARES: Final = Statement(
    delete_ended(
        shared_window,
        sa.case(
            (sa.and_(*map(_no_other, KEYS)), _SHARE.not_in(sa.select(sa.func.unnest(array(_KEYS))).where(_ARCHIVED))),
            else_=sa.false(),
        ),
        order=[_SHARE, shared_window.c.stage],
    )
)
# They add up to zero: live workers and outcomes have the keys of their launch config.
DELETE_SHARED_USAGE: Final = Statement(
    delete_ended(shared_usage, unused_by(shared_window.c.key == shared_usage.c.key), order=[shared_usage.c.key])
)
# A row that also counts live machines is folded with that of their end.
DELETE_SPEND: Final = Statement(
    delete_ended(spend_usage, spend_usage.c.live == 0, older(spend_usage.c.at), order=[spend_usage.c.at])
)
_NEWER: Final = sa.func.row_number().over(
    partition_by=pool_revision.c.pool_id, order_by=pool_revision.c.revision.desc()
)
_RANKED: Final = sa.select(
    pool_revision.c.pool_id, pool_revision.c.revision, pool_revision.c.at, _NEWER.label("place")
).subquery("ranked")
DELETE_REVISIONS: Final = Statement(
    delete_ended(
        pool_revision,
        sa.tuple_(pool_revision.c.pool_id, pool_revision.c.revision).in_(
            sa.select(_RANKED.c.pool_id, _RANKED.c.revision).where(
                (_RANKED.c.place > REVISIONS_MAX) | ((_RANKED.c.place > REVISIONS_MIN) & older(_RANKED.c.at))
            )
        ),
        order=[pool_revision.c.pool_id, pool_revision.c.revision],
    )
)
_GONE: Final = workspace.c.phase == Phase.GONE
DELETE_DOCUMENTS: Final = Statement(
    delete_ended(
        workspace_document,
        unused_by(workspace.c.id == workspace_document.c.workspace_id, ~(_GONE & older(workspace.c.ended_at))),
        order=[workspace_document.c.workspace_id, workspace_document.c.kind, workspace_document.c.number],
    )
)
DELETE_WORKSPACES: Final = Statement(
    delete_ended(
        workspace,
        _GONE,
        older(workspace.c.ended_at),
        unused_by(workspace_document.c.workspace_id == workspace.c.id),
        order=[workspace.c.ended_at],
    )
)
DELETE_ACCOUNTS: Final = Statement(
    delete_ended(
        account,
        account.c.removed,
        account.c.protected == sa.text("'{}'"),
        unused_by(workspace.c.account_id == account.c.id, ~_GONE),
        account.c.findings == sa.text("'[]'"),
        unused_by(launch_config.c.account_id == account.c.id),
        unused_by(worker.c.account_id == account.c.id, ~in_states(ENDED)),
        unused_by(unreachable_machine.c.account_id == account.c.id),
        order=[account.c.id],
    )
)

DELETE_LISTINGS: Final = Statement(
    delete_ended(
        workspace_listing,
        unused_by(account.c.id == workspace_listing.c.account_id),
        order=[workspace_listing.c.account_id],
    )
)

ROLL_OUT: Final = "roll-out"
REVISION_DAYS: Final = REVISION_KEPT_SECONDS / 86_400
WITH_REVISION: Final = "the end of the last worker of the revision"
ONE_NAME: Final = "the revisions of one launch config"
RETENTION: Final[Retention] = (
    Bounded("deployment", "one row"),
    Bounded("deadline_pass", "one row"),
    Bounded("launch_stop_guard", "one row"),
    Rule(
        table="account",
        rows="removed accounts without launch configs, live workers, workspaces, and machines that may still run",
        after="the end of the last of these",
        delete=DELETE_ACCOUNTS,
        used_by=("unreachable_machine",),
    ),
    Rule(
        table="worker_pool",
        rows="removed pools without launch configs and demand, with their history",
        after="the removal",
        days=REVISION_DAYS,
        loop=ROLL_OUT,
        chunk="one",
    ),
    Rule(
        table="pool_revision",
        rows=f"history of a pool, except the newest {REVISIONS_MIN}; beyond the newest {REVISIONS_MAX} at once",
        after="the change",
        days=HISTORY_DAYS,
        delete=DELETE_REVISIONS,
    ),
    Rule(
        table="launch_config",
        rows="archived revisions of launch configs",
        after=WITH_REVISION,
        days=REVISION_DAYS,
        loop=ROLL_OUT,
        chunk=ONE_NAME,
    ),
    Rule(
        table="launch_config_name",
        rows="names that are not declared",
        after="the deletion of the last revision of the launch config",
        loop=ROLL_OUT,
        chunk="one",
    ),
    Rule(
        table="refused_pause",
        rows="sources with more pause requests than their share of a pool",
        after="the end of the last pause that was refused",
        loop="expire",
        chunk="200 rows",
    ),
    Rule(
        table="launch_config_outcomes",
        rows="outcomes of archived revisions",
        after=WITH_REVISION,
        days=REVISION_DAYS,
        loop=ROLL_OUT,
        chunk=ONE_NAME,
    ),
    Rule(
        table="weight",
        rows="weights of archived revisions",
        after=WITH_REVISION,
        days=REVISION_DAYS,
        loop=ROLL_OUT,
        chunk=ONE_NAME,
    ),
    Rule(
        table="shared_window",
        rows="shares of keys that no launch config has",
        after="the deletion of the last revision that has the key, or the change of its key",
        delete=DELETE_SHARES,
    ),
    Rule(
        table="config_usage",
        rows="counters of archived revisions; those of others are folded",
        after=WITH_REVISION,
        days=REVISION_DAYS,
        loop=ROLL_OUT,
        chunk=ONE_NAME,
    ),
    Rule(
        table="shared_usage",
        rows="counters of keys that no launch config has; those of others are folded",
        after="the deletion of the key's shared windows",
        delete=DELETE_SHARED_USAGE,
    ),
    Rule(
        table="spend_usage",
        rows="counters of machines that have ended; those of others are folded",
        after="the five minutes in which they began or ended",
        days=7,
        delete=DELETE_SPEND,
    ),
    Bounded("forgiven", "one row per pool and share that the newest unfreezing of the pool forgave"),
    Bounded("pool_balance", "one row per pool"),
    Bounded("waiting_pool", "one row per pool and shared window that cut its last plan"),
    Bounded("launch_limit", "one row per account and pool that declares limits"),
    Rule(table="launch_stop", rows="lapsed launch stops", after="the stop's end", days=7, delete=DELETE_STOPS),
    # No report from before the end of its source, which may be read again, is valid by then.
    Rule(
        table="demand",
        rows="sources of demand that have ended",
        after="the end of the source",
        days=7,
        delete=DELETE_ENDED_DEMAND,
    ),
    Rule(
        table="dirty_pool",
        rows="marks of pools that are deleted; the decision that a mark causes deletes it otherwise",
        after="the deletion of the pool",
        delete=DELETE_MARKS,
    ),
    Bounded("lease_request", "one row per request that waits for its answer"),
    Rule(
        table="lease",
        rows="ended leases",
        after="the lease's last renewal",
        days=14,
        delete=DELETE_LEASES,
    ),
    Bounded("unleased_pace", "one row per lease pool that an account names"),
    Bounded("provider_bucket", "one row per identity and region that an account named, and group of calls"),
    Rule(table="worker", rows="ended workers", after="the worker's end", days=14, delete=DELETE_WORKERS),
    Rule(
        table="launch_batch",
        rows="launch batches without workers, unreachable machines and orphan instances",
        after="the outcome of the call",
        days=14,
        delete=DELETE_BATCHES,
        used_by=("worker", "unreachable_machine"),
    ),
    Rule(
        table="workspace_document",
        rows="states of workspaces that are gone, also rejected ones",
        after="the destruction of the workspace's last resource",
        days=14,
        delete=DELETE_DOCUMENTS,
    ),
    Rule(
        table="workspace",
        rows="workspaces that are gone",
        after="the destruction of the workspace's last resource",
        days=14,
        delete=DELETE_WORKSPACES,
        used_by=("workspace_document",),
    ),
    Rule(
        table="workspace_listing",
        rows="listings of the resources of accounts that are deleted",
        after="the deletion of the account",
        delete=DELETE_LISTINGS,
    ),
    Rule(table="claim", rows="ended claims", after="the claim's end", days=1, delete=DELETE_CLAIMS),
    Rule(
        table="decision", rows="decisions", after="the last repetition of the decision", days=7, delete=DELETE_DECISIONS
    ),
    Rule(
        table="unreachable_machine",
        rows="machines that may still run in retired accounts",
        after="the retirement of the account; at once after a pass over the account that does not list them",
        days=400,
        delete=DELETE_UNREACHABLE,
    ),
    Rule(
        table="orphan_instance",
        rows="orphan instances",
        after="a pass over the account that does not list the instance",
        loop="reap",
        chunk="those of one account",
    ),
    Rule(
        table="missing_instance",
        rows="missing instances",
        after="a pass over the account that lists the instance, or the loss of its worker",
        loop="reap",
        chunk="those of one account",
    ),
    Rule(
        table="console_output",
        rows="console output of machines that never registered",
        after="the failure of the machine",
        days=14,
        delete=DELETE_CONSOLES,
    ),
    Rule(table="worker_error", rows="errors of workers", after="the error", days=14, delete=DELETE_ERRORS),
    Rule(
        table="worker_error_hour",
        rows="numbers of errors per launch config, code and hour",
        after="the hour",
        days=HISTORY_DAYS,
        delete=DELETE_ERROR_HOURS,
    ),
    Rule(
        table="downtime",
        rows="downtimes",
        after="the downtime",
        days=30,
        loop="expire",
        chunk="those of one pass",
    ),
)
