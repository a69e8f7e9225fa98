"""History of pools, rollbacks, and the audit of declarations and commands."""

from pathlib import Path
from typing import Any

import pytest

from slipway_api.events.launch_config import LaunchConfigDraining
from slipway_api.events.pool import PoolRolledBack, PoolUpdated
from slipway_api.events.weight import SharedWindow
from tests.support.declarations import everything, states, with_image
from tests.support.provisioner import Provisioner, administrator, awaited, declared, revision_id, weight


async def test_history_and_rollback(provisioner: Provisioner, tmp_path: Path) -> None:
    """A rollback returns to the revisions before the last change of these; the one that it rolls away from drains at
    once and is not terminated. The pool keeps its maximum."""
    await provisioner.declare()
    await provisioner.declare(with_image("linux-2", max_capacity=50))
    await provisioner.database.execute("UPDATE worker_pool SET revision = revision + 5")
    await provisioner.events()
    async with administrator(provisioner, tmp_path) as client:
        answer = await client.post("/pools/linux/rollback", json={"reason": "it does not boot"})
        assert (answer.status_code, answer.json().get("to_revision")) == (200, 1)
        assert [(item["id"], item["result"]) for item in answer.json()["items"]] == [
            ("zone-a", "reactivated"),
        ]
        current = {"zone-a": {"revision": revision_id().partition("@")[2], "image": "linux-1"}}
        assert answer.json()["revisions"] == current
        events = await provisioner.events()
        (rolled,) = [event for event in events if isinstance(event, PoolRolledBack)]
        assert (rolled.to_revision, rolled.reason, rolled.by, rolled.max_capacity) == (
            1,
            "it does not boot",
            "admin",
            50,
        )
        (drain,) = [event for event in events if isinstance(event, LaunchConfigDraining)]
        assert (drain.launch_config_id, drain.terminate) == (revision_id(image="linux-2"), False)
        assert not [event for event in events if isinstance(event, PoolUpdated)]
        assert (await states(provisioner))[revision_id()] == "active"
        listed = (await client.get("/pools/linux/history?full=true")).json()["items"]
        assert [(entry["revision"], entry["by"], entry["action"], entry["reason"]) for entry in listed] == [
            (8, "admin", "rollback", "it does not boot"),
            (2, "test", "apply", ""),
            (1, "test", "apply", ""),
        ]
        assert [entry["to_revision"] for entry in listed] == [1, None, None]
        assert [entry["revisions"]["zone-a"]["image"] for entry in listed] == ["linux-1", "linux-2", "linux-1"]
        assert listed[0]["revisions"] == current
        assert listed[0]["spec"] == listed[2]["spec"] | {"max_capacity": 50}
        assert (await client.get("/pools/linux")).headers["ETag"] == answer.headers["ETag"]
        before = await everything(provisioner)
        again = await client.post("/pools/linux/rollback", json={"reason": "no"})
        assert (again.status_code, again.json()["type"]) == (409, "urn:slipway:problem:nothing-to-roll-back")
        assert "with --to" in again.json()["detail"], "another one would return to what was just left"
        assert await everything(provisioner) == before
        unknown = await client.post("/pools/linux/rollback", json={"reason": "r", "to_revision": 7})
        assert (unknown.status_code, unknown.json()["type"]) == (409, "urn:slipway:problem:nothing-to-roll-back")


@pytest.mark.parametrize("cause", ["record", "image"])
async def test_a_rollback_to_a_tripped_revision_is_refused(
    provisioner: Provisioner, tmp_path: Path, cause: str
) -> None:
    """Unless it is forced. What the rollback does not change may be tripped."""
    await provisioner.declare(declared("zone-a", "zone-b"))
    body = declared("zone-a", "zone-b")
    body["worker_pools"][0]["launch_configs"][0]["image"] = "linux-2"
    await provisioner.declare(body)
    if cause == "record":
        await provisioner.weights(weight(revision_id(), state="tripped", reason="5 boots failed"))
    else:
        window = SharedWindow(
            kind="image", id="simulated/linux-1", stage="boot", version=1, window=8, state="tripped", reason=""
        )
        await provisioner.weights(weight("zone-b", shared=(window,)))
    before = await everything(provisioner)
    async with administrator(provisioner, tmp_path) as client:
        refused = await client.post("/pools/linux/rollback", json={"reason": "r"})
        assert refused.status_code == 409
        assert refused.json()["type"] == "urn:slipway:problem:rollback-tripped"
        assert f"{revision_id()} is tripped" in refused.json()["detail"]
        preview = (await client.get("/pools/linux/rollback")).json()
        assert (preview["refused"], preview["items"]) == (refused.json()["detail"], [])
        assert await everything(provisioner) == before
        forced = await client.post("/pools/linux/rollback", json={"reason": "r", "force": True})
        assert forced.status_code == 200
        back = await client.post("/pools/linux/rollback", json={"reason": "r", "to_revision": 2})
        assert back.status_code == 200, "only the other revision is tripped"


async def test_a_rollback_leaves_what_is_not_of_revisions(provisioner: Provisioner, tmp_path: Path) -> None:
    """Changes of the maximum or of a weight since then stay, also when an entry is given. The whole pool returns only
    if that is asked for, and is guarded like any other change."""
    await provisioner.declare(declared(max_capacity=300))
    await provisioner.declare(with_image("linux-2", max_capacity=300))
    body = with_image("linux-2", max_capacity=120)
    body["worker_pools"][0]["launch_configs"][0]["base_weight"] = 0.5
    await provisioner.declare(body)
    wanted = (
        "SELECT p.max_capacity, base_weight, current_id FROM worker_pool p JOIN launch_config_name n ON p.id = pool_id"
    )
    async with administrator(provisioner, tmp_path) as client:
        answer = await client.post("/pools/linux/rollback", json={"reason": "bad image"})
        assert (answer.status_code, answer.json().get("to_revision")) == (200, 1)
        assert len(answer.json()["items"]) == 1
        assert tuple(await provisioner.database.fetchrow(wanted)) == (120, 0.5, revision_id())
        answer = await client.post("/pools/linux/rollback", json={"reason": "r", "to_revision": 2})
        assert answer.json()["revisions"]["zone-a"]["image"] == "linux-2"
        assert tuple(await provisioner.database.fetchrow(wanted)) == (120, 0.5, revision_id(image="linux-2"))
        whole = {"reason": "r", "to_revision": 1, "whole": True}
        refused = await client.post("/pools/linux/rollback", json=whole)
        assert refused.json()["type"] == "urn:slipway:problem:confirmation-required"
        confirmed = whole | {"confirm": refused.json()["digest"]}
        assert (await client.post("/pools/linux/rollback", json=confirmed)).status_code == 200
        assert tuple(await provisioner.database.fetchrow(wanted)) == (300, 1, revision_id())


async def test_a_second_rollback_goes_further_back(provisioner: Provisioner, tmp_path: Path) -> None:
    """It never returns to what a rollback has left, unless that is asked for or was declared again."""
    for image in ("linux-1", "linux-2", "linux-3"):
        await provisioner.declare(with_image(image))
    async with administrator(provisioner, tmp_path) as client:

        async def rolled_back(**body: Any) -> Any:
            answer = await client.post("/pools/linux/rollback", json={"reason": "r"} | body)
            return answer.json()["revisions"]["zone-a"]["image"] if answer.status_code == 200 else answer.status_code

        assert [await rolled_back() for _ in range(3)] == ["linux-2", "linux-1", 409]
        refused = (await client.get("/pools/linux/rollback")).json()["refused"]
        assert refused == (
            "rollbacks of worker pool linux have left every earlier revision of its launch configs; "
            "choose an entry of `slipway pool history linux` with --to"
        )
        assert await rolled_back(to_revision=2) == "linux-2"
        await provisioner.declare(with_image("linux-4"))
        assert await rolled_back() == "linux-2", "declared before the change"


async def test_a_rollback_to_an_unproven_revision_keeps_the_proven_one(
    provisioner: Provisioner, tmp_path: Path
) -> None:
    """As the fallback, until the target is proven; what is rolled away from drains. With `now` all others end."""
    await provisioner.declare()
    await provisioner.database.execute("UPDATE launch_config SET proven_at = slipway_clock()")
    for image in ("linux-2", "linux-3"):
        await provisioner.declare(with_image(image))
    good, unproven, bad = (revision_id(image=f"linux-{number}") for number in (1, 2, 3))
    assert await states(provisioner) == {good: "natural", unproven: "draining", bad: "active"}
    async with administrator(provisioner, tmp_path) as client:
        answer = await client.post("/pools/linux/rollback", json={"reason": "r"})
        assert answer.json()["revisions"]["zone-a"]["image"] == "linux-2"
        assert await states(provisioner) == {good: "rollback", unproven: "active", bad: "draining"}
        await provisioner.declare(with_image("linux-4"))
        await provisioner.events()
        answer = await client.post("/pools/linux/rollback", json={"reason": "leaked", "replace": "now"})
        assert answer.json()["revisions"]["zone-a"]["image"] == "linux-2"
        drains = [event for event in await provisioner.events() if isinstance(event, LaunchConfigDraining)]
        ended = {event.launch_config_id for event in drains if event.terminate}
        assert ended == {good, bad, revision_id(image="linux-4")}


async def test_history_and_audit_have_the_command_and_its_reason(provisioner: Provisioner, tmp_path: Path) -> None:
    """Of every change of a pool, also on the drains that it makes."""
    await provisioner.declare()
    async with administrator(provisioner, tmp_path) as client:
        for image, action, reason in (("linux-2", "put", ""), ("linux-3", "set-image", "patched kernel")):
            wanted = with_image(image)["worker_pools"][0]
            params = {"reason": reason} | ({"action": action} if reason else {})
            assert (await client.put("/pools/linux", json=wanted, params=params)).status_code == 200
        assert (await client.post("/pools/linux/rollback", json={"reason": "no boot"})).status_code == 200
        expected = [("rollback", "no boot"), ("set-image", "patched kernel"), ("put", ""), ("apply", "")]
        for path in ("/pools/linux/history", "/audit?kind=config&subject=zone-a"):
            items = (await client.get(path)).json()["items"]
            assert [(item["action"], item["reason"]) for item in items] == expected
        assert (await client.put("/pools/linux?action=invented", json=wanted)).status_code == 422
    drains = [event for event in await provisioner.events() if isinstance(event, LaunchConfigDraining)]
    assert [event.reason.partition(": ")[2] for event in drains] == ["patched kernel", "no boot"]


async def test_a_rollback_keeps_a_change_made_meanwhile(provisioner: Provisioner, tmp_path: Path) -> None:
    """One between its reading and its writing."""
    await provisioner.declare()
    await provisioner.declare(with_image("linux-2"))
    async with administrator(provisioner, tmp_path) as client, provisioner.database.acquire() as other:
        transaction = other.transaction()
        await transaction.start()
        spec = "jsonb_set(spec, '{max_capacity}', '40')"
        await other.execute(f"UPDATE worker_pool SET max_capacity = 40, spec = {spec}, spec_digest = 'd', revision = 9")
        rolling = provisioner.start(awaited(client.post("/pools/linux/rollback", json={"reason": "r"})))
        await provisioner.until_waiting(rolling)
        await transaction.commit()
        assert (await rolling).status_code == 200
    row = await provisioner.database.fetchrow("SELECT max_capacity, spec FROM worker_pool")
    assert (row["max_capacity"], row["spec"]["max_capacity"]) == (40, 40)
    assert row["spec"]["launch_configs"][0]["image"] == "linux-1"


async def test_a_removed_pool_can_be_rolled_back(provisioner: Provisioner, tmp_path: Path) -> None:
    await provisioner.declare()
    await provisioner.declare(declared() | {"worker_pools": []})
    async with administrator(provisioner, tmp_path) as client:
        refused = await client.post("/pools/linux/rollback", json={"reason": "not meant"})
        assert (refused.status_code, "with --whole" in refused.json()["detail"]) == (409, True)
        answer = await client.post("/pools/linux/rollback", json={"reason": "not meant", "whole": True})
        assert [item["result"] for item in answer.json()["items"]] == ["reactivated", "reactivated"]
        shown = (await client.get("/pools/linux")).json()
        assert (shown["max_capacity"], shown["owner"]) == (100, "test")


async def test_audit(provisioner: Provisioner, tmp_path: Path) -> None:
    """Each row has who made the change, and the fields that changed, before and after."""
    await provisioner.declare()
    await provisioner.declare(with_image("linux-2", max_capacity=50), by="ann")
    await provisioner.declare(declared() | {"worker_pools": []}, by="bob", action="apply")
    async with administrator(provisioner, tmp_path) as client:
        of_pool = (await client.get("/audit", params={"kind": "pool", "subject": "linux"})).json()["items"]
        assert [(row["by"], row["result"]) for row in of_pool] == [
            ("bob", "archived"),
            ("ann", "updated"),
            ("test", "created"),
        ]
        assert (of_pool[1]["before"], of_pool[1]["after"]) == ({"max_capacity": 100}, {"max_capacity": 50})
        assert of_pool[2]["before"] is None
        assert of_pool[2]["after"].items() >= {"max_capacity": 100, "owner": "test"}.items()
        assert (of_pool[0]["before"]["max_capacity"], of_pool[0]["after"]) == (50, None)
        (_, changed, _) = (await client.get("/audit?kind=config&subject=zone-a")).json()["items"]
        hashes = [id_.removeprefix("zone-a@") for id_ in (revision_id(), revision_id(image="linux-2"))]
        assert changed["before"] == {"revision": hashes[0], "image_revision": "linux-1"}
        assert changed["after"] == {"revision": hashes[1], "image_revision": "linux-2"}
        unknown = await client.get("/audit?kind=sector")
        expected = "'account', 'capacity', 'pool', 'config',"
        assert (unknown.status_code, expected in unknown.json()["detail"]) == (
            422,
            True,
        )
        for since, found in (("12:00:00Z", of_pool), ("12:00:01Z", [])):
            query = {"since": f"2026-01-01T{since}", "kind": "pool"}
            assert (await client.get("/audit", params=query)).json()["items"] == found
    before = await everything(provisioner)
    await provisioner.declare(declared() | {"worker_pools": []})
    assert await everything(provisioner) == before


async def test_audit_of_commands(provisioner: Provisioner, tmp_path: Path) -> None:
    """A pause, a freeze and their ends are recorded under their own names."""
    await provisioner.declare()
    async with administrator(provisioner, tmp_path) as client:
        for path in ("/pools/linux/pause", "/pools/linux/resume", "/pools/linux/freeze", "/pools/linux/unfreeze"):
            assert (await client.post(path, json={"reason": "drill"})).status_code == 200
        for path in ("/launch-configs/zone-a/pause", "/launch-configs/zone-a/resume"):
            assert (await client.post(path, json={"reason": "drill"})).status_code == 200
        items = (await client.get("/audit?limit=6")).json()["items"]
    assert [(row["subject_id"], row["action"], row["by"], row["reason"]) for row in reversed(items)] == [
        *(("linux", action, "admin", "drill") for action in ("pause", "resume", "freeze", "unfreeze")),
        *(("zone-a", action, "admin", "drill") for action in ("pause", "resume")),
    ]
