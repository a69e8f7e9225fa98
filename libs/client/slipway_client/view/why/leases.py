"""Explanations of a lease pool and of a lease."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from slipway_api.http.lease_broker import Lease, LeaseDecision
from slipway_api.http.lease_pools import LeasePool
from slipway_api.http.provisioner.launch_configs import LaunchConfig
from slipway_client.view import moments
from slipway_client.view.phrases import count, either, limit_in_force, queue
from slipway_client.view.why.explanation import NOTHING, Cause, Explanation, explained
from slipway_client.view.why.shared import queued_since, raise_limit

LEASE_STATES: Final = {
    "reserved": "granted, and not confirmed by its holder yet",
    "confirmed": "in use",
    "released": "released",
    "expired": "expired: it was not confirmed in time",
    "lost": "lost: its holder did not renew it in time",
}


def of_lease_pool(pool: LeasePool, configs: Sequence[LaunchConfig], *, now: datetime) -> Explanation:
    """Explain a lease pool. `configs` are all launch configs; those of accounts that it admits to are named."""
    id_, limit = pool.id, limit_in_force(pool)
    blocked = pool.blocked_until
    causes: list[Cause] = []
    if pool.drained_reason is not None:
        causes.append(Cause(text=f"drained: {pool.drained_reason}", remedy=f"`slipway lease undrain {id_} --reason …`"))
    if blocked and blocked > now:
        text = f"backs off for another {moments.spelled((blocked - now).total_seconds())} after a failed start"
        causes.append(Cause(text=text, remedy=f"{NOTHING}: it ends by itself"))
    if pool.held >= limit:
        remedy = raise_limit(pool)
        causes.append(Cause(text=f"limit reached: {queue(pool)}", since=queued_since(pool, now), remedy=remedy))
    elif pool.waiting and not causes:
        remedy = f"{NOTHING}: grants follow the pacing of their operation; "
        remedy += f"`slipway lease set {id_} --pacing … --operation …` changes it"
        causes.append(Cause(text=f"paced: {queue(pool)}", since=queued_since(pool, now), remedy=remedy))
    if pool.pinned_reason is not None:
        text = f"its limit is pinned: {pool.pinned_reason}"
        causes.append(Cause(text=text, remedy=f"`slipway lease unpin {id_} --reason …`"))
    causes_wait = pool.drained_reason is not None or (blocked is not None and blocked > now)
    if not causes:
        causes.append(Cause(text=f"grants at once: {queue(pool)}"))
    waiting = f"{count(pool.waiting, 'unit')} of {count(pool.requests, 'request')} waiting"
    effect = "new requests are granted at once" if pool.held < limit and not causes_wait else "new requests wait"
    effect = waiting if pool.waiting else effect
    accounts = sorted({config.account_id for config in configs if config.lease_pool_id == id_})
    noun = "account" if len(accounts) == 1 else "accounts"
    details = [f"It admits launches to {noun} {either(accounts)}."] if accounts else []
    if pool.mode in ("shadow", "advisory"):
        details.append(f"Its mode is {pool.mode}: requests do not wait, the decisions are only recorded.")
    reasons = pool.reason or ""
    details += [f"Last decision: {reasons.rpartition(chr(10))[2]}."] if reasons else []
    return explained("lease-pool", id_, causes, effect, details)


def of_lease(lease: Lease, history: Sequence[LeaseDecision], *, now: datetime) -> Explanation:
    """Explain a lease. `history` has the decisions about it, oldest first."""
    live = lease.state in ("reserved", "confirmed")
    text = LEASE_STATES.get(lease.state) or str(lease.state)
    text += f" by {lease.owner}" if lease.owner and lease.state == "confirmed" else ""
    text += f" ({lease.reason})" if lease.reason else ""
    began = lease.granted_at if live else lease.ended_at
    units = count(lease.units, "unit")
    if live:
        left = [f"TTL {moments.spelled(lease.ttl_seconds_left)} left"]
        left += [f"hold {moments.spelled(lease.hold_seconds_left)} left"]
        effect = f"{units} of lease pool {lease.lease_pool_id} held for tenant {lease.tenant} ({', '.join(left)})"
        remedy = f"{NOTHING}; `slipway lease release` gives it back early"
    elif lease.state == "lost" and not lease.ended_at:
        stay = "stays" if lease.units == 1 else "stay"
        effect = f"{units} of lease pool {lease.lease_pool_id} {stay} counted until its work has surely ended"
        remedy = "acquire a new lease"
    else:
        effect = f"its {units} {'is' if lease.units == 1 else 'are'} free again in lease pool {lease.lease_pool_id}"
        remedy = "acquire a new lease" if lease.state != "released" else NOTHING
    details = [f"Fencing token {lease.fencing_token}, request {lease.request_id}."]
    details += ["History:"] if history else []
    for entry in history:
        at = moments.clock(entry.at, now)
        reason = f": {entry.reason}" if entry.reason else ""
        details.append(f"  {at}  {entry.kind}{reason}.")
    cause = Cause(text=text, since=began, remedy=remedy)
    return explained("lease", lease.id, [cause], effect, details)
