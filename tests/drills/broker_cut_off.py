"""A lease-broker that is away from Kafka alone, while machines boot and others want to start.

The holders renew their leases over Kafka, so that the renewals wait there; over HTTP anyone may acquire. Leases must
not end meanwhile, nor be granted again, neither while the line is cut nor when it is restored.
"""

import asyncio
import contextlib

import httpx2
import msgspec

from slipway_common.base.clock import utc_now
from slipway_common.base.ids import new_id
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.ports import free_ports
from slipway_simulator import facts
from tests.drills.declared import Account, Pool, declaration
from tests.drills.line import Line
from tests.drills.stage import Stage, Verdict, add_tasks, fetch, played

LIMIT = 4
TASKS = 8
TTL_SECONDS = 125.0
CUT_SECONDS = 450.0
BOOT_SECONDS = 700.0  # the leases of the first launches are in use until after the cut
TASK_SECONDS = 20.0
TOLERATED_SECONDS = 0.05  # between an effect and its line in the ledger
CONFIRMED = "SELECT coalesce(sum(units), 0)::int AS n FROM lease_broker.leases WHERE state = 'confirmed'"


class Use(msgspec.Struct, frozen=True):
    """Units in use from a time on (epoch seconds): positive when a use begins, negative when it ends."""

    at: float
    units: int


async def play(stage: Stage) -> Verdict:
    """Play the drill."""
    port, advertised = free_ports(2)
    line = Line(port)
    await line.start(advertised)
    deployment = stage.new_deployment(
        environment={"lease-broker": {"SLIPWAY_KAFKA": f"127.0.0.1:{advertised}"}},
        kafka_settings=second_listener(port, advertised),
    )
    await deployment.start()
    accounts = {"acc": Account(url=deployment.url("simulator"), limit=LIMIT, ttl_seconds=TTL_SECONDS)}
    pools = {"builds": Pool(accounts=["acc"])}
    await stage.play(
        deployment,
        declaration(stage.speed, accounts, pools),
        boot_seconds_median=BOOT_SECONDS,
        boot_sigma=0.0,
    )
    await add_tasks(deployment, "builds", TASKS, TASK_SECONDS)

    async def all_held() -> bool:
        units = sum(f.count for f in played(deployment) if isinstance(f, facts.Call))
        return units == LIMIT and (await fetch(deployment, CONFIRMED))[0]["n"] == LIMIT

    await stage.until(all_held, f"{LIMIT} machines boot, {TASKS - LIMIT} wait for a lease")
    held: list[Use] = []
    acquiring = asyncio.create_task(acquire(deployment, held))
    try:
        line.cut()
        stage.say(f"the lease-broker is cut off from Kafka for {CUT_SECONDS:g} product seconds")
        await stage.product_seconds(CUT_SECONDS * stage.rng.uniform(1.0, 1.2))
        line.restore()

        async def next_start() -> bool:
            return sum(f.count for f in played(deployment) if isinstance(f, facts.Call)) > LIMIT

        await stage.until(next_start, "the next machine starts")
    finally:
        acquiring.cancel()
        await asyncio.gather(acquiring, return_exceptions=True)
        await line.close()
    await stage.product_seconds(TTL_SECONDS)
    return judge(played(deployment), held, until=utc_now().timestamp())


def second_listener(port: int, advertised: int) -> dict[str, str]:
    """Settings of the broker for one more listener, which clients reach at the advertised port alone."""
    usual, controller = "PLAINTEXT://127.0.0.1:{port}", "CONTROLLER://127.0.0.1:{controller_port}"
    return {
        "listeners": f"{usual},APART://127.0.0.1:{port},{controller}",
        "advertised.listeners": f"{usual},APART://127.0.0.1:{advertised},{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,APART:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }


async def acquire(deployment: Deployment, held: list[Use]) -> None:
    """Acquire one unit after another over HTTP, ahead of those who wait; each is used for a moment."""
    while True:
        request = {"units": 1, "request_id": new_id(), "priority": 9, "wait_seconds": 2.0, "tenant": "people"}
        with contextlib.suppress(httpx2.HTTPError):
            answer = await deployment.call("POST", "lease-broker", "/lease-pools/acc/leases", request)
            if lease_id := answer.get("lease_id"):
                held.append(Use(utc_now().timestamp(), 1))
                await asyncio.sleep(0.5)
                body = {"fencing_token": answer["fencing_token"], "result": "done"}
                held.append(Use(utc_now().timestamp(), -1))
                await deployment.call("POST", "lease-broker", f"/leases/{lease_id}/release", body)
            else:
                await deployment.call("DELETE", "lease-broker", f"/lease-pools/acc/requests/{request['request_id']}")
        await asyncio.sleep(0.2)


def launches(ledger: list[facts.Fact]) -> list[Use]:
    """Units that launches use, from the call until the machine registers or ends."""
    uses: list[Use] = []
    calls: dict[str, int] = {}
    booting: set[str] = set()
    for fact in ledger:
        if isinstance(fact, facts.Call):
            calls[fact.call_id] = fact.count
            uses.append(Use(fact.at, fact.count))
        elif isinstance(fact, facts.Reply):
            uses.append(Use(fact.at, len(fact.instance_ids) - calls[fact.call_id]))
            booting.update(fact.instance_ids)
        elif isinstance(fact, facts.Registered | facts.Terminated) and fact.instance_id in booting:
            booting.discard(fact.instance_id)
            uses.append(Use(fact.at, -1))
    return uses


def judge(ledger: list[facts.Fact], held: list[Use], *, until: float) -> Verdict:
    """Add up the seconds until `until` in which more units were in use than the limit."""
    over, level, peak, since = 0.0, 0, 0, 0.0
    for use in sorted([*launches(ledger), *held, Use(until, 0)], key=lambda use: (use.at, use.units)):
        if level > LIMIT:
            over += use.at - since
        level, since = level + use.units, use.at
        peak = max(peak, level)
    problems = [f"{over:.2f} s above the limit"] if over > TOLERATED_SECONDS else []
    return Verdict(f"over cap {over:.1f} s, at most {peak} of {LIMIT} units in use", problems)
