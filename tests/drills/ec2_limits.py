"""A runaway queue on EC2, with limits: of launches per hour in one account, of spend per day in the other.

Tasks never run out, and three provisioners launch for two pools in each account, while replies of the stand-in are
lost. LIMIT launches per hour and SPEND per day are allowed. Then the limit on launches is raised by an apply. Judged by
the stand-in's ledger, the published alerts and the rows: never more machines in any hour than its limit allowed, never
more spend than allowed, and one alert on each limit.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

import msgspec

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved
from slipway_common.base.clock import utc_now
from slipway_common.declaration.models import Declaration
from slipway_common.declaration.parsing import parse
from slipway_common.declaration.strict_yaml import read
from slipway_local.demo.deployment import Deployment
from slipway_local.demo.ec2_machines import ACCOUNT_TAG, CREDENTIALS, Ec2Machines
from slipway_local.ec2 import facts as ec2
from slipway_local.ec2.faults import NOTATION
from slipway_simulator.notation import BadFault
from tests.drills.ec2_storm import DECLARATION
from tests.drills.harness import Harness, Verdict, add_tasks, fetch, published_alerts

PRICES: Final = Path("examples/prices.yaml")
LAUNCHES, SPEND = "aws-build", "aws-test"  # accounts, by their limit
POOLS: Final = {"builds-1": LAUNCHES, "builds-2": LAUNCHES, "tests-1": SPEND, "tests-2": SPEND}
TYPES: Final = {LAUNCHES: "m5.large", SPEND: "c5.large"}
FAULTS: Final = "lost-reply:0.15,broken-reply:0.1"
REPLICAS: Final = 3
TASKS: Final = 500  # of each pool: more than could ever run
TASK_SECONDS: Final = {LAUNCHES: 60.0, SPEND: 2400.0}
# Real seconds, since machines are processes and calls reach moto: no machine lives as long, however busy this host is.
LIFETIME_SECONDS: Final = 40.0
CALL_SECONDS: Final = 3.0
LEASES: Final = {"limit": 100, "hold_seconds": 60.0, "ttl_seconds": 30.0, "reserve_seconds": 15.0}
LIMIT, SPEND_PER_DAY = "8", "0.5"
HOURS: Final = 1.15  # watched before the limit is raised, so that the first launches leave their hour
RAISED: Final = 2  # times
REACHED_SECONDS: Final = 40.0  # real; a few on an idle machine
HOUR_SECONDS: Final = 3600.0
KIND: Final = "launch-limit"
REASONS: Final = """
SELECT count(*) FROM provisioner.decision WHERE pool_id = ANY($1) AND reason LIKE '%has reached its limit of%'"""
CHARGED: Final = "SELECT account_id, sum(charged)::int AS charged FROM provisioner.launch_batch GROUP BY 1"


class Asked(msgspec.Struct, frozen=True):
    """Limits that are declared."""

    launches: int
    spend: Decimal


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the ledger: launches of the limited account, their most in any hour before the limit was raised and in
    all, the spend of the other one, and its machines."""

    launched: int
    before: int
    after: int
    spend: Decimal
    machines: int


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    try:
        asked = Asked(int(os.environ.get("LIMIT") or LIMIT), Decimal(os.environ.get("SPEND") or SPEND_PER_DAY))
        faults = NOTATION.parse(os.environ.get("FAULTS") or FAULTS)
    except (ValueError, InvalidOperation):
        return Verdict("", ["LIMIT has to be a whole number, and SPEND an amount, such as LIMIT=8 SPEND=0.5"])
    except BadFault as error:
        return Verdict("", [f"FAULTS: {error}"])
    variables = CREDENTIALS | {"SLIPWAY_PRICES_FILE": str(PRICES)}
    deployment = harness.new_deployment(
        seconds={"call_timeout_seconds": CALL_SECONDS * harness.speed, "idle_timeout_seconds": 60.0},
        environment={"provisioner": variables},
    )
    machines = Ec2Machines(deployment, seed=harness.seed, faults=faults)
    await deployment.start(machines.start(harness.supervisor))
    await deployment.replicate("provisioner", REPLICAS - 1)
    await harness.play(deployment, _declared(deployment, machines, asked))
    await machines.play()
    for pool, account in POOLS.items():
        await add_tasks(deployment, pool, TASKS, TASK_SECONDS[account])
    hour = HOUR_SECONDS / harness.speed

    async def both_said() -> bool:
        raised = [alert.subject_id for _, alert in await _alerts(deployment) if isinstance(alert, AlertRaised)]
        return {LAUNCHES, SPEND} <= set(raised)

    await harness.until(both_said, "both limits are reached, and their alerts raised", within_seconds=REACHED_SECONDS)
    first = min(fact.at for fact in _created(machines, LAUNCHES))
    await asyncio.sleep(max(0.0, first + HOURS * hour - utc_now().timestamp()))
    raised_at = utc_now().timestamp()
    await deployment.apply(_declared(deployment, machines, msgspec.structs.replace(asked, launches=_raised(asked))))
    harness.log(f"limit raised to {_raised(asked)} launches per hour")

    async def goes_on() -> bool:
        return _most([fact.at for fact in _created(machines, LAUNCHES)], hour) > asked.launches

    await harness.until(goes_on, "launching goes on by itself", within_seconds=REACHED_SECONDS)
    until = utc_now().timestamp()
    return _verdict(
        asked,
        _seen(machines, raised_at, until, hour),
        _told(harness, await _alerts(deployment), raised_at),
        reasons=(await fetch(deployment, REASONS, list(POOLS)))[0][0],
        charged=dict(map(tuple, await fetch(deployment, CHARGED))),
        raised=_raised(asked),
    )


def _told(harness: Harness, alerts: Sequence[tuple[float, Alert]], raised_at: float) -> list[Alert]:
    """The alerts, each of which is logged with its time after the limit was raised."""
    for at, alert in alerts:
        kind = "raised" if isinstance(alert, AlertRaised) else "resolved"
        harness.log(f"alert {kind} {at - raised_at:+.1f} s from then: {alert.summary}")
    return [alert for _, alert in alerts]


def _raised(asked: Asked) -> int:
    return asked.launches * RAISED


def _declared(deployment: Deployment, machines: Ec2Machines, asked: Asked) -> Declaration:
    """Two pools in each account of the example, whose machines end after one task."""
    body = machines.declared(deployment.declaration(DECLARATION)).model_dump(mode="json")
    limits = {
        LAUNCHES: {"launches_per_hour": asked.launches},
        SPEND: {"spend_per_day": str(asked.spend), "lifetime_seconds": LIFETIME_SECONDS},
    }
    for account in body["accounts"]:
        account["limits"] = limits[account["id"]]
    for lease_pool in body["lease_pools"]:
        lease_pool |= LEASES
    template = body["worker_pools"][0]
    body["worker_pools"] = [
        template
        | {"id": pool, "max_capacity": 100, "mode": "enforce"}
        | {
            "launch_configs": [
                template["launch_configs"][0]
                | {"name": f"{pool}-{zone}", "account": account, "zone": zone, "instance_type": TYPES[account]}
                for zone in ("us-east-1a", "us-east-1b")
            ]
        }
        for pool, account in POOLS.items()
    ]
    return parse(body)


async def _alerts(deployment: Deployment) -> list[tuple[float, Alert]]:
    """Alerts on limits, with their times, as published."""
    return await published_alerts(deployment, lambda alert: alert.kind == KIND)


def _created(machines: Ec2Machines, account: str) -> list[ec2.InstanceCreated]:
    """Machines that EC2 created in an account."""
    return [
        fact
        for fact in machines.written()
        if isinstance(fact, ec2.InstanceCreated) and fact.tags.get(ACCOUNT_TAG) == account
    ]


def _seen(machines: Ec2Machines, raised_at: float, until: float, hour: float) -> Seen:
    times = sorted(fact.at for fact in _created(machines, LAUNCHES))
    prices = {
        (row["instance_type"], row.get("lifecycle", "on-demand")): Decimal(str(row["per_hour"]))
        for row in read(PRICES.read_text()).value["prices"]
    }
    ends = {fact.instance_id: fact.at for fact in machines.written() if isinstance(fact, ec2.ShuttingDown)}
    spenders = _created(machines, SPEND)
    spend = sum(
        (
            prices[fact.instance_type, fact.lifecycle]
            * Decimal(str((ends.get(fact.instance_id, until) - fact.at) / hour))
            for fact in spenders
        ),
        Decimal(),
    )
    return Seen(
        launched=len(times),
        before=_most([at for at in times if at < raised_at], hour),
        after=_most(times, hour),
        spend=spend,
        machines=len(spenders),
    )


def _most(times: Sequence[float], hour: float) -> int:
    """Most launches in any hour."""
    return max((sum(at - hour < other <= at for other in times) for at in times), default=0)


def _verdict(
    asked: Asked,
    seen: Seen,
    alerts: Sequence[Alert],
    *,
    reasons: int,
    charged: Mapping[str, int],
    raised: int,
) -> Verdict:
    on_launches = _raised_alerts(alerts, LAUNCHES)
    first = [alert for alert in on_launches if f"limit of {asked.launches} launches" in alert.summary]
    second = [alert for alert in on_launches if f"limit of {raised} launches" in alert.summary]
    on_spend = _raised_alerts(alerts, SPEND)
    resolved = [alert for alert in alerts if isinstance(alert, AlertResolved) and alert.subject_id == LAUNCHES]
    figures = (
        f"{seen.launched} launches for a runaway queue by {REPLICAS} provisioners: at most {seen.before} in any hour "
        f"of {asked.launches} allowed, {seen.after} of {raised} once raised; {charged.get(LAUNCHES, 0)} charged; "
        f"spend {seen.spend:.2f} of {asked.spend} allowed, by {seen.machines} machines; "
        f"alerts: {len(first)} on launches, {len(on_spend)} on spend"
    )
    problems: list[Any] = [
        text
        for is_so, text in (
            (seen.before > asked.launches, f"{seen.before} launches in an hour; {asked.launches} are allowed"),
            (seen.after > raised, f"{seen.after} launches in an hour once raised; {raised} are allowed"),
            (seen.spend > asked.spend, f"spend of {seen.spend:.2f} in the day; {asked.spend} is allowed"),
            (len(first) != 1, f"alerts on the limit of {asked.launches} launches: {len(first)}"),
            (len(second) > 1, f"alerts on the limit of {raised} launches: {len(second)}"),
            (len(on_spend) != 1, f"alerts on the limit of spend: {len(on_spend)}"),
            (
                any("next launch at" not in alert.summary for alert in first),
                "the alert does not say when launches go on",
            ),
            (not any(alert.evidence for alert in first), "the alert does not name who reached the limit"),
            (not resolved, "the alert was not resolved when the limit was raised"),
            (not reasons, "no decision has the limit as its reason"),
            (seen.before * 2 < asked.launches, f"only {seen.before} launches in an hour, which proves nothing"),
            (seen.after <= asked.launches, f"only {seen.after} launches in an hour after the limit was raised"),
            (not seen.machines, "no machine was launched under the limit of spend, which proves nothing"),
        )
        if is_so
    ]
    return Verdict(figures, problems)


def _raised_alerts(alerts: Sequence[Alert], account: str) -> list[AlertRaised]:
    return [alert for alert in alerts if isinstance(alert, AlertRaised) and alert.subject_id == account]
