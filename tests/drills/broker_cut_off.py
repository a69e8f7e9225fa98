"""A lease-broker that is cut off from Kafka alone, while machines boot and others want to start.

The machines' holder renews its leases over Kafka, so that the renewals wait there; over HTTP people acquire all that is
free. The leases must not end meanwhile, nor be granted again, neither while the proxy is cut nor when it is restored.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx2
import msgspec

from slipway_common.base.clock import utc_now
from slipway_common.base.ids import new_id
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.ports import free_ports
from slipway_simulator import facts
from tests.drills.declared import Account, Pool, declaration
from tests.drills.harness import Harness, Verdict, add_tasks, fetch, played
from tests.drills.proxy import Proxy

LIMIT = 5
MACHINES = 4  # boot when the proxy is cut; as many wait for a lease
PEOPLE = 3
TTL_SECONDS = 250.0  # a third of it must not pass before the lease-broker knows that it is cut off
CUT_SECONDS = 450.0
BOOT_SECONDS = 650.0  # the leases of the first launches are in use until after the cut
TASK_SECONDS = 20.0
OVER_KAFKA = """
SELECT coalesce(sum(granted_units), 0)::int AS n FROM lease_broker.leases
WHERE state = 'confirmed' AND over_kafka"""
OVERDUE = """
SELECT coalesce(sum(granted_units), 0)::int AS n FROM lease_broker.leases
WHERE over_kafka AND expires_at < clock_timestamp()"""


class Use(msgspec.Struct, frozen=True):
    """Units in use from a time on (epoch seconds): positive when a use begins, negative when it ends."""

    at: float
    units: int


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    port, advertised = free_ports(2)
    proxy = Proxy(port)
    await proxy.start(advertised)
    deployment = harness.new_deployment(
        environment={"lease-broker": {"SLIPWAY_KAFKA": f"127.0.0.1:{advertised}"}},
        kafka_settings=second_listener(port, advertised),
    )
    await deployment.start()
    accounts = {"acc": Account(limit=LIMIT, ttl_seconds=TTL_SECONDS)}
    pools = {"builds": Pool(accounts=["acc"])}
    await harness.play(
        deployment,
        declaration(harness.speed, accounts, pools),
        boot_seconds_median=BOOT_SECONDS,
        boot_sigma=0.0,
    )
    await add_tasks(deployment, "builds", MACHINES, TASK_SECONDS)

    async def boot() -> bool:
        return called(deployment) == MACHINES and (await fetch(deployment, OVER_KAFKA))[0]["n"] == MACHINES

    await harness.until(boot, f"{MACHINES} machines boot")
    people = People(deployment)
    async with people.acquiring():
        proxy.cut()
        cut_at = utc_now().timestamp()
        await add_tasks(deployment, "builds", MACHINES, TASK_SECONDS)
        seconds = CUT_SECONDS * harness.rng.uniform(1.0, 1.2)
        harness.log(f"the lease-broker is cut off from Kafka for {seconds:.0f} product seconds")
        await harness.product_seconds(seconds)
        overdue = (await fetch(deployment, OVERDUE))[0]["n"]
        beside = sum(use.units > 0 and use.at > cut_at for use in people.held)
        proxy.restore()

        async def next_start() -> bool:
            return called(deployment) > MACHINES

        await harness.until(next_start, "the next machine starts")

    async def all_start() -> bool:
        return called(deployment) == 2 * MACHINES

    await harness.until(all_start, "all machines have started")
    verdict = judge(played(deployment), people.held)
    if overdue < MACHINES or not beside:
        proof = f"{overdue} units overdue at the end of the cut, {beside} acquired over HTTP: the drill proves nothing"
        return Verdict(verdict.figures, [*verdict.problems, proof])
    return Verdict(f"{verdict.figures}, {overdue} overdue, {beside} acquired over HTTP meanwhile", verdict.problems)


def called(deployment: Deployment) -> int:
    """Number of machines in all create calls, by the ledger."""
    return sum(fact.count for fact in played(deployment) if isinstance(fact, facts.Call))


def second_listener(port: int, advertised: int) -> dict[str, str]:
    """Settings of the broker for one more listener, which clients reach at the advertised port alone."""
    usual, controller = "PLAINTEXT://127.0.0.1:{port}", "CONTROLLER://127.0.0.1:{controller_port}"
    return {
        "listeners": f"{usual},APART://127.0.0.1:{port},{controller}",
        "advertised.listeners": f"{usual},APART://127.0.0.1:{advertised},{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,APART:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }


class People:
    """Callers that acquire one unit after another over HTTP, ahead of those who wait; each is used for a moment."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.held: list[Use] = []
        self._leaving = False

    @contextlib.asynccontextmanager
    async def acquiring(self) -> AsyncIterator[None]:
        """Acquire until the end of the block; then everything is released."""
        tasks = [asyncio.create_task(self._acquire()) for _ in range(PEOPLE)]
        try:
            yield
        finally:
            self._leaving = True
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _acquire(self) -> None:
        while not self._leaving:
            with contextlib.suppress(httpx2.HTTPError):
                await self._use_one()
            await asyncio.sleep(0.2)

    async def _use_one(self) -> None:
        call = self.deployment.call
        request = {"units": 1, "request_id": new_id(), "priority": 9, "wait_seconds": 2.0, "tenant": "people"}
        answer = await call("POST", "lease-broker", "/lease-pools/acc/leases", request)
        if lease_id := answer.get("lease_id"):
            self.held.append(Use(utc_now().timestamp(), 1))
            await asyncio.sleep(0.5)
            body = {"fencing_token": answer["fencing_token"], "result": "done"}
            self.held.append(Use(utc_now().timestamp(), -1))
            await call("POST", "lease-broker", f"/leases/{lease_id}/release", body)
        else:
            await call("DELETE", "lease-broker", f"/lease-pools/acc/requests/{request['request_id']}")


def launches(ledger: list[facts.Fact]) -> list[Use]:
    """Units that launches use for certain: from the call until the machine has booted, before it registers."""
    uses: list[Use] = []
    calls: dict[str, int] = {}
    for fact in ledger:
        if isinstance(fact, facts.Call):
            calls[fact.call_id] = fact.count
            uses.append(Use(fact.at, fact.count))
        elif isinstance(fact, facts.InstanceCreated):
            uses.append(Use(fact.boots_at or fact.at, -1))
        elif isinstance(fact, facts.Reply):
            uses.append(Use(fact.at, len(fact.instance_ids) - calls[fact.call_id]))
    return uses


def judge(ledger: list[facts.Fact], held: list[Use]) -> Verdict:
    """Add up the seconds in which more units were in use than the limit."""
    over, level, peak, since = 0.0, 0, 0, 0.0
    for use in sorted([*launches(ledger), *held], key=lambda use: (use.at, use.units)):
        if level > LIMIT:
            over += use.at - since
        level, since = level + use.units, use.at
        peak = max(peak, level)
    problems = [f"more units than the limit were in use for {over:.2f} s"] if over else []
    return Verdict(f"over cap {round(over, 1):g} s, at most {peak} of {LIMIT} units in use", problems)
