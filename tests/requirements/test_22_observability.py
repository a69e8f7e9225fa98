from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from slipway_api.events.lease import LeaseRenewRequested
from slipway_common.base.clock import utc_now
from tests.histories.actor import scraped
from tests.histories.bus import Bus
from tests.histories.system import OPERATOR, PARTITIONS
from tests.requirements.live import Live
from tests.support.harness import until

# Metrics of a lease pool after all of these events: granted, limit, waiting, also by tenant; wait times;
# the gap between grants, whose count is the number of starts; throttles; limit changes with their cause; unleased
# launches; the oldest waiting request.
SEEN = (
    "slipway_lease_granted_units_total",
    "slipway_lease_held_units",
    "slipway_lease_limit_units",
    "slipway_lease_waiting_units",
    "slipway_lease_tenant_held_units",
    "slipway_lease_tenant_waiting_units",
    "slipway_lease_wait_seconds_count",
    "slipway_lease_grant_interval_seconds_count",
    "slipway_lease_throttles_total",
    "slipway_lease_limit_changes_total",
    "slipway_lease_unleased_starts_total",
    "slipway_lease_oldest_wait_seconds",
)
# These stay at 0 in a healthy broker, or in a pool whose units are all held; they only have to exist.
DESCRIBED = ("slipway_lease_idle_unit_seconds", "slipway_lease_drift")
FENCED = ("slipway_lease_refused_commands_total", "stale token")


async def test_observability(live: Live) -> None:
    """Granted, limit and waiting by tenant, slot-idle seconds while requests wait, wait histogram, grant gap, starts
    per minute, throttles, limit changes with cause, unleased starts, fenced writes, drift, oldest waiting request;
    audit trail per lease."""
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
        await bus.send(stale, source=client.owner)

    missing = {*SEEN, *DESCRIBED, FENCED[0]}

    async def all_seen() -> bool:
        await client.acquire(pool, "waits")  # or it would lapse
        for port in live.ports:
            for family in text_string_to_metric_families(await scraped(port, live.secrets[OPERATOR])):
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
