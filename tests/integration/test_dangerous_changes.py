"""Changes of a declaration that need a confirmation, and what it covers."""

from pathlib import Path
from typing import Any, Final

import pytest

from slipway_api.events.weight import SharedWindow
from slipway_common.declaration.changes import ConfirmationRequired
from tests.support.declarations import everything, states, with_image
from tests.support.provisioner import Provisioner, administrator, apply_body, declared, report, revision_id, weight

CONFIGS: Final = [f"zone-{letter}" for letter in "abcdefgh"]
GROWS: Final = "worker pool linux: the minimum grows from"
DANGEROUS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "a quarter": (declared(*CONFIGS[:6]), ""),
    "more than a quarter": (declared(*CONFIGS[:5]), "worker pool linux: archives 3 of 8 active launch configs"),
    "none left": (declared("zone-z"), "worker pool linux: archives 8 of 8 active launch configs"),
    "pool removed": (declared() | {"worker_pools": []}, "worker pool linux is removed"),
    "doubled": (declared(*CONFIGS, max_capacity=200), ""),
    "more than doubled": (declared(*CONFIGS, max_capacity=201), "worker pool linux: the maximum grows from 100 to 201"),
    "new minimum": (declared(*CONFIGS, min_capacity=5, mode="canary"), ""),
    "minimum": (declared(*CONFIGS, min_capacity=6, mode="canary"), f"{GROWS} 0 to 6: machines launch without demand"),
    "minimum without launches": (declared(*CONFIGS, min_capacity=90, mode="observe"), ""),
    "unused maximum": (declared(*CONFIGS, max_capacity=0), ""),
    "new image": (with_image("linux-2", *CONFIGS), ""),
}


@pytest.mark.parametrize(("body", "danger"), DANGEROUS.values(), ids=DANGEROUS)
async def test_dangerous_changes_need_their_digest(provisioner: Provisioner, body: dict[str, Any], danger: str) -> None:
    """Without it, or with that of other changes, nothing is changed; a dry run shows it."""
    await provisioner.declare(declared(*CONFIGS))
    before = await everything(provisioner)
    async with provisioner.database.acquire() as db:
        listed = await apply_body(db, body, dry_run=True)
        assert [*map(str, listed.dangers)] == ([danger] if danger else [])
        if danger:
            for wrong in ("", "0" * 12):
                with pytest.raises(ConfirmationRequired) as refused:
                    await apply_body(db, body, confirm=wrong)
                assert (refused.value.digest, list(refused.value.dangers)) == (listed.digest, [danger])
            assert await everything(provisioner) == before
        assert (await apply_body(db, body, confirm=listed.digest if danger else "")).applied
    assert await everything(provisioner) != before


async def test_the_maximum_of_a_launch_config_is_guarded(provisioner: Provisioner) -> None:
    """A paused launch config is not active, so that archiving it is no danger."""
    body = declared("zone-a", "zone-b")
    config = body["worker_pools"][0]["launch_configs"][0]
    config["max_capacity"] = 10
    await provisioner.declare(body)
    config["max_capacity"] = 21
    with pytest.raises(ConfirmationRequired, match="launch config zone-a: the maximum grows from 10 to 21"):
        await provisioner.declare(body, confirm="")
    del config["max_capacity"]
    with pytest.raises(ConfirmationRequired, match="launch config zone-a: the maximum grows from 10 to 100"):
        await provisioner.declare(body, confirm="")
    await provisioner.database.execute("UPDATE launch_config_name SET paused = true WHERE name = 'zone-b'")
    config["max_capacity"] = 20
    body["worker_pools"][0]["launch_configs"].pop()
    assert len(await provisioner.declare(body, confirm="")) == 2


async def tripped(provisioner: Provisioner, cause: str, image: str = "linux-2") -> None:
    """Trip the revision of zone-a with this image, or the image."""
    if cause == "record":
        await provisioner.weights(weight(revision_id(image=image), state="tripped", reason="5 boots failed"))
    else:
        window = SharedWindow(
            kind="image",
            id=f"simulated/{image}",
            stage="boot",
            version=1,
            window=8,
            state="tripped",
            reason="5 boots failed",
        )
        await provisioner.weights(weight("zone-b", shared=(window,)))


@pytest.mark.parametrize("cause", ["record", "image"])
async def test_a_tripped_revision_becomes_current_with_a_confirmation(
    provisioner: Provisioner, tmp_path: Path, cause: str
) -> None:
    """By any door, unless a healthy revision launches what it does not."""
    await provisioner.declare()
    await provisioner.declare(with_image("linux-2"))
    await provisioner.declare(strategy="now", terminate=False)
    await tripped(provisioner, cause)
    danger = f"{revision_id(image='linux-2')} is tripped: 5 boots failed"
    bad = with_image("linux-2")
    async with administrator(provisioner, tmp_path) as client:
        for path, body in (("/declaration", bad), ("/pools/linux", bad["worker_pools"][0])):
            refused = await client.put(f"{path}?replace=now&adopt=true", json=body)
            assert (refused.status_code, refused.json()["dangers"]) == (409, [danger])
    assert (await states(provisioner))[revision_id()] == "active"
    await provisioner.declare(bad, confirm="")
    assert (await states(provisioner))[revision_id()] == "natural"


async def test_a_tripped_fallback_is_none(provisioner: Provisioner) -> None:
    await provisioner.declare()
    await provisioner.declare(with_image("linux-2"))
    await provisioner.declare(strategy="now", terminate=False)
    await tripped(provisioner, "record")
    await tripped(provisioner, "record", "linux-1")
    with pytest.raises(ConfirmationRequired, match="is tripped: 5 boots failed"):
        await provisioner.declare(with_image("linux-2"), confirm="")


@pytest.mark.parametrize("door", ["apply", "rollback"])
@pytest.mark.parametrize("archived", [False, True])
async def test_a_withdrawn_revision_returns_with_a_confirmation(
    provisioner: Provisioner, tmp_path: Path, door: str, archived: bool
) -> None:
    """An apply of the unchanged file would bring a leaked secret back. It is asked about once."""
    await provisioner.declare()
    await provisioner.declare(with_image("linux-2"), strategy="now", by="ann")
    if archived:
        await provisioner.database.execute(
            "UPDATE launch_config SET state = 'archived', archived_at = slipway_clock() WHERE state = 'draining'"
        )
    before = await everything(provisioner)
    danger = f"{revision_id()} was withdrawn: replaced with `now` by ann at 2026-01-01 12:00 UTC"
    async with administrator(provisioner, tmp_path) as client:

        async def returned(confirm: str) -> Any:
            if door == "apply":
                return await client.put(
                    f"/declaration?confirm={confirm}", json=declared() | {"metadata": {"owner": "test"}}
                )
            return await client.post("/pools/linux/rollback", json={"reason": "r", "confirm": confirm})

        refused = await returned("")
        assert (refused.status_code, refused.json()["dangers"]) == (409, [danger])
        assert await everything(provisioner) == before
        assert (await returned(refused.json()["digest"])).status_code == 200
    await provisioner.declare(with_image("linux-2"), confirm="")
    await provisioner.declare(confirm="")


FALLS: Final = "worker pool linux: the maximum falls from 100 to"


def serving(*configs: str, **changes: Any) -> dict[str, Any]:
    """The usual declaration of a pool that launches."""
    return declared(*configs, **({"mode": "enforce"} | changes))


IN_USE: Final[dict[str, tuple[dict[str, Any], list[str]]]] = {
    "no maximum": (
        serving("zone-a", "zone-b", max_capacity=0),
        [f"{FALLS} 0: 3 of 3 workers will leave once idle"],
    ),
    "less than half": (serving("zone-a", "zone-b", max_capacity=49), [f"{FALLS} 49: 3 workers stay"]),
    "half": (serving("zone-a", "zone-b", max_capacity=50), []),
    "observe": (
        declared("zone-a", "zone-b", mode="observe"),
        [
            "worker pool linux: the mode becomes observe: nothing is launched, and 3 workers will not be replaced",
        ],
    ),
    "canary": (declared("zone-a", "zone-b", mode="canary"), []),
    "removed": (serving() | {"worker_pools": []}, ["worker pool linux is removed: 3 workers drain"]),
    "archived": (
        serving("zone-b"),
        ["worker pool linux: archives 1 of 2 active launch configs: 3 workers drain"],
    ),
}


async def with_workers(provisioner: Provisioner) -> None:
    """Three workers of zone-a, in a pool with another launch config."""
    await provisioner.declare(serving("zone-a", "zone-b"))
    await provisioner.database.execute("UPDATE launch_config_name SET paused = true WHERE name = 'zone-b'")
    await provisioner.demand(report(3))
    await provisioner.plan()
    await provisioner.database.execute("UPDATE launch_config_name SET paused = false")


@pytest.mark.parametrize(("body", "dangers"), IN_USE.values(), ids=IN_USE)
async def test_workers_are_guarded(provisioner: Provisioner, body: dict[str, Any], dangers: list[str]) -> None:
    """Their number is shown, and is no part of what is confirmed."""
    await with_workers(provisioner)
    async with provisioner.database.acquire() as db:
        listed = await apply_body(db, body, dry_run=True)
        assert [*map(str, listed.dangers)] == dangers
        await provisioner.database.execute("DELETE FROM worker WHERE id = (SELECT min(id::text)::uuid FROM worker)")
        assert (await apply_body(db, body, dry_run=True)).digest == listed.digest


async def test_a_maximum_grows_from_nothing_with_a_confirmation(provisioner: Provisioner) -> None:
    """A new pool needs none, and neither does a pool that is declared again."""
    await provisioner.declare(serving(max_capacity=0), confirm="")
    with pytest.raises(ConfirmationRequired, match="worker pool linux: the maximum grows from 0 to 300"):
        await provisioner.declare(serving(max_capacity=300), confirm="")
    with pytest.raises(ConfirmationRequired, match="worker pool linux: the minimum grows from 0 to 90"):
        await provisioner.declare(serving(max_capacity=300, min_capacity=90), confirm="")
    await provisioner.declare(serving() | {"worker_pools": []})
    await provisioner.declare(serving(max_capacity=300, min_capacity=90), confirm="")
    await provisioner.declare(serving(max_capacity=300, min_capacity=180), confirm="")


async def test_the_maximum_of_a_used_launch_config_is_guarded(provisioner: Provisioner) -> None:
    """Without its own, it has that of its pool."""
    await with_workers(provisioner)
    body = serving("zone-a", "zone-b")
    for config, maximum in zip(body["worker_pools"][0]["launch_configs"], (0, 1), strict=True):
        config["max_capacity"] = maximum
    with pytest.raises(ConfirmationRequired) as refused:
        await provisioner.declare(body, confirm="")
    (danger,) = refused.value.dangers
    assert danger == "launch config zone-a: the maximum falls from 100 to 0: 3 of 3 workers will leave once idle"


async def test_a_confirmation_covers_what_is_created(provisioner: Provisioner) -> None:
    """Nothing of it is shown by its change: another image after the question is asked about again."""
    await provisioner.declare(with_image("linux-1", id="old"))
    asked = with_image("linux-2", "zone-b")
    async with provisioner.database.acquire() as db:
        listed = await apply_body(db, asked, dry_run=True, confirm="")
        assert [*map(str, listed.dangers)] == ["worker pool old is removed"]
        other = with_image("linux-3", "zone-b")
        with pytest.raises(ConfirmationRequired):
            await apply_body(db, other, confirm=listed.digest)
        assert (await apply_body(db, asked, confirm=listed.digest)).applied


@pytest.mark.parametrize(
    "terms",
    [{"strategy": "now", "terminate": True}, {"strategy": "rolling"}, {"drain_seconds": 9.0}, {"terminate": True}],
)
async def test_a_confirmation_covers_the_replacement(provisioner: Provisioner, terms: dict[str, Any]) -> None:
    """One for a natural replacement confirms no other, which stops workers at once or at a deadline."""
    await provisioner.declare(declared("zone-a", max_capacity=10))
    asked = with_image("linux-2", "zone-a", max_capacity=30)
    async with provisioner.database.acquire() as db:
        listed = await apply_body(db, asked, dry_run=True, confirm="")
        assert listed.dangers
        with pytest.raises(ConfirmationRequired):
            await apply_body(db, asked, confirm=listed.digest, **terms)
        assert (await apply_body(db, asked, confirm=listed.digest)).applied
