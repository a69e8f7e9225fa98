"""Machine loop: performs the actions that machines.py decides, over the provisioner's real HTTP API.

Reports are retried for as long as the machine lives, until the provisioner answers them.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from random import Random
from typing import Any, Protocol

import httpx2
import msgspec

from slipway_simulator.facts import Claimed, ClaimUnknown, DrainRequested, EndedBy, Fact, Idle, Registered, Unknown
from slipway_simulator.machines import Contact, Machine, PendingReport, Poll, Register, SendReport, Take, Wait, next_act
from slipway_simulator.world import World

# Pauses between retries in real seconds, long enough not to load a restarting service.
FIRST_RETRY_SECONDS = 0.2
LONGEST_RETRY_SECONDS = 3.0
# Interval in which a machine that hangs finds that its fault has ended.
HANG_SECONDS = 0.5
REGISTER_PATH = "/workers/register"
# Problems with which a restored database answers a worker that it does not know.
UNKNOWN = frozenset({"urn:slipway:problem:unknown-worker", "urn:slipway:problem:foreign-token"})
SOURCE = "simulator"


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: dict[str, Any]

    @property
    def is_unknown(self) -> bool:
        return self.status >= 400 and self.body.get("type") in UNKNOWN


class Driver(Protocol):
    """Interface of the simulation that a machine uses."""

    world: World
    client: httpx2.AsyncClient
    now: Callable[[], float]

    def record(self, facts: Iterable[Fact]) -> None: ...
    def work(self, machine: Machine) -> bool: ...
    def take(self, machine: Machine) -> None: ...
    def refuse(self, machine: Machine, status: int) -> None: ...
    def end_instance(self, instance_id: str, by: EndedBy) -> None: ...
    async def rest(self, machine: Machine, until: float | None) -> None: ...


async def run_machine(machine: Machine, driver: Driver, rng: Random) -> None:
    """Run one machine until its instance is gone."""
    # Spreads the polls of machines that continue after a restart.
    early = rng.random() * driver.world.cloud.rules.poll_seconds
    contact = Contact(driver.now() - early, driver.now() - early)
    while machine.instance_id in driver.world.machines:
        now = driver.now()
        match next_act(machine, contact, driver.world.cloud.rules, work=driver.work(machine), now=now):
            case Wait(until):
                await driver.rest(machine, until)
            case Register():
                await _register(machine, driver, rng)
                contact = Contact(driver.now(), driver.now())
            case Take():
                driver.take(machine)
            case SendReport(report) if report.what == "stopped" and driver.world.is_undying(
                machine.account, machine.instance_id, now
            ):
                await asyncio.sleep(HANG_SECONDS)
            case SendReport(report):
                await _send_report(machine, report, driver, rng)
            case Poll(heartbeat):
                await _poll(machine, driver, rng, heartbeat=heartbeat)
                contact = Contact(driver.now(), driver.now() if heartbeat else contact.heartbeat_at)


async def _register(machine: Machine, driver: Driver, rng: Random) -> None:
    body = {
        "batch_id": machine.user_data.get("batch_id", ""),
        "secret": machine.user_data.get("secret", ""),
        "instance_id": machine.instance_id,
    }
    answer = await _post_until_answered(driver, rng, _base_url(machine) + REGISTER_PATH, "", body)
    match answer.body:
        case {"worker_id": str(worker_id), "pool_id": str(pool_id), "token": str(token)} if answer.status < 300:
            registered = Registered(
                at=driver.now(), instance_id=machine.instance_id, worker_id=worker_id, pool_id=pool_id, token=token
            )
            driver.record([registered])
        case _:
            driver.refuse(machine, answer.status)


async def _send_report(machine: Machine, report: PendingReport, driver: Driver, rng: Random) -> None:
    body = {"at": _text(report.at)}
    if report.what != "stopped":
        body |= {"task_id": report.task_id, "source": SOURCE}
    if report.claimed_at is not None:
        body["claimed_at"] = _text(report.claimed_at)
    answer = await _post_until_answered(driver, rng, _worker_url(machine, report.what), machine.token, body)
    if report.what == "stopped":
        driver.end_instance(machine.instance_id, "self")
        return
    if answer.is_unknown:
        _handle_answer(machine, answer, driver)  # the report is sent after the machine has registered again
        return
    ids = {"instance_id": machine.instance_id, "worker_id": machine.worker_id, "pool_id": machine.pool_id}
    answered: Fact
    if report.what == "claimed":
        answered = Claimed(at=driver.now(), task_id=report.task_id, status=answer.status, **ids)
    else:
        answered = Idle(at=driver.now(), status=answer.status, **ids)
    driver.record([answered])
    _handle_answer(machine, answer, driver)


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


async def _poll(machine: Machine, driver: Driver, rng: Random, *, heartbeat: bool) -> None:
    """Poll once. A failed poll is not retried: the next one is due soon, and the machine may find work meanwhile."""
    if heartbeat:
        answer = await _attempt(driver, rng, "POST", _worker_url(machine, "heartbeat"), machine.token, {})
    else:
        answer = await _attempt(driver, rng, "GET", _worker_url(machine, "should-terminate"), machine.token, None)
    if answer:
        _handle_answer(machine, answer, driver)
        claimed = machine.claim is not None and not machine.pending_reports
        if heartbeat and answer.body.get("has_task") is False and claimed:
            driver.record([ClaimUnknown(at=driver.now(), instance_id=machine.instance_id)])


def _handle_answer(machine: Machine, answer: Answer, driver: Driver) -> None:
    """Drain if requested. A worker that is gone (410) terminates; one that is unknown registers again, once; one that
    is refused (401, 403) does nothing."""
    if answer.is_unknown and not machine.rejoining:
        driver.record([Unknown(at=driver.now(), instance_id=machine.instance_id, status=answer.status)])
        return
    match answer.status:
        case 410:
            driver.end_instance(machine.instance_id, "self")
        case 401 | 403 | 404:
            driver.refuse(machine, answer.status)
        case _:
            if answer.body.get("terminate") and not machine.draining:
                driver.record(
                    [DrainRequested(at=driver.now(), instance_id=machine.instance_id, worker_id=machine.worker_id)]
                )


async def _post_until_answered(driver: Driver, rng: Random, url: str, token: str, body: dict[str, Any]) -> Answer:
    """Retry a POST until there is a final answer."""
    pause_seconds = FIRST_RETRY_SECONDS
    while (answer := await _attempt(driver, rng, "POST", url, token, body)) is None:
        await asyncio.sleep(pause_seconds * rng.uniform(0.5, 1.0))
        pause_seconds = min(LONGEST_RETRY_SECONDS, pause_seconds * 2)
    return answer


async def _attempt(
    driver: Driver, rng: Random, method: str, url: str, token: str, body: dict[str, Any] | None
) -> Answer | None:
    """Send a request once; returns None if there is no answer or only a temporary error, of one that was too many after
    the time that its answer asks for."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        response = await driver.client.request(method, url, json=body, headers=headers)
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError):
        return None
    if response.status_code == httpx2.codes.TOO_MANY_REQUESTS:
        await asyncio.sleep(float(response.headers.get("retry-after", "1")) * (1 + rng.random() / 2))
        return None
    if response.status_code >= 500 or response.status_code in {408, 425}:
        return None
    try:
        answer = Answer(response.status_code, msgspec.json.decode(response.content or b"{}", type=dict[str, Any]))
    except msgspec.DecodeError:
        answer = Answer(response.status_code, {})
    return answer if answer.status != 404 or answer.is_unknown else None


def _base_url(machine: Machine) -> str:
    return str(machine.user_data.get("register_url", "")).removesuffix("/").removesuffix(REGISTER_PATH)


def _worker_url(machine: Machine, what: str) -> str:
    return f"{_base_url(machine)}/workers/{machine.worker_id}/{what}"
