"""Declarations beside each other, starts, pauses and weight records: two sessions for every locking statement."""

import asyncio
from typing import Any, Final

import msgspec
import pytest

import slipway_provisioner
from slipway_api.events.weight import SharedWindow
from slipway_common.database.postgres import Connection
from slipway_common.declaration.changes import OwnedByAnother
from slipway_provisioner.apply import declaration
from slipway_provisioner.domain.declaration import DeclarationRefused
from slipway_provisioner.store import configs, declarations, pauses
from slipway_provisioner.store.declarations import ChangedMeanwhile
from tests.support.provisioner import (
    Provisioner,
    apply_body,
    declared,
    in_transaction,
    revision_id,
    stopped_at,
    weight,
)
from tests.support.starts import Forbid, a_first_start_is_the_last, a_waiting_start_obeys
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)


def only_pools(*pools: dict[str, Any], owner: str = "test") -> dict[str, Any]:
    """Declaration of worker pools alone."""
    return {"version": 1, "metadata": {"owner": owner}, "worker_pools": list(pools)}


def pool_of(*names: str, image: str = "linux-1", **changes: Any) -> dict[str, Any]:
    pool: dict[str, Any] = declared(*names, **changes)["worker_pools"][0]
    for config in pool["launch_configs"]:
        config["image"] = image
    return pool


# Starts, and declarations that forbid them

FORBID: Final[dict[str, Forbid]] = {
    "observe": lambda db: apply_body(db, declared(mode="observe")),
    "archive": lambda db: apply_body(db, declared("zone-b")),
    "remove": lambda db: apply_body(db, declared("zone-b", id="other")),
    "replace now": lambda db: apply_body(db, only_pools(pool_of("zone-a", image="linux-2")), strategy="now"),
}
OF_CHANGES: Final = (
    "store.declarations.LOCK_POOLS",
    "store.declarations.LOCK_NAMES",
    "store.declarations.LOCK_REVISIONS",
    "store.declarations.UPDATE_POOLS",
    "store.declarations.REMOVE_POOLS",
    "store.declarations.UPDATE_NAMES",
    "store.declarations.REMOVE_NAMES",
)


@locking(*OF_CHANGES)
@pytest.mark.parametrize("forbid", FORBID.values(), ids=FORBID)
async def test_a_start_that_waited_for_a_declaration_obeys_it(provisioner: Provisioner, forbid: Forbid) -> None:
    """The declaration was first: the start waits for it and then sees it."""
    await a_waiting_start_obeys(provisioner, forbid)


@locking(*OF_CHANGES)
@pytest.mark.parametrize("forbid", FORBID.values(), ids=FORBID)
async def test_a_declaration_waits_for_a_start_that_was_first(provisioner: Provisioner, forbid: Forbid) -> None:
    """After the declaration has committed, no other start commits."""
    await a_first_start_is_the_last(provisioner, forbid)


# Declarations of the same objects


@locking("store.declarations.INSERT_POOLS", "store.declarations.INSERT_NAMES", "store.declarations.INSERT_ACCOUNTS")
async def test_two_declarations_of_the_same_new_objects(provisioner: Provisioner) -> None:
    """The second one finds nothing to change, also if it waits for the first one's commit."""
    body = declared("zone-a", "zone-b")
    async with stopped_at(provisioner, "audit", provisioner.declare(body)) as first:
        others = [provisioner.start(provisioner.declare(body)) for _ in range(2)]
        await provisioner.until_waiting(first, *others)
    changes = await asyncio.gather(first, *others)
    assert sorted(map(len, changes)) == [0, 0, 4]
    assert await provisioner.database.fetchval("SELECT count(*) FROM pool_revision") == 1


@locking("store.declarations.INSERT_ACCOUNTS")
async def test_two_owners_of_one_new_account(provisioner: Provisioner) -> None:
    """The second one is refused, although the account did not exist when it was compared."""
    accounts = declared()["accounts"]
    first_body, body = ({"version": 1, "metadata": {"owner": owner}, "accounts": accounts} for owner in ("a", "b"))
    async with stopped_at(provisioner, "audit", provisioner.declare(first_body)) as first:
        second = provisioner.start(provisioner.declare(body))
        await provisioner.until_waiting(first, second)
    await first
    with pytest.raises(OwnedByAnother, match="account sim-a belongs to a"):
        await second
    assert await provisioner.database.fetchval("SELECT owner FROM account") == "a"


@locking("store.declarations.LOCK_POOLS", "store.declarations.UPDATE_POOLS")
async def test_a_declaration_that_waited_for_another_compares_again(provisioner: Provisioner) -> None:
    """It sees what the other one has declared: the history has both, and the later one counts."""
    await provisioner.declare()
    body = only_pools(pool_of("zone-a", max_capacity=60))
    async with stopped_at(provisioner, "audit", provisioner.declare(body)) as first:
        second = provisioner.start(provisioner.declare(only_pools(pool_of("zone-a", max_capacity=70))))
        await provisioner.until_waiting(first, second)
    await first
    (change,) = await second
    assert change.detail == "max_capacity: 60 → 70"
    assert await provisioner.database.fetchval("SELECT count(*) FROM pool_revision") == 3


@locking("store.declarations.LOCK_POOLS")
async def test_a_declaration_of_what_keeps_changing(provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives up and has changed nothing."""
    monkeypatch.setattr(declaration, "ATTEMPTS", 1)
    await provisioner.declare()
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            assert await pauses.pause(db, "linux", reason="drill", by="op", until=None)
            declaring = provisioner.start(provisioner.declare(only_pools(pool_of("zone-a", max_capacity=60))))
            await provisioner.until_waiting(declaring)
        with pytest.raises(ChangedMeanwhile):
            await declaring
    assert await provisioner.database.fetchval("SELECT max_capacity FROM worker_pool") == 100


@locking("store.declarations.INSERT_NAMES")
async def test_two_pools_with_one_new_name(provisioner: Provisioner) -> None:
    """The second pool is refused, and the first one is named."""
    await provisioner.declare({"version": 1, "accounts": declared()["accounts"]})
    first_body = only_pools(pool_of("zone-a", id="first"), owner="a.yaml")
    async with stopped_at(provisioner, "audit", provisioner.declare(first_body)) as first:
        body = only_pools(pool_of("zone-a", id="second"), owner="b.yaml")
        second = provisioner.start(provisioner.declare(body))
        await provisioner.until_waiting(first, second)
    await first
    with pytest.raises(DeclarationRefused, match="the name belongs to worker pool first"):
        await second
    assert await provisioner.database.fetchval("SELECT count(*) FROM worker_pool") == 1


@locking("store.declarations.LOCK_ACCOUNTS", "store.declarations.USE_ACCOUNTS", "store.declarations.UPDATE_ACCOUNTS")
async def test_a_launch_config_in_an_account_that_moves(provisioner: Provisioner) -> None:
    """Whichever is first, the launch config is in the region of the account."""
    await provisioner.declare({"version": 1, "accounts": declared()["accounts"]})
    moved = {"version": 1, "accounts": [declared()["accounts"][0] | {"region": "sim-2"}]}
    async with stopped_at(provisioner, "audit", provisioner.declare(moved)) as moving:
        adding = provisioner.start(provisioner.declare(only_pools(pool_of("zone-a"))))
        await provisioner.until_waiting(moving, adding)
    await asyncio.gather(moving, adding)
    ids = "SELECT array_agg(current_id) FROM launch_config_name"
    assert await provisioner.database.fetchval(ids) == [revision_id(region="sim-2")]
    back = {"version": 1, "accounts": declared()["accounts"]}
    added = only_pools(pool_of("zone-a"), pool_of("zone-b", id="other"))
    async with stopped_at(provisioner, "audit", provisioner.declare(added)) as adding:
        moving = provisioner.start(provisioner.declare(back))
        await provisioner.until_waiting(moving, adding)
    await asyncio.gather(moving, adding)
    assert set(await provisioner.database.fetchval(ids)) == {revision_id("zone-a"), revision_id("zone-b")}


@locking("store.declarations.LOCK_ACCOUNTS", "store.declarations.USE_ACCOUNTS", "store.declarations.REMOVE_ACCOUNTS")
async def test_a_launch_config_in_an_account_that_is_removed(provisioner: Provisioner) -> None:
    """The second declaration is refused."""
    await provisioner.declare({"version": 1, "accounts": declared()["accounts"]})
    added = provisioner.declare(only_pools(pool_of("zone-a"), owner="b.yaml"))
    async with stopped_at(provisioner, "audit", added) as adding:
        removing = provisioner.start(provisioner.declare({"version": 1, "accounts": []}))
        await provisioner.until_waiting(adding, removing)
    await adding
    with pytest.raises(DeclarationRefused, match="launch config zone-a of worker pool linux launches in it"):
        await removing
    assert not await provisioner.database.fetchval("SELECT removed FROM account")
    await provisioner.declare(only_pools(owner="b.yaml"))
    added = provisioner.declare(only_pools(pool_of("zone-a"), owner="b.yaml"))  # the same revision again
    async with stopped_at(provisioner, "audit", added) as adding:
        removing = provisioner.start(provisioner.declare({"version": 1, "accounts": []}))
        await provisioner.until_waiting(adding, removing)
    await adding
    with pytest.raises(DeclarationRefused, match="launches in it"):
        await removing


# Revisions beside pauses and weight records


async def pause(db: Connection, name: str) -> None:
    assert await configs.pause(db, name, reason="drill", by="op", until=None, command=True)


@locking(
    "store.declarations.ACTIVATE",
    "store.declarations.FALL_BACK",
    "store.declarations.ADAPT",
    "store.declarations.TOUCH",
    "store.declarations.UPDATE_NAMES",
    "store.declarations.LOCK_REVISIONS",
)
async def test_revisions_change_beside_pauses(provisioner: Provisioner) -> None:
    """There is no deadlock, and each launch config has one current revision, the one that was declared last."""
    names = ["zone-a", "zone-b", "zone-c"]
    await provisioner.declare(declared(*names))

    async def paused_and_resumed(name: str) -> None:
        await in_transaction(provisioner, lambda db: pause(db, name))
        await in_transaction(provisioner, lambda db: configs.resume(db, name, reason="over", by="op"))

    async def declare(body: dict[str, Any]) -> None:
        while True:
            try:
                await provisioner.declare(body)
            except ChangedMeanwhile:
                continue
            return

    for round_ in range(6):
        profile = "spot" if round_ % 2 else "on-demand"
        body = only_pools(pool_of(*reversed(names), image=f"linux-{1 + round_ % 3}", profile=profile))
        await asyncio.gather(declare(body), *(paused_and_resumed(name) for name in reversed(names)))
    rows = await provisioner.database.fetch("SELECT name, current_id FROM launch_config_name ORDER BY name")
    assert [row["current_id"] for row in rows] == [revision_id(name, image="linux-3") for name in names]
    profiles = "SELECT count(*) FROM launch_config WHERE state <> 'archived' AND profile <> 'spot'"
    assert await provisioner.database.fetchval(profiles) == 0


@locking("store.declarations.ACTIVATE", "store.declarations.TOUCH")
async def test_a_pause_that_waited_for_a_new_revision(provisioner: Provisioner) -> None:
    """It pauses the new revision too, and publishes both as paused."""
    await provisioner.declare()
    pausing = configs.pause
    async with stopped_at(
        provisioner, "audit", provisioner.declare(only_pools(pool_of("zone-a", image="linux-2")))
    ) as one:
        two = provisioner.start(
            in_transaction(
                provisioner, lambda db: pausing(db, "zone-a", reason="drill", by="op", until=None, command=True)
            )
        )
        await provisioner.until_waiting(one, two)
    await asyncio.gather(one, two)
    events = [event for event in await provisioner.events() if getattr(event, "state", "") == "paused"]
    assert {event.launch_config_id for event in events} == {revision_id(), revision_id(image="linux-2")}


@locking("store.declarations.SHARED")
async def test_declarations_during_records_of_the_same_shares(provisioner: Provisioner) -> None:
    """There is no deadlock; a share keeps the newest state that a record has told."""
    names = [f"zone-{letter}" for letter in "abcdef"]
    await provisioner.declare(declared("zone-z"))
    for round_ in range(1, 5):
        images = [f"image-{round_}-{name}" for name in names]
        shared = tuple(
            SharedWindow(kind="image", id=f"simulated/{image}", stage=stage, version=1, window=9)
            for image in reversed(images)
            for stage in ("claim", "boot", "launch")
        )

        def of(order: list[str], images: list[str] = images) -> dict[str, Any]:
            pool = pool_of(*order, "zone-z")
            by_name = dict(zip(names, images, strict=True))
            for config in pool["launch_configs"]:
                config["image"] = by_name.get(config["name"], "linux-1")
            return only_pools(pool)

        await asyncio.gather(
            provisioner.weights(*(weight(name, shared=shared) for name in names), revision=2 * round_),
            provisioner.declare(of(names[::-1])),
            provisioner.weights(*(weight(name, shared=shared[::-1]) for name in names), revision=2 * round_ + 1),
            provisioner.declare(of(names)),
        )
    sizes = (
        "SELECT count(*) FROM shared_window WHERE key LIKE 'image/simulated%image-%' AND stage = 'boot' AND size = 9"
    )
    assert await provisioner.database.fetchval(sizes) == 4 * len(names)


@locking("store.declarations.SHARED")
async def test_two_declarations_with_one_new_image(provisioner: Provisioner) -> None:
    """The second one waits for the share that the first one adds, and both have it."""
    await provisioner.declare({"version": 1, "accounts": declared()["accounts"]})
    bodies = [only_pools(pool_of(name, id=name, image="new"), owner=name) for name in ("zone-a", "zone-b")]
    async with stopped_at(provisioner, "audit", provisioner.declare(bodies[0])) as first:
        second = provisioner.start(provisioner.declare(bodies[1]))
        await provisioner.until_waiting(first, second)
    assert list(map(len, await asyncio.gather(first, second))) == [2, 2]
    shares = "SELECT count(*) FROM shared_window WHERE key = 'image/simulated%2Fnew'"
    assert await provisioner.database.fetchval(shares) == 3


# Completeness


async def test_an_export_is_of_one_moment(provisioner: Provisioner) -> None:
    """It shows nothing of an apply that begins and ends between its pages, and does not delay it."""
    body = declared()
    (pool,) = body["worker_pools"]
    (config,) = pool["launch_configs"]
    pools = [pool | {"id": f"pool-{n:03}", "launch_configs": [config | {"name": f"zone-{n:03}"}]} for n in range(150)]
    await provisioner.declare(body | {"worker_pools": pools})
    changed = [some | {"max_capacity": 7} for some in pools[:140]]
    shown: list[Any] = []
    async with provisioner.database.acquire() as db:
        async for section, entries in declarations.specs(db, ["accounts", "worker_pools"], None):
            if not shown:
                await provisioner.declare(body | {"worker_pools": changed})
            shown += [(section, msgspec.json.decode(entry)["spec"]) for entry in entries]
    pools_shown = [spec for section, spec in shown if section == "worker_pools"]
    assert [spec["id"] for spec in pools_shown] == [some["id"] for some in pools]
    assert {spec["max_capacity"] for spec in pools_shown} == {100}
    left = "SELECT count(*) FROM worker_pool WHERE NOT deleted AND max_capacity = 7"
    assert await provisioner.database.fetchval(left) == 140
