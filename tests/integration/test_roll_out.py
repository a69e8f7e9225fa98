"""Roll-outs on PostgreSQL: proof of a new revision, its fallback, bad images, and what is kept of archived ones."""

import contextlib
from typing import Any, Final

import pytest

from slipway_api.events.launch_config import LaunchConfigDraining, LaunchConfigUpdated
from slipway_api.events.scopes import REVISION_KEPT_SECONDS, image_key
from slipway_api.events.topics import LAUNCH_CONFIG_LIFECYCLE
from slipway_api.events.weight import SharedWindow, WeightChanged
from slipway_common.observability.telemetry import LOOP_FAILURES
from slipway_provisioner.store import decisions, roll_outs, workers
from slipway_provisioner.store.pools import CONFIGS, SHARED
from tests.support.plans import rows_read
from tests.support.provisioner import Provisioner, after, declared, report, revision_id, weight
from tests.support.roll_outs import (
    DRAINS,
    NEW,
    OLD,
    claim,
    demanded,
    launches,
    listed,
    proves,
    record,
    replaced,
    running,
    states,
    with_image,
)

DAY: Final = 86_400.0


async def test_the_old_revision_launches_what_the_new_one_does_not(provisioner: Provisioner) -> None:
    """Until five starts of the new one have succeeded; then the old one drains, for the reason that events give."""
    await provisioner.declare()
    await provisioner.trust()
    await replaced(provisioner)
    assert await states(provisioner) == {OLD: "active", NEW: "active"}
    assert await demanded(provisioner, 10, 0) == {NEW: 4, OLD: 6}
    assert await demanded(provisioner, 4, 1) == {NEW: 4}
    (decision,) = await decisions.recent(provisioner.database, "linux", 1)
    assert decision["details"]["configs"][OLD]["reason"] == "nothing is needed"
    await proves(provisioner, starts=4)
    assert await states(provisioner) == {OLD: "active", NEW: "active"}
    await proves(provisioner, starts=5, revision=10)
    events = [event for event in await provisioner.events() if isinstance(event, LaunchConfigDraining)]
    assert len(events) == 1
    (draining,) = events
    assert (draining.launch_config_id, draining.state, draining.current) == (OLD, "draining", False)
    assert (draining.reason, draining.by, draining.terminate) == (f"replaced by {NEW}", "provisioner", False)
    await provisioner.roll_out()
    assert await states(provisioner) == {OLD: "archived", NEW: "active"}


async def test_the_reason_names_the_revision_that_launches_first(provisioner: Provisioner) -> None:
    """A decision says why the fallback launches nothing."""
    await provisioner.declare()
    await replaced(provisioner)
    await provisioner.trust()
    assert await demanded(provisioner, 6, 0) == {NEW: 6}
    (decision,) = await decisions.recent(provisioner.database, "linux", 1)
    assert decision["details"]["configs"][OLD]["reason"] == f"the current revision {NEW} launches first"


async def test_a_tripped_revision_leaves_all_to_the_old_one(provisioner: Provisioner) -> None:
    """It is not proven by starts that succeeded before."""
    await provisioner.declare()
    await provisioner.trust()
    await replaced(provisioner)
    await provisioner.weights(record(NEW, 50, state="tripped", reason="tripped: 5 boots failed"), revision=3)
    assert await demanded(provisioner, 7, 0) == {OLD: 7}
    await provisioner.roll_out()
    assert await states(provisioner) == {OLD: "active", NEW: "active"}


async def test_a_rolling_replacement_goes_by_steps(provisioner: Provisioner) -> None:
    """A tenth of the launches first, a half at last; proven by twenty starts."""
    await provisioner.declare()
    await replaced(provisioner, strategy="rolling")
    await provisioner.trust()
    got = await demanded(provisioner, 40, 0)
    assert got[NEW] == pytest.approx(4, abs=2)
    assert got[OLD] == 40 - got[NEW]
    await proves(provisioner, starts=12)
    assert await states(provisioner) == {OLD: "active", NEW: "active"}
    rows = await listed(provisioner)
    assert (rows[NEW]["share"], rows[OLD]["share"], rows[OLD]["replaced_by"]) == (0.5, 0.5, "rolling")
    assert (rows[NEW]["succeeded_starts"], rows[NEW]["needed_starts"], rows[NEW]["proven"]) == (12, 20, False)
    await proves(provisioner, starts=20, revision=10)
    assert (await states(provisioner))[OLD] == "draining"
    assert (await listed(provisioner))[NEW]["proven"] is True


async def test_a_revision_without_fallback_is_proven_for_later(provisioner: Provisioner) -> None:
    """Of two old revisions the proven one stays as the fallback of a third."""
    await provisioner.declare()
    await proves(provisioner, OLD)
    await replaced(provisioner)
    await provisioner.declare(with_image("linux-3"))
    third = revision_id(image="linux-3")
    assert await states(provisioner) == {OLD: "active", NEW: "draining", third: "active"}
    await provisioner.roll_out()
    await provisioner.declare()
    assert await states(provisioner) == {OLD: "active", NEW: "archived", third: "draining"}


async def test_a_revision_that_tripped_proves_itself_again(provisioner: Provisioner) -> None:
    """The working revision stays as its fallback until it is healthy: it was proven long ago."""
    await provisioner.declare()
    await proves(provisioner, OLD)
    await replaced(provisioner, strategy="now")
    await proves(provisioner)
    await provisioner.weights(record(OLD, 5, state="tripped", reason="tripped: 5 boots failed"), revision=10)
    await provisioner.declare()
    await provisioner.roll_out()
    assert await states(provisioner) == {OLD: "active", NEW: "active"}
    await provisioner.weights(record(OLD, 6), revision=11)
    await provisioner.roll_out()
    assert await states(provisioner) == {OLD: "active", NEW: "archived"}


async def test_a_small_pool_proves_by_what_it_can_have(provisioner: Provisioner) -> None:
    """A pool of two workers needs two starts."""
    await provisioner.declare(declared(max_capacity=2))
    await provisioner.declare(with_image("linux-2", max_capacity=2))
    await proves(provisioner, starts=2)
    assert (await states(provisioner))[OLD] == "archived"


async def test_a_roll_out_that_fails_stops_no_other_one(provisioner: Provisioner) -> None:
    """It is counted, and goes on as soon as it can."""
    names = ("zone-a", "zone-b")
    await provisioner.declare(declared(*names))
    await provisioner.declare(with_image("linux-2", *names))
    await provisioner.weights(record(NEW, 5), record(revision_id("zone-b", image="linux-2"), 5))
    damage = "UPDATE weight SET record = record - 'stages' WHERE launch_config_id = $1"
    await provisioner.database.execute(damage, NEW)
    failures = LOOP_FAILURES.labels("roll-out")._value
    before = failures.get()
    with contextlib.suppress(KeyError):  # of the damaged record, as in the loop of a service
        await provisioner.roll_out()
    assert {id_ for id_, state in (await states(provisioner)).items() if state == "archived"} == {revision_id("zone-b")}
    assert failures.get() > before
    await proves(provisioner, revision=2)
    assert (await states(provisioner))[OLD] == "archived"


async def test_a_deletion_that_fails_stops_no_other_one(provisioner: Provisioner) -> None:
    """Revisions of other names go in time."""
    names = ("zone-a", "zone-b")
    await provisioner.declare(declared(*names))
    await provisioner.declare(with_image("linux-2", *names), strategy="now")
    await provisioner.roll_out()
    await provisioner.set_clock(REVISION_KEPT_SECONDS + 1)
    await provisioner.database.execute("CREATE TABLE kept (id text REFERENCES launch_config)")
    try:
        await provisioner.database.execute("INSERT INTO kept VALUES ($1)", OLD)
        await provisioner.roll_out()
        assert OLD in await states(provisioner)
        assert revision_id("zone-b") not in await states(provisioner)
    finally:
        await provisioner.database.execute("DROP TABLE kept")
    await provisioner.roll_out()
    assert OLD not in await states(provisioner)


async def bad_image(provisioner: Provisioner, image: str, *, revision: int) -> None:
    bad = SharedWindow(
        kind="image",
        id=f"simulated/{image}",
        stage="boot",
        version=revision,
        window=64,
        unconfirmed=10,
        state="tripped",
    )
    await provisioner.weights(weight(NEW, shared=(bad,)), revision=revision)
    await provisioner.plan()


async def is_frozen(provisioner: Provisioner) -> bool:
    frozen: bool = await provisioner.database.fetchval("SELECT frozen FROM worker_pool")
    return frozen


async def test_a_bad_new_image_does_not_freeze_what_still_launches(provisioner: Provisioner) -> None:
    """It trips, and the old revision launches on; without that one the pool freezes."""
    terms: dict[str, Any] = {"on_bad_image": "freeze", "freeze_after": 3}
    await provisioner.declare(declared(**terms))
    await provisioner.trust()
    await provisioner.declare(with_image("linux-2", **terms))
    await provisioner.demand(report(7))
    await bad_image(provisioner, "linux-2", revision=5)
    assert not await is_frozen(provisioner)
    assert await launches(provisioner) == {OLD: 7}
    await provisioner.database.execute("UPDATE launch_config SET state = 'draining' WHERE id = $1", OLD)
    await bad_image(provisioner, "linux-2", revision=6)
    assert not await is_frozen(provisioner), "the old revision returns once the new one has tripped"
    await provisioner.database.execute("UPDATE launch_config SET replaced_by = 'now' WHERE id = $1", OLD)
    await bad_image(provisioner, "linux-2", revision=7)
    assert await is_frozen(provisioner)


def went_bad(by: str = "image", stage: str = "boot") -> WeightChanged:
    """Record of the new revision, which has tripped after nine successful starts."""
    return record(NEW, 9, state="tripped", reason="tripped: 5 boots failed", tripped_by=by, tripped_stage=stage)


async def test_an_image_that_goes_bad_after_its_roll_out(provisioner: Provisioner) -> None:
    """While the old revision drains, it takes the demand again, until the new one has proven itself anew."""
    await running(provisioner, 6)
    await provisioner.trust()
    await replaced(provisioner, drain_seconds=500.0)
    await proves(provisioner)
    assert (await states(provisioner))[OLD] == "draining"
    await provisioner.set_clock(100)
    await provisioner.events()
    await provisioner.weights(went_bad(), revision=10)
    assert await demanded(provisioner, 9, 1) == {OLD: 6}
    await provisioner.roll_out()
    assert await states(provisioner) == {OLD: "active", NEW: "active"}
    (returned,) = await provisioner.published(LaunchConfigUpdated)
    assert (returned.launch_config_id, returned.state, returned.drain_until) == (OLD, "active", None)
    await provisioner.plan()
    assert await launches(provisioner) == {OLD: 9}
    rows = await listed(provisioner)
    assert (rows[NEW]["proven"], rows[NEW]["succeeded_starts"], rows[NEW]["needed_starts"]) == (False, 0, 5)
    await proves(provisioner, starts=13, revision=11)
    assert (await listed(provisioner))[NEW]["succeeded_starts"] == 4
    assert (await states(provisioner))[OLD] == "active"
    await proves(provisioner, starts=14, revision=12)
    assert (await states(provisioner))[OLD] == "draining"
    assert await provisioner.database.fetchrow(DRAINS, OLD) == (False, after(600))


@pytest.mark.parametrize("strategy", ["natural", "now"])
async def test_what_does_not_return(provisioner: Provisioner, strategy: str) -> None:
    """An image with a leaked secret, and any image where only capacity is missing."""
    await running(provisioner, 2)
    await claim(provisioner, await provisioner.workers())
    await replaced(provisioner, strategy=strategy)
    await proves(provisioner)
    await provisioner.weights(went_bad() if strategy == "now" else went_bad("", "launch"), revision=10)
    await provisioner.roll_out()
    assert (await states(provisioner))[OLD] == "draining"


async def test_an_image_that_only_drains_freezes_nothing(provisioner: Provisioner) -> None:
    """Nobody launches it any more."""
    terms: dict[str, Any] = {"on_bad_image": "freeze", "freeze_after": 3}
    await running(provisioner, 1)
    await provisioner.declare(declared(**terms))
    await provisioner.declare(with_image("linux-2", **terms), strategy="now")
    await bad_image(provisioner, "linux-1", revision=5)
    assert not await is_frozen(provisioner)


async def test_an_archived_revision_is_kept_for_a_month(provisioner: Provisioner) -> None:
    """With its weight, counts and shares; then they go with a tombstone, and the name once nothing is left of it."""
    await provisioner.declare(declared("zone-a", "zone-b"))
    await provisioner.trust()
    await provisioner.database.execute(workers.COUNT_OUTCOMES, [OLD], ["boot"], [True])
    await provisioner.declare(with_image("linux-2", "zone-b"))
    await provisioner.roll_out()
    assert (await states(provisioner))[OLD] == "archived"
    for table in ("weight", "launch_config_outcomes"):
        kept = await provisioner.database.fetchval(
            f"SELECT count(DISTINCT launch_config_id) FROM {table} WHERE launch_config_id = $1", OLD
        )
        assert kept == 1
    await provisioner.set_clock(REVISION_KEPT_SECONDS - 1)
    await provisioner.roll_out()
    assert OLD in await states(provisioner)
    await provisioner.set_clock(REVISION_KEPT_SECONDS + 1)
    await provisioner.roll_out()
    assert OLD not in await states(provisioner)
    for table in ("weight", "launch_config_outcomes"):
        kept = await provisioner.database.fetchval(
            f"SELECT count(DISTINCT launch_config_id) FROM {table} WHERE launch_config_id = $1", OLD
        )
        assert kept == 0
    await provisioner.prune()
    keys = {row["key"] for row in await provisioner.database.fetch("SELECT key FROM shared_window")}
    assert image_key("simulated/linux-1").text in keys, "the fallback of zone-b uses it"
    names = [row["name"] for row in await provisioner.database.fetch("SELECT name FROM launch_config_name")]
    assert names == ["zone-b"]
    tombstones = await provisioner.database.fetch("SELECT topic, key FROM outbox WHERE value IS NULL")
    assert [tuple(row) for row in tombstones] == [(LAUNCH_CONFIG_LIFECYCLE.name, OLD)]
    await proves(provisioner, revision_id("zone-b", image="linux-2"))
    await provisioner.set_clock(2 * REVISION_KEPT_SECONDS + 2)
    await provisioner.roll_out()
    await provisioner.prune()
    keys = {row["key"] for row in await provisioner.database.fetch("SELECT key FROM shared_window")}
    assert image_key("simulated/linux-1").text not in keys


async def test_archived_revisions_cost_decisions_nothing(provisioner: Provisioner) -> None:
    """With a hundred per name, a decision reads those that are not archived, and the few of the last minute."""
    names = [f"zone-{number}" for number in range(10)]
    await provisioner.declare(declared(*names))
    await provisioner.database.execute(
        "INSERT INTO launch_config (id, name, digest, pool_id, account_id, region, zone, instance_type, image_revision,"
        " settings, profile, boot_evidence, claim_evidence, on_bad_image, freeze_after, state, archived_at)"
        " SELECT name || '@old' || n, name, 'old' || n, pool_id, account_id, region, zone, instance_type,"
        " image_revision, settings, profile, boot_evidence, claim_evidence, on_bad_image, freeze_after, 'archived',"
        " slipway_clock() - interval '1 hour' FROM launch_config, generate_series(1, 100) AS n"
    )
    await provisioner.database.execute("ANALYZE")
    for statement, given in ((CONFIGS, ["linux"]), (SHARED, ["linux"]), (roll_outs.DUE, [])):
        read = await rows_read(provisioner.database, statement, *given)
        assert "launch_config" in read, statement
        assert read["launch_config"] <= 100, statement
