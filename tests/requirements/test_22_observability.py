from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from slipway_common.clock import utc_now
from slipway_common.events.lease import LeaseRenewRequested
from tests.harness import until
from tests.histories.actor import scraped
from tests.histories.bus import Bus
from tests.histories.system import OPERATOR, PARTITIONS
from tests.requirements.live import Live

# What is seen of a lease pool once all of it has happened there: granted, limit, waiting, by tenant too; how long was
# waited; the gap between grants, whose number is starts; throttles; limit changes with their cause; starts without a
# lease; the oldest waiter.
SEEN = (
    "slipway_lease_granted_units_total",
    "slipway_lease_held_units",
    "slipway_lease_limit_units",
    "slipway_lease_waiting_units",
    "slipway_lease_tenant_held_units",
    "slipway_lease_tenant_waiting_units",
    "slipway_lease_waited_seconds_count",
    "slipway_lease_grant_gap_seconds_count",
    "slipway_lease_throttles_total",
    "slipway_lease_limit_changes_total",
    "slipway_lease_unleased_starts_total",
    "slipway_lease_oldest_wait_seconds",
)
# Nothing of these happens in a broker that is well, or none in a pool whose units are all held: they are there to rise.
DESCRIBED = ("slipway_lease_idle_unit_seconds", "slipway_lease_drift")
FENCED = ("slipway_lease_refused_facts_total", "stale token")


async def test_observability(live: Live) -> None:
    """Granted/limit/waiting by tenant, slot-idle seconds while queue non-empty, wait histogram, grant gap, starts/min,
    throttles, limit changes with cause, fail-open starts, fenced writes, drift, oldest waiter; per-lease audit trail.
    """
    pool = await live.pool("observed", 1)
    client, operator = live.client(), live.client("operator", owner=OPERATOR)
    first = (await client.acquire(pool, "first")).lease
    assert first is not None
    throttled = {"fencing_token": first.fencing_token, "throttled": True, "result": "failed"}
    assert (await live.post(f"/leases/{first.lease_id}/release", throttled, "ann"))[0] == 200
    second = (await client.acquire(pool, "second")).lease
    assert second is not None
    assert (await operator.limit(pool, 2)).answer == "ok"
    start = {"request_id": "outage", "operation": "install", "units": 1, "started_at": utc_now().isoformat()}
    assert (await live.post(f"/lease-pools/{pool}/unleased", {"starts": [start]}, "ann"))[0] == 200
    assert (await client.acquire(pool, "waits")).answer == "waiting"
    stale = LeaseRenewRequested(lease_pool_id=pool, lease_id=second.lease_id, fencing_token=first.fencing_token)
    async with Bus(live.kafka.bootstrap, live.prefix, PARTITIONS).running() as bus:
        await bus.ask(stale, source=client.owner)

    missing = {*SEEN, *DESCRIBED, FENCED[0]}

    async def all_seen() -> bool:
        await client.acquire(pool, "waits")  # or it would be passed over
        for port in live.ports:
            for family in text_string_to_metric_families(await scraped(port)):
                missing.difference_update({family.name} & set(DESCRIBED))
                missing.difference_update(sample.name for sample in family.samples if shows(sample, pool))
        return not missing

    await until(all_seen, "every number is shown")
    trail = (await live.get(f"/leases/{first.lease_id}/history"))["items"]
    assert {"granted", "confirmed", "released"} <= {entry["kind"] for entry in trail}
    assert all(entry["at"] and entry["reason"] for entry in trail)
    assert [entry["by"] for entry in trail if entry["kind"] == "released"] == ["ann"]


def shows(sample: Any, pool: str) -> bool:
    if sample.name == FENCED[0]:
        return bool(sample.labels["reason"] == FENCED[1] and sample.value)
    return bool(sample.labels.get("lease_pool") == pool and sample.value)
