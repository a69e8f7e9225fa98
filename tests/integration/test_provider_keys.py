"""Keys of launch configs that their provider gives: a capacity that accounts share, and families of quotas."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.launch_config import LaunchConfigCreated, LaunchConfigState, LaunchConfigUpdated
from slipway_api.events.scopes import Key, capacity_key, lifecycle_of, quota_key, subnet_key
from slipway_api.events.weight import SharedWindow
from slipway_api.events.worker import Scope, WorkerLaunchFailed
from slipway_api.percent import encoded
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.apply.provider_keys import refresh
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.store import decisions, pools, provider_keys
from tests.support.cloud import Cloud
from tests.support.provisioner import Provisioner, apply_body, declared, provisioner_on, report, weight

SPOT: Final = Key("capacity", "sim-1/z1/m5.large/spot")
ROWS: Final = "SELECT name, capacity, quota_family, capacity_key, quota_key FROM launch_config ORDER BY name"
SHARES: Final = "SELECT key FROM shared_window WHERE key LIKE 'capacity/%' OR key LIKE 'quota/%' ORDER BY key"
CONFIG_EVENTS: Final = (LaunchConfigCreated, LaunchConfigUpdated)


class Zoned(Cloud):
    """Accounts that call a zone of all by names of their own. `zone_ids` is empty as long as it is not known."""

    def __init__(self) -> None:
        super().__init__()
        self.zone_ids = {("sim-a", "zone-a"): "z1", ("sim-b", "zone-x"): "z1", ("sim-a", "zone-b"): "z2"}

    def capacity_key(self, account: Account, config: Mapping[str, Any]) -> str:
        zone_id = self.zone_ids.get((account.id, config["zone"]))
        if zone_id is None:
            return ""
        return encoded(account.region, zone_id, config["instance_type"], lifecycle_of(config["settings"]))

    def subnet(self, account: Account, config: Mapping[str, Any]) -> str:
        return str(config["settings"].get("subnet", ""))

    def quota_family(self, account: Account, config: Mapping[str, Any]) -> str:
        return "standard-spot" if lifecycle_of(config["settings"]) == "spot" else "m5"


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    async with provisioner_on(postgres) as provisioner:
        provisioner.cloud = Zoned()
        provisioner.providers["simulated"] = provisioner.cloud
        yield provisioner


def zoned(provisioner: Provisioner) -> Zoned:
    assert isinstance(provisioner.cloud, Zoned)
    return provisioner.cloud


def two_accounts() -> dict[str, Any]:
    """Pool "linux" with zone-a of sim-a, pool "other" with the same zone in sim-b, as spot instances, and on demand."""
    body = declared("zone-a")
    account, (pool,) = body["accounts"][0], body["worker_pools"]
    body["accounts"].append(account | {"id": "sim-b", "identity": "sim-b"})
    (config,) = pool["launch_configs"]
    config["settings"] = {"lifecycle": "spot"}
    there = {"name": "zone-x", "account": "sim-b", "zone": "zone-x", "image": "linux-2"}
    on_demand = {"name": "on-demand", "image": "linux-2", "settings": {}}
    body["worker_pools"].append(pool | {"id": "other", "launch_configs": [config | there, config | on_demand]})
    return body


async def config_events(provisioner: Provisioner) -> list[LaunchConfigState]:
    return [event for event in await provisioner.events() if isinstance(event, CONFIG_EVENTS)]


async def share_of(provisioner: Provisioner, key: Key, pool_id: str = "linux") -> Any:
    """Share of a key in a decision of a pool now."""
    known = await pools.shared(provisioner.database, pool_id)
    return next((each for each in known if each.key == key), None)


async def test_a_new_revision_has_the_keys_of_its_provider(provisioner: Provisioner) -> None:
    """In its row, in the shares of its pool, and in the event from which the weight-calculator takes them."""
    await provisioner.declare(two_accounts())
    rows = {row["name"]: tuple(row)[1:] for row in await provisioner.database.fetch(ROWS)}
    of_spot = (SPOT.id, "standard-spot", SPOT.text)
    assert rows == {
        "zone-a": (*of_spot, quota_key("sim-a", "sim-1", "m5.large", "standard-spot").text),
        "zone-x": (*of_spot, quota_key("sim-b", "sim-1", "m5.large", "standard-spot").text),
        "on-demand": (
            "sim-1/z1/m5.large/on-demand",
            "",
            "capacity/sim-1/z1/m5.large/on-demand",
            quota_key("sim-a", "sim-1", "m5.large").text,
        ),
    }
    created = {event.name: event for event in await config_events(provisioner)}
    assert {type(event) for event in created.values()} == {LaunchConfigCreated}
    assert {name: (event.capacity_key, event.quota_family) for name, event in created.items()} == {
        "zone-a": (SPOT.id, "standard-spot"),
        "zone-x": (SPOT.id, "standard-spot"),
        "on-demand": ("sim-1/z1/m5.large/on-demand", ""),
    }
    used = {value for row in rows.values() for value in row[2:]}
    assert {row["key"] for row in await provisioner.database.fetch(SHARES)} == used
    id_ = await provisioner.database.fetchval("SELECT id FROM launch_config WHERE name = 'zone-x'")
    assert await provider_keys.capacity_of(provisioner.database, id_) == SPOT.id


async def test_a_capacity_is_one_window_for_pools_of_several_accounts(provisioner: Provisioner) -> None:
    """Starts in flight and failures of both count, and a trip stops both; on-demand launches on."""
    await provisioner.declare(two_accounts())
    await provisioner.trust()
    share = SharedWindow(kind="capacity", id=SPOT.id, stage="launch", version=1, window=5)
    await provisioner.weights(weight("zone-a", shared=(share,)))
    await provisioner.demand(report(30), report(30, pool_id="other"))
    await provisioner.plan()
    rows = await provisioner.database.fetch("SELECT launch_config_id AS id, count(*) AS n FROM worker GROUP BY 1")
    launched = {row["id"].partition("@")[0]: row["n"] for row in rows}
    assert launched["zone-a"] + launched.get("zone-x", 0) == 5
    assert launched["on-demand"] > 0
    for pool_id in ("linux", "other"):
        assert (await share_of(provisioner, SPOT, pool_id)).in_flight == 5
    tripped = msgspec.structs.replace(share, version=2, window=2, state="tripped", reason="2 capacity errors (Lacking)")
    await provisioner.weights(weight("zone-a", shared=(tripped,)), revision=2)
    await provisioner.demand(report(30, at=1), report(30, at=1, pool_id="other"))
    await provisioner.plan()
    for pool_id, name in (("linux", "zone-a"), ("other", "zone-x")):
        (decision,) = await decisions.recent(provisioner.database, pool_id, 1)
        reasons = {id_.partition("@")[0]: note.get("reason") for id_, note in decision["details"]["configs"].items()}
        assert reasons[name] == f"tripped: {SPOT}: 2 capacity errors (Lacking); no probe is due"
        assert not (reasons.get("on-demand") or "").startswith("tripped")


async def test_a_subnet_is_one_window_for_pools_and_instance_types(provisioner: Provisioner) -> None:
    """The event carries it; starts in flight of all its configs count, and a trip stops them."""
    body = two_accounts()
    for pool, type_ in zip(body["worker_pools"], ("m5.large", "c6i.large"), strict=True):
        in_subnet = {"settings": {"subnet": "subnet-0a"}, "account": "sim-a", "zone": "zone-a", "instance_type": type_}
        pool["launch_configs"] = [pool["launch_configs"][0] | in_subnet]
    await provisioner.declare(body)
    assert {event.subnet for event in await config_events(provisioner)} == {"subnet-0a"}
    await provisioner.trust()
    subnet = subnet_key("sim-a", "sim-1", "subnet-0a")
    share = SharedWindow(kind=subnet.kind, id=subnet.id, stage="launch", version=1, window=3)
    await provisioner.weights(weight("zone-a", shared=(share,)))
    await provisioner.demand(report(30), report(30, pool_id="other"))
    await provisioner.plan()
    assert await provisioner.database.fetchval("SELECT count(*) FROM worker") == 3
    for pool_id in ("linux", "other"):
        assert (await share_of(provisioner, subnet, pool_id)).in_flight == 3
    tripped = msgspec.structs.replace(share, version=2, state="tripped", reason="2 quota errors (Full)")
    await provisioner.weights(weight("zone-a", shared=(tripped,)), revision=2)
    await provisioner.demand(report(30, at=1), report(30, at=1, pool_id="other"))
    await provisioner.plan()
    for pool_id in ("linux", "other"):
        (decision,) = await decisions.recent(provisioner.database, pool_id, 1)
        (note,) = decision["details"]["configs"].values()
        assert note["reason"] == f"tripped: {subnet}: 2 quota errors (Full); no probe is due"


async def test_a_refusal_names_the_capacity_of_its_provider(provisioner: Provisioner) -> None:
    """Also the machines that a call did not get."""
    zoned(provisioner).script.append(1)
    await provisioner.admitted(3)
    await provisioner.launch()
    failed = [event.outcome for event in await provisioner.events() if isinstance(event, WorkerLaunchFailed)]
    assert [(outcome.scope, outcome.scope_key) for outcome in failed] == [
        (Scope.CAPACITY, "sim-1/z1/m5.large/on-demand")
    ] * 2


async def test_a_sweep_takes_keys_that_the_provider_has_learned(provisioner: Provisioner) -> None:
    """Once: the next sweep finds nothing to change. Shares that nothing uses any more go."""
    zone_ids, zoned(provisioner).zone_ids = zoned(provisioner).zone_ids, {}
    await provisioner.declare(two_accounts())
    usual = capacity_key("sim-a", "sim-1", "zone-a", "m5.large", "spot")
    assert {event.name: event.capacity_key for event in await config_events(provisioner)}["zone-a"] == usual.id
    assert await share_of(provisioner, usual) is not None
    await provisioner.plan()
    zoned(provisioner).zone_ids = zone_ids
    for changed in (3, 0):
        before = await revisions(provisioner)
        await provisioner.database.execute("UPDATE worker_pool SET swept_at = '-infinity'")
        await provisioner.sweep()
        now = await revisions(provisioner)
        assert sum(now[id_] != revision for id_, revision in before.items()) == changed
        published = {event.name: event for event in await config_events(provisioner)}
        assert [published[name].capacity_key for name in ("zone-a", "zone-x")] == [SPOT.id, SPOT.id]
        assert {row["reason"] for row in await provisioner.database.fetch("SELECT reason FROM dirty_pool")} == (
            {"sweep", "keys"} if changed else {"sweep"}
        )
        await provisioner.plan()
    assert await share_of(provisioner, usual) is None
    assert (await share_of(provisioner, SPOT, "other")).window == 64
    await provisioner.prune()
    assert usual.text not in {row["key"] for row in await provisioner.database.fetch(SHARES)}


async def revisions(provisioner: Provisioner) -> dict[str, int]:
    rows = await provisioner.database.fetch("SELECT id, revision FROM launch_config")
    return {row["id"]: row["revision"] for row in rows}


async def test_what_a_provider_does_not_know_any_more_stays(provisioner: Provisioner) -> None:
    """A restarted provider knows nothing at first, and archived revisions are left alone."""
    await provisioner.declare(two_accounts())
    before = await provisioner.database.fetch(ROWS)
    zoned(provisioner).zone_ids = {}
    await provisioner.database.execute("UPDATE worker_pool SET swept_at = '-infinity'")
    await provisioner.sweep()
    assert await provisioner.database.fetch(ROWS) == before
    zoned(provisioner).zone_ids = {("sim-a", "zone-a"): "z9", ("sim-b", "zone-x"): "z9"}
    await provisioner.database.execute("UPDATE launch_config SET state = 'archived', archived_at = slipway_clock()")
    await provisioner.database.execute("UPDATE worker_pool SET swept_at = '-infinity'")
    await provisioner.sweep()
    assert await provisioner.database.fetch(ROWS) == before


async def test_a_revision_that_comes_back_has_the_keys_that_it_had(provisioner: Provisioner) -> None:
    """So the danger of a tripped capacity is seen, also before a sweep has asked its provider again."""
    await provisioner.declare(two_accounts())
    share = SharedWindow(kind="capacity", id=SPOT.id, stage="launch", version=1, window=2, state="tripped", reason="no")
    await provisioner.weights(weight("zone-a", shared=(share,)))
    other = two_accounts()
    other["worker_pools"][0]["launch_configs"][0]["zone"] = "zone-b"
    await provisioner.declare(other)
    rows = await provisioner.database.fetch(ROWS)
    assert [row["capacity"] for row in rows if row["name"] == "zone-a"] in (
        [SPOT.id, "sim-1/z2/m5.large/spot"],
        ["sim-1/z2/m5.large/spot", SPOT.id],
    )
    zoned(provisioner).zone_ids = {}
    async with provisioner.database.acquire() as db:
        how: dict[str, Any] = {"strategy": "now", "dry_run": True, "confirm": ""}
        applied = await apply_body(db, two_accounts(), providers=provisioner.providers, **how)
    found = [(danger.text.partition("@")[0], danger.consequence) for danger in applied.dangers]
    assert found == [("zone-a", "no")]


async def test_usual_keys_are_not_stored(postgres: EmbeddedPostgres) -> None:
    """Most providers name nothing otherwise: their rows follow from the columns, and a sweep changes none."""
    async with provisioner_on(postgres) as provisioner:
        await provisioner.declare(two_accounts())
        rows = await provisioner.database.fetch(ROWS)
        assert {(row["capacity"], row["quota_family"]) for row in rows} == {("", "")}
        of_row = {row["name"]: row["capacity_key"] for row in rows}
        assert of_row["zone-a"] == capacity_key("sim-a", "sim-1", "zone-a", "m5.large", "spot").text
        assert of_row["on-demand"] == capacity_key("sim-a", "sim-1", "zone-a", "m5.large").text
        before = await revisions(provisioner)
        await provisioner.database.execute("UPDATE worker_pool SET swept_at = '-infinity'")
        await provisioner.sweep()
        assert await revisions(provisioner) == before


class Named(Cloud):
    """A provider that names images in a `namespace`, which may change."""

    namespace = ""

    def image_key(self, account: Account, config: Mapping[str, Any]) -> str:
        image = str(config["image"])
        return f"{self.namespace}/{image}" if self.namespace else image


@pytest.fixture
async def named(provisioner: Provisioner) -> Named:
    cloud = Named()
    provisioner.cloud = cloud
    provisioner.providers["simulated"] = cloud
    return cloud


IMAGES: Final = """
SELECT key, size, state, unconfirmed, reason FROM shared_window WHERE key LIKE 'image/%' AND stage = 'boot'"""


async def test_a_tripped_image_stays_tripped_under_another_key(provisioner: Provisioner, named: Named) -> None:
    """At once, and not only when the calculator has heard of the key: nothing is launched meanwhile."""
    await provisioner.declare()
    await provisioner.trust()
    tripped = SharedWindow(
        kind="image", id="linux-1", stage="boot", version=9, window=2, state="tripped", unconfirmed=7, reason="7 boots"
    )
    await provisioner.weights(weight(shared=(tripped,)), revision=1)
    named.namespace = "cloud"
    assert await provider_keys_refreshed(provisioner) == 1
    rows = {row["key"]: tuple(row)[1:] for row in await provisioner.database.fetch(IMAGES)}
    assert rows["image/cloud%2Flinux-1"] == (2, "tripped", 7, "7 boots")
    assert [event.image_key for event in await config_events(provisioner)] == ["linux-1", "cloud/linux-1"]
    await provisioner.demand(report(3))
    await provisioner.plan()
    assert await provisioner.states() == {}
    assert "tripped: image cloud/linux-1: 7 boots" in str((await decisions.recent(provisioner.database, "linux", 1))[0])


async def test_a_healthy_record_of_the_new_key_is_kept(provisioner: Provisioner, named: Named) -> None:
    """The second pool that comes to a key changes nothing of what the calculator has published about it."""
    named.namespace = "cloud"
    await provisioner.declare()
    await provisioner.trust()
    known = SharedWindow(kind="image", id="cloud/linux-1", stage="boot", version=3, window=20)
    old = SharedWindow(kind="image", id="linux-1", stage="boot", version=9, window=2, state="tripped", reason="bad")
    await provisioner.database.execute("UPDATE launch_config SET image = ''")
    await provisioner.weights(weight(shared=(known, old)), revision=1)
    assert await provider_keys_refreshed(provisioner) == 1
    rows = {row["key"]: row["state"] for row in await provisioner.database.fetch(IMAGES)}
    assert rows["image/cloud%2Flinux-1"] == "healthy"


async def test_providers_with_images_of_one_name(provisioner: Provisioner) -> None:
    """The broken image of one provider stops no pool of another."""
    cloud, other = Cloud(), Cloud()
    provisioner.providers |= {"simulated": cloud, "other": other}
    body = declared("zone-a")
    account, (pool,) = body["accounts"][0], body["worker_pools"]
    body["accounts"].append(account | {"id": "there", "provider": "other", "identity": "there"})
    (config,) = pool["launch_configs"]
    body["worker_pools"].append(
        pool | {"id": "other", "launch_configs": [config | {"name": "zone-x", "account": "there"}]}
    )
    await provisioner.declare(body)
    await provisioner.trust()
    tripped = SharedWindow(kind="image", id="simulated/linux-1", stage="boot", version=9, window=2, state="tripped")
    await provisioner.weights(weight(shared=(tripped,)), revision=1)
    for pool_id in ("linux", "other"):
        await provisioner.demand(report(1, pool_id=pool_id))
    await provisioner.plan()
    assert await provisioner.states() == {"requested": 1}
    assert (await provisioner.worker()).pool_id == "other"


async def provider_keys_refreshed(provisioner: Provisioner) -> int:
    async with provisioner.database.acquire() as db:
        return await refresh(db, "linux", provisioner.providers)
