"""Safety limits on real rows: what counts, for how long, what a limit stops, and its one alert."""

from collections.abc import AsyncIterator, Awaitable, Mapping
from decimal import Decimal
from math import ceil
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.lease import LeaseReleaseRequested, LeaseRequested
from slipway_api.events.topics import DECODERS
from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_common.base.ids import new_id
from slipway_common.database.tables import PLANS_KEPT
from slipway_common.messaging.incarnation import Incarnation
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.apply import recovery
from slipway_provisioner.domain.limits import Level
from slipway_provisioner.providers.port import OutcomeUnknown, Refused
from slipway_provisioner.store import limits, starts
from tests.support.cloud import ReplyLost
from tests.support.provisioner import Provisioner, after, declared, in_transaction, provisioner_on, report, revision_id

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
PERIOD: Final = 300.0
PRICES: Final = """
prices:
  - {provider: simulated, region: sim-1, instance_type: m5.large, per_hour: 0.10}
"""
MACHINE: Final = """
WITH batch AS (
    INSERT INTO launch_batch (id, launch_config_id, pool_id, account_id, lease_id, token, body, units, state,
        started_at, call_deadline, known_at, charged, price)
    VALUES ($1, $5, 'linux', 'sim-a', '', $2, '{}', 1, 'known', $3, $3, $3, 1, $4))
INSERT INTO worker (id, pool_id, launch_config_id, account_id, image_revision, state, decision_id, batch_id,
    instance_id, requested_at, ended_at, traceparent)
VALUES ($1, 'linux', $5, 'sim-a', 'linux-1', $6, $1, $1, $7, $3, $8, '')"""
CAPACITY: Final = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, "", "InsufficientCapacity")


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[Provisioner]:
    file = tmp_path / "prices.yaml"
    file.write_text(PRICES)
    async with provisioner_on(postgres, prices_file=file) as provisioner:
        yield provisioner


def limited(*, account: Mapping[str, Any] | None = None, pool: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """Declaration of `declared` with limits."""
    body = declared("zone-a", **more)
    if account is not None:
        body["accounts"][0]["limits"] = dict(account)
    if pool is not None:
        body["worker_pools"][0]["limits"] = dict(pool)
    return body


async def launched(provisioner: Provisioner, pending: int, *, at: float = 0) -> None:
    """Let a pool have this many pending tasks, grant what it requests, and make its calls."""
    await provisioner.demand(report(pending, at=at))
    await provisioner.plan()
    for request in await provisioner.published(LeaseRequested):
        grant = provisioner.granted(request, expires_at=after(at + 600), hold_until=after(at + 1200))
        await provisioner.leases(grant)
    await provisioner.launch()


async def start(provisioner: Provisioner, body: Any, pending: int = 5) -> None:
    await provisioner.declare(body)
    await provisioner.trust()
    await launched(provisioner, pending)
    await provisioner.plan()


async def level(provisioner: Provisioner, scope: str = "account") -> Level:
    async with provisioner.database.acquire() as db:
        (found,) = [
            level for level, _ in await limits.listed(db, provisioner.settings.tariff()) if level.limit.scope == scope
        ]
    return found


async def alerts(provisioner: Provisioner) -> list[AlertRaised | AlertResolved]:
    """Alerts on limits so far."""
    rows = await provisioner.database.fetch("SELECT type, value FROM outbox WHERE value IS NOT NULL ORDER BY id")
    events = [DECODERS[row["type"]].decode(row["value"]) for row in rows]
    return [each for each in events if isinstance(each, AlertRaised | AlertResolved) and each.kind == "launch-limit"]


@pytest.mark.parametrize("scope", ["account", "pool"])
async def test_a_limit_stops_launches_until_the_hour_has_passed(provisioner: Provisioner, scope: Any) -> None:
    """Any hour, not that of a clock: the third launch waits for an hour after the first."""
    await start(provisioner, limited(**{scope: {"launches_per_hour": 2}}))
    assert len(provisioner.cloud.live) == 2
    reason = await provisioner.last_reason()
    assert "2 launches per hour: 2; next launch at 2026-01-01 13:00:00 UTC" in reason
    await provisioner.set_clock(HOUR - 1)
    await launched(provisioner, 5, at=HOUR - 1)
    assert len(provisioner.cloud.live) == 2
    await provisioner.set_clock(HOUR + 1)
    await launched(provisioner, 5, at=HOUR + 1)
    assert len(provisioner.cloud.live) == 4


async def test_a_raised_limit_goes_on_and_ends_its_alert(provisioner: Provisioner) -> None:
    """One alert while it stops launches, however often that is seen, and another one only for the limit in force."""
    await start(provisioner, limited(account={"launches_per_hour": 2}))
    for at in (60, 120, 180):
        await provisioner.set_clock(at)
        await launched(provisioner, 5, at=at)
    (raised,) = await alerts(provisioner)
    assert isinstance(raised, AlertRaised)
    assert (raised.subject_kind, raised.subject_id, raised.command) == ("account", "sim-a", "slipway account limits")
    assert "limit of 2 launches per hour" in raised.summary
    assert "2026-01-01 13:00:00 UTC" in raised.summary
    assert raised.evidence == ("pool linux: 2 launches in the last hour",)
    assert "raise limits.launches_per_hour of account sim-a" in raised.cause
    await provisioner.declare(limited(account={"launches_per_hour": 4}))
    resolved = (await alerts(provisioner))[-1]
    assert isinstance(resolved, AlertResolved)
    assert resolved.dedup_key == raised.dedup_key
    await launched(provisioner, 5, at=180)
    await provisioner.plan()
    assert len(provisioner.cloud.live) == 4
    assert "limit of 4 launches per hour" in (await alerts(provisioner))[-1].summary


async def test_an_alert_ends_once_nothing_is_stopped(provisioner: Provisioner) -> None:
    """A while after demand has gone; the limit that is only reached is none."""
    await start(provisioner, limited(account={"launches_per_hour": 2}))
    await provisioner.set_clock(60)
    await launched(provisioner, 2, at=60)
    await provisioner.expire()
    assert len(await alerts(provisioner)) == 1
    await provisioner.set_clock(1000)
    await provisioner.expire()
    assert isinstance((await alerts(provisioner))[-1], AlertResolved)


async def test_a_start_obeys_a_limit_that_its_plan_did_not_know(provisioner: Provisioner) -> None:
    """Intents beyond the limit are cancelled, and their units released."""
    await provisioner.admitted(5)
    await provisioner.declare(limited(account={"launches_per_hour": 3}))
    await provisioner.launch()
    assert len(provisioner.cloud.live) == 3
    assert await provisioner.states() == {"starting": 3, "stopped": 2}
    (released,) = await provisioner.published(LeaseReleaseRequested)
    assert (released.units, released.result) == (2, "cancelled")


@pytest.mark.parametrize(
    ("entry", "charged"),
    [
        (ReplyLost, 2),
        (OutcomeUnknown("no reply"), 2),
        (Refused(CAPACITY, "none"), 0),
        (1, 1),
    ],
)
async def test_outcomes(provisioner: Provisioner, entry: Any, charged: int) -> None:
    """Unknown outcomes count as all machines of the call, also once a look-up has found none; refused ones as none."""
    provisioner.cloud.script.append(entry)
    await start(provisioner, limited(account={"launches_per_hour": 2}), 2)
    assert (await level(provisioner)).usage.launches == charged
    await provisioner.set_clock(100)
    provisioner.cloud.live.clear()
    await provisioner.resolve()
    assert (await level(provisioner)).usage.launches == charged
    assert len(provisioner.cloud.calls) == 1


async def test_a_repeat_is_no_second_launch(provisioner: Provisioner) -> None:
    """The token makes it one launch, which counts from its known outcome on."""
    provisioner.cloud.honours = True
    provisioner.cloud.script.append(ReplyLost)
    await start(provisioner, limited(account={"launches_per_hour": 1}), 1)
    await provisioner.set_clock(100)
    await provisioner.resolve()
    assert [call.token for call in provisioner.cloud.calls] == [provisioner.cloud.calls[0].token] * 2
    assert (await level(provisioner)).usage.launches == 1
    await provisioner.set_clock(HOUR + 50)
    assert (await level(provisioner)).usage.launches == 1
    await provisioner.set_clock(HOUR + 101)
    assert (await level(provisioner)).usage.launches == 0


async def test_no_repeat_beyond_a_lowered_limit(provisioner: Provisioner) -> None:
    """It may be the call that takes effect, so it is looked up in its place."""
    provisioner.cloud.honours = True
    provisioner.cloud.script.append(OutcomeUnknown("no reply"))
    await start(provisioner, limited(account={"launches_per_hour": 2}), 2)
    await provisioner.declare(limited(account={"launches_per_hour": 1}))
    await provisioner.set_clock(100)
    await provisioner.resolve()
    assert len(provisioner.cloud.calls) == 1
    assert provisioner.cloud.live == {}


async def test_a_clock_that_is_set_forward_frees_nothing(provisioner: Provisioner) -> None:
    """The jump is downtime, which does not count towards the hour."""
    await start(provisioner, limited(account={"launches_per_hour": 2}))
    await provisioner.expire()
    await provisioner.jump_clock(2 * HOUR)
    assert (await level(provisioner)).usage.launches == 2
    await provisioner.expire()
    assert (await level(provisioner)).usage.launches == 2
    await provisioner.set_clock(3 * HOUR + 10)
    assert (await level(provisioner)).usage.launches == 0


async def test_a_clock_that_is_set_back_begins_the_hour_anew(provisioner: Provisioner) -> None:
    """Not the time by which it was set back and an hour."""
    await provisioner.set_clock(10 * HOUR)
    await provisioner.declare(limited(account={"launches_per_hour": 2}))
    await provisioner.trust()
    await launched(provisioner, 5, at=10 * HOUR)
    await provisioner.set_clock(0)
    await provisioner.expire()
    assert (await level(provisioner)).usage.launches == 2
    await provisioner.set_clock(HOUR + 1)
    assert (await level(provisioner)).usage.launches == 0


async def test_a_restored_database_counts_as_having_reached_its_limits(provisioner: Provisioner) -> None:
    """It may have lost as many launches; a raised limit goes on."""
    await provisioner.declare(limited(account={"launches_per_hour": 7, "spend_per_day": 5}))
    renewal = Incarnation(id="two", former=("one",), reason="commits were lost", revision_base=0, requested=None)
    await in_transaction(provisioner, lambda db: recovery.stop_until_confirmed(db, renewal))
    usage = (await level(provisioner)).usage
    assert (usage.launches, usage.spend) == (7, Decimal(5))
    assert usage.launches_free_at == after(HOUR)
    await provisioner.set_clock(HOUR + 1)
    usage = (await level(provisioner)).usage
    assert (usage.launches, usage.spend) == (0, Decimal(5))
    await provisioner.set_clock(25 * HOUR)
    assert (await level(provisioner)).usage.spend == 0


async def test_spend_of_machines(provisioner: Provisioner) -> None:
    """Live machines commit their lifetime, ended ones cost what they ran: exact amounts, no floats."""
    await start(provisioner, limited(pool={"spend_per_day": 1, "lifetime_seconds": 2 * HOUR}), 3)
    assert (await level(provisioner, "pool")).usage.spend == Decimal("0.6")
    await provisioner.set_clock(HOUR)
    assert round((await level(provisioner, "pool")).usage.spend, 6) == Decimal("0.6")
    await provisioner.set_clock(2.5 * HOUR)  # a second lifetime
    assert round((await level(provisioner, "pool")).usage.spend, 6) == Decimal("1.2")
    await provisioner.database.execute("UPDATE worker SET state = 'stopped', ended_at = slipway_clock()")
    await provisioner.set_clock(5 * HOUR)
    assert round((await level(provisioner, "pool")).usage.spend, 6) == Decimal("0.75")
    await provisioner.set_clock(25.5 * HOUR)  # one of the hours that they ran is left in the day
    assert round((await level(provisioner, "pool")).usage.spend, 6) == Decimal("0.3")


async def test_a_clock_that_is_set_back_frees_no_spend(provisioner: Provisioner) -> None:
    """Machines that began ahead of it commit their lifetime."""
    await provisioner.set_clock(10 * HOUR)
    await provisioner.declare(limited(pool={"spend_per_day": 1, "lifetime_seconds": 2 * HOUR}))
    await provisioner.trust()
    await launched(provisioner, 3, at=10 * HOUR)
    for behind in (9, 7, 0):
        await provisioner.set_clock(behind * HOUR)
        await provisioner.expire()
        assert (await level(provisioner, "pool")).usage.spend == Decimal("0.6")


async def test_a_start_obeys_the_limit_of_a_pool_at_the_price_of_its_account(provisioner: Provisioner) -> None:
    """A start of five when two can be paid for makes two, though the pool has no price of its own."""
    body = limited()
    body["worker_pools"][0]["launch_configs"][0]["instance_type"] = "m9.huge"
    await provisioner.declare(body)
    await provisioner.trust()
    await provisioner.demand(report(5))
    await provisioner.plan()
    for request in await provisioner.published(LeaseRequested):
        await provisioner.leases(provisioner.granted(request))
    limits_of = {"spend_per_day": 2, "lifetime_seconds": HOUR}
    priced = limited(account={"spend_per_day": 1000, "default_price": "1"}, pool=limits_of)
    priced["worker_pools"][0]["launch_configs"][0]["instance_type"] = "m9.huge"
    await provisioner.declare(priced)
    await provisioner.launch()
    assert len(provisioner.cloud.live) == 2


async def test_spend_stops_launches(provisioner: Provisioner) -> None:
    """As soon as another machine could exceed the limit in its lifetime."""
    await start(provisioner, limited(account={"spend_per_day": "5"}), 4)
    assert len(provisioner.cloud.live) == 2  # each may cost 2.4 in a day
    assert "limit of 5 per day: 4.8 is spent or committed" in await provisioner.last_reason()
    (raised,) = await alerts(provisioner)
    assert "raise limits.spend_per_day" in raised.cause
    await provisioner.set_clock(60)
    await provisioner.database.execute("UPDATE worker SET state = 'stopped', ended_at = slipway_clock()")
    await launched(provisioner, 1, at=60)
    assert len(provisioner.cloud.live) == 3


async def test_an_unknown_price_is_refused_or_has_a_default(provisioner: Provisioner) -> None:
    body = limited(account={"spend_per_day": 100})
    body["worker_pools"][0]["launch_configs"][0]["instance_type"] = "m9.huge"
    await start(provisioner, body, 2)
    assert provisioner.cloud.live == {}
    reason = await provisioner.last_reason()
    assert "the price of m9.huge (simulated, sim-1, on-demand) is unknown, and account sim-a limits its spend" in reason
    (raised,) = await alerts(provisioner)
    assert "default_price of account sim-a" in raised.cause
    body["accounts"][0]["limits"]["default_price"] = "0.5"
    await provisioner.declare(body)
    await launched(provisioner, 2)
    assert len(provisioner.cloud.live) == 2


async def test_an_account_counts_all_its_pools(provisioner: Provisioner) -> None:
    """Each pool has its own limit besides, and a removed pool's launches still count in the account."""
    body = limited(account={"launches_per_hour": 3}, pool={"launches_per_hour": 2})
    await start(provisioner, body, 5)
    assert len(provisioner.cloud.live) == 2
    other = limited(account={"launches_per_hour": 3}, id="renamed")
    other["worker_pools"][0]["launch_configs"][0]["name"] = "zone-b"
    await provisioner.declare(other)
    await provisioner.trust()
    await provisioner.demand(report(5, pool_id="renamed"))
    await provisioner.plan()
    for request in await provisioner.published(LeaseRequested):
        await provisioner.leases(provisioner.granted(request))
    await provisioner.launch()
    assert len(provisioner.cloud.live) == 3
    assert "account sim-a has reached its limit" in await provisioner.last_reason("renamed")


OTHERS: Final = 500
# Limits of other pools, and calls from before the hour.
MANY: Final = (
    f"""
    INSERT INTO launch_limit (scope, scope_id, lifetime_seconds)
    SELECT 'pool', 'other-' || n, 86400 FROM generate_series(1, {OTHERS}) AS n""",
    f"""
    INSERT INTO launch_batch (id, launch_config_id, pool_id, account_id, lease_id, token, body, units, state,
        started_at, call_deadline, known_at, charged)
    SELECT gen_random_uuid(), c.id, c.pool_id, c.account_id, '', 'other-' || n, '{{}}', 1, 'known', at, at, at, 1
    FROM launch_config c, generate_series(1, {OTHERS}) AS n, (SELECT slipway_clock() - interval '1 day' AS at) AS b""",
)
ROWS_READ: Final = """
SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::int FROM pg_stat_xact_user_tables
WHERE schemaname = current_schema() AND relname IN ('launch_limit', 'launch_batch')"""


async def test_limits_are_found_by_their_keys(provisioner: Provisioner) -> None:
    """Also by kept plans, however many others there are, and calls that count no longer."""
    await start(provisioner, limited(account={"launches_per_hour": 2}, pool={"launches_per_hour": 5}))
    for statement in MANY:
        await provisioner.database.execute(statement)
    limit, tariff = (await level(provisioner)).limit, provisioner.settings.tariff()
    async with provisioner.database.acquire() as db, db.transaction():
        await db.execute(f"SELECT {PLANS_KEPT}")
        at = await limits.clock(db)
        leases = [row["id"] for row in await db.fetch("SELECT id FROM lease")]

        async def cheap(reading: Awaitable[Any]) -> Any:
            before = await db.fetchval(ROWS_READ)
            found = await reading
            assert await db.fetchval(ROWS_READ) - before < OTHERS / 10
            return found

        assert len(await cheap(limits.lock(db, "linux", "sim-a"))) == 2
        assert await cheap(limits.by_pool(db, limit, tariff, at)) == [("linux", 2)]
        assert len((await cheap(provisioner.observe(db))).levels) == 2
        assert {row["limited"] for row in await cheap(db.fetch(starts.READ, leases))} == {True}


async def test_the_minimum_of_a_pool_obeys_its_limit(provisioner: Provisioner) -> None:
    await start(provisioner, limited(pool={"launches_per_hour": 1}, min_capacity=4), 0)
    assert len(provisioner.cloud.live) == 1


async def test_limits_of_removed_objects_are_gone(provisioner: Provisioner) -> None:
    await provisioner.declare(limited(account={"launches_per_hour": 1}, pool={"launches_per_hour": 1}))
    await provisioner.declare(limited())
    assert await provisioner.database.fetch("SELECT FROM launch_limit") == []


@pytest.mark.parametrize("seed", range(6))
async def test_spend_is_as_documented(provisioner: Provisioner, seed: int) -> None:
    """Of machines of any age, live or ended, some of them before the day: the formula in seconds, times their price.
    Lifetimes count from the begin of the five minutes in which a machine began."""
    rng, lifetime, now = Random(seed), 2 * HOUR, 40 * HOUR
    await provisioner.declare(limited(account={"spend_per_day": 1000, "lifetime_seconds": lifetime}))
    expected = 0.0
    for number in range(12):
        price, began = rng.choice([0.1, 0.7]), rng.uniform(0, now)
        ended = rng.uniform(began, now) if rng.random() < 0.6 else None
        await provisioner.database.execute(
            MACHINE, new_id(), f"token-{number}", after(began), Decimal(str(price)), revision_id(),
            "stopped" if ended is not None else "running", f"i-{number}", None if ended is None else after(ended),
        )  # fmt: skip
        in_day = max(began, now - DAY)
        if ended is None:
            age = now - began // PERIOD * PERIOD
            seconds = min(DAY, ceil(age / lifetime) * lifetime) if began > now - DAY else DAY
        else:
            seconds = max(60.0, ended - in_day) if ended > now - DAY else 0.0
        expected += price * seconds / HOUR
    await provisioner.set_clock(now)
    assert float((await level(provisioner)).usage.spend) == pytest.approx(expected, rel=1e-6)
