"""Declarations on PostgreSQL: applied whole or not at all, as revisions of launch configs, by their owners."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.launch_config import LaunchConfigCreated, LaunchConfigDraining, LaunchConfigUpdated
from slipway_api.events.lease import LeaseRequested
from slipway_api.events.pool import PoolDeleted, PoolUpdated
from slipway_common.declaration.changes import ConfirmationRequired, OwnedByAnother
from slipway_provisioner.domain.declaration import DeclarationRefused
from slipway_provisioner.domain.revisions import revision_id as id_of
from slipway_provisioner.store import accounts
from tests.support.declarations import everything, states, with_image
from tests.support.provisioner import Provisioner, administrator, after, apply_body, declared, report, revision_id

LINES: Final = {"Content-Type": "application/x-ndjson"}


def owned(owner: str, *configs: str, pool: str = "linux", **changes: Any) -> dict[str, Any]:
    """Declaration of an owner with one pool and no account."""
    body = declared(*configs, id=pool, **changes)
    return {"version": 1, "metadata": {"owner": owner}, "worker_pools": body["worker_pools"]}


def lines(*values: Any) -> bytes:
    return b"\n".join(msgspec.json.encode(value) for value in values)


def head(owner: str, *sections: str) -> dict[str, Any]:
    return {"version": 1, "metadata": {"owner": owner}, "sections": sections or ("accounts", "worker_pools")}


def told(changes: Iterable[Any]) -> list[tuple[str, str, str]]:
    return [(change.kind, change.id, change.result) for change in changes]


async def test_a_refused_declaration_changes_nothing(provisioner: Provisioner, tmp_path: Path) -> None:
    """Not even what stands before the offending entry; a dry run refuses it as well."""
    await provisioner.declare()
    body = declared("zone-a", "zone-b", max_capacity=7, settings={"honours_tokens": True})
    thief = declared("zone-b", "zone-a")["worker_pools"][0] | {"id": "thief"}
    body["worker_pools"].append(thief)
    before = await everything(provisioner)
    async with administrator(provisioner, tmp_path) as client:
        for query in ("", "?dry_run=true"):
            answer = await client.put(f"/declaration{query}", json=body | {"metadata": {"owner": "test"}})
            assert answer.status_code == 409
            assert answer.json()["type"] == "urn:slipway:problem:declaration-refused"
            assert "belongs to worker pool linux" in answer.json()["detail"]
            assert await everything(provisioner) == before


async def test_all_problems_of_a_declaration_are_listed(provisioner: Provisioner, tmp_path: Path) -> None:
    """With their paths; nothing is changed."""
    await provisioner.declare()
    before = await everything(provisioner)
    pool = declared()["worker_pools"][0]
    account = declared()["accounts"][0]
    body = lines(
        head("a.yaml"),
        {"account": account | {"id": "-"}},
        {"worker_pool": pool | {"max_capacity": -1}},
        {"worker_pool": pool | {"id": "b", "launch_configs": []}},
    )
    async with administrator(provisioner, tmp_path) as client:
        answer = await client.put("/declaration", content=body, headers=LINES)
        assert answer.status_code == 422
        paths = [problem["path"] for problem in answer.json()["errors"]]
        assert paths == ["accounts[0].id", "worker_pools[0].max_capacity", "worker_pools[1].launch_configs"]
        for malformed in (b"{", b'{"worker_pool": 1, "account": 2}', b'{"pool": {}}', b"[]", b'{"version": 2}'):
            answer = await client.put("/declaration", content=malformed, headers=LINES)
            assert answer.status_code in (400, 422), malformed
        unknown = pool | {"id": "b", "launch_configs": [pool["launch_configs"][0] | {"account": "none", "name": "b"}]}
        answer = await client.put(
            "/declaration", content=lines(head("a.yaml"), {"worker_pool": unknown}), headers=LINES
        )
        assert "no account 'none' is declared; declared: sim-a" in answer.json()["detail"]
    assert await everything(provisioner) == before


async def test_a_large_declaration_in_lines(provisioner: Provisioner, tmp_path: Path) -> None:
    """It may be larger than other bodies; entries that are stored alike are counted, not compared."""
    pool = declared()["worker_pools"][0]
    config = pool["launch_configs"][0] | {"settings": {"user_data": "x" * 13_500}}
    pools = [
        {"worker_pool": pool | {"id": f"pool-{n}", "launch_configs": [config | {"name": f"config-{n}"}]}}
        for n in range(100)
    ]
    body = lines(head("a.yaml"), {"account": declared()["accounts"][0]}, *pools)
    assert len(body) > 1_300_000
    async with administrator(provisioner, tmp_path) as client:
        first = (await client.put("/declaration", content=body, headers=LINES)).json()
        assert (len(first["items"]), first["unchanged"], first["applied"]) == (201, 0, True)
        before = await everything(provisioner)
        again = (await client.put("/declaration", content=body, headers=LINES)).json()
        assert (again["items"], again["unchanged"], again["dangers"]) == ([], 101, [])
        assert await everything(provisioner) == before
        assert (await client.put("/pools/pool-1", content=b" " * 1_000_001)).status_code == 413
    assert await provisioner.database.fetchval("SELECT count(*) FROM pool_revision") == 100


async def test_a_dry_run_changes_and_locks_nothing(provisioner: Provisioner) -> None:
    """It answers while others hold every row, with the digest that confirms the changes."""
    await provisioner.declare()
    before = await everything(provisioner)
    locked = "; ".join(
        f"SELECT FROM {table} FOR UPDATE" for table in ("worker_pool", "launch_config_name", "launch_config", "account")
    )
    async with provisioner.database.acquire() as other, other.transaction():
        await other.execute(locked)
        changes = await provisioner.declare(with_image("linux-2", "zone-b", max_capacity=300), dry_run=True)
    assert told(changes) == [
        ("worker pool", "linux", "updated"),
        ("launch config", "zone-b", "created"),
        ("launch config", "zone-a", "archived"),
    ]
    assert await everything(provisioner) == before


async def test_only_what_changes_is_locked(provisioner: Provisioner) -> None:
    """A change of one pool does not wait for other pools, accounts, shares or launch stops, which others hold."""
    body = declared("zone-a")
    other_pool = body["worker_pools"][0] | {
        "id": "other",
        "launch_configs": declared("zone-b")["worker_pools"][0]["launch_configs"],
    }
    body["worker_pools"].append(other_pool)
    await provisioner.declare(body)
    body["worker_pools"][0]["launch_configs"][0]["image"] = "linux-2"
    locked = """
    SELECT FROM worker_pool WHERE id = 'other' FOR UPDATE;
    SELECT FROM launch_config_name WHERE name = 'zone-b' FOR UPDATE;
    SELECT FROM launch_config WHERE name = 'zone-b' FOR UPDATE; SELECT FROM account FOR NO KEY UPDATE;
    SELECT FROM shared_window FOR UPDATE; SELECT FROM launch_stop_guard FOR UPDATE"""
    async with provisioner.database.acquire() as other, other.transaction():
        await other.execute(locked)
        assert told(await provisioner.declare(body)) == [("launch config", "zone-a", "updated")]


async def test_a_changed_body_makes_a_revision(provisioner: Provisioner) -> None:
    """Both are under one name; the former one launches what the new one does not. The same body again is the same
    revision, reactivated. Weights belong to the name."""
    assert told(await provisioner.declare()) == [
        ("account", "sim-a", "created"),
        ("worker pool", "linux", "created"),
        ("launch config", "zone-a", "created"),
    ]
    first, second = revision_id(), revision_id(image="linux-2")
    assert await states(provisioner) == {first: "active"}
    await provisioner.events()
    (change,) = await provisioner.declare(with_image("linux-2"), drain_seconds=60.0, terminate=True)
    assert (change.id, change.result) == ("zone-a", "updated")
    hashes = [id_.removeprefix("zone-a@") for id_ in (first, second)]
    assert change.detail == f"revision: {hashes[0]} → {hashes[1]}, image_revision: linux-1 → linux-2"
    assert await states(provisioner) == {first: "natural", second: "active"}
    events = [
        event for event in await provisioner.events() if isinstance(event, LaunchConfigCreated | LaunchConfigUpdated)
    ]
    assert [(type(event), event.launch_config_id, event.current) for event in events] == [
        (LaunchConfigCreated, second, True),
        (LaunchConfigUpdated, first, False),
    ]
    kept = await provisioner.database.fetchrow(
        "SELECT drain_seconds, drain_terminate FROM launch_config WHERE id = $1", first
    )
    assert tuple(kept) == (60.0, True)
    (change,) = await provisioner.declare()
    assert (change.id, change.result) == ("zone-a", "reactivated")
    assert await states(provisioner) == {first: "active", second: "natural"}
    body = declared()
    body["worker_pools"][0]["launch_configs"][0]["base_weight"] = 2.0
    (change,) = await provisioner.declare(body)
    assert (change.result, change.detail) == ("updated", "base_weight: 1.0 → 2.0")
    updated = await provisioner.published(LaunchConfigUpdated)
    assert {(event.launch_config_id, event.base_weight) for event in updated[-2:]} == {(first, 2.0), (second, 2.0)}
    assert set(await states(provisioner)) == {first, second}


@pytest.mark.parametrize(("strategy", "former"), [("natural", "natural"), ("rolling", "rolling"), ("now", "draining")])
async def test_strategies(provisioner: Provisioner, strategy: str, former: str) -> None:
    """Natural and rolling keep the former revision as a fallback; now drains it at once."""
    await provisioner.declare()
    await provisioner.events()
    await provisioner.declare(with_image("linux-2"), strategy=strategy, drain_seconds=120.0)
    assert (await states(provisioner))[revision_id()] == former
    drains = await provisioner.published(LaunchConfigDraining)
    assert [(event.reason, event.by, event.terminate, event.drain_until) for event in drains] == (
        [(f"replaced by {revision_id(image='linux-2')}", "test", True, after(120))] if strategy == "now" else []
    )


async def test_one_fallback(provisioner: Provisioner) -> None:
    """While a third revision proves itself, the one that was proven may launch, and the unproven one drains."""
    await provisioner.declare()
    await provisioner.database.execute("UPDATE launch_config SET proven_at = slipway_clock()")
    await provisioner.declare(with_image("linux-2"))
    await provisioner.declare(with_image("linux-3"))
    assert await states(provisioner) == {
        revision_id(): "natural",
        revision_id(image="linux-2"): "draining",
        revision_id(image="linux-3"): "active",
    }


async def test_a_launch_config_that_is_left_out_drains(provisioner: Provisioner) -> None:
    """Declared again with the same body it is the same revision, and launches again."""
    await provisioner.declare(declared("zone-a", "zone-b"))
    await provisioner.events()
    assert told(await provisioner.declare(declared("zone-a"))) == [("launch config", "zone-b", "archived")]
    (drain,) = await provisioner.published(LaunchConfigDraining)
    assert (drain.launch_config_id, drain.state, drain.reason) == (
        revision_id("zone-b"),
        "draining",
        "the launch config is no longer declared",
    )
    assert drain.drain_until == after(3600)
    assert await provisioner.declare(declared("zone-a")) == []
    assert told(await provisioner.declare(declared("zone-a", "zone-b"))) == [("launch config", "zone-b", "reactivated")]
    assert await states(provisioner) == {revision_id("zone-a"): "active", revision_id("zone-b"): "active"}
    row = await provisioner.database.fetchrow(
        "SELECT drain_until, drain_terminate FROM launch_config WHERE name = 'zone-b'"
    )
    assert tuple(row) == (None, False)


async def test_an_archived_revision_is_reactivated(provisioner: Provisioner) -> None:
    """With its id, its shares and an update, since it was created before."""
    await provisioner.declare()
    await provisioner.declare(with_image("linux-2"), strategy="now")
    await provisioner.database.execute(
        "UPDATE launch_config SET state = 'archived', archived_at = slipway_clock() WHERE id = $1", revision_id()
    )
    await provisioner.database.execute("DELETE FROM shared_window")
    await provisioner.events()
    (change,) = await provisioner.declare(strategy="now")
    assert change.result == "reactivated"
    events = {event.launch_config_id: event for event in await provisioner.published(LaunchConfigUpdated)}
    assert (events[revision_id()].state, events[revision_id()].current) == ("active", True)
    keys = await provisioner.database.fetch("SELECT DISTINCT key FROM shared_window ORDER BY key")
    assert [row["key"] for row in keys] == [
        "capacity/sim-a/sim-1/zone-a/m5.large/on-demand",
        "credential/sim-a",
        "image/simulated%2Flinux-1",
        "quota/sim-a/sim-1/m5",
    ]
    assert (
        await provisioner.database.fetchval("SELECT archived_at FROM launch_config WHERE id = $1", revision_id())
        is None
    )


async def test_bodies_with_the_same_head_of_their_hash(provisioner: Provisioner) -> None:
    """The second one gets more digits; a revision that exists keeps its id."""
    await provisioner.declare()
    first, second = revision_id(), revision_id(image="linux-2")
    taken = "f" * 58
    await provisioner.database.execute("DELETE FROM launch_config_outcomes")
    await provisioner.database.execute(
        "UPDATE launch_config SET id = $2, digest = $3 WHERE id = $1", first, second, second[-6:] + taken
    )
    await provisioner.database.execute("UPDATE launch_config_name SET current_id = $1", second)
    await provisioner.declare(with_image("linux-2"))
    (longer,) = set(await states(provisioner)) - {second}
    assert longer.startswith(second)
    assert len(longer) == len(second) + 1
    assert await provisioner.declare(with_image("linux-2")) == []
    assert id_of("a", "abcdef01", {"a@abcdef": "abcdef02", "a@abcdef0": "abcdef03"}) == "a@abcdef01"


async def test_health_settings_of_each_config_are_published(provisioner: Provisioner) -> None:
    """The config's own profile or else its pool's, and the other settings in force, at once when either is changed. A
    change of the pool is listed once per apply."""
    body = declared("zone-a", "zone-b", "zone-c", on_bad_image="freeze", freeze_after=7)
    pool = body["worker_pools"][0]
    pool["launch_configs"][1]["profile"] = "bare-metal"
    await provisioner.declare(body)
    events = {event.name: event for event in await provisioner.published(LaunchConfigCreated)}
    assert {name: event.profile for name, event in events.items()} == {
        "zone-a": "on-demand",
        "zone-b": "bare-metal",
        "zone-c": "on-demand",
    }
    assert {(e.on_bad_image, e.freeze_after, e.boot_evidence) for e in events.values()} == {("freeze", 7, "register")}
    pool["profile"] = "spot"
    changes = await provisioner.declare(body)
    assert [(change.id, change.detail) for change in changes] == [("linux", "profile: on-demand → spot")]
    updated = await provisioner.published(LaunchConfigUpdated)
    assert sorted((e.name, e.profile, e.revision) for e in updated) == [("zone-a", "spot", 2), ("zone-c", "spot", 2)]
    pool["evidence"] = {"boot": "provider_running", "claim": "none"}
    pool["launch_configs"][2]["base_weight"] = 2.0
    changes = await provisioner.declare(body)
    assert [(change.id, change.detail) for change in changes] == [
        ("linux", "boot_evidence: register → provider_running, claim_evidence: hook → none"),
        ("zone-c", "base_weight: 1.0 → 2.0"),
    ]
    assert {(e.name, e.boot_evidence, e.claim_evidence) for e in await provisioner.published(LaunchConfigUpdated)} == {
        (name, "provider_running", "none") for name in ("zone-a", "zone-b", "zone-c")
    }
    assert await provisioner.declare(body) == []


async def test_a_region_is_part_of_the_body(provisioner: Provisioner) -> None:
    """An account that moves gives new revisions to all launch configs in it, of any owner."""
    await provisioner.declare({"version": 1, "accounts": declared()["accounts"]})
    await provisioner.declare(owned("b.yaml", "zone-a"))
    account = declared()["accounts"][0] | {"region": "sim-2"}
    changes = await provisioner.declare({"version": 1, "accounts": [account]})
    assert told(changes) == [("account", "sim-a", "updated"), ("launch config", "zone-a", "updated")]
    there = revision_id(region="sim-2")
    assert there != revision_id()
    assert await states(provisioner) == {revision_id(): "natural", there: "active"}
    assert await provisioner.declare(owned("b.yaml", "zone-a")) == []


@pytest.mark.parametrize("change", [{"region": "sim-2"}, {"identity": "another"}], ids=["region", "identity"])
async def test_an_account_that_moves_away_from_its_workers(provisioner: Provisioner, change: dict[str, Any]) -> None:
    """It needs a confirmation: they would be looked up in the new place, count as gone, and run for ever."""
    await provisioner.declare()
    (worker,) = await provisioner.starting()
    moved = {"version": 1, "accounts": [declared()["accounts"][0] | change]}
    with pytest.raises(
        ConfirmationRequired,
        match=r"account sim-a moves \(.*→.*\): its 1 worker would be looked up there, count as gone",
    ):
        await provisioner.declare(moved, confirm="")
    await provisioner.database.execute("UPDATE worker SET state = 'stopped' WHERE id = $1", worker.id)
    assert await provisioner.declare(moved, confirm="")


async def test_owners_do_not_remove_what_is_anothers(provisioner: Provisioner) -> None:
    """Each removes only its own, in sections that it has; what both declare is refused, and both are named."""
    await provisioner.declare({"version": 1, "accounts": declared()["accounts"]})
    await provisioner.declare(owned("a.yaml", "zone-a", pool="a"))
    await provisioner.declare(owned("b.yaml", "zone-b", pool="b"))
    assert await provisioner.declare(owned("a.yaml", "zone-a", pool="a")) == []
    with pytest.raises(OwnedByAnother, match=r"worker pool a belongs to a\.yaml and is also declared by b\.yaml"):
        await provisioner.declare(owned("b.yaml", "zone-a", pool="a"))
    assert await provisioner.declare({"version": 1, "metadata": {"owner": "b.yaml"}, "accounts": []}) == []
    removed = {"version": 1, "metadata": {"owner": "b.yaml"}, "worker_pools": []}
    assert told(await provisioner.declare(removed)) == [
        ("worker pool", "b", "archived"),
        ("launch config", "zone-b", "archived"),
    ]
    assert (await states(provisioner))[revision_id("zone-a")] == "active"


async def test_prune_and_adopt(provisioner: Provisioner) -> None:
    """They reach what belongs to others: what nobody declares is removed, and what another declares is taken over."""
    await provisioner.declare({"version": 1, "accounts": declared()["accounts"]})
    await provisioner.declare(owned("a.yaml", "zone-a", pool="a"))
    await provisioner.declare(owned("b.yaml", "zone-b", pool="b"))
    (adopted,) = await provisioner.declare(owned("c.yaml", "zone-a", pool="a"), adopt=True)
    assert (adopted.id, adopted.result, adopted.detail) == ("a", "updated", "owner: a.yaml → c.yaml")
    pruned = await provisioner.declare(owned("c.yaml", "zone-a", pool="a"), prune=True)
    assert told(pruned) == [("worker pool", "b", "archived"), ("launch config", "zone-b", "archived")]
    assert await provisioner.database.fetchval("SELECT owner FROM account") == "test"


async def test_what_nobody_owns_is_anybodys(provisioner: Provisioner, tmp_path: Path) -> None:
    """A pool that was put without an owner belongs to the first who declares it."""
    await provisioner.declare({"version": 1, "accounts": declared()["accounts"]})
    async with administrator(provisioner, tmp_path) as client:
        assert (await client.put("/pools/linux", json=declared()["worker_pools"][0])).status_code == 200
        assert (await client.get("/pools/linux")).json()["owner"] == ""
    assert await provisioner.declare({"version": 1, "metadata": {"owner": "a.yaml"}, "worker_pools": []}) == []
    (adopted,) = await provisioner.declare(owned("a.yaml"))
    assert adopted.detail == "owner: none → a.yaml"


async def test_documents_of_one_request(provisioner: Provisioner, tmp_path: Path) -> None:
    """They are one apply: a pool may move from one to the other, but not be in both."""
    pool = declared()["worker_pools"][0]
    other = declared("zone-b", id="other")["worker_pools"][0]
    account = {"account": declared()["accounts"][0]}
    async with administrator(provisioner, tmp_path) as client:

        async def put(*values: Any) -> Any:
            listed = await client.put("/declaration?dry_run=true", content=lines(*values), headers=LINES)
            confirm = {"confirm": listed.json().get("digest", "")}
            return await client.put("/declaration", params=confirm, content=lines(*values), headers=LINES)

        first = await put(head("a.yaml"), account, {"worker_pool": pool}, head("b.yaml"), {"worker_pool": other})
        assert len(first.json()["items"]) == 5
        both = await put(head("a.yaml"), account, {"worker_pool": pool}, head("b.yaml"), {"worker_pool": pool})
        assert both.status_code == 422
        assert both.json()["type"] == "urn:slipway:problem:invalid-declaration"
        (problem,) = both.json()["errors"]
        assert (problem["document"], problem["path"]) == ("b.yaml", "worker_pools[0].id")
        assert problem["reason"] == "'linux' is already used by worker_pools[0] of a.yaml"
        moved = await put(head("a.yaml"), account, head("b.yaml"), {"worker_pool": other}, {"worker_pool": pool})
        assert [(item["id"], item["detail"]) for item in moved.json()["items"]] == [("linux", "owner: a.yaml → b.yaml")]
        for more in ([], [head("a.yaml")]):
            twice = await put(head("a.yaml"), account, *more, account)
            assert twice.status_code == 422
            assert twice.json()["errors"][0]["reason"] == "'sim-a' is already used by accounts[0]"


async def test_launches_of_a_changed_account_are_previewed(provisioner: Provisioner) -> None:
    """Its launch configs stay as they are, but what they launch with does not; removed ones launch nothing."""
    await provisioner.declare(declared("zone-a", "zone-b"))
    async with provisioner.database.acquire() as db:
        changed = await apply_body(db, declared("zone-a", "zone-b", settings={"url": "http://other"}), dry_run=True)
        assert [each.config["id"] for each in changed.launches] == [revision_id("zone-a"), revision_id("zone-b")]
        assert {each.account.settings["url"] for each in changed.launches} == {"http://other"}
        fewer = await apply_body(db, declared("zone-a", settings={"url": "http://other"}), dry_run=True)
        assert [each.config["id"] for each in fewer.launches] == [revision_id("zone-a")]
        assert (await apply_body(db, declared("zone-a", "zone-b"), dry_run=True)).launches == []


async def test_removed_accounts(provisioner: Provisioner) -> None:
    """An account that a launch config needs is not removed; a removed one stays until it is unused, and may return."""
    await provisioner.declare()
    body = declared()
    with pytest.raises(DeclarationRefused, match="launch config zone-a of worker pool linux launches in it"):
        await provisioner.declare({"version": 1, "accounts": []})
    removed = await provisioner.declare(body | {"accounts": [], "worker_pools": []})
    assert told(removed)[0] == ("account", "sim-a", "archived")
    assert await provisioner.database.fetchval("SELECT removed FROM account")
    await provisioner.events()
    assert [result for _, _, result in told(await provisioner.declare(body))] == ["reactivated"] * 3
    assert [type(event) for event in await provisioner.events()] == [PoolUpdated, LaunchConfigUpdated]
    assert await provisioner.database.fetchval("SELECT NOT removed AND owner = 'test' FROM account")


async def test_a_removed_pool(provisioner: Provisioner) -> None:
    """Its launch configs drain, and anybody may declare it again; then it is as declared."""
    await provisioner.declare()
    await provisioner.events()
    assert told(await provisioner.declare(declared() | {"worker_pools": []})) == [
        ("worker pool", "linux", "archived"),
        ("launch config", "zone-a", "archived"),
    ]
    assert [type(event) for event in await provisioner.events()] == [PoolDeleted, LaunchConfigDraining]
    assert told(await provisioner.declare(owned("b.yaml"))) == [
        ("worker pool", "linux", "reactivated"),
        ("launch config", "zone-a", "reactivated"),
    ]
    assert await provisioner.database.fetchval("SELECT max_capacity FROM worker_pool WHERE NOT deleted") == 100


@pytest.mark.parametrize("pool", [True, False], ids=["pool", "launch config"])
async def test_a_pause_ends_with_what_it_is_of(provisioner: Provisioner, tmp_path: Path, pool: bool) -> None:
    """Declared again, it launches as declared; the audit of the removal has the pause. Other changes keep it."""
    body = declared("zone-a", "zone-b")
    await provisioner.declare(body)
    async with administrator(provisioner, tmp_path) as client:
        for path in ("/launch-configs/zone-a/pause", "/pools/linux/pause", "/pools/linux/freeze"):
            assert (await client.post(path, json={"reason": "drill"})).is_success
        await provisioner.declare(with_image("linux-2", "zone-a", "zone-b"))
        assert (await client.get("/launch-configs/zone-a")).json()["state"] == "paused"
        await provisioner.declare(body | {"worker_pools": []} if pool else declared("zone-b"))
        await provisioner.declare(body)
        assert (await client.get("/launch-configs/zone-a")).json()["state"] == "active"
        shown = (await client.get("/pools/linux")).json()
        assert (shown["paused"], shown["frozen"]) == (not pool, not pool)
        (removed,) = [
            row
            for row in (await client.get("/audit?kind=config&subject=zone-a")).json()["items"]
            if row["result"] == "archived"
        ]
        assert removed["before"]["paused"] is True


SCRIPT: Final = "#!/bin/sh\nPASSWORD=hunter2 start-worker '{{user_data}}'\n"


async def test_user_data_of_a_pool(provisioner: Provisioner, tmp_path: Path) -> None:
    """A change of the template makes a new revision of every launch config, and is shown by a digest. It is rendered
    for each batch; a rollback brings the former one back."""
    body = declared("zone-a", "zone-b") | {"metadata": {"owner": "test"}}
    first = [revision_id(name) for name in ("zone-a", "zone-b")]
    async with administrator(provisioner, tmp_path) as client:
        await client.put("/declaration", json=body)
        body["worker_pools"][0]["user_data"] = SCRIPT
        changed = (await client.put("/declaration", json=body)).json()["items"]
        assert [item["id"] for item in changed] == ["zone-a", "zone-b"]
        assert all(re.search(r"user_data: default → [0-9a-f]+$", item["detail"]) for item in changed)
        assert set(first).isdisjoint(await current_revisions(provisioner))
        assert "hunter2" not in (await client.get("/audit")).text
        await provisioner.trust()
        await provisioner.demand(report(1))
        await provisioner.plan()
        await provisioner.leases(*map(provisioner.granted, await provisioner.published(LeaseRequested)))
        await provisioner.launch()
        (call,) = provisioner.cloud.calls
        assert call.user_data.startswith('#!/bin/sh\nPASSWORD=hunter2 start-worker \'{"batch_id":')
        assert (await client.post("/pools/linux/rollback", json={"reason": "it does not start"})).status_code == 200
        assert (await client.get("/pools/linux")).json()["declared"]["user_data"] is None
    assert await current_revisions(provisioner) == first


async def current_revisions(provisioner: Provisioner) -> list[str]:
    rows = await provisioner.database.fetch("SELECT current_id FROM launch_config_name ORDER BY name")
    return [row["current_id"] for row in rows]


@pytest.mark.parametrize(
    ("template", "where", "words"),
    [
        ("#!/bin/sh\n{{secret}}", "worker_pools[0].user_data", "line 2: there is no placeholder {{secret}}"),
        ("#!/bin/sh\n", "worker_pools[0]", "neither {{user_data}} nor {{batch_secret}}"),
        ("{{user_data}}" + 16_000 * "#", "launch_configs[0]", "shorten the pool's user_data"),
    ],
)
async def test_user_data_that_cannot_be_used(
    provisioner: Provisioner, tmp_path: Path, template: str, where: str, words: str
) -> None:
    """The declaration is refused with the place and the remedy, and changes nothing."""
    body = declared()
    body["worker_pools"][0]["user_data"] = template
    before = await everything(provisioner)
    async with administrator(provisioner, tmp_path) as client:
        answer = await client.put("/declaration", json=body)
    assert answer.status_code == 422
    assert where in answer.text
    assert words in answer.text
    assert await everything(provisioner) == before


async def test_settings_are_shown_by_their_names(
    provisioner: Provisioner, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their values may be secrets: no answer, history, audit, event or log has them. A rollback brings them back."""
    bodies = []
    for secret in ("hunter2-first", "hunter2-second"):
        body = declared(settings={"token": secret})
        body["worker_pools"][0]["launch_configs"][0]["settings"] = {"user_data": secret, "tags": {"k": [secret]}}
        bodies.append(body | {"metadata": {"owner": "test"}})
    answers = []
    async with administrator(provisioner, tmp_path) as client:
        for body in bodies:
            answers += [await client.put(f"/declaration{query}", json=body) for query in ("?dry_run=true", "")]
        answers.append(await client.post("/pools/linux/rollback", json={"reason": "leaked"}))
        details = [[item["detail"] for item in answer.json()["items"]] for answer in answers]
        (spec,) = (await client.get("/pools/linux")).json()["declared"]["launch_configs"]
        assert spec["settings"] == {"user_data": "hunter2-first", "tags": {"k": ["hunter2-first"]}}
        gone = declared() | {"metadata": {"owner": "test"}, "worker_pools": []}
        confirm = (await client.put("/declaration?dry_run=true", json=gone)).json()["digest"]
        answers.append(await client.put(f"/declaration?confirm={confirm}", json=gone))
        answers += [await client.get(path) for path in ("/pools/linux/history", "/audit")]
    assert {answer.status_code for answer in answers} == {200}
    assert details[2] == details[3]
    assert details[3][0] == "settings.token: changed"
    assert details[3][1].endswith(", settings.tags: changed, settings.user_data: changed")
    stored = "SELECT (SELECT jsonb_agg(a) FROM audit a)::text, (SELECT jsonb_agg(r.changes) FROM pool_revision r)::text"
    shown = [*(answer.text for answer in answers), *await provisioner.database.fetchrow(stored)]
    rows = await provisioner.database.fetch("SELECT convert_from(value, 'UTF8') AS value FROM outbox WHERE value <> ''")
    assert rows
    shown += [*(row["value"] for row in rows), caplog.text, *capsys.readouterr()]
    assert not [text for text in shown if "hunter2" in text]


async def test_lines_without_an_owner_are_those_of_the_caller(provisioner: Provisioner, tmp_path: Path) -> None:
    """They remove nothing that has no owner, such as imports. Unknown sections, and an id in two documents of one
    owner, are refused."""
    await provisioner.declare(declared() | {"metadata": {"owner": "a.yaml"}})
    pool = declared("zone-b", id="imported")["worker_pools"][0]
    header = {"version": 1, "sections": ["worker_pools"]}
    async with administrator(provisioner, tmp_path) as client:
        assert (await client.put("/pools/imported", json=pool)).is_success
        answer = await client.put("/declaration", content=lines(header), headers=LINES)
        assert (answer.status_code, answer.json()["items"]) == (200, [])
        twice = lines(header, {"worker_pool": pool}, header, {"worker_pool": pool | {"max_capacity": 7}})
        answer = await client.put("/declaration", content=twice, headers=LINES)
        assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "worker_pools[0].id")
        answer = await client.put("/declaration", content=lines(head("a.yaml", "pools")), headers=LINES)
        assert answer.status_code == 422
        body = {"to_revision": 1 << 63, "reason": "drill"}
        assert (await client.post("/pools/imported/rollback", json=body)).status_code == 422


async def test_a_change_of_a_credential_is_shown_and_stored(provisioner: Provisioner) -> None:
    """It is a reference, which reaches the provider; the secret that it refers to is stored nowhere."""
    await provisioner.declare()
    reference = {"role": "arn:aws:iam::1:role/ci", "external_id": "x-1", "source": {"name": "ci"}}
    changed = [declared()["accounts"][0] | {"credential": reference}]
    (change,) = await provisioner.declare({"version": 1, "accounts": changed})
    assert (change.kind, change.result) == ("account", "updated")
    assert change.detail.startswith("credential: none → ")
    assert "arn:aws:iam::1:role/ci" in change.detail
    async with provisioner.database.acquire() as db:
        assert (await accounts.get(db, "sim-a")).credential == reference
